"""The sections of gpu.py: each takes its options and a function that takes the figures it finds.

How much of what is possible a pass reaches is its share of the *token bound*: the time that the
tokens which must be read, those of the prompts once and the nodes of the tries once, would take at
the token rate of the floor (the prompts alone, read by the encoder or the decoder-only model), over
the time that the pass took. "read" are the tokens read, padding included, per token that must be.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import bench_scoring
import bench_update
import torch
from safetensors.torch import load_file
from scoring_methods import Case, make_case

from torchrl_glam.models import build_trie

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import gpu_parity  # noqa: E402
from flan_t5 import make_flan_t5, make_tokenizer  # noqa: E402

Report = Callable[[dict[str, Any]], None]
PAPER_STEPS = 400_000
MODELS = ("flan-t5-base", "t5-small", "flan-t5-large", "qwen2-500m")
WIDE = "max_tokens_per_pass=65536"


def machine(options: Namespace, report: Report) -> None:
    """What the device is, and the rates that bound everything else."""
    about = {"torch": torch.__version__, "device": options.device}
    if options.device != "cpu":
        card = torch.cuda.get_device_properties(0)
        about |= {"device": card.name, "memory, GB": card.total_memory / 1e9}
        about["multiprocessors"] = card.multi_processor_count
    report({"name": "device", **about, "4 bits": find_spec("bitsandbytes") is not None})
    size = 256 if options.quick else 8192
    for dtype in (torch.bfloat16, torch.float32):
        a = torch.randn(size, size, device=options.device, dtype=dtype)
        seconds = best(options, lambda: a @ a)  # noqa: B023
        report({"name": f"product, {dtype}", "TFLOP/s": 2 * size**3 / seconds / 1e12})
    if options.device == "cpu":
        return
    batch = torch.zeros(256, 600, dtype=torch.uint8)  # the paper's: transitions of some 600 bytes
    pinned = batch.pin_memory()
    for name, copy in {
        "pageable": lambda: batch.to("cuda", non_blocking=True),  # as batches are drawn
        "pinned": lambda: pinned.to("cuda", non_blocking=True),
        "pinned each time": lambda: batch.pin_memory().to("cuda", non_blocking=True),
    }.items():
        report({"name": f"copy, {name}", "us": best(options, copy) * 1e6})


def tidy() -> None:
    """Leaves the memory of the device to what comes next, which may be another process."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def best(options: Namespace, work: Callable[[], Any], repeats: int = 5) -> float:
    """Seconds of the fastest of several calls, after one that warms up."""
    timing = Namespace(device=options.device, clock="wall")
    work()
    return min(bench_scoring.timed(timing, work) for _ in range(repeats))


def parity(options: Namespace, report: Report) -> None:
    """Differences from the CPU."""
    device = options.device
    checks = {
        f"{kind}, {family}": (getattr(gpu_parity, kind), family)
        for kind in ("scoring", "sac", "ppo")
        for family in (gpu_parity.FAMILIES[1:] if options.quick else gpu_parity.FAMILIES)
    }
    for name, (check, family) in checks.items():
        compare(report, name, check(device, family), 1e-4)
        compare(report, f"{name}, bfloat16", check(device, family, torch.bfloat16), None)
    compare(report, "replay", gpu_parity.replay(device), 0.0)
    compare(report, "rollout with hindsight", gpu_parity.relabelled_rollout(device), 0.0)


def compare(report: Report, name: str, found: dict[str, float], tolerance: float | None) -> None:
    """Reports the largest of some differences, and whether it is within a tolerance, if any."""
    worst = max(found, key=lambda key: (found[key] != found[key], found[key]))
    row = {"name": name, "difference": found[worst], "of": worst}
    report(row if tolerance is None else row | {"within": gpu_parity.within(found, tolerance)})


def four_bit(options: Namespace, report: Report) -> None:
    """Weights in 4 bits: the same scores on the device as on the CPU, and how far from full."""
    if skipped_without_bitsandbytes(report):
        return
    folder = make_flan_t5(options.scratch / "micro")
    found = gpu_parity.four_bit(options.device, folder)
    full = found.pop("4 bits against full")
    if found:
        compare(report, "4 bits, device against CPU", found, 1e-3)
    compare(report, "4 bits against full", {"log_likelihood": full}, None)


def skipped_without_bitsandbytes(report: Report) -> bool:
    if find_spec("bitsandbytes") is None:
        report({"skipped": "bitsandbytes is not installed: no weights in 4 bits"})
        return True
    return False


def resume(options: Namespace, report: Report) -> None:
    """A run that goes on from a checkpoint against the same run unbroken."""
    whole, broken = options.scratch / "whole", options.scratch / "broken"
    settings = ["num_envs=8", "batch_size=32", "update_every=8", "num_updates=2"]
    settings += ["warmup_updates=2", "log_every=80", "eval_every=0", "eval_episodes=8"]
    settings += ["checkpoint_every=80", "loggers=[]", "total_steps=240"]
    settings += ["autocast=false", f"device={options.device}"]
    recipe(options, "sac_glam.py", *settings, f"output={whole}")
    shutil.copytree(whole, broken)
    shutil.rmtree(broken / "model", ignore_errors=True)
    shutil.rmtree(broken / "checkpoints" / "step-000000000240")
    recipe(options, "sac_glam.py", *settings, f"resume={broken}", f"output={broken}")
    ours, expected = (weights(folder / "model") for folder in (broken, whole))
    start = weights(ROOT / "torchrl_glam" / "assets" / "tiny")
    apart, moved = ((a - expected).norm().item() for a in (ours, start))
    # Sums on a GPU are not the same twice, and Adam makes more of it; a lost state is far more.
    report(
        {
            "name": "weights, of the way since the start",
            "difference": apart / moved,
            "within": apart <= 0.05 * moved,
        }
    )


def weights(folder: Path) -> torch.Tensor:
    """All tensors of a model, in one."""
    values = [value for _, value in sorted(load_file(folder / "model.safetensors").items())]
    return torch.cat([value.flatten().double() for value in values])


def recipe(options: Namespace, name: str, *overrides: str) -> None:
    run(options, str(ROOT / "recipes" / name), *overrides)


def run(options: Namespace, *command: str) -> None:
    """Runs a script of this repository; what it printed last is in the error if it fails."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=options.scratch,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()[-8:]
        raise RuntimeError(f"{Path(command[0]).name} ended with {done.returncode}: {said}")


def paper(options: Namespace, report: Report) -> None:
    time_paper(options, report)


def paper_wide(options: Namespace, report: Report) -> None:
    time_paper(options, report, WIDE)


def paper_bfloat16(options: Namespace, report: Report) -> None:
    time_paper(options, report, WIDE, "load_in_4bit=false")


def time_paper(options: Namespace, report: Report, *overrides: str) -> None:
    """Environment steps a second of the paper's configuration, and where the time goes."""
    if "load_in_4bit=false" not in overrides and skipped_without_bitsandbytes(report):
        return
    size = "micro" if options.quick else "base"
    model, out = options.scratch / f"paper-{size}", options.scratch / "profile.json"
    if not (model / "config.json").exists():
        make_flan_t5(model, size)
    folder = options.scratch / f"run-{time.monotonic_ns()}"
    settings = [f"model={model}", f"output={folder}", "loggers=[]", "eval_every=0"]
    settings += ["eval_episodes=1", "checkpoint_every=0"]
    settings += ["total_steps=4000", "log_every=4000", f"device={options.device}"]
    if options.quick:
        settings += ["num_envs=8", "update_every=8", "batch_size=16", "warmup_updates=2"]
        settings += ["env.max_steps=4", "critic_hidden_sizes=[16]"]
    warm, timed = (2, 4) if options.quick else (10, 20)
    script = str(Path(__file__).with_name("profiled_recipe.py"))
    program = [script, str(out), str(warm), str(timed), str(ROOT / "recipes" / "sac_glam.py")]
    run(options, *program, "--config-name", "paper", *settings, *overrides)
    found = json.loads(out.read_text())
    # A round is two updates of what 32 environment steps have brought.
    rate = (8 if options.quick else 32) / (2 * found["seconds an update"])
    report(
        {
            "name": "paper" + "".join(f", {o}" for o in overrides),
            "environment steps a second": rate,
            "hours for 400,000 steps": hours(rate),
            **found,
        }
    )


def hours(steps_per_second: float) -> float:
    """What the paper's run takes at a rate.

    Examples:
        >>> round(hours(100), 2)
        1.11
    """
    return PAPER_STEPS / steps_per_second / 3600


def scoring(options: Namespace, report: Report) -> None:
    methods = ["naive", "repeat", "trie", "trie + embeddings", "floor"]
    for name in ["tiny"] if options.quick else MODELS:
        score(options, report, name, methods)


def scoring_four_bit(options: Namespace, report: Report) -> None:
    if skipped_without_bitsandbytes(report):
        return
    methods = ["trie", "trie + embeddings", "floor"]
    for name in ["tiny"] if options.quick else ("flan-t5-base", "flan-t5-large", "qwen2-500m"):
        score(options, report, name, methods, four_bit=True)


def scoring_compiled(options: Namespace, report: Report) -> None:
    methods = ["trie", "trie + embeddings", "compiled", "floor"]
    # Compiling takes a minute on a CPU, and a compiler that need not be there.
    if options.quick:
        report({"skipped": "quick"})
        return
    score(options, report, "flan-t5-base", methods, compile=True)


def score(
    options: Namespace, report: Report, name: str, methods: list[str], **settings: bool
) -> None:
    """Prompts a second by method, forward and training, and the shares of the bounds."""
    device = options.device
    arguments = argparse.Namespace(
        device=device,
        dtype="float32" if device == "cpu" else "bfloat16",
        batch=4 if options.quick else 128,
        repeats=1 if options.quick else 4,
        seconds=5,
        clock="wall",
        pad=8,
        methods=methods,
        **{"compile": False, "four_bit": False} | settings,
    )
    kind = ", 4 bits" if arguments.four_bit else ""
    for train in (False, True):
        gc.collect()
        try:
            case = make_case(arguments, name, 6, train)
            cells = bench_scoring.measure(arguments, name, 6, train, case)
        except torch.OutOfMemoryError as error:
            report({"name": f"{name}{kind}", "skipped": f"{error}".splitlines()[0]})
            continue
        floor_tokens, counts = count_tokens(case)
        for method in methods:
            cell, floor = cells[method], cells["floor"]
            row = {"name": f"{name}{kind}", "mode": "training" if train else "forward"}
            row |= {"method": method, "prompts/s": arguments.batch / cell.best}
            row |= {"times the floor": cell.best / floor.best, "MiB": cell.memory}
            if method in counts:
                must, read = counts[method]
                row["of the token bound"] = token_bound(must, floor_tokens, floor.best, cell.best)
                row["read"] = read / must
            if cell.flops:
                row["TFLOP/s"] = cell.flops / cell.best / 1e12
            report(row)


def count_tokens(case: Case) -> tuple[int, dict[str, tuple[int, int]]]:
    """Tokens that the floor reads; and by method, those that must be read and those that are."""
    prompts, padded = int(case.prompt_mask.sum()), case.prompt_mask.numel()
    counts = {}
    for method, only in (("trie", "scores"), ("trie + embeddings", None)):
        trie = trie_of(case, only)
        # Without an encoder, the start of the trie is the prompt's last token.
        shared = 0 if case.trunk.base_model.config.is_encoder_decoder else len(trie.valid)
        must = prompts + int(trie.valid.sum()) - shared
        counts[method] = must, padded + trie.valid.numel() - shared
    counts["compiled"] = counts["trie + embeddings"]
    return padded, counts


def trie_of(case: Case, only: str | None):
    """The tries that the trunk builds of the states."""
    trunk = case.trunk
    return build_trie(
        *(case.states["action_tokens"], case.states["action_mask"], trunk._start_id()),
        trunk.prompt.pad_id,
        leaves=only != "scores",
        pad_to_multiple_of=trunk.pad_to_multiple_of,
    )


def token_bound(must: int, floor_tokens: int, floor_seconds: float, seconds: float) -> float:
    """Share of the token bound that a pass reaches: see the module.

    Args:
        must: tokens that must be read.
        floor_tokens, floor_seconds: tokens that the floor reads, and its time.
        seconds: of the pass.

    Examples:
        >>> round(token_bound(120, floor_tokens=100, floor_seconds=0.5, seconds=0.75), 2)
        0.8
    """
    return must * floor_seconds / floor_tokens / seconds


def update(options: Namespace, report: Report) -> None:
    """One SAC update: seconds and memory."""
    device = options.device
    arguments = argparse.Namespace(
        device=device,
        dtype="float32" if device == "cpu" else "bfloat16",
        states=4 if options.quick else 64,
        repeats=1 if options.quick else 3,
        objects=6,
        threads=torch.get_num_threads(),
        tokenizer=make_tokenizer(),
    )
    shared = ("shared", "shared, recomputed")
    plan = [(name, False, (*shared[:1], "naive")) for name in MODELS[:2]]
    plan += [(name, False, shared) for name in MODELS[2:]]
    if find_spec("bitsandbytes") is not None:
        plan += [(name, True, shared) for name in ("flan-t5-base", "flan-t5-large", "qwen2-500m")]
    if options.quick:
        plan = [("tiny", four_bit, shared[:1]) for four_bit in (False, True)]
    for name, arguments.four_bit, methods in plan:
        for method in methods:
            row = {"name": name + ", 4 bits" * arguments.four_bit, "method": method}
            try:
                cell = bench_update.measure(arguments, name, method, True)
            except torch.OutOfMemoryError as error:
                report(row | {"skipped": str(error).splitlines()[0]})
                continue
            row |= {"transitions/s": arguments.states / cell["seconds"]}
            report(row | {"seconds": cell["seconds"], "peak MiB": cell["peak"]})
            gc.collect()
