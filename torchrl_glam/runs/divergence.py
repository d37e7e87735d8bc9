"""Numbers that end a run: found before they are stored, and told with their cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from tensordict import TensorDictBase

from torchrl_glam.runs.config import RecipeConfig


def check_rewards(steps: TensorDictBase, counters: Mapping[str, float]) -> None:
    """Refuses an environment's rewards that are not finite, before they are stored.

    Raises:
        FloatingPointError: saying how many there are, and in which instance the first.
    """
    reward = steps["next", "reward"].squeeze(-1)
    bad = (~reward.isfinite()).nonzero()
    if len(bad):
        first = bad[0].tolist()
        raise FloatingPointError(
            f"the environment's rewards after step {counters['steps']} are not finite: {len(bad)} "
            f"of {reward.numel()}, the first is {reward[tuple(first)].item()}, at {first} of the "
            "batch. Nothing of it was stored; mend the environment"
        )


def diverged(
    error: FloatingPointError,
    counters: Mapping[str, float],
    config: RecipeConfig,
    checkpoint: Path | None,
) -> FloatingPointError:
    """The error of an update, with where it was, the learning rates and the newest checkpoint."""
    rates = ", ".join(f"{k}={v}" for k, v in asdict(config).items() if k.startswith("lr_"))
    last = (
        "it has saved no checkpoint"
        if checkpoint is None
        else f"its last good checkpoint is {checkpoint} (weights and optimizer are finite there; "
        "an earlier one may be better still)"
    )
    return FloatingPointError(
        f"update {counters['updates']} at step {counters['steps']}: {error} The run stops; {last}. "
        f"Learning rates that are too high do this: {rates}"
    )
