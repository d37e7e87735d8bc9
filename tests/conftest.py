"""Settings and fixtures that every test shares."""

import gc
import runpy
import sys
from pathlib import Path

import pytest
import torch

RECIPES = Path(__file__).parents[1] / "recipes"


def pytest_addoption(parser):
    parser.addoption(
        "--kills", type=int, default=5, help="how often tests/recipes/test_faults.py kills a run"
    )


def pytest_configure(config):
    if hasattr(config, "workerinput"):  # one of several processes, a core each
        torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Seed what fixtures of a whole module draw: they are made before any fixture of one test."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _seeded():
    """Start every test from the same global torch generator, whatever ran before it."""
    torch.manual_seed(0)


def pytest_terminal_summary(terminalreporter):
    """Counts the hostile folders, of all processes."""
    passed = terminalreporter.stats.get("passed", ())
    if hostile := sum("hostile" in report.keywords for report in passed):
        terminalreporter.write_line(
            f"{hostile} hostile folders: none ran code, wrote or read outside, hung or died"
        )


@pytest.fixture(scope="session")
def tokenizer():
    from torchrl_glam.models import load_tokenizer  # slow to import

    return load_tokenizer("tiny")


@pytest.fixture
def here(tmp_path, monkeypatch, capfd):
    """Runs a recipe in this process and an empty folder: its exit status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(name, *arguments):
        from hydra.core.config_store import ConfigStore  # slow to import

        path = str(RECIPES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        if name in ("evaluate", "watch", "play"):  # `model` is a group of recipes that train
            monkeypatch.delitem(ConfigStore.instance().repo, "model", raising=False)
        status = 0
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            status = end.code
        gc.collect()  # what a process would let go of at its end
        return status, *capfd.readouterr()

    return run


@pytest.fixture
def succeeds(here):
    """Runs a recipe here without an error; its output."""

    def run(name, *arguments):
        status, said, wrong = here(name, *arguments)
        assert status == 0, said + wrong
        return said

    return run


@pytest.fixture
def refused(here):
    """Runs a recipe here that ends by an error; the line that says so."""

    def run(name, *arguments):
        status, _, wrong = here(name, *arguments)
        assert status in (1, 2), wrong
        return wrong.strip().splitlines()[-1]

    return run
