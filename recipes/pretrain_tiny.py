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
from dataclasses import dataclass
from pathlib import Path

import hydra
import matplotlib.pyplot as plt
import torch
from hydra.core.config_store import ConfigStore
from tensordict.nn import TensorDictSequential
from torch import Tensor
from torchrl.envs import TransformedEnv
from tqdm import tqdm
from transformers import T5Config, T5ForConditionalGeneration

from torchrl_glam.envs import OraclePolicy, PlaygroundTextEnv, TokenizeText
from torchrl_glam.envs.tokenize import playground_lengths
from torchrl_glam.models import CandidateActor, EncoderDecoderTrunk
from torchrl_glam.pretraining import Exercises, make_tokenizer
from torchrl_glam.training.evaluation import evaluate


@dataclass
class PretrainConfig:
    """Types of ``config/pretrain_tiny.yaml``, where every key is explained."""

    seed: int
    output: str
    results: str
    num_batches: int
    batch_size: int
    lr: float
    max_grad_norm: float
    autocast: bool
    d_model: int
    d_ff: int
    num_heads: int
    num_layers: int
    num_decoder_layers: int
    log_every: int
    entropy_states: int
    episodes: int
    clone_batches: int


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


def exercise_loss(model, tokenizer, pairs: list[tuple[str, str]]) -> Tensor:
    """Cross-entropy a token, in nats."""
    source, target = (
        tokenizer(list(texts), return_tensors="pt", padding=True)
        for texts in zip(*pairs, strict=True)
    )
    labels = target.input_ids.masked_fill(target.attention_mask == 0, -100)
    return model(
        input_ids=source.input_ids, attention_mask=source.attention_mask, labels=labels
    ).loss


@torch.no_grad()
def normalised_entropy(trunk, env, num_states: int) -> float:
    """Entropy of the policy over admissible actions, divided by that of the uniform one."""
    steps = env.rollout(-(-num_states // env.batch_size[0]), break_when_any_done=False)
    states = steps.flatten()[:num_states]
    entropy = CandidateActor().get_dist(trunk(states)).entropy()
    return (entropy / states["action_mask"].sum(-1).log()).mean().item()


def clone_oracle(model, tokenizer, env, eval_env, num_batches: int, lr: float = 5e-4) -> float:
    """Success of a throw-away copy after imitating the shortest plan on batches of 64."""
    trunk = EncoderDecoderTrunk(copy.deepcopy(model), tokenizer)
    oracle = OraclePolicy(env.base_env.goals)
    optimizer = torch.optim.Adam(trunk.parameters(), lr=lr)
    length = -(-num_batches * 64 // env.batch_size[0])
    steps = env.rollout(length, oracle, break_when_any_done=False).flatten()
    order = torch.randperm(steps.shape[0])[: num_batches * 64]
    for batch in tqdm(steps[order].split(64), desc="clone the oracle"):
        scores = trunk(batch)["log_likelihood"].masked_fill(~batch["action_mask"], -1e9)
        loss = torch.nn.functional.cross_entropy(scores, batch["action"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return evaluate(TensorDictSequential(trunk, CandidateActor()), eval_env, seed=1)["success"]


def report(config: PretrainConfig, model, tokenizer) -> dict[str, float]:
    """What the model can do before any reinforcement learning."""
    out = {}
    trunk = EncoderDecoderTrunk(model, tokenizer)
    policy = TensorDictSequential(trunk, CandidateActor())
    for name, objects, sequential, max_steps in (("simple", 3, False, 10), ("paper", 6, True, 16)):
        env, eval_env = (
            TransformedEnv(
                env := PlaygroundTextEnv(
                    num_envs=num_envs,
                    num_objects=objects,
                    sequential=sequential,
                    max_steps=max_steps,
                    seed=config.seed,
                ),
                TokenizeText(tokenizer, **playground_lengths(env, tokenizer)),
            )
            for num_envs in (64, config.episodes)
        )
        out[f"{name}/entropy"] = normalised_entropy(trunk, env, config.entropy_states)
        out[f"{name}/zero_shot_success"] = evaluate(policy, eval_env, seed=1)["success"]
        out[f"{name}/random_success"] = evaluate(None, eval_env, seed=1)["success"]
        if name == "simple":
            cloned = clone_oracle(model, tokenizer, env, eval_env, config.clone_batches)
            out[f"{name}/cloned_success"] = cloned
    return out


@hydra.main(version_base=None, config_path="config", config_name="pretrain_tiny")
def main(config: PretrainConfig) -> None:
    torch.manual_seed(config.seed)
    tokenizer = make_tokenizer()
    model = make_model(config, tokenizer)
    num_parameters = sum(p.numel() for p in model.parameters())

    # 1. Random play in scenes of several sizes, both splits of goals, turned into exercises.
    sources = []
    for index, (split, objects, sequential) in enumerate(
        [("train", 3, False), ("train", 6, True), ("test", 3, False), ("test", 5, True)]
    ):
        env = PlaygroundTextEnv(
            num_envs=config.batch_size,
            num_objects=objects,
            split=split,
            sequential=sequential,
            seed=config.seed + index,
        )
        sources.append([env, env.reset(), Exercises(env.goals, seed=config.seed + index)])

    # 2. Training.
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.lr, total_steps=config.num_batches, pct_start=0.03
    )
    curve, total, start = [], 0.0, time.perf_counter()
    bar = tqdm(range(1, config.num_batches + 1), desc="pretrain tiny", mininterval=5)
    for batch in bar:
        # Three batches in four come from the training goals, half of them from small scenes.
        source = sources[(0, 1, 0, 1, 0, 1, 2, 3)[batch % 8]]
        env, state, exercises = source
        step, source[1] = env.step_and_maybe_reset(env.rand_action(state))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=config.autocast):
            loss = exercise_loss(model, tokenizer, exercises(step))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        optimizer.step()
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
