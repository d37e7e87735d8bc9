"""`benchmarks/gpu.py` and the benchmarks that it runs, on small shapes and the CPU."""

import runpy
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

GPU = Path(__file__).parent / "benchmarks" / "gpu.py"


@pytest.fixture
def gpu(monkeypatch):
    """What the program defines."""
    monkeypatch.syspath_prepend(GPU.parent)
    return runpy.run_path(str(GPU))


@pytest.fixture
def plan(gpu, tmp_path):
    """The command of each section."""
    sections = ["paper", "scoring", "update", "update_four_bit"]
    return gpu["commands"](Namespace(device="cpu", quick=True, sections=sections), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("scoring", ["prompts/s", "trie + embeddings"]),
        ("update", ["largest difference", "naive, vmap"]),
        ("update_four_bit", ["largest difference", "LoRA"]),
    ],
)
def test_a_quick_benchmark_on_the_cpu(plan, section, said, monkeypatch, capsys):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # cells are forks of this process
    monkeypatch.setattr(sys, "argv", plan[section])
    runpy.run_path(plan[section][0], run_name="__main__")
    torch.set_num_threads(threads)
    out = capsys.readouterr().out
    assert all(words in out for words in said)


@pytest.mark.slow
def test_a_section_is_a_process_of_its_own(gpu, plan, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    fine = gpu["run_section"]("paper", plan["paper"], tmp_path, 240)
    said = (tmp_path / "paper.txt").read_text()
    assert fine and "s an update; " in said and "time/" in said, said[-3000:]


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
