"""What a run of SAC-GLAM takes on this machine: memory, and seconds of each part of a round.

    python tests/benchmarks/bench_recipe.py --processes 1 2               # the quickstart, torchrun
    python tests/benchmarks/bench_recipe.py total_steps=640 log_every=320       # a smoke run

Runs ``recipes/sac_glam.py`` and prints, of the last logged stretch, what a user would wait for.
With several processes, each has its share of environments and batch, and the speed is compared with
that of the first number.
"""

import argparse
import csv
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHORT = ["total_steps=2560", "log_every=1280", "warmup_updates=1"]
QUIET = ["eval_every=0", "eval_episodes=1", "checkpoint_every=0", "loggers=[]"]


def run(processes: int, overrides: list[str], scratch: Path) -> dict[str, float]:
    """The last row of the run's metrics."""
    command = [sys.executable, str(ROOT / "recipes" / "sac_glam.py")]
    if processes > 1:
        torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
        command = [sys.executable, *torchrun, *command[1:]]
    output = scratch / f"run{processes}"
    command += [f"output={output}", *SHORT, *QUIET, *overrides]
    subprocess.run(command, check=True)
    with open(output / "metrics.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("time/update")]
    return {name: float(value) for name, value in rows[-1].items() if value}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", nargs="+", type=int, default=[1])
    parser.add_argument("overrides", nargs="*", help="keys of the configuration, key=value")
    arguments = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as scratch:
        options = (arguments.overrides, Path(scratch))
        rows = {number: run(number, *options) for number in arguments.processes}
    speed = rows[arguments.processes[0]]["steps_per_second"]
    for number, row in rows.items():
        parts = {name: value for name, value in row.items() if name.startswith("time/")}
        print(
            f"{number} process{'es' * (number > 1)}: {row['steps_per_second']:.2f} steps/s "
            f"({row['steps_per_second'] / speed:.2f}), {row['updates_per_second']:.3f} updates/s; "
            + ", ".join(f"{name.removeprefix('time/')} {t:.4f} s" for name, t in parts.items())
        )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"peak memory of a process {peak:.1f} GiB")


if __name__ == "__main__":
    main()
