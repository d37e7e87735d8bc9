"""`benchmarks/gpu.py` and the benchmarks that it runs, on small shapes and the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent / "benchmarks"


def run_benchmark(name, *arguments):
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_quick_run_on_the_cpu(tmp_path):
    sections = ["paper", "scoring", "update", "update_four_bit"]
    options = ["--device", "cpu", "--quick", "--output", tmp_path, "--sections", *sections]
    done = run_benchmark("gpu.py", *options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    found = {name: (tmp_path / f"{name}.txt").read_text() for name in sections}
    assert "s an update; " in found["paper"] and "time/" in found["paper"]
    assert "prompts/s" in found["scoring"] and "trie + embeddings" in found["scoring"]
    assert "largest difference" in found["update"] and "naive, vmap" in found["update"]


@pytest.mark.slow
def test_a_section_that_takes_too_long_loses_no_other(tmp_path):
    options = ["--device", "cpu", "--quick", "--output", tmp_path, "--seconds", "0.1"]
    done = run_benchmark("gpu.py", *options, "--sections", "scoring", "update")
    assert done.returncode == 1
    assert all(f"{name}: stopped after 0 s" in done.stdout for name in ("scoring", "update"))
