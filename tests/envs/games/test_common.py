"""What the games have in common, which needs none of their packages."""

import shutil
from types import SimpleNamespace

import pytest

from torchrl_glam.envs.games.common import side_by_side


def test_simulators_share_the_process_of_the_first(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda command: command)
    start = lambda: SimpleNamespace(server="first", process=[])  # noqa: E731
    served = [f"server {number}" for number in (2, 3)]
    simulators = side_by_side(start, lambda first: served.pop(0), 3)
    assert [each.server for each in simulators] == ["first", "server 2", "server 3"]
    assert all(each.process is simulators[0].process for each in simulators)
    with pytest.raises(ValueError, match=r"num_envs \(0\) must be at least 1"):
        side_by_side(pytest.fail, None, 0)


def test_a_machine_without_java_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda command: None)
    with pytest.raises(FileNotFoundError, match="no command java, .* install Java"):
        side_by_side(pytest.fail, None, 1)
