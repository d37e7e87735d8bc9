"""`benchmarks/gpu.py`: that it runs, that one failure loses nothing, and its arithmetic by hand."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import failing_sections
import pytest

BENCHMARKS = Path(__file__).parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import gpu  # noqa: E402
import gpu_sections  # noqa: E402
from profiled_recipe import busy_share, kind_of  # noqa: E402


def test_a_quick_run_on_the_cpu(tmp_path):
    """Of two sections; `parity` is run by `test_gpu.py`, `resume` by the recipes' own tests."""
    sections = ["machine", "paper"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu.py"), "--device", "cpu", "--quick"]
        + ["--seconds", "900", "--output", str(tmp_path), "--sections", *sections],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert done.returncode == 0, (records, done.stderr[-2000:])
    assert {record["section"] for record in records} == {*sections, "seconds"}
    [paper] = [record for record in records if record["section"] == "paper"]
    # Two updates a round, and eight environment steps in one of the quick run.
    rate = 8 / (2 * paper["seconds an update"])
    assert paper["environment steps a second"] == pytest.approx(rate)
    table = (tmp_path / "results.md").read_text()
    assert all(f"## {section}\n" in table for section in sections)


def test_scoring_and_update():
    options, found = argparse.Namespace(device="cpu", quick=True), []
    gpu_sections.score(options, found.append, "tiny", ["trie", "floor"], four_bit=True)
    assert [row["method"] for row in found] == ["trie", "floor"] * 2
    for row in found[::2]:
        # Prompts of 86 to 94 tokens and tries of 21 or so nodes, with a little padding.
        assert 1 <= row["read"] < 1.2 and row["of the token bound"] > 0
    found.clear()
    gpu_sections.update(options, found.append)
    assert [row["name"] for row in found] == ["tiny", "tiny, 4 bits"]
    assert all(row["transitions/s"] > 0 for row in found)


def test_what_fails_loses_no_other_section(monkeypatch):
    monkeypatch.setattr(gpu, "serve", failing_sections.serve)
    worker = gpu.Worker(argparse.Namespace())
    found = {
        name: list(worker.run(name, seconds=60 if name != "never ends" else 1))
        for name in ("first", "fails", "dies", "never ends", "last")
    }
    worker.end()
    assert found == {
        "first": [{"name": "first"}],
        "fails": [{"name": "fails"}, {"failed": "of itself"}],
        "dies": [{"failed": "the process ended with status 3"}],
        "never ends": [{"failed": "ended after 1 s"}],
        "last": [{"name": "last"}],
    }


def test_what_is_written_when_it_is_found(tmp_path):
    results = gpu.Results(tmp_path)
    results.add("parity", {"name": "scoring", "difference": 1e-6, "within": True})
    assert not results.failed
    results.add("parity", {"name": "sac", "difference": 0.5, "within": False})
    assert results.failed
    first, second = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert first["difference"] == 1e-6 and second["within"] is False
    assert "| sac | 0.5 | NO |" in (tmp_path / "results.md").read_text()


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (True, "yes"), (12345.6, "12,346"), (0.00012345, "0.0001234"), ("a|b", "a\\|b")],
)
def test_figures_in_tables(value, shown):
    assert gpu.cell(value) == shown


def test_a_time_above_zero_is_asked_for(capsys):
    with pytest.raises(SystemExit):
        gpu.parse(["--seconds", "0"])
    assert "--seconds (0.0) must be above 0" in capsys.readouterr().err


def test_arithmetic_by_hand():
    # 400,000 steps at 100 a second are 4,000 s.
    assert gpu_sections.hours(100) == pytest.approx(4000 / 3600)
    # The floor reads 100 tokens in 0.5 s, so 120 take 0.6 s at its rate: 0.8 of 0.75 s.
    assert gpu_sections.token_bound(120, 100, 0.5, 0.75) == pytest.approx(0.8)
    # From 0 to 50: busy from 0 to 20 and from 40 to 50; overlaps count once.
    assert busy_share([(40, 70), (0, 10), (5, 20)], 0, 50) == 0.6
    assert kind_of("void cutlass_80_bf16_gemm") == "matrix products" and kind_of("x") == "other"
