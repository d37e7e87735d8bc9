"""Checkpoints of a training run that survive crashes, full disks and damaged files."""

import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torchrl.checkpoint import Checkpoint, CheckpointError, CheckpointRotation

from torchrl_glam._files import read_json
from torchrl_glam.runs.checkpoints.adapters import as_checkpoint, kept_apart, require_finite
from torchrl_glam.runs.files import plain_files, writing_to
from torchrl_glam.runs.processes.ranks import Ranks
from torchrl_glam.runs.run_folder import CHECKPOINTS, require_same_config

_PREFIX = "step"
_DAMAGED = RecursionError, KeyError, TypeError, AttributeError  # by what should be settings


class CheckpointManager:
    """Saves a training run to ``<folder>/checkpoints/step-<step>`` and restores the newest.

    The objects of a run are given by name, each of one of these kinds:

    - anything with ``state_dict`` and ``load_state_dict``: loss modules, optimizers, schedulers;
    - a :class:`torchrl.data.ReplayBuffer`, saved with its sampler, transforms and generator;
    - a :class:`torchrl.collectors.Collector`, saved with its environments, without its policy;
    - a dict or a list of JSON values (counters), which loading changes in place.

    The global generators of Python, numpy and torch are always part of it. A checkpoint holds JSON
    and raw tensors only, so loading one runs no code.

    With several processes, each calls every method at the same place. The first one saves what all
    share; the others save their replay buffers, collectors and generators to
    ``checkpoints/process_<rank>``. What fails on one fails on all.

    Args:
        folder: the run's folder. Nothing is written there before :meth:`save`.
        keep: number of checkpoints to keep. Default: 2, in case the newest is damaged.
        ranks: the processes of the run. Default: None, this one alone.

    Examples:
        >>> import tempfile, torch
        >>> folder = tempfile.mkdtemp()
        >>> model, counters = torch.nn.Linear(2, 1), {"frames": 640}
        >>> manager = CheckpointManager(folder)
        >>> manager.save(20, {"model": model, "counters": counters}, config={"seed": 0}).name
        'step-000000000020'
        >>> other, zeros = torch.nn.Linear(2, 1), {"frames": 0}
        >>> manager.load({"model": other, "counters": zeros}, config={"seed": 0})
        20
        >>> torch.equal(model.weight, other.weight), zeros
        (True, {'frames': 640})
    """

    def __init__(self, folder: str | Path, keep: int = 2, ranks: Ranks | None = None) -> None:
        self._ranks = Ranks() if ranks is None else ranks
        self._root = Path(folder) / CHECKPOINTS
        own = "" if self._ranks.first else f"process_{self._ranks.rank}"
        self._rotation = CheckpointRotation(self._root / own, keep_last=keep, prefix=_PREFIX)

    def latest(self) -> Path | None:
        """The folder of the newest checkpoint, unverified, or None if there is none."""
        return self._rotation.latest()

    def save(self, step: int, objects: Mapping[str, Any], config: Mapping[str, Any]) -> Path:
        """Saves all objects; a checkpoint of the same step is replaced, the oldest is removed.

        It appears under its name when complete; an interruption leaves the earlier ones alone.

        Args:
            step: the run's step.
            objects: the run's objects by name, see the class.
            config: the run's configuration, JSON values in nested dicts.

        Returns:
            The checkpoint's folder.

        Raises:
            FloatingPointError: if weights or optimizer are not finite; nothing is written.
            TypeError: if an object is of no kind that can be saved, or ``config`` is no JSON.
            OSError: if it cannot be written (disk full, read-only, no permission).
        """
        with self._ranks.together():
            try:
                require_finite(objects)
            except FloatingPointError as error:
                raise FloatingPointError(
                    f"step {step}: {error}; the last good checkpoint is {self.latest()}"
                ) from None
        for module in (x for x in objects.values() if isinstance(x, nn.Module)):
            self._ranks.require_alike(module)
        self._ranks.hand_over(*filter(_is_record, objects.values()))
        own = objects if self._ranks.first else kept_apart(objects)
        about = {"step": step, "config": config, "processes": self._ranks.size}
        with self._ranks.together(), writing_to(self._root):
            return self._rotation.save(as_checkpoint(own), step=step, metadata=about)

    def load(
        self,
        objects: Mapping[str, Any],
        config: Mapping[str, Any] | None,
        allow_changed: Collection[str] = (),
    ) -> int:
        """Restores objects from the newest checkpoint that can be read.

        Args:
            objects: the same names and kinds as were saved, freshly built.
            config: the configuration of the run that wants to resume. None: only some objects are
                restored, those of the first process; nothing is compared.
            allow_changed: keys of the configuration that may differ from the saved one, as of
                :func:`~torchrl_glam.runs.run_folder.require_same_config`.

        Returns:
            The step given when the checkpoint was saved, or 0 if the run ended before its first
            checkpoint: it then begins again, and the objects stay as they are.

        Raises:
            ValueError: if the configuration differs in other keys, or the number of processes.
            torchrl.checkpoint.CheckpointError: if none can be read, or none is of these objects.
        """
        own = objects if self._ranks.first else kept_apart(objects)

        def restore(path: Path) -> None:
            if config is None:
                as_checkpoint(objects).load(path, components=list(objects), map_location="cpu")
                return
            self.latest()  # reads the manifests of all, as every save does
            about = Checkpoint.manifest(path)
            require_same_config(about["metadata"]["config"], config, allow_changed, path)
            processes = about["metadata"]["processes"]
            if processes != self._ranks.size:
                raise ValueError(
                    f"checkpoint {str(path)!r} was saved by {processes} processes, and this run "
                    f"has {self._ranks.size}: resume it with as many"
                )
            checkpoint = as_checkpoint(own)
            saved, expected = set(about["components"]), set(checkpoint.components)
            if saved != expected:
                raise CheckpointError(
                    f"checkpoint {str(path)!r} holds other objects than this run: only in the "
                    f"checkpoint {sorted(saved - expected)}, only in the run "
                    f"{sorted(expected - saved)}; resume it with the code that saved it"
                )
            checkpoint.load(path, map_location="cpu")
            if not self._ranks.first:
                shared = {k: x for k, x in objects.items() if k not in own and not _is_record(x)}
                whole = self._root / path.name
                as_checkpoint(shared).load(whole, components=list(shared), map_location="cpu")

        return self._restore_newest(restore)

    def _restore_newest(self, restore: Callable[[Path], Any]) -> int:
        """Restores by the newest step that all processes have and can read, or returns 0."""
        found = self._rotation.directory.glob(f"{_PREFIX}-*")
        named = {path.name.removeprefix(f"{_PREFIX}-"): path for path in found}
        paths = {int(step): path for step, path in named.items() if step.isdecimal()}
        common = set.intersection(*self._ranks.gather(set(paths)))
        problems: list[str] = []
        for step in sorted(common, reverse=True):
            path = paths[step]
            problem = None
            with self._ranks.together():
                try:
                    _require_plain(path)
                    restore(path)
                except (CheckpointError, *_DAMAGED) as error:
                    problem = f"{path.name}: {error}"
            if not self._ranks.any(problem is not None):
                if problems:
                    warnings.warn(
                        f"resuming from {path.name}, as later checkpoints cannot be read "
                        f"({'; '.join(problems)})",
                        stacklevel=3,
                    )
                return step
            problems.append(problem or f"{path.name}: it is damaged on another process")
        if problems:
            why = "; ".join(problems)
            raise CheckpointError(f"no checkpoint in {str(self._root)!r} can be read: {why}")
        return 0


def _require_plain(path: Path) -> None:
    """Refuses a checkpoint with links, pipes or holes in it, and a manifest of megabytes."""
    try:
        for file in plain_files(path):
            about = file.stat()
            blocks = getattr(about, "st_blocks", about.st_size)  # of 512 bytes; a hole has none
            if about.st_size > 2**30 and 512 * blocks < about.st_size // 100:
                raise ValueError(f"{file.name} of {about.st_size:,} bytes is all but empty")
        manifest = path / "manifest.json"
        if not manifest.exists() or not isinstance(read_json(manifest), dict):
            raise ValueError("manifest.json is damaged")
    except (ValueError, OSError) as error:
        raise CheckpointError(str(error)) from None


def _is_record(value: Any) -> bool:
    """Whether it is of what all processes record, and the first one keeps."""
    return hasattr(type(value), "merge")
