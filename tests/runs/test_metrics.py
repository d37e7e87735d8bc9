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


@pytest.mark.parametrize("columns", ["same", "new"])
def test_a_full_disk_is_warned_of_once_and_costs_no_row(columns, tmp_path, monkeypatch):
    table = MetricsTable(tmp_path)
    table.add(8, {"loss": 0.5})
    monkeypatch.setattr(os, "fsync", full)
    key = "loss" if columns == "same" else "success"
    with pytest.warns(UserWarning, match=r"to .*metrics.csv \(.*No space.*\): the run continues"):
        table.add(16, {key: 0.25})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table.add(24, {key: 0.75})
        monkeypatch.undo()
        table.add(32, {key: 1.0})
    expected = [{"step": "8", "loss": "0.5"}, {"step": "16", key: "0.25"}]
    assert read(table.path) == expected + [{"step": "24", key: "0.75"}, {"step": "32", key: "1.0"}]


def test_a_file_that_was_taken_away_is_written_whole(tmp_path):
    table = MetricsTable(tmp_path)
    table.add(8, {"loss": 0.5})
    table.path.unlink()
    with pytest.warns(UserWarning, match="metrics.csv"):
        table.add(16, {"loss": 0.25})
    table.add(24, {"loss": 0.125})
    assert [row["step"] for row in read(table.path)] == ["8", "16", "24"]


def test_a_logger_that_fails_is_named_once_and_training_goes_on(tmp_path, monkeypatch):
    broken, sound, full = mock.Mock(), mock.Mock(), OSError(27, "File too large")
    broken.log_scalar.side_effect = [None, full, full, None]
    loggers = {"tensorboard": broken, "csv": sound}
    monkeypatch.setattr(metrics, "get_logger", lambda kind, **_: loggers[kind])
    table = MetricsTable(tmp_path, ["tensorboard", "csv"])
    table.add(8, {"loss": 0.5})
    what = (
        rf"the logger tensorboard in folder '{tmp_path}' \(.*File too large.*\): the run continues"
    )
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


def test_a_logger_that_cannot_start_is_named(tmp_path, monkeypatch):
    no_key = mock.Mock(side_effect=RuntimeError("no API key"))
    monkeypatch.setattr(metrics, "get_logger", no_key)
    with pytest.raises(ValueError, match="loggers: wandb could not be started: no API key"):
        MetricsTable(tmp_path, ["wandb"])


SETTINGS = {"project": "glam", "entity": "team", "mode": "offline", "name": "seed 3"}


@pytest.fixture
def started(monkeypatch):
    """What stands for ``wandb.init``."""
    wandb = mock.MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr(torchrl_wandb, "_has_wandb", True)
    return wandb.init


def test_where_a_run_is_logged_is_told(started, monkeypatch, tmp_path):
    for key, value in SETTINGS.items():
        monkeypatch.setenv(f"WANDB_{key.upper()}", value)
    MetricsTable(tmp_path, ["csv", "wandb"], "sac_glam").add(32, {"success": 0.5})
    started.assert_called_once()  # the other logger is none of its business
    told, [logged] = started.call_args.kwargs, started.return_value.log.call_args_list
    assert {key: told[key] for key in SETTINGS} == SETTINGS
    assert told["dir"] == str(tmp_path) and logged.args[0]["success"] == 0.5
    assert list(tmp_path.glob("sac_glam/**/success.csv"))


def test_what_is_not_told_is_left_to_its_own_settings(started, tmp_path):
    MetricsTable(tmp_path, ["wandb"], "sac_glam")
    [(_, told)] = started.call_args_list
    assert told["project"] is None and not {"entity", "mode"} & set(told)
    assert told["name"] == "sac_glam"
