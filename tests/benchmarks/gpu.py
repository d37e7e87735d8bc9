"""Parity with the CPU, speed and memory on a GPU, in one command.

    python tests/benchmarks/gpu.py                                    # everything: ten minutes
    python tests/benchmarks/gpu.py --sections parity paper            # some sections
    python tests/benchmarks/gpu.py --device cpu --quick --output DIR  # small shapes: a smoke run

Each section is a command of its own, so one that fails, or takes longer than its limit, loses no
other. What it prints is written to ``<output>/<section>.txt``. The exit status is 1 if a section
failed. Models have random weights on architectures of the named sizes; nothing is downloaded.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(ROOT)]

from flan_t5 import make_flan_t5  # noqa: E402

PAPER = {"paper": [], "paper_bfloat16": ["load_in_4bit=false"]}


def commands(options: argparse.Namespace, scratch: Path) -> dict[str, list[str]]:
    """Arguments of Python for each section, in order of worth."""
    where = ["--device", options.device]
    dtype = where + ["--dtype", "float32" if options.device == "cpu" else "bfloat16"]
    small = ["--models", "tiny", "--repeats", "1"]
    scoring, update = ["--batch", "128"], ["--states", "64"]
    if options.quick:
        scoring, update = ["--batch", "4", *small], ["--states", "4", *small, "--train", "lora"]
    tests = ["-m", "pytest", "-q", str(ROOT / "tests" / "test_gpu.py")]
    lora = ["--four-bit", "--methods", "shared"]  # the other updates in float32: equal losses
    found = {
        "parity": tests + ([] if options.device == "cpu" else ["-m", "gpu"]),
        **{name: paper(options, scratch, more) for name, more in PAPER.items()},
        "scoring": [str(HERE / "bench_scoring.py"), *dtype, *scoring],
        "scoring_four_bit": [str(HERE / "bench_scoring.py"), *dtype, *scoring, "--four-bit"],
        "update": [str(HERE / "bench_update.py"), *where, *update],
        "update_four_bit": [str(HERE / "bench_update.py"), *dtype, *update, *lora],
    }
    return {name: found[name] for name in found if name in options.sections}


def paper(options: argparse.Namespace, scratch: Path, more: list[str]) -> list[str]:
    """Rounds of the paper's configuration on Flan-T5-base's shapes, updates included."""
    size, rounds = ("micro", ["1", "2"]) if options.quick else ("base", ["10", "20"])
    model = scratch / size
    if not model.exists():
        make_flan_t5(model, size)
    run = scratch / f"run-{time.monotonic_ns()}"
    settings = [f"model={model}", f"output={run}", f"device={options.device}", "loggers=[]"]
    settings += ["eval_every=0", "eval_episodes=1", "checkpoint_every=0"]
    settings += ["total_steps=4000", "log_every=4000", *more]
    if options.quick:
        settings += ["num_envs=8", "update_every=8", "batch_size=16", "warmup_updates=2"]
        settings += ["env.max_steps=4", "critic_hidden_sizes=[16]"]
    recipe = [str(ROOT / "recipes" / "sac_glam.py"), "--config-name", "paper"]
    return [str(HERE / "timed_recipe.py"), *rounds, *recipe, *settings]


def run_section(name: str, command: list[str], folder: Path, seconds: float) -> bool:
    """Runs a section and writes what it prints; whether it succeeded."""
    started, path = time.monotonic(), folder / f"{name}.txt"
    with path.open("w") as file:
        try:
            done = subprocess.run(
                [sys.executable, *command], stdout=file, stderr=subprocess.STDOUT, timeout=seconds
            )
            status = f"exit status {done.returncode}"
        except subprocess.TimeoutExpired:
            status = f"stopped after {seconds:.0f} s"
    print(
        f"== {name}: {status}, {time.monotonic() - started:.0f} s\n{path.read_text()}", flush=True
    )
    return status == "exit status 0"


def main() -> None:
    sections = ["parity", *PAPER, "scoring", "scoring_four_bit", "update", "update_four_bit"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small shapes: a smoke run")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu"), help="folder of results")
    parser.add_argument("--sections", nargs="+", default=sections, choices=sections)
    parser.add_argument("--seconds", type=float, default=240, help="limit of each section")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        plan = commands(options, Path(scratch))
        fine = [run_section(n, plan[n], options.output, options.seconds) for n in plan]
    sys.exit(not all(fine))


if __name__ == "__main__":
    main()
