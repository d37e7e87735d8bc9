"""Weights & Biases, as TorchRL's logger calls it, and as it writes when it is there."""

import sys
from types import SimpleNamespace

import pytest
from torchrl.record.loggers import wandb as torchrl_wandb

from torchrl_glam.runs.records.metrics import MetricsTable

SETTINGS = {"project": "glam", "entity": "team", "mode": "offline", "name": "seed 3"}


@pytest.fixture
def told_by_environment(monkeypatch):
    for key, value in SETTINGS.items():
        monkeypatch.setenv(f"WANDB_{key.upper()}", value)


@pytest.fixture
def started(monkeypatch):
    """What each run was told that was started by ``wandb.init``, and what it logged."""
    runs = []

    def init(**told):
        told["logged"] = []
        runs.append(told)
        return SimpleNamespace(
            id="run",
            config=SimpleNamespace(update=lambda *_, **__: None),
            define_metric=lambda *_, **__: None,
            log=lambda payload, **_: told["logged"].append(payload["success"]),
        )

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    monkeypatch.setattr(torchrl_wandb, "_has_wandb", True)
    return runs


def test_where_a_run_is_logged_is_told(started, told_by_environment, tmp_path):
    MetricsTable(tmp_path, ["csv", "wandb"], "sac_glam").add(32, {"success": 0.5})
    [told] = started  # the other logger is none of its business
    assert {key: told[key] for key in SETTINGS} == SETTINGS
    assert told["dir"] == str(tmp_path) and told["logged"] == [0.5]
    assert list(tmp_path.glob("sac_glam/**/success.csv"))


def test_what_is_not_told_is_left_to_its_own_settings(started, tmp_path):
    MetricsTable(tmp_path, ["wandb"], "sac_glam")
    [told] = started
    assert told["project"] is None and not {"entity", "mode"} & set(told)
    assert told["name"] == "sac_glam"


@pytest.mark.slow
def test_wandb_itself_writes_offline(told_by_environment, tmp_path):
    pytest.importorskip("wandb")
    table = MetricsTable(tmp_path, ["wandb"])
    table.add(32, {"success": 0.5})
    table._loggers["wandb"].experiment.finish()
    [log] = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    content = log.read_bytes()
    assert b"success" in content and b"seed 3" in content and b"glam" in content
