"""Weights & Biases, as TorchRL's logger calls it, and as it writes when it is there."""

import sys
from types import SimpleNamespace

import pytest
from torchrl.record.loggers import wandb as torchrl_wandb

from torchrl_glam.runs.config import RecipeConfig
from torchrl_glam.runs.config.base import WandbConfig
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


def test_where_a_run_is_logged_is_told(started, tmp_path):
    settings = WandbConfig(project="glam", entity="team", mode="offline", name="seed 3")
    table = MetricsTable(tmp_path, ["wandb"], "sac_glam", wandb=vars(settings))
    [(run, told)] = started
    assert {key: told[key] for key in vars(settings)} == vars(settings)
    assert told["dir"] == str(tmp_path)
    table.add(32, {"success": 0.5})
    assert [payload["success"] for payload in run.logged] == [0.5]


def test_what_is_not_told_is_left_to_its_own_settings(started, tmp_path):
    MetricsTable(tmp_path, ["wandb"], "sac_glam", wandb=vars(WandbConfig()))
    [(_, told)] = started
    assert told["project"] is None and not {"entity", "mode"} & set(told)
    assert told["name"] == "sac_glam"


def test_other_loggers_are_not_told(started, tmp_path):
    MetricsTable(tmp_path, ["csv"], "sac_glam", wandb={"name": "seed 3"}).add(32, {"loss": 0.5})
    assert started == [] and list(tmp_path.glob("sac_glam/**/loss.csv"))


def test_a_mode_that_is_none_is_refused():
    config = RecipeConfig(wandb=WandbConfig(mode="away"))
    with pytest.raises(ValueError, match=r"wandb.mode \(away\) must be null or one of \('online'"):
        config.check()


def test_wandb_itself_writes_offline(tmp_path):
    pytest.importorskip("wandb")
    settings = {"project": "glam", "mode": "offline", "name": "seed 3"}
    table = MetricsTable(tmp_path, ["wandb"], wandb=settings)
    table.add(32, {"success": 0.5})
    table._loggers["wandb"].experiment.finish()
    [log] = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    content = log.read_bytes()
    assert b"success" in content and b"seed 3" in content and b"glam" in content
