"""Makes a small language model for a text environment: tokenizer, weights, loss curve and report.

    python recipes/pretrain.py env=babyai env.level=GoToObj output=models/gotoobj
    python recipes/pretrain.py env=my_module:MyEnv output=models/mine    # any text environment
    python recipes/pretrain.py --multirun +games=small                   # one for each of several
    python recipes/pretrain.py --config-name tiny                        # the embedded model

The model reads words and transcripts of random play (:mod:`torchrl_glam.pretraining`), and never a
reward, a goal reached or what to do for a goal. The folder that this writes is what ``model=`` of
the other recipes takes. A report at the end compares the untrained policy with a uniform one and
its success with random play. Where the environment knows shortest plans, it also tells how fast a
throw-away copy learns from demonstrations of them, which measures what the model understands.

The keys are explained in the files of recipes/config/pretrain.
"""

import copy
import csv
import json
import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure
from omegaconf import DictConfig
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm
from transformers import T5Config, T5ForConditionalGeneration

from torchrl_glam.models import CandidateActor, EncoderDecoderTrunk, export_agent
from torchrl_glam.models.export import check_no_export
from torchrl_glam.pretraining import (
    GameExercises,
    PlaygroundExercises,
    Reading,
    encode_readings,
    imitate,
    make_tokenizer,
    make_word_tokenizer,
    reading_loss,
    record_play,
)
from torchrl_glam.report.games import read_report
from torchrl_glam.runs.config import read_config, register
from torchrl_glam.runs.config.pretrain import PretrainConfig
from torchrl_glam.runs.device import (
    KeepFloat32,
    bound_kernel_caches,
    choose_autocast,
    keep_freed_memory,
)
from torchrl_glam.runs.environments import CPU, make_bare_env, make_env
from torchrl_glam.runs.evaluation import evaluate
from torchrl_glam.runs.files import reserved
from torchrl_glam.runs.program import program
from torchrl_glam.runs.records.process import describe_process
from torchrl_glam.runs.run_folder import METRICS, RunIsDone, require_same_config
from torchrl_glam.text import describe_env, draw_admissible

register("pretrain", PretrainConfig, Path(__file__).parent / "config")
LOSSES, REPORT = "loss.csv", "report.json"  # the first and the last result that is written
RESULTS = (LOSSES, "loss.png", REPORT)
TRANSCRIPTS_EVERY = 4  # batches of exercises about words from one of transcripts to the next


def read_game(config: PretrainConfig, **options: Any) -> tuple[GameExercises, dict[str, float]]:
    """Exercises about transcripts of random play, and figures of that play."""
    env = make_bare_env(config.tasks(), config.tasks().num_envs, config.seed)
    moves = record_play(env, config.num_steps, seed=config.seed)
    env.close()
    figures = {
        "steps_of_play": len(moves),
        "candidates": round(fmean(len(move.actions) for move in moves), 2),
        "most_candidates": max(len(move.actions) for move in moves),
    }
    return GameExercises(moves, seed=config.seed, **options), figures


def read_playground(config: PretrainConfig) -> tuple[Iterator[list[Reading]], dict[str, float]]:
    """Exercises about Playground-Text's words, with transcripts of random play if asked for."""
    words = PlaygroundExercises(config.seed, config.questions)
    if not config.num_steps:
        return iter(partial(words, config.batch_size), None), {"steps_of_play": 0}
    transcripts, figures = read_game(config, questions=1, weights={"outcome": 1.0})

    # one question each, so twice as many prompts take about the same time
    size, every = config.batch_size, TRANSCRIPTS_EVERY
    return (transcripts(2 * size) if i % every == 0 else words(size) for i in count(1)), figures


def make_model(config: PretrainConfig, tokenizer) -> T5ForConditionalGeneration:
    """A fresh T5 with tied embeddings; untied ones learn several times slower at this size."""
    sizes = config.pick("d_model", "d_ff", "num_heads", "num_layers", "num_decoder_layers")
    return T5ForConditionalGeneration(
        T5Config(
            **sizes,
            vocab_size=len(tokenizer),
            d_kv=config.d_model // config.num_heads,
            dropout_rate=0.0,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=tokenizer.pad_token_id,
        )
    )


def make_optimizers(config: PretrainConfig, model) -> list[torch.optim.Optimizer]:
    """Muon for the matrices; Adam for embeddings, position biases and norms.

    Embeddings are drawn with standard deviation 1 and matrices with a tenth of it, so one rate for
    both would leave the words where they were drawn: with Adam alone at 2e-3, 600 batches reach
    0.63 nats a token, with its own rate for embeddings 0.51, with Muon 0.35.
    """
    tables = [p for n, p in model.named_parameters() if p.dim() < 2 or "relative_attention" in n]
    tables.append(model.get_input_embeddings().weight)
    apart = {id(table) for table in tables}
    matrices = [p for p in model.parameters() if id(p) not in apart]
    return [
        torch.optim.Muon(matrices, lr=config.lr, weight_decay=0.01),
        torch.optim.Adam(tables, lr=config.lr_embeddings, betas=(0.9, 0.98), fused=True),
    ]


def rate(config: PretrainConfig, batch: int) -> float:
    """Share of the peak learning rate: up for 100 batches, level, then down to 0."""
    left = 1 - batch / config.num_batches
    return min(1.0, batch / 100, left / config.decay)


@torch.no_grad()
def normalised_entropy(trunk, env, num_states: int) -> float:
    """Entropy of the policy over that of the uniform one, where there is a choice."""
    length = -(-num_states // env.batch_size[0])
    play = TensorDictModule(draw_admissible, ["action_mask"], ["action"])
    states = env.rollout(length, play, break_when_any_done=False).flatten()[:num_states]
    choices = states["action_mask"].sum(-1)
    states, choices = states[choices > 1], choices[choices > 1]
    entropy = CandidateActor().get_dist(trunk(states)).entropy()
    return (entropy / choices.log()).mean().item()


def imitation(config: PretrainConfig, model, tokenizer, make) -> dict[str, float]:
    """Success, by split, of a throw-away copy that has imitated some steps of the shortest plan."""
    torch.manual_seed(0)
    autocast = choose_autocast(config.autocast, CPU)
    trunk = EncoderDecoderTrunk(
        copy.deepcopy(model), tokenizer, autocast=autocast, pad_to_multiple_of=4
    )
    oracle = describe_env(make(num_envs=1)).make_oracle()
    env = make(num_envs=64, keep=oracle.in_keys)
    env.set_seed(0)
    imitate(trunk, env, oracle, config.imitate_steps)
    policy = TensorDictSequential(trunk, CandidateActor())
    splits = {split: make(split=split, num_envs=config.episodes) for split in config.eval_splits}
    return {split: evaluate(policy, env, seed=1)["success"] for split, env in splits.items()}


def report(config: PretrainConfig, model, tokenizer) -> dict[str, float | list[float]]:
    """What the model can do before any reinforcement learning."""
    out, make = {}, partial(make_env, config.tasks(), tokenizer)
    trunk = EncoderDecoderTrunk(model, tokenizer)
    policy = TensorDictSequential(trunk, CandidateActor())
    for split in config.eval_splits:
        env = make(split=split, num_envs=config.episodes)
        out[f"{split}/entropy"] = normalised_entropy(trunk, env, config.entropy_states)
        out[f"{split}/zero_shot_success"] = evaluate(policy, env, seed=1)["success"]
        out[f"{split}/random_success"] = evaluate(None, env, seed=1)["success"]
        env.close()
    if config.imitate_steps:
        for split, success in imitation(config, model, tokenizer, make).items():
            out[f"{split}/imitation"] = [success]
    return out


@program(config_path="config/pretrain", config_name="quickstart")
def main(cfg: DictConfig) -> None:
    config = read_config(PretrainConfig, cfg)
    output, results = Path(config.output), Path(config.results)
    made = results / REPORT
    # A run that was killed leaves it empty.
    if not config.overwrite and made.exists() and made.stat().st_size:
        require_same_config(read_report(made)["settings"], asdict(config), ("overwrite",), made)
        raise RunIsDone(f"{output} is done")
    if (output / METRICS).exists():
        raise ValueError(f"output ({config.output}) is the folder of a run: choose another")
    check_no_export(output, models=not (results / LOSSES).exists())  # made elsewhere
    with (
        reserved(output, "config.json", overwrite=True),
        reserved(results, *RESULTS, key="results", overwrite=True),
    ):
        pretrain(config, output, results)


def pretrain(config: PretrainConfig, output: Path, results: Path) -> None:
    """Trains a model, exports it, and writes what it learned and can do."""
    bound_kernel_caches()
    keep_freed_memory()
    torch.manual_seed(config.seed)

    # 1. Random play, turned into exercises, and a tokenizer with its words
    if config.exercises == "playground":
        tokenizer = make_tokenizer()
        readings, figures = read_playground(config)
    else:
        exercises, figures = read_game(config, questions=config.questions)
        tokenizer = make_word_tokenizer(exercises.texts(), config.vocabulary)
        readings = iter(partial(exercises, config.batch_size), None)
    for split in config.eval_splits:  # that a text is too long for the report is said now
        env = make_env(config.tasks(), tokenizer, num_envs=1, split=split)
        env.rollout(4)
    known = not config.imitate_steps or describe_env(env).make_oracle is not None
    config.require("imitate_steps", known, f"be 0: {config.env_class} knows no shortest plans")
    model = make_model(config, tokenizer)
    model.set_attn_implementation("eager")  # on the CPU the fused kernel goes backward slowly
    num_parameters = sum(p.numel() for p in model.parameters())

    # 2. Training
    optimizers = make_optimizers(config, model)
    schedules = [LambdaLR(optimizer, partial(rate, config)) for optimizer in optimizers]
    autocast = choose_autocast(config.autocast, CPU)
    curve, total, start = [], 0.0, time.perf_counter()
    bar = tqdm(range(1, config.num_batches + 1), desc="pretrain", mininterval=5)
    for batch in bar:
        encoded = encode_readings(tokenizer, next(readings))
        with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
            loss = reading_loss(model, encoded)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            with nullcontext() if autocast else KeepFloat32():  # Muon's products
                optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        total += loss.item()
        if not math.isfinite(total):
            raise FloatingPointError(f"the loss is not finite at batch {batch}: lower lr")
        if batch % config.log_every == 0:
            seconds = time.perf_counter() - start
            curve.append((batch, total / config.log_every, round(seconds, 1)))
            bar.set_postfix(loss=f"{curve[-1][1]:.3f}")
            total = 0.0

    # 3. The model, its loss curve, and what it can do.
    model.eval()
    about = "words and goals of the training split, and " * (config.exercises == "playground")
    steps = figures["steps_of_play"]
    model.config.pretraining = f"{about}{steps:,} steps of random play; no labels of the task"
    export_agent(output, model, tokenizer, overwrite=True)
    with open(results / LOSSES, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["batch", "nats_per_token", "seconds"])
        writer.writerows(curve)
    axes = Figure().subplots()
    axes.plot([row[0] for row in curve], [row[1] for row in curve])
    axes.set(xlabel="batch", ylabel="loss (nats a token)")
    axes.figure.savefig(results / "loss.png", dpi=100, bbox_inches="tight")
    summary = {
        **describe_process(),
        "seed": config.seed,
        "parameters": num_parameters,
        "seconds": round(time.perf_counter() - start, 1),
        "loss": curve[-1][1] if curve else None,
        **figures,
        **report(config, model, tokenizer),
        "settings": asdict(config),
    }
    (results / REPORT).write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
