"""Weights & Biases, as TorchRL's logger calls it, and as it writes when it is there."""

import sys
from types import SimpleNamespace

import pytest
from torchrl.record.loggers import wandb as torchrl_wandb

from torchrl_glam.runs.records.metrics import MetricsTable


class FakeRun:
    """What wandb.init returns, as far as TorchRL asks for it."""

    id = "run"

    def __init__(self):
        self.config, self.logged = SimpleNamespace(update=lambda *_, **__: None), []

    def define_metric(self, *_, **__):
        pass

    def log(self, payload, **_):
        self.logged.append(payload)


@pytest.fixture
def started(monkeypatch):
    """The runs that were started, each with what wandb.init was told."""
    runs = []

    def init(**told):
        runs.append((FakeRun(), told))
        return runs[-1][0]

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    monkeypatch.setattr(torchrl_wandb, "_has_wandb", True)
    return runs


SETTINGS = {"project": "glam", "entity": "team", "mode": "offline", "name": "seed 3"}


@pytest.fixture
def told_by_environment(monkeypatch):
    for key, value in SETTINGS.items():
        monkeypatch.setenv(f"WANDB_{key.upper()}", value)


def test_where_a_run_is_logged_is_told(started, told_by_environment, tmp_path):
    table = MetricsTable(tmp_path, ["wandb"], "sac_glam")
    [(run, told)] = started
    assert {key: told[key] for key in SETTINGS} == SETTINGS
    assert told["dir"] == str(tmp_path)
    table.add(32, {"success": 0.5})
    assert [payload["success"] for payload in run.logged] == [0.5]


def test_what_is_not_told_is_left_to_its_own_settings(started, tmp_path):
    MetricsTable(tmp_path, ["wandb"], "sac_glam")
    [(_, told)] = started
    assert told["project"] is None and not {"entity", "mode"} & set(told)
    assert told["name"] == "sac_glam"


def test_other_loggers_are_not_told(started, told_by_environment, tmp_path):
    MetricsTable(tmp_path, ["csv"], "sac_glam").add(32, {"loss": 0.5})
    assert started == [] and list(tmp_path.glob("sac_glam/**/loss.csv"))


@pytest.mark.slow
def test_wandb_itself_writes_offline(told_by_environment, tmp_path):
    pytest.importorskip("wandb")
    table = MetricsTable(tmp_path, ["wandb"])
    table.add(32, {"success": 0.5})
    table._loggers["wandb"].experiment.finish()
    [log] = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    content = log.read_bytes()
    assert b"success" in content and b"seed 3" in content and b"glam" in content
