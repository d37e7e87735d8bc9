"""Makes the embedded language model ``tiny``: tokenizer, weights, loss curve and report.

Run ``python recipes/pretrain_tiny.py`` (``--help`` lists the settings). The training text is random
play of Playground-Text turned into reading exercises (:mod:`torchrl_glam.pretraining`): no
exercise shows what to do for a goal. At the end a report says how close to uniform the untrained
policy is, how often it succeeds beside random play, and how fast a throw-away copy learns from
demonstrations of the shortest plan, which measures what the model understands.
"""

from __future__ import annotations

import copy
import csv
import json
import platform
import sys
import time
from pathlib import Path

import hydra
import matplotlib.pyplot as plt
import torch
from hydra.core.config_store import ConfigStore
from tensordict.nn import TensorDictSequential
from torchrl.envs import TransformedEnv
from tqdm import tqdm
from transformers import T5Config, T5ForConditionalGeneration

from torchrl_glam.envs import OraclePolicy, PlaygroundTextEnv, TokenizeText, token_lengths
from torchrl_glam.models import CandidateActor, EncoderDecoderTrunk
from torchrl_glam.pretraining import (
    Exercises,
    encode_readings,
    imitate,
    make_tokenizer,
    reading_loss,
)
from torchrl_glam.training.config import PretrainConfig
from torchrl_glam.training.evaluation import evaluate
from torchrl_glam.training.memory import bound_kernel_caches

ConfigStore.instance().store(name="pretrain_tiny_schema", node=PretrainConfig)


def make_model(config: PretrainConfig, tokenizer) -> T5ForConditionalGeneration:
    """A fresh T5 with tied embeddings; untied ones learn several times slower at this size."""
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=len(tokenizer),
            d_model=config.d_model,
            d_kv=config.d_model // config.num_heads,
            d_ff=config.d_ff,
            num_layers=config.num_layers,
            num_decoder_layers=config.num_decoder_layers,
            num_heads=config.num_heads,
            relative_attention_num_buckets=32,
            relative_attention_max_distance=128,
            dropout_rate=0.0,
            tie_word_embeddings=True,
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
    """Entropy of the policy over admissible actions, divided by that of the uniform one."""
    steps = env.rollout(-(-num_states // env.batch_size[0]), break_when_any_done=False)
    states = steps.flatten()[:num_states]
    entropy = CandidateActor().get_dist(trunk(states)).entropy()
    return (entropy / states["action_mask"].sum(-1).log()).mean().item()


def make_envs(config: PretrainConfig, tokenizer, paper: bool) -> dict[str, TransformedEnv]:
    """The paper's task or the simplified one: to collect from, and to evaluate on both splits."""

    def make(num_envs: int, split: str) -> TransformedEnv:
        env = PlaygroundTextEnv(
            num_envs=num_envs,
            num_objects=6 if paper else 3,
            split=split,
            sequential=paper,
            max_steps=16 if paper else 10,
            seed=config.seed,
        )
        return TransformedEnv(env, TokenizeText(tokenizer, **token_lengths(env, tokenizer)))

    sizes = {"collect": (64, "train"), "train": (config.episodes, "train")}
    sizes["test"] = (config.episodes, "test")
    return {name: make(*size) for name, size in sizes.items()}


def imitation(config: PretrainConfig, model, tokenizer, envs, seed: int) -> dict[str, float]:
    """Success, by split, of a throw-away copy that has imitated some steps of the shortest plan."""
    torch.manual_seed(seed)
    trunk = EncoderDecoderTrunk(
        copy.deepcopy(model),
        tokenizer,
        autocast=torch.bfloat16 if config.autocast else None,
        pad_to_multiple_of=4,
    )
    env = envs["collect"]
    env.set_seed(seed)
    oracle = OraclePolicy(env.base_env.goals)
    imitate(
        trunk,
        env,
        oracle,
        config.imitate_steps,
        batch_size=config.imitate_batch_size,
        lr=config.imitate_lr,
    )
    policy = TensorDictSequential(trunk, CandidateActor())
    return {split: evaluate(policy, envs[split], seed=1)["success"] for split in ("train", "test")}


def report(config: PretrainConfig, model, tokenizer) -> dict[str, float | list[float]]:
    """What the model can do before any reinforcement learning."""
    out = {}
    trunk = EncoderDecoderTrunk(model, tokenizer)
    policy = TensorDictSequential(trunk, CandidateActor())
    for name in ("simple", "paper"):
        envs = make_envs(config, tokenizer, paper=name == "paper")
        out[f"{name}/entropy"] = normalised_entropy(trunk, envs["collect"], config.entropy_states)
        out[f"{name}/zero_shot_success"] = evaluate(policy, envs["train"], seed=1)["success"]
        out[f"{name}/random_success"] = evaluate(None, envs["train"], seed=1)["success"]
    results = [
        imitation(config, model, tokenizer, envs, seed) for seed in range(config.imitate_seeds)
    ]
    for split in ("train", "test"):
        out[f"paper/imitation/{split}"] = [result[split] for result in results]
    return out


@hydra.main(version_base=None, config_path="config", config_name="pretrain_tiny")
def main(config: PretrainConfig) -> None:
    bound_kernel_caches()
    torch.manual_seed(config.seed)
    tokenizer = make_tokenizer()
    model = make_model(config, tokenizer)
    model.set_attn_implementation("eager")  # on the CPU the fused kernel goes backward slowly
    num_parameters = sum(p.numel() for p in model.parameters())

    # 1. Random play, turned into exercises: by task, objects, and how often of ten batches. Words
    # and combinations that the training goals hold out are read as often as others.
    sources, order = [], []
    for index, (split, objects, times) in enumerate(
        [("train", 6, 4), ("test", 6, 4), ("train", 3, 1), ("test", 3, 1)]
    ):
        env = PlaygroundTextEnv(
            num_envs=config.batch_size,
            num_objects=objects,
            split=split,
            sequential=objects > 3,
            seed=config.seed + index,
        )
        exercises = Exercises(env.goals, seed=config.seed + index, questions=config.questions)
        sources.append([env, env.reset(), exercises])
        order += [index] * times

    # 2. Training
    optimizers = make_optimizers(config, model)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda batch: rate(config, batch))
        for optimizer in optimizers
    ]
    curve, total, start = [], 0.0, time.perf_counter()
    bar = tqdm(range(1, config.num_batches + 1), desc="pretrain tiny", mininterval=5)
    for batch in bar:
        source = sources[order[batch * 3 % len(order)]]  # 3: splits take turns
        env, state, exercises = source
        source[1] = env.step_and_maybe_reset(env.rand_action(state))[1]
        readings = encode_readings(tokenizer, exercises(state))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=config.autocast):
            loss = reading_loss(model, readings)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        total += loss.item()
        if batch % config.log_every == 0:
            seconds = time.perf_counter() - start
            curve.append((batch, total / config.log_every, round(seconds, 1)))
            bar.set_postfix(loss=f"{curve[-1][1]:.3f}")
            total = 0.0

    # 3. The model, its loss curve, and what it can do.
    model.eval()
    output, results = Path(config.output), Path(config.results)
    output.mkdir(parents=True, exist_ok=True)
    results.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    with open(results / "loss.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["batch", "nats_per_token", "seconds"])
        writer.writerows(curve)
    plt.plot([row[0] for row in curve], [row[1] for row in curve])
    plt.xlabel("batch")
    plt.ylabel("loss (nats a token)")
    plt.savefig(results / "loss.png", dpi=100, bbox_inches="tight")
    summary = {
        "command": " ".join(["python", *sys.argv]),
        "seed": config.seed,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "parameters": num_parameters,
        "seconds": curve[-1][2] if curve else None,
        "loss": curve[-1][1] if curve else None,
        **report(config, model, tokenizer),
    }
    (results / "report.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
