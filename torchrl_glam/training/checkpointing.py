"""Checkpoints of a training run that survive crashes, full disks and damaged files.

The engine is :class:`torchrl.checkpoint.Checkpoint`: it saves named objects to a folder with a
manifest. Its ``CheckpointRotation`` is not used, and this is added around it:

- files reach the disk (``fsync``) before the checkpoint gets its name;
- sizes and SHA-256 sums of all files, so that damage is found before anything is loaded, and the
  checkpoint before is taken instead;
- a comparison of the configuration, so that a run is not resumed with another one by mistake;
- adapters that never unpickle, for replay buffers without a second copy in memory, and for
  collectors with the state of their environments
  (:mod:`torchrl_glam.training.checkpoint_adapters`).
"""

import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torchrl.checkpoint import Checkpoint, CheckpointError, GlobalRNGState, JSONCheckpointAdapter
from torchrl.collectors import BaseCollector
from torchrl.data import ReplayBuffer

from torchrl_glam.training.checkpoint_adapters import (
    CollectorState,
    ReplayBufferAdapter,
    StateDictAdapter,
    require_finite,
)
from torchrl_glam.training.checksums import find_damage, write_checksums
from torchrl_glam.training.files import sync_folder
from torchrl_glam.training.run_folder import CHECKPOINTS, RunFolder

_GENERATORS = "generators"  # the component for Python's, numpy's and torch's global generators
_CONFIG_SHOWN = 10  # differing keys spelt out in an error message


class CheckpointManager:
    """Saves a training run to ``<folder>/checkpoints/step_<step>`` and restores the newest.

    The objects of a run are given by name, each of one of these kinds:

    - anything with ``state_dict`` and ``load_state_dict``: loss modules, optimizers, schedulers;
    - a :class:`torchrl.data.ReplayBuffer`, saved with its sampler, transforms and generator;
    - a :class:`torchrl.collectors.Collector`, saved with where its environments stand, and
      without its policy, whose weights are the loss module's;
    - a dict or a list of JSON values (counters, metrics so far), which loading changes in place.

    The global generators of Python, numpy and torch are always part of it. Tensors are loaded to
    the CPU and copied from there to wherever the object keeps its own. No code is ever executed
    from a checkpoint: it holds JSON and raw tensors only.

    Args:
        folder: the run's folder. Nothing is written there before :meth:`prepare` or :meth:`save`.
        keep: how many checkpoints to keep, the newest ones; at least 1. Default: 2, so that one
            is left should the newest be damaged.

    Raises:
        ValueError: if ``keep`` is less than 1.

    Example:
        >>> import tempfile, torch
        >>> folder = tempfile.mkdtemp()
        >>> model, counters = torch.nn.Linear(2, 1), {"frames": 640}
        >>> manager = CheckpointManager(folder)
        >>> manager.save(20, {"model": model, "counters": counters}, config={"seed": 0}).name
        'step_00000020'
        >>> other, zeros = torch.nn.Linear(2, 1), {"frames": 0}
        >>> manager.load({"model": other, "counters": zeros}, config={"seed": 0})
        20
        >>> torch.equal(model.weight, other.weight), zeros
        (True, {'frames': 640})
    """

    def __init__(self, folder: str | os.PathLike, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}, expected at least 1: a run must keep a checkpoint")
        self.folder = Path(folder)
        self.keep = keep
        self._root = self.folder / CHECKPOINTS
        self._claimed = RunFolder(folder)
        self._scratch = self._root / ".saving"  # what is being written or removed

    def checkpoints(self) -> list[Path]:
        """Return the folders of all checkpoints, oldest first."""
        found = [
            (int(match[1]), match[2] is None, path)
            for path in self._root.glob("step_*")
            if (match := re.fullmatch(r"step_(\d{8,})(_replaced)?", path.name))
        ]
        return [path for _, _, path in sorted(found)]

    def latest(self) -> Path | None:
        """Return the folder of the newest checkpoint, unverified, or None if there is none."""
        return next(reversed(self.checkpoints()), None)

    def prepare(self, *, resume: bool) -> None:
        """Claim the folder, and find out what would otherwise fail at the first checkpoint.

        The folder is locked until this object is gone, so that no other run writes to it; see
        :class:`~torchrl_glam.training.run_folder.RunFolder`.

        Args:
            resume: whether the run goes on from a checkpoint of this folder.

        Raises:
            FileNotFoundError: if ``resume`` and the folder holds no checkpoint.
            FileExistsError: if not ``resume`` and it holds another run's results, or a model.
            BlockingIOError: if another run is at work there.
            ValueError: if something that a run writes is a link or a pipe there.
            OSError: if the folder cannot be written to.
        """
        if resume:
            self._require_checkpoints()
        try:
            self._claimed.claim(resume=resume)
            with tempfile.TemporaryFile(dir=self._root):
                pass
        except OSError as error:
            if error.errno is None:  # the claim has said why, the system has not
                raise
            raise self._unwritable(error) from error

    def save(self, step: int, objects: Mapping[str, Any], config: Mapping[str, Any]) -> Path:
        """Save all objects; a checkpoint of the same step is replaced, older ones are rotated out.

        The checkpoint appears under its name only when complete and on disk. Whatever interrupts
        saving leaves the earlier ones as they were.

        Args:
            step: the run's step, at least 0; its unit is the caller's. Names the checkpoint.
            objects: the run's objects by name, see the class.
            config: the run's configuration, JSON values in nested dicts.

        Returns:
            The checkpoint's folder.

        Raises:
            ValueError: if ``step`` is negative.
            FloatingPointError: if weights or an optimizer's state are not finite: a run that goes
                on from them fails at once. Nothing is written then.
            TypeError: if an object is of no kind that can be saved, or ``config`` is no JSON.
            OSError: if it cannot be written (disk full, read-only, no permission).
        """
        if step < 0:
            raise ValueError(f"step is {step}, expected at least 0")
        try:
            require_finite(objects)
        except FloatingPointError as error:
            raise FloatingPointError(
                f"step {step}: {error}; the last good checkpoint is {self.latest()}"
            ) from None
        checkpoint = _as_checkpoint(objects)
        stage, final = self._scratch / "checkpoint", self._root / f"step_{step:08d}"
        try:
            shutil.rmtree(self._scratch, ignore_errors=True)  # of a run that was killed
            self._scratch.mkdir(parents=True)
            checkpoint.save(stage, metadata={"step": step, "config": config})
            write_checksums(stage)
            if final.exists():
                replaced = final.with_name(f"{final.name}_replaced")  # counts as one until removed
                shutil.rmtree(replaced, ignore_errors=True)
                final.rename(replaced)
            stage.rename(final)
            sync_folder(self._root)
            self._rotate(final)
        except (OSError, RuntimeError) as error:
            cause = _system_error(error)
            if cause is None:
                raise
            raise self._unwritable(cause) from error
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)
        return final

    def load(
        self,
        objects: Mapping[str, Any],
        config: Mapping[str, Any],
        allow_changed: Collection[str] = (),
    ) -> int:
        """Restore all objects from the newest checkpoint that is undamaged.

        Damaged checkpoints newer than it are set aside under the name ``damaged_step_<step>``,
        with a warning.

        Args:
            objects: the same names and kinds as were saved, freshly built.
            config: the configuration of the run that wants to go on.
            allow_changed: keys of the configuration that may differ from the saved one; dots
                lead into nested dicts, and a key stands for all keys below it.

        Returns:
            The step given when the checkpoint was saved.

        Raises:
            FileNotFoundError: if the folder holds no checkpoint.
            ValueError: if the configuration differs in other keys; lists them.
            torchrl.checkpoint.CheckpointError: if all checkpoints are damaged, other objects were
                saved, or an object does not fit its saved state. In the last case objects may
                have been restored in part.
        """
        path = self._newest_undamaged()
        metadata = Checkpoint.manifest(path)["metadata"]
        _require_same_config(metadata["config"], config, allow_changed, path)
        checkpoint = _as_checkpoint(objects)
        saved = set(Checkpoint.manifest(path)["components"])
        expected = set(checkpoint.components)
        if saved != expected:
            raise CheckpointError(
                f"checkpoint {str(path)!r} holds other objects than this run: only in the "
                f"checkpoint {sorted(saved - expected)}, only in the run "
                f"{sorted(expected - saved)}; resume it with the code that saved it"
            )
        checkpoint.load(path, map_location="cpu")
        return metadata["step"]

    def load_some(self, objects: Mapping[str, Any]) -> int:
        """Restore some of the objects of the newest undamaged checkpoint, to look at a run.

        The run's configuration is not compared, and the global generators stay as they are.

        Args:
            objects: some of the names and kinds that were saved, freshly built.

        Returns:
            The step given when the checkpoint was saved.

        Raises:
            FileNotFoundError: if the folder holds no checkpoint.
            torchrl.checkpoint.CheckpointError: if all checkpoints are damaged, one of the objects
                was not saved, or does not fit its saved state.

        Examples:
            >>> import tempfile, torch
            >>> manager = CheckpointManager(tempfile.mkdtemp())
            >>> one, two = {"frames": 640}, {"loss": 0.5}
            >>> _ = manager.save(20, {"one": one, "two": two}, config={"seed": 3})
            >>> zeros = {"loss": 0.0}
            >>> manager.load_some({"two": zeros}), zeros
            (20, {'loss': 0.5})
        """
        path = self._newest_undamaged()
        manifest = Checkpoint.manifest(path)
        missing = sorted(set(objects) - set(manifest["components"]))
        if missing:
            raise CheckpointError(
                f"checkpoint {str(path)!r} holds no {missing}, only "
                f"{sorted(manifest['components'])}"
            )
        _as_checkpoint(objects).load(path, components=list(objects), map_location="cpu")
        return manifest["metadata"]["step"]

    def _newest_undamaged(self) -> Path:
        damages: dict[Path, str] = {}
        for path in reversed(self._require_checkpoints()):
            damage = find_damage(path)
            if damage is None:
                break
            damages[path] = damage
        else:
            listing = "; ".join(f"{path.name}: {damage}" for path, damage in damages.items())
            raise CheckpointError(f"every checkpoint in {str(self._root)!r} is damaged: {listing}")
        for damaged, damage in damages.items():
            warnings.warn(
                f"checkpoint {str(damaged)!r} is damaged ({damage}): going on from {path.name}; "
                f"the damaged one is kept as damaged_{damaged.name}",
                stacklevel=3,
            )
            aside = damaged.with_name(f"damaged_{damaged.name}")
            shutil.rmtree(aside, ignore_errors=True)
            damaged.rename(aside)
        return path

    def _require_checkpoints(self) -> list[Path]:
        if self._root.is_symlink():
            raise ValueError(f"folder {str(self._root)!r} is a symbolic link, expected a folder")
        found = self.checkpoints()
        if not found:
            hint = ""
            if (self.folder / "manifest.json").exists():
                run = self.folder.resolve().parents[1]
                hint = f"; it looks like one checkpoint, give its run: {str(run)!r}"
            raise FileNotFoundError(
                f"folder {str(self.folder)!r} holds no checkpoint: `resume` needs the folder of a "
                f"run, with checkpoints/step_<step> in it{hint}"
            )
        return found

    def _rotate(self, newest: Path) -> None:
        others = [path for path in self.checkpoints() if path != newest]
        surplus = [path for path in others if path.name.endswith("_replaced")]
        others = [path for path in others if path not in surplus]
        surplus += others[: max(0, len(others) - (self.keep - 1))]
        for path in surplus:
            # Moved away first: a checkpoint must not vanish file by file under its own name.
            path.rename(self._scratch / path.name)

    def _unwritable(self, error: OSError) -> OSError:
        return OSError(
            error.errno,
            f"cannot write checkpoints ({error.strerror or error}): give as `output` a folder that "
            "can be written to and has room for them; earlier checkpoints there are untouched",
            str(self._root),
        )


def _system_error(error: OSError | RuntimeError) -> OSError | None:
    """The error of the system that this one tells of, if any: PyTorch puts it in words."""
    if isinstance(error, OSError):
        return error
    told = re.search(r"unable to .* file .*: ([^:]+) \((\d+)\)", str(error))
    return None if told is None else OSError(int(told[2]), told[1])


def _as_checkpoint(objects: Mapping[str, Any]) -> Checkpoint:
    if _GENERATORS in objects:
        raise ValueError(
            f"objects has the key {_GENERATORS!r}, which names the global generators: choose "
            "another name"
        )
    checkpoint = Checkpoint()
    checkpoint.register(_GENERATORS, GlobalRNGState(), adapter=StateDictAdapter())
    for name, value in objects.items():
        if isinstance(value, ReplayBuffer):
            checkpoint.register(name, value, adapter=ReplayBufferAdapter())
        elif isinstance(value, BaseCollector):
            checkpoint.register(name, CollectorState(value), adapter=StateDictAdapter())
        elif isinstance(value, (dict, list)):
            checkpoint.register(name, value, adapter=JSONCheckpointAdapter())
        elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            checkpoint.register(name, value, adapter=StateDictAdapter())
        else:
            raise TypeError(
                f"objects[{name!r}] is a {type(value).__name__}, expected something with "
                "state_dict and load_state_dict, a replay buffer, a collector, a dict or a list"
            )
    return checkpoint


def _require_same_config(
    saved: Mapping[str, Any], now: Mapping[str, Any], allowed: Collection[str], path: Path
) -> None:
    before, after = _flat(saved), _flat(now)
    changed = [
        key
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
        and not any(key == name or key.startswith(f"{name}.") for name in allowed)
    ]
    if changed:
        shown = "; ".join(
            f"{key} was {before.get(key, 'not set')}, is {after.get(key, 'not set')}"
            for key in changed[:_CONFIG_SHOWN]
        )
        more = len(changed) - _CONFIG_SHOWN
        raise ValueError(
            f"config differs from that of checkpoint {str(path)!r}: {shown}"
            + (f"; and {more} more" if more > 0 else "")
            + ". Resume with the same values, or start a new run in another folder"
        )


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return dotted keys and their values as JSON text, in which a tuple equals a list."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = json.dumps(value, default=str)
    return flat
