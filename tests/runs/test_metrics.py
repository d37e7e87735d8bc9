"""The table of metrics, whenever a run is killed or the disk is full; and what W&B is told."""

import os
import sys
import warnings
from unittest import mock

import pytest
from run_metrics import read_csv
from torchrl.record.loggers import wandb as torchrl_wandb

from torchrl_glam.runs.records import metrics
from torchrl_glam.runs.records.metrics import MetricsTable


def read(path):
    return [{k: v for k, v in row.items() if v} for row in read_csv(path)]


def test_rows_are_added_to_the_end_and_new_columns_replace_the_file(tmp_path):
    table = MetricsTable(tmp_path)
    table.add(8, {"loss": 0.5})
    inode = table.path.stat().st_ino
    table.add(16, {"loss": 0.25})
    assert table.path.stat().st_ino == inode
    table.add(24, {"success": 1.0})
    assert table.path.stat().st_ino != inode
    table.add(32, {"loss": 0.125})
    assert table.path.read_text() == "step,loss,success\n8,0.5,\n16,0.25,\n24,,1.0\n32,0.125,\n"
    assert os.listdir(tmp_path) == ["metrics.csv"]


def test_a_loaded_table_replaces_the_file(tmp_path):
    """A killed run has written rows that its checkpoint does not have, the last of them torn."""
    table = MetricsTable(tmp_path)
    table.add(8, {"loss": 0.5})
    state = {"rows": [dict(row) for row in table.rows]}
    table.add(16, {"loss": 0.25})
    with open(table.path, "a") as file:
        file.write("24,0.1")
    resumed = MetricsTable(tmp_path)
    resumed.load_state_dict(state)
    resumed.add(16, {"loss": 0.75})
    assert table.path.read_text() == "step,loss\n8,0.5\n16,0.75\n"


def full(descriptor):
    """The sync of a full disk: of the file that was opened 5 bytes are lost."""
    os.ftruncate(descriptor, max(0, os.fstat(descriptor).st_size - 5))
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("reason", "key"),
    [("No space left", "loss"), ("No space left", "success"), ("No such file", "loss")],
)
def test_what_cannot_be_written_is_warned_of_once_and_costs_no_row(
    reason, key, tmp_path, monkeypatch
):
    """On a full disk, for columns that are there or new; and where the file was taken away."""
    table = MetricsTable(tmp_path)
    table.add(8, {"loss": 0.5})
    if reason == "No such file":
        table.path.unlink()
    else:
        monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UserWarning, match=rf"to .*metrics.csv \(.*{reason}.*\): the run continues"):
        table.add(16, {key: 0.25})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table.add(24, {key: 0.75})
        monkeypatch.undo()
        table.add(32, {key: 1.0})
    expected = [{"step": "8", "loss": "0.5"}, {"step": "16", key: "0.25"}]
    assert read(table.path) == expected + [{"step": "24", key: "0.75"}, {"step": "32", key: "1.0"}]


def test_a_logger_that_fails_is_named_once_and_training_goes_on(tmp_path, monkeypatch):
    broken, sound, full = mock.Mock(), mock.Mock(), OSError(27, "File too large")
    broken.log_scalar.side_effect = [None, full, full, None]
    loggers = {"tensorboard": broken, "csv": sound}
    monkeypatch.setattr(metrics, "get_logger", lambda kind, **_: loggers[kind])
    table = MetricsTable(tmp_path, ["tensorboard", "csv"])
    table.add(8, {"loss": 0.5})
    what = rf"tensorboard in folder '{tmp_path}' \(.*File too large.*\): the run continues"
    with pytest.warns(UserWarning, match=what):
        table.add(16, {"loss": 0.25})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table.add(24, {"loss": 0.125})
        table.add(32, {"loss": 0.0})
    values = {8: 0.5, 16: 0.25, 24: 0.125, 32: 0.0}
    asked = [mock.call("loss", value, step=step) for step, value in values.items()]
    assert broken.log_scalar.mock_calls == sound.log_scalar.mock_calls == asked
    assert len(read(table.path)) == 4


def test_wandb_is_left_to_read_the_environment_itself_and_a_name_there_wins(tmp_path, monkeypatch):
    wandb = mock.MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr(torchrl_wandb, "_has_wandb", True)
    MetricsTable(tmp_path, ["wandb"], "sac_glam")
    told = wandb.init.call_args.kwargs
    assert (told["project"], told["name"]) == (None, "sac_glam")  # None: as the environment says
    assert not {"entity", "mode"} & set(told)
    monkeypatch.setenv("WANDB_NAME", "seed 3")
    MetricsTable(tmp_path, ["csv", "wandb"], "sac_glam").add(32, {"success": 0.5})
    assert wandb.init.call_count == 2  # the other logger is none of its business
    told, [logged] = wandb.init.call_args.kwargs, wandb.init.return_value.log.call_args_list
    assert (told["name"], told["dir"]) == ("seed 3", str(tmp_path))
    assert logged.args[0]["success"] == 0.5
    assert list(tmp_path.glob("sac_glam/**/success.csv"))
    wandb.init.side_effect = RuntimeError("no API key")
    with pytest.raises(ValueError, match="loggers: wandb could not be started: no API key"):
        MetricsTable(tmp_path, ["wandb"])
