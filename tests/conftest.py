"""Settings and fixtures that every test shares."""

import pytest
import torch


def pytest_addoption(parser):
    parser.addoption(
        "--kills", type=int, default=8, help="how often tests/recipes/test_faults.py kills a run"
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
