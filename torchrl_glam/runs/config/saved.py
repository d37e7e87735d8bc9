"""The configuration that a run has left in its folder: data, which may come from anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from torchrl_glam._files import read_text, shorten
from torchrl_glam.runs.run_folder import CONFIG

_MOST = 2**18  # bytes; those of the recipes have some thousand


class _Loader(yaml.SafeLoader):
    """YAML without aliases, by which a small file can grow."""

    def compose_node(self, parent: Any, index: Any) -> yaml.Node:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has aliases")
        return super().compose_node(parent, index)


def read_data(run: Path) -> dict[str, Any]:
    """The keys and values of a run's ``config.yaml``; nothing in it is interpolated.

    Args:
        run: folder of the run.

    Raises:
        FileNotFoundError: if the folder holds no run.
        ValueError: if the file is no plain file, too large, or no mapping; or if a value has an
            interpolation, ``${...}``.

    Examples:
        >>> import tempfile
        >>> run = Path(tempfile.mkdtemp())
        >>> _ = (run / "config.yaml").write_text("output: ${oc.env:HOME}")
        >>> read_data(run)
        Traceback (most recent call last):
            ...
        ValueError: config.yaml of '...' has an interpolation ('${'): it is not read
    """
    try:
        text = read_text(run / CONFIG, _MOST)
    except FileNotFoundError:
        raise FileNotFoundError(f"run ({str(run)!r}) must be the folder of a run") from None
    except ValueError as error:
        raise ValueError(f"run ({str(run)!r}): {error}") from None
    if "${" in text:
        raise ValueError(f"{CONFIG} of {str(run)!r} has an interpolation ('${{'): it is not read")
    try:
        data = yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{CONFIG} of {str(run)!r} is not read: {shorten(error)}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{CONFIG} of {str(run)!r} must be a mapping of keys to values")
    return data


def read_saved(kind: type, run: Path) -> DictConfig:
    """The same as the configuration of a recipe.

    Args:
        kind: the recipe's configuration.
        run: folder of the run.

    Raises:
        FileNotFoundError, ValueError: as :func:`read_data`.
        omegaconf.errors.OmegaConfBaseException: if keys or types are of another recipe.
    """
    schema = OmegaConf.structured(kind)
    schema.env, schema.eval_splits = {}, {}  # those of the run alone
    return OmegaConf.merge(schema, read_data(run))
