"""Checkpoints of a training run that survive crashes, full disks and damaged files.

The engine is :class:`torchrl.checkpoint.Checkpoint`: it saves named objects to a folder with a
manifest. Its ``CheckpointRotation`` is not used, and this is added around it:

- files reach the disk (``fsync``) before the checkpoint gets its name;
- sizes and SHA-256 sums of all files, so that damage is found before anything is loaded, and the
  checkpoint before is taken instead;
- a comparison of the configuration, so that a run is not resumed with another one by mistake;
- adapters that never unpickle, for replay buffers without a second copy in memory, and for
  collectors with the state of their environments
  (:mod:`torchrl_glam.training.checkpoint_adapters`);
- one checkpoint of several processes, from which another number of them can go on
  (:mod:`torchrl_glam.training.resharding`).
"""

import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchrl.checkpoint import Checkpoint, CheckpointError
from torchrl.data import ReplayBuffer

from torchrl_glam.training.checkpoint_adapters import (
    GENERATORS,
    as_checkpoint,
    kept_apart,
    require_finite,
)
from torchrl_glam.training.checkpoint_config import require_same_config
from torchrl_glam.training.checksums import find_damage, write_checksums
from torchrl_glam.training.files import sync_folder, system_error
from torchrl_glam.training.parallel import Ranks
from torchrl_glam.training.resharding import begin_anew, deal_frames, deal_rows
from torchrl_glam.training.run_folder import CHECKPOINTS, RunFolder

_SHARES = "processes"  # folder of a checkpoint: what each process but the first has of its own


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

    Of several processes each calls every method, at the same place. The first one saves what all
    share; each adds its own replay buffer, collector and generators, so all must see the folder.
    What fails on one fails on all. Objects with ``merge`` are handed over to the first process.

    Args:
        folder: the run's folder. Nothing is written there before :meth:`prepare` or :meth:`save`.
        keep: how many checkpoints to keep, the newest ones; at least 1. Default: 2, so that one
            is left should the newest be damaged.
        ranks: the processes of the run. Default: None, this one alone.

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

    def __init__(
        self, folder: str | os.PathLike, keep: int = 2, ranks: Ranks | None = None
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}, expected at least 1: a run must keep a checkpoint")
        self.folder = Path(folder)
        self.keep = keep
        self._ranks = Ranks() if ranks is None else ranks
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
        with self._ranks.together():
            if self._ranks.first:
                self._prepare(resume)
        with self._ranks.together():
            if not self._root.is_dir():
                raise FileNotFoundError(
                    f"folder {str(self.folder)!r} is not there for process {self._ranks.rank}: "
                    "all processes of a run must see the same folder"
                )

    def _prepare(self, resume: bool) -> None:
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
        self._require_sound(step, objects)
        self._ranks.hand_over(*filter(_is_record, objects.values()))
        final = self._root / f"step_{step:08d}"
        try:
            with self._ranks.together(), self._explained():
                if self._ranks.first:
                    shutil.rmtree(self._scratch, ignore_errors=True)  # of a run that was killed
                    self._scratch.mkdir(parents=True)
            with self._ranks.together(), self._explained():
                about = {"step": step, "config": config, _SHARES: self._ranks.size}
                own = objects if self._ranks.first else kept_apart(objects)
                as_checkpoint(own).save(self._stage(self._ranks.rank), metadata=about)
            with self._ranks.together(), self._explained():
                if self._ranks.first:
                    self._publish(final)
        finally:
            if self._ranks.first:
                shutil.rmtree(self._scratch, ignore_errors=True)
        return final

    def _require_sound(self, step: int, objects: Mapping[str, Any]) -> None:
        """Refuses what no run can go on from."""
        with self._ranks.together():
            try:
                require_finite(objects)
            except FloatingPointError as error:
                raise FloatingPointError(
                    f"step {step}: {error}; the last good checkpoint is {self.latest()}"
                ) from None
        for module in (x for x in objects.values() if isinstance(x, nn.Module)):
            self._ranks.require_alike(module)

    def _stage(self, rank: int) -> Path:
        """Where a process writes before all of it becomes one checkpoint."""
        return self._scratch / ("checkpoint" if rank == 0 else f"{rank:05d}")

    def _publish(self, final: Path) -> None:
        """Makes a checkpoint of what all processes have written."""
        stage = self._stage(0)
        for rank in range(1, self._ranks.size):
            (stage / _SHARES).mkdir(exist_ok=True)
            self._stage(rank).rename(stage / _SHARES / f"{rank:05d}")
        write_checksums(stage)
        if final.exists():
            replaced = final.with_name(f"{final.name}_replaced")  # counts as one until removed
            shutil.rmtree(replaced, ignore_errors=True)
            final.rename(replaced)
        stage.rename(final)
        sync_folder(self._root)
        self._rotate(final)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Says what to do about what the system refused."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            cause = system_error(error)
            if cause is None:
                raise
            raise self._unwritable(cause) from error

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
        with self._ranks.together():
            path = self._newest_undamaged() if self._ranks.first else None
        path = self._ranks.from_first(path)
        with self._ranks.together():
            manifest = Checkpoint.manifest(path)
            require_same_config(manifest["metadata"]["config"], config, allow_changed, path)
            saved = set(manifest["components"])
            expected = set(objects) | {GENERATORS}
            if saved != expected:
                raise CheckpointError(
                    f"checkpoint {str(path)!r} holds other objects than this run: only in the "
                    f"checkpoint {sorted(saved - expected)}, only in the run "
                    f"{sorted(expected - saved)}; resume it with the code that saved it"
                )
            if self._ranks.rank:
                objects = {k: x for k, x in objects.items() if not _is_record(x)}
            self._load(path, objects, [GENERATORS])
        return manifest["metadata"]["step"]

    def _load(self, path: Path, objects: Mapping[str, Any], also: Sequence[str] = ()) -> None:
        """Restores objects, and ``also`` generators, which begin anew for another number."""
        own, ranks = kept_apart(objects), self._ranks
        shared = [name for name in objects if name not in own]
        as_checkpoint(objects).load(path, components=shared, map_location="cpu")
        metadata = Checkpoint.manifest(path)["metadata"]
        size = metadata.get(_SHARES, 1)  # missing in those of one process, once
        places = [path, *(path / _SHARES / f"{rank:05d}" for rank in range(1, size))]
        if size == ranks.size:
            place, names = places[ranks.rank], [*own, *also]
            as_checkpoint(own).load(place, components=names, map_location="cpu")
            return
        for name, value in own.items():
            saved = [p / Checkpoint.manifest(p)["components"][name]["path"] for p in places]
            if isinstance(value, ReplayBuffer):
                deal_rows(value, saved, ranks.rank, ranks.size)
            else:
                deal_frames(value, saved, ranks.size)
        if also:
            begin_anew(torch.initial_seed(), metadata["step"], list(own.values()))

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
        self._load(path, objects)
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


def _is_record(value: Any) -> bool:
    """Whether it is of what all processes record, and the first one keeps."""
    return hasattr(type(value), "merge")
