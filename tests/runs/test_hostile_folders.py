"""A run's folder from elsewhere: nothing in it runs code, leads out of it, or waits for ever."""

import os
import shutil
import signal
from pathlib import Path

import pytest
import tensordict
import torch
from tensordict import NonTensorData, TensorDict
from torchrl.checkpoint import CheckpointError
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from torchrl_glam.runs.checkpoints.adapters import StateDictAdapter
from torchrl_glam.runs.checkpoints.manager import CheckpointManager
from torchrl_glam.runs.run_folder import claimed

pytestmark = pytest.mark.hostile


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (Path(self.mark),)


@pytest.fixture(autouse=True)
def _ends():
    """Ends a test that waits at a pipe for ever."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.fixture
def trap(tmp_path):
    """A memory-mapped tensordict whose loading runs code, and the file that then appears."""
    folder, mark = tmp_path / "trap", tmp_path / "ran"
    data = {"a": torch.zeros(2), "tensor_00000000": NonTensorData(Payload(mark))}
    TensorDict(data, batch_size=[]).memmap(folder)
    tensordict.load(folder)
    assert mark.exists(), "no trap: loading it by itself must run its code"
    mark.unlink()
    return folder, mark


def objects():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=2)
    buffer.extend(TensorDict({"x": torch.arange(4)}, [4]))
    return {"buffer": buffer, "model": torch.nn.Linear(2, 1), "counters": {"frames": 1}}


@pytest.fixture
def run(tmp_path):
    CheckpointManager(tmp_path / "run").save(1, objects(), {})
    (tmp_path / "run" / "config.yaml").write_text("seed: 0")
    return tmp_path / "run"


def claim(run):
    with claimed(run, resume=True):
        pass


def component(step, name):
    return next((step / "components").glob(f"*-{name}"))


def link_instead(path, target):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(target)


def whole_checkpoint(step, trap):
    elsewhere = trap.parent / "elsewhere"
    shutil.copytree(step, elsewhere)
    shutil.copytree(trap, component(elsewhere, "model") / "state")
    link_instead(step, elsewhere)


def pipe(name):
    def damage(step, trap):
        (step / name).unlink(missing_ok=True)
        os.mkfifo(step / name)

    return damage


def manifest(text):
    return lambda step, trap: (step / "manifest.json").write_text(text)


def manifest_with(old, new):
    def damage(step, trap):
        text = (step / "manifest.json").read_text()
        assert old in text
        (step / "manifest.json").write_text(text.replace(old, new))

    return damage


LINK, AWAY, DAMAGED = "is a symbolic link", "Unsafe archive member", "manifest.json is damaged"
SETTINGS = '"config": {}', '"config": []'
CHECKPOINTS = {
    "a manifest that is a list": (manifest("[]"), DAMAGED),
    "a deep manifest": (manifest("[" * 100_000), "nested too deeply"),
    "a pipe of a manifest": (pipe("manifest.json"), "pipe"),
    "settings that are a list": (manifest_with(*SETTINGS), "'list' object has no attribute"),
    "state of the model": (lambda s, t: link_instead(component(s, "model") / "state", t), LINK),
    "the checkpoint": (whole_checkpoint, LINK),
    "an unknown name": (lambda s, t: (s / "more").symlink_to(t), LINK),
    "another pipe": (pipe("components/pipe"), "pipe"),
    "a hole": (
        lambda s, t: os.truncate(component(s, "buffer") / "rows.tdc", 2**40),
        "rows.tdc of 1,099,511,627,776 bytes is all but emp",
    ),
    "a path up": (manifest_with("components/0003-model", "../../.."), AWAY),
    "a path elsewhere": (manifest_with("components/0003-model", "/tmp"), AWAY),
}


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_a_checkpoint_that_leads_elsewhere_or_hangs_is_refused_unread(case, run, trap):
    (damage, message), (folder, mark) = CHECKPOINTS[case], trap
    damage(run / "checkpoints" / "step-000000000001", folder)
    with pytest.raises(CheckpointError, match=message):
        CheckpointManager(run).load(objects(), {})
    assert not mark.exists()


def test_an_older_checkpoint_that_no_save_could_read_is_told_of_at_once(run, trap):
    CheckpointManager(run).save(2, objects(), {})
    manifest("[]")(run / "checkpoints" / "step-000000000001", trap)
    with pytest.raises(CheckpointError, match=f"step-000000000001: {DAMAGED}"):
        CheckpointManager(run).load(objects(), {})


def test_a_state_in_a_format_with_pickles_is_never_opened(tmp_path, trap):
    """Where the sums are right and the names too: the adapter itself opens one format only."""
    folder, mark = trap
    model = torch.nn.Linear(2, 1)
    StateDictAdapter().save(model, tmp_path / "saved", args=(), kwargs={})
    shutil.copytree(folder, tmp_path / "saved" / "state")
    options = {"map_location": "cpu", "tensor_load_kwargs": {}, "args": (), "kwargs": {}}
    with pytest.raises(ValueError, match="state is never loaded, expected state.tdc"):
        StateDictAdapter().load(model, tmp_path / "saved", **options)
    assert not mark.exists()


WRITTEN = ["metrics.csv", "report.html", "run.json", "run.lock", "sac_glam/scalars/loss.csv"]
FOLDERS = ["checkpoints", "model"]
PLACES = [(name, "link") for name in (*WRITTEN, *FOLDERS)] + [(name, "pipe") for name in WRITTEN]


@pytest.mark.parametrize(("name", "kind"), PLACES)
def test_what_a_resumed_run_writes_must_be_plain_files(name, kind, run, tmp_path):
    target = tmp_path / "target"
    target.write_text("precious")
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        link_instead(run / name, tmp_path if name in FOLDERS else target)
    else:
        os.mkfifo(run / name)
    with pytest.raises(ValueError, match=rf"{Path(name).name} is a .*{kind}"):
        claim(run)
    assert target.read_text() == "precious"


def test_folders_may_be_a_thousand_deep(run):
    deep = [run]
    for _ in range(1100):
        deep.append(deep[-1] / "d")
        deep[-1].mkdir()
    claim(run)
    for folder in reversed(deep[1:]):  # pytest would recurse
        folder.rmdir()


def test_a_run_given_by_a_link_is_the_users_own_wish(run, tmp_path):
    (tmp_path / "latest").symlink_to(run)
    claim(tmp_path / "latest")
    assert CheckpointManager(tmp_path / "latest").load(objects(), {}) == 1
