"""`benchmarks/gpu.py` and the benchmarks that it runs, on small shapes and the CPU."""

import runpy
import sys
from argparse import Namespace
from pathlib import Path

import pytest

GPU = Path(__file__).parent / "benchmarks" / "gpu.py"


@pytest.fixture
def gpu(monkeypatch):
    """What the program defines."""
    monkeypatch.syspath_prepend(GPU.parent)
    return runpy.run_path(str(GPU))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("paper", ["s an update; ", "time/"]),
        ("scoring", ["prompts/s", "trie + embeddings"]),
        ("update", ["largest difference", "naive, vmap"]),
        ("update_four_bit", ["largest difference", "LoRA"]),
    ],
)
def test_a_quick_section_on_the_cpu(gpu, section, said, tmp_path, monkeypatch):
    """In a process of its own."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    plan = gpu["commands"](Namespace(device="cpu", quick=True, sections=[section]), tmp_path)
    fine = gpu["run_section"](section, plan[section], tmp_path, 240)
    out = (tmp_path / f"{section}.txt").read_text()
    assert fine and all(words in out for words in said), out[-3000:]


def test_a_section_that_takes_too_long_loses_no_other(gpu, tmp_path, monkeypatch, capsys):
    plan = {"scoring": ["-c", "import time; time.sleep(60)"], "update": ["-c", "print('done')"]}
    monkeypatch.setitem(gpu["main"].__globals__, "commands", lambda *_: plan)
    options = ["--output", str(tmp_path), "--sections", *plan, "--seconds", "1"]
    monkeypatch.setattr(sys, "argv", [str(GPU), *options])
    with pytest.raises(SystemExit) as ended:
        gpu["main"]()
    out = capsys.readouterr().out
    assert ended.value.code == 1
    assert "scoring: stopped after 1 s" in out and "update: exit status 0" in out
