"""What the games have in common, which needs none of their packages."""

import shutil
from types import SimpleNamespace

import pytest

from torchrl_glam.envs.games.common import check_java, side_by_side


def test_simulators_share_the_process_of_the_first():
    first, served = SimpleNamespace(server="first", process=[]), ["third", "second"]
    simulators = side_by_side(first, served.pop, 3)
    assert [each.server for each in simulators] == ["first", "second", "third"]
    assert all(each.process is first.process for each in simulators)
    with pytest.raises(ValueError, match=r"num_envs \(0\) must be at least 1"):
        side_by_side(first, served.pop, 0)


def test_a_machine_without_java_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda command: None)
    with pytest.raises(FileNotFoundError, match="no command java, .* install Java"):
        check_java()
