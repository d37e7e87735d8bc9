"""All that must be known on a CUDA card, in under nine minutes, written as it is found.

    python tests/benchmarks/gpu.py                                    # a card, all sections
    python tests/benchmarks/gpu.py --sections parity paper            # some of them
    python tests/benchmarks/gpu.py --device cpu --quick --output DIR  # small shapes, a minute

Sections, in order of worth:

- machine: the card, its rate in one large product, its copies from pinned and pageable memory;
- parity: scores, losses, gradients and replay against the CPU, in float32 (1e-4) and bfloat16;
- four_bit: weights in 4 bits against the same in full, there and on the CPU;
- resume: a run broken off and gone on with, against the same unbroken;
- paper, paper_wide, paper_bfloat16: environment steps a second of
  `recipes/sac_glam.py --config-name paper` on Flan-T5-base's shapes, updates included, where the
  time goes, and the hours that 400,000 steps would take: as configured, with 65,536 tokens a pass,
  with weights in bfloat16 instead of 4 bits;
- scoring, scoring_four_bit, scoring_compiled: prompts a second by method, forward and training, and
  the share of the token bound reached (see gpu_sections.py);
- update: one SAC update, wired on a shared trunk and as DiscreteSACLoss has it.

Random weights on architectures of the named sizes; nothing is downloaded. `results.jsonl` has a
line a figure, as soon as it is there, and `results.md` the same as tables. Sections run in a
process of their own, which is ended when a section takes more than its time and begun anew after an
error, so that one that fails loses no other. The exit status is 1 if one failed or a difference was
above its tolerance.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# Most seconds that each may take; they are not all needed. In order of worth.
SECTIONS = {
    "machine": 240,  # with all that is imported
    "parity": 90,
    "four_bit": 60,
    "resume": 90,
    "paper": 100,
    "paper_wide": 80,
    "scoring": 120,
    "paper_bfloat16": 80,
    "update": 80,
    "scoring_four_bit": 60,
    "scoring_compiled": 120,
}
Record = dict[str, Any]


def serve(connection: Connection, options: argparse.Namespace) -> None:
    """The process that runs sections, by name, and sends what they find."""
    os.setsid()  # so that it is ended together with the recipes that it starts
    here = Path(__file__).resolve().parent
    sys.path[:0] = [str(here), str(here.parents[1])]  # installed or not
    sections = importlib.import_module("gpu_sections")  # torch is not needed in the other process
    for name in iter(connection.recv, None):
        try:
            getattr(sections, name)(options, connection.send)
            sections.tidy()
            connection.send(None)
        except Exception as error:
            connection.send({"failed": describe(error)})
            connection.send(None)
            return  # after an error of CUDA's, nothing can be done in this process


def describe(error: Exception) -> str:
    """What went wrong, and where in this repository."""
    here = str(Path(__file__).parents[2])
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(here)]
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:600]}{where}"


class Worker:
    """The process that runs sections, begun when there is one to run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self._process: multiprocessing.process.BaseProcess | None = None

    def run(self, section: str, seconds: float) -> Iterator[Record]:
        """What a section finds, as it finds it; the last is ``failed`` if something went wrong."""
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._connection, other = context.Pipe()
            self._process = context.Process(target=serve, args=(other, self.options))
            self._process.start()
            other.close()
        self._connection.send(section)
        deadline = time.monotonic() + seconds
        while True:
            if not self._connection.poll(max(0.0, deadline - time.monotonic())):
                self.end()
                yield {"failed": f"ended after {seconds:.0f} s"}
                return
            try:
                record = self._connection.recv()
            except EOFError:
                self._process.join()
                status = self._process.exitcode
                self.end()
                yield {"failed": f"the process ended with status {status}"}
                return
            if record is None:
                return
            yield record
            if "failed" in record:
                self.end()
                return

    def end(self) -> None:
        """Ends the process, and the recipes that it has started."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.kill()
        self._process.join()
        self._process = None


class Results:
    """Figures by section, on the disk as soon as they are known."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.records = folder, []
        (folder / "results.jsonl").unlink(missing_ok=True)

    def add(self, section: str, record: Record) -> None:
        record = {"section": section, **record}
        self.records.append(record)
        with open(self.folder / "results.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")
        (self.folder / "results.md").write_text(tables(self.records))
        print(json.dumps(record), flush=True)

    @property
    def failed(self) -> bool:
        """Whether a section failed, or a difference was above its tolerance."""
        return any("failed" in r or r.get("within") is False for r in self.records)


def tables(records: list[Record]) -> str:
    """A table for each section, with a column for each figure that one of its lines has.

    Examples:
        >>> print(tables([{"section": "speed", "name": "trie", "ms": 1.23456}]))
        ## speed
        <BLANKLINE>
        | name | ms |
        |---|---|
        | trie | 1.235 |
        <BLANKLINE>
    """
    lines = []
    for section in dict.fromkeys(record["section"] for record in records):
        rows = [r for r in records if r["section"] == section]
        columns = [c for c in dict.fromkeys(key for row in rows for key in row) if c != "section"]
        lines += [f"## {section}", "", row_of(columns), "|---" * len(columns) + "|"]
        lines += [row_of([cell(row.get(column)) for column in columns]) for row in rows] + [""]
    return "\n".join(lines)


def row_of(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cell(value: Any) -> str:
    """A figure as a table shows it.

    Examples:
        >>> cell(None), cell(1234567.0), cell(0.00012345), cell({"sample": 0.25}), cell(True)
        ('', '1,234,567', '0.0001234', 'sample 0.25', 'yes')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, dict):
        return ", ".join(f"{key} {cell(item)}" for key, item in value.items())
    if isinstance(value, (int, float)):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return str(value).replace("|", "\\|")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small shapes: a smoke run")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu"), help="folder of results")
    parser.add_argument("--sections", nargs="+", default=list(SECTIONS), choices=SECTIONS)
    parser.add_argument("--seconds", type=float, default=530, help="for everything together")
    options = parser.parse_args(arguments)
    options.output = options.output.absolute()
    if not 0 < options.seconds < float("inf"):
        parser.error(f"--seconds ({options.seconds}) must be above 0 and finite")
    return options


def main() -> None:
    options = parse()
    started, results, worker = time.monotonic(), Results(options.output), Worker(options)
    with tempfile.TemporaryDirectory() as scratch:
        options.scratch = Path(scratch)
        for section in [name for name in SECTIONS if name in options.sections]:
            left = options.seconds - (time.monotonic() - started)
            if left < 5:
                results.add(section, {"skipped": "no time left"})
                continue
            begun = time.monotonic()
            # A smoke run may share its processor with anything.
            most = SECTIONS[section] * (10 if options.quick else 1)
            for record in worker.run(section, min(left, most)):
                results.add(section, record)
            results.add("seconds", {"name": section, "seconds": time.monotonic() - begun})
        worker.end()
    print(f"\n{tables(results.records)}\nWritten to {options.output}")
    sys.exit(1 if results.failed else 0)


if __name__ == "__main__":
    main()
