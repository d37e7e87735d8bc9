"""The agents that a configuration names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchrl_glam.models import Agent, load_agent, zero_shot_agent
from torchrl_glam.runs.config.viewing import ViewConfig
from torchrl_glam.runs.device import choose_device


def open_agent(config: ViewConfig, folder: str | None) -> Agent:
    """Loads the agent of a folder, or the configuration's language model without training.

    Args:
        config: gives ``language_model``, if there is no folder, device and size of passes.
        folder: as :func:`~torchrl_glam.models.load_agent` takes it. None: use the model.
    """
    device = choose_device(config.device)
    options = {"device": device, "max_tokens_per_pass": config.max_tokens_per_pass}
    if folder is not None:
        return load_agent(folder, **options)
    return zero_shot_agent(config.language_model, config.chat_template, **options)


def name_apart(folders: Sequence[str]) -> list[str]:
    """Names folders by the last part of their paths in which all of them differ.

    Examples:
        >>> name_apart(["runs/seed0/model", "runs/seed1/model"])
        ['seed0', 'seed1']
    """
    parts = (reversed(Path(folder).parts) for folder in folders)
    columns = zip(*parts, strict=False)
    apart = (list(column) for column in columns if len(set(column)) == len(folders))
    return next(apart, [str(folder) for folder in folders])
