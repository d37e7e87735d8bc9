"""Configuration groups of the environment, ``env=...``, which all recipes share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from torchrl_glam.runs.config.base import MOVED, RecipeConfig


def register(name: str, kind: type[RecipeConfig], folder: Path) -> None:
    """Makes a recipe's schema, and the environments to choose from, known to Hydra.

    Hydra looks for groups beside a recipe's own files, and these belong to all recipes.

    Args:
        name: of the recipe; its schema is called ``<name>_schema``.
        kind: its configuration.
        folder: its file ``env/<option>.yaml`` is what ``env=<option>`` stands for. It is merged at
            the top of the configuration, over what a recipe's ``quickstart`` says.
    """
    schema = OmegaConf.structured(kind)
    schema.env, schema.eval_splits = {}, {}  # those of the option alone
    store = ConfigStore.instance()
    store.store(name=f"{name}_schema", node=schema)
    for file in sorted((folder / "env").glob("*.yaml")):
        store.store(group="env", name=file.stem, node=OmegaConf.load(file), package="_global_")


def spell_out(arguments: Sequence[str]) -> list[str]:
    """A command line as Hydra takes it, where ``env=module:Name`` names the environment itself.

    Args:
        arguments: overrides and options. Of ``env.key=value``, any key is taken: whether the
            environment has such an argument is seen when it is made.

    Examples:
        >>> spell_out(["env=games.lake:Lake", "env.size=4", "seed=1"])
        ['env=custom', "++env_class='games.lake:Lake'", '++env.size=4', 'seed=1']
    """
    out = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key == "env" and ":" in value:
            quoted = value.strip("'\"").replace("'", r"\'")
            out += ["env=custom", f"++env_class='{quoted}'"]
        else:
            out.append(f"++{argument}" if key.startswith("env.") else argument)
    return out


def moved_key(message: str) -> str | None:
    """What an error of Hydra's should add about a key that has another name now.

    Examples:
        >>> moved_key("Could not override 'num_objects'.")
        'num_objects is env.num_objects now'
        >>> moved_key("Could not override 'colour'.")
    """
    found = re.search(rf"'({'|'.join(MOVED)})'", message)
    return None if found is None else f"{found[1]} is env.{found[1]} now"
