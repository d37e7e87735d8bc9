"""Who may write to a run's folder, what must not be there, and what is left behind."""

import os
import signal

import pytest

from torchrl_glam.training.checkpointing import CheckpointManager
from torchrl_glam.training.files import replace_file
from torchrl_glam.training.run_folder import RunFolder


@pytest.fixture
def other_run(tmp_path):
    """Another process with a claim on the folder "run"; yields its id."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            folder = RunFolder(tmp_path / "run")
            folder.claim(resume=False)
            os.write(tell, b"1")
            signal.pause()
        finally:
            os._exit(1)
    assert os.read(ready, 1) == b"1"
    yield child
    for end in (ready, tell):
        os.close(end)
    if child in _children():
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _children():
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        return [int(child) for child in file.read().split()]


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_run_in_the_folder_is_refused(resume, other_run, tmp_path):
    where = rf"run' is in use by another run \(process {other_run} on .*\): wait"
    with pytest.raises(BlockingIOError, match=where):
        RunFolder(tmp_path / "run").claim(resume=resume)
    with pytest.raises(BlockingIOError, match=where):
        CheckpointManager(tmp_path / "run").prepare(resume=False)


def test_the_claim_of_a_killed_run_ends(other_run, tmp_path):
    os.kill(other_run, signal.SIGKILL)
    os.waitpid(other_run, 0)
    RunFolder(tmp_path / "run").claim(resume=False)


def test_a_fork_does_not_give_the_folder_back(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.claim(resume=False)
    child = os.fork()
    if child == 0:
        folder.release()
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(BlockingIOError, match=f"process {os.getpid()} "):
        RunFolder(tmp_path / "run").claim(resume=False)


def test_a_run_that_saved_nothing_leaves_nothing(tmp_path):
    manager = CheckpointManager(tmp_path / "runs" / "sac" / "run")
    manager.prepare(resume=False)
    assert (tmp_path / "runs" / "sac" / "run").is_dir()
    del manager
    assert list(tmp_path.iterdir()) == []


def test_folders_that_were_there_before_stay(tmp_path):
    (tmp_path / "runs" / "run").mkdir(parents=True)
    folder = RunFolder(tmp_path / "runs" / "run")
    folder.claim(resume=False)
    folder.release()
    assert list((tmp_path / "runs" / "run").iterdir()) == []


def test_a_run_that_saved_leaves_that_and_no_lock(tmp_path):
    manager = CheckpointManager(tmp_path / "run")
    manager.prepare(resume=False)
    manager.save(3, {"counters": {}}, {})
    del manager
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoints"]
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step_00000003"]


@pytest.mark.parametrize(
    "held",
    [
        "metrics.csv",
        "config.yaml",
        "report.html",
        "run.json",
        "model/model.safetensors",
        "model.safetensors",
        "pytorch_model-00001-of-00002.bin",
        "adapter_config.json",
        "checkpoints/step_00000010/manifest.json",
        "checkpoints/damaged_step_00000010/manifest.json",
        "checkpoints/step_00000010_replaced/manifest.json",
    ],
)
def test_a_new_run_does_not_overwrite_what_the_folder_holds(held, tmp_path):
    (tmp_path / held).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / held).write_text("precious")
    name = held.split("/")[0]
    with pytest.raises(FileExistsError, match=rf"holds {name}, which a new run would .*`output`"):
        CheckpointManager(tmp_path).prepare(resume=False)
    assert (tmp_path / held).read_text() == "precious"
    assert not (tmp_path / "run.lock").exists()


def test_a_folder_with_other_things_may_hold_a_run(tmp_path):
    (tmp_path / "train.log").write_text("a redirected log")
    CheckpointManager(tmp_path).prepare(resume=False)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "metrics.csv"
    replace_file(path, "old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
