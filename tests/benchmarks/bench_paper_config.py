"""The paper's configuration on this machine: memory and seconds of each step.

Runs ``recipes/sac_glam.py --config-name paper`` for a few rounds of updates on the architecture of
Flan-T5-base with random weights (made here, no hub), and prints what a user would wait for.

    python tests/benchmarks/bench_paper_config.py
    python tests/benchmarks/bench_paper_config.py load_in_4bit=false total_steps=640
"""

import csv
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from flan_t5 import make_flan_t5  # noqa: E402


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        model = make_flan_t5(Path(scratch) / "flan-t5-base", "base")
        run = Path(scratch) / "run"
        command = [sys.executable, str(ROOT / "recipes" / "sac_glam.py"), "--config-name", "paper"]
        command += [f"model={model}", f"output={run}", "total_steps=512", "log_every=32"]
        command += ["warmup_updates=1", "eval_every=0", "eval_episodes=1"]
        command += ["checkpoint_every=0", "loggers=[]", *sys.argv[1:]]
        subprocess.run(command, check=True)
        with open(run / "metrics.csv", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("time/update")]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"peak memory {peak:.1f} GiB")
    for row in rows:
        print(
            f"step {row['step']}: update {float(row['time/update']):.1f} s, "
            f"{float(row['updates_per_second']):.3f} updates/s, "
            f"{float(row['steps_per_second']):.2f} steps/s, loss_qvalue {row['loss_qvalue']}"
        )


if __name__ == "__main__":
    main()
