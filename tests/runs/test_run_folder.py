"""Who may write to a run's folder, what must not be there, and what is left behind."""

import os
import signal
from unittest import mock

import pytest

from torchrl_glam.runs.files import replace_file
from torchrl_glam.runs.run_folder import claimed


def claim(run, *, resume):
    with claimed(run, resume=resume):
        pass


def test_another_run_in_the_folder_is_refused_until_the_first_is_killed(tmp_path):
    run, (ready, tell) = tmp_path / "run", os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with claimed(run, resume=False):
                (run / "config.yaml").touch()
                os.write(tell, b"1")
                signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(ready, 1) == b"1"
        with pytest.raises(BlockingIOError, match="run' is in use by another run: wait"):
            claim(run, resume=True)
        with pytest.raises(FileExistsError, match="holds config.yaml"):
            claim(run, resume=False)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    claim(run, resume=True)


def test_a_run_that_saved_nothing_leaves_what_was_there(tmp_path):
    log = tmp_path / "old" / "train.log"
    log.parent.mkdir()
    log.write_text("a redirected log")
    for run in (tmp_path / "new" / "sac" / "run", log.parent):
        with claimed(run, resume=False):
            assert run.is_dir()
    assert [*tmp_path.rglob("*")] == [log.parent, log]


@pytest.mark.parametrize(
    "held",
    [
        *("metrics.csv", "config.yaml", "report.html", "run.json", "model/model.safetensors"),
        *("model.safetensors", "pytorch_model-00001-of-00002.bin", "adapter_config.json"),
        "checkpoints/step-000000000010/manifest.json",
    ],
)
def test_a_new_run_does_not_overwrite_what_the_folder_holds(held, tmp_path):
    (tmp_path / held).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / held).write_text("precious")
    name = held.split("/")[0]
    with pytest.raises(FileExistsError, match=rf"output .* holds {name}, which a new run would"):
        claim(tmp_path, resume=False)
    assert (tmp_path / held).read_text() == "precious"
    assert not (tmp_path / "run.lock").exists()


@pytest.mark.parametrize("place", ["nowhere", "."])
def test_what_holds_no_run_cannot_be_resumed(place, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"resume \(.*\) must be the folder of a run"):
        claim(tmp_path / place, resume=True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_folder_is_found_at_the_start(tmp_path):
    (tmp_path / "run").write_text("a file, no folder")
    with pytest.raises(OSError, match="cannot write .*give as `output` a folder that can be"):
        claim(tmp_path / "run", resume=False)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "metrics.csv"
    replace_file(path, "old")
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
