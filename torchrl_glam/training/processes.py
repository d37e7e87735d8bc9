"""Instances of an environment divided among processes, for games that are slow themselves."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
import torchrl
from tensordict import TensorDictBase
from torchrl.envs import EnvBase, ParallelEnv

from torchrl_glam.text import describe_env
from torchrl_glam.training.build import derive_seed, seed_everything

_SEEN = ("num_actions", "entries")  # of a description: what its specs tell


class EnvProcesses(EnvBase):
    """An environment whose instances play in several processes, each an equal share of them.

    Outside it is one environment with a batch of all instances, in order, on the CPU. Inside it is
    a TorchRL ``ParallelEnv``, whose processes get actions and answer with what the environment
    writes, as text: it is tokenised once, outside. Without shared memory: with it, the first answer
    after ``load_state_dict`` is read before it is there (torchrl 0.14), and waiting takes a core.

    Signals to the run's process group, as of Ctrl-C, do not reach the processes; they end when this
    is closed, and with the process that made them. Files that they make as temporary ones go then.

    ``state_dict`` holds those of all processes, and is loaded into as many.

    Args:
        make: makes an environment on the CPU with as many instances as its argument says.
        num_envs: instances.
        processes: number of processes.
        seed: of the environment, and of the global generators in the processes.

    Raises:
        ValueError: if the instances do not divide among the processes.
        ChildProcessError: there and later, if a process fails; says which, and why.

    Examples:
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> EnvProcesses(PlaygroundTextEnv, 3, 2, seed=0)
        Traceback (most recent call last):
            ...
        ValueError: num_envs (3) must be a multiple of env_processes (2), which have an equal share
        each
    """

    def __init__(
        self,
        make: Callable[[int], EnvBase],
        num_envs: int,
        processes: int,
        seed: int,
    ) -> None:
        if num_envs % processes:
            raise ValueError(
                f"num_envs ({num_envs}) must be a multiple of env_processes ({processes}), which "
                "have an equal share each"
            )
        super().__init__(device="cpu", batch_size=[num_envs])
        self.is_closed = False
        first = make(1)  # mistakes show here, where they can be told best
        for name, value in vars(describe_env(first)).items():
            if name not in _SEEN:
                setattr(self, name, value)
        first.close(raise_if_closed=False)
        self._shape = (processes, num_envs // processes)
        self._folder = tempfile.TemporaryDirectory(prefix="env_processes_")
        begin = partial(_begin, make, self._shape, seed, self._folder.name)
        # In __dict__ it is no part of this module's state_dict.
        self.__dict__["_pool"] = self._call(
            ParallelEnv,
            processes,
            begin,
            create_env_kwargs=[{"place": place} for place in range(processes)],
            device="cpu",
            num_threads=torch.get_num_threads(),  # as many as before
            use_buffers=False,
            metadata_from_workers=True,
            daemon=True,
        )
        for kind in ("observation", "action", "reward", "done"):
            spec = getattr(self._pool, f"full_{kind}_spec").flatten(0, 1)
            setattr(self, f"full_{kind}_spec", spec)
        self.set_seed(seed)

    def _set_seed(self, seed: int | None) -> None:
        self._call(self._pool.set_seed, seed)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        if tensordict is not None:
            tensordict = tensordict.select("_reset", strict=False).unflatten(0, self._shape)
        return self._call(self._pool.reset, tensordict).flatten(0, 1)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if "_step" in tensordict:
            raise ValueError("_step: instances in processes step together, all or none of them")
        actions = tensordict.select(*self.action_keys).unflatten(0, self._shape)
        return self._call(self._pool.step, actions)["next"].flatten(0, 1)

    def get_extra_state(self) -> dict[str, Any]:
        """Returns the states of all processes, for ``state_dict``."""
        return dict(self._call(self._pool.state_dict))

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Gives each process its state back."""
        self._call(self._pool.load_state_dict, state)
        self._call(self._pool.state_dict)  # once it is answered, all have loaded

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Ends the processes."""
        threads = torch.get_num_threads()
        self._pool.close(raise_if_closed=raise_if_closed)
        torch.set_num_threads(threads)
        self._folder.cleanup()
        super().close(raise_if_closed=raise_if_closed)

    def _call(self, function: Callable, *args: Any, **kwargs: Any) -> Any:
        if self.is_closed:  # TorchRL would start new processes, whose games stand elsewhere
            raise RuntimeError("the processes of the environment have ended: make it anew")
        try:
            return function(*args, **kwargs)
        except Exception as error:  # whatever it is, processes have not answered what was asked
            self._end(error)

    def _end(self, error: Exception) -> NoReturn:
        """Ends all processes, and says what one of them has noted of its error."""
        processes, share = self._shape
        why = f"the {processes} processes of the environment have failed: {error!r}"
        for note in sorted(Path(self._folder.name).glob("error_*"))[:1]:
            place = int(note.name.removeprefix("error_"))
            first, last = place * share, (place + 1) * share - 1
            why = (
                f"process {place} of the {processes} of the environment, which has instances "
                f"{first} to {last}: {note.read_text()}"
            )
        if "_pool" in self.__dict__:
            with suppress(Exception):  # of those that are gone
                self._pool.close()
            self._pool.is_closed = True
        self.is_closed = True
        self._folder.cleanup()
        raise ChildProcessError(why) from error


def _begin(
    make: Callable[[int], EnvBase],
    shape: tuple[int, int],
    seed: int,
    folder: str,
    place: int,
) -> EnvBase:
    """Makes a process's share of the environment; the first that the process does."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    tempfile.tempdir = folder
    # Idle between two evaluations, for up to 23 days: no poll waits longer.
    torchrl._utils.BATCHED_PIPE_TIMEOUT = 2e6
    seed_everything(derive_seed(seed, place, shape[0]))
    noted = _noted(Path(folder, f"error_{place}"))
    env = noted(make)(shape[1])
    for name in ("_reset", "_step", "load_state_dict"):
        setattr(env, name, noted(getattr(env, name)))
    return env


@contextmanager
def _noted(file: Path) -> Iterator[None]:
    """Writes down an error, which else would stay in its process."""
    try:
        yield
    except Exception as error:
        file.write_text(f"{type(error).__name__}: {error}")
        raise
