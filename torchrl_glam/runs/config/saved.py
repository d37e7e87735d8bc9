"""The configuration that a run has left in its folder, as that of a recipe."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from torchrl_glam.runs.run_folder import CONFIG, stored_settings


def read_saved(kind: type, run: Path) -> DictConfig:
    """The configuration of a run; nothing in it is interpolated.

    Args:
        kind: the recipe's configuration.
        run: folder of the run, which may come from anywhere.

    Raises:
        FileNotFoundError: if the folder holds no run.
        ValueError: as :func:`~torchrl_glam.runs.run_folder.stored_settings` raises it, or if a
            value has an interpolation, ``${...}``.
        omegaconf.errors.OmegaConfBaseException: if keys or types are of another recipe.
    """
    if not (run / CONFIG).exists():
        raise FileNotFoundError(f"run ({str(run)!r}) must be the folder of a run")
    settings = stored_settings(run)
    if "${" in str(settings):
        raise ValueError(f"{CONFIG} of {str(run)!r} has an interpolation ('${{'): it is not read")
    schema = OmegaConf.structured(kind)
    schema.env, schema.eval_splits = {}, {}  # those of the run alone
    return OmegaConf.merge(schema, settings)
