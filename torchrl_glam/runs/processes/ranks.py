"""The processes of a run that torchrun starts: what each has of it, and what they agree on.

Every process has a copy of the model and its share of environments, replay and batches. Gradients
are summed, so all copies stay equal. The first process writes all but the others' checkpoints.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from statistics import fmean
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from tensordict import TensorDictBase
from torch import Tensor, nn

from torchrl_glam.objectives.reduction import lost
from torchrl_glam.runs.config import RecipeConfig
from torchrl_glam.runs.seeds import derive_seed, seed_everything

Config = TypeVar("Config", bound=RecipeConfig)
T = TypeVar("T")

PATIENCE = timedelta(minutes=10)
"""How long a process waits for the others: an evaluation or a checkpoint must fit in."""

# What is divided among the processes; keys that a recipe does not have are skipped.
_DIVIDED = ("num_envs", "batch_size", "capacity", "update_every", "total_steps")


class OtherProcessError(OSError):
    """Another process of the run failed where all of them had to succeed."""


@dataclass(frozen=True)
class Ranks:
    """One process of a run, and its way to the others; alone without torchrun.

    Alone, every method gives back what it is given, and nothing is sent.

    Args:
        rank: number of this process, from 0. Default: 0.
        size: number of processes. Default: 1.
        group: all of them. Default: None, alone.

    Examples:
        >>> ranks = Ranks()
        >>> ranks.first, ranks.any(False), ranks.gather("one")
        (True, False, ['one'])
    """

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    @classmethod
    def join(cls, config: RecipeConfig) -> "Ranks":
        """Meets the other processes that torchrun started, if there are any.

        The ``output`` of the configuration becomes that of the first process. A process takes the
        GPU of its number on its machine, where there are GPUs.

        Raises:
            ValueError: on every process, if their configurations differ, or if a machine has fewer
                GPUs than processes.
        """
        if not dist.is_torchelastic_launched() or int(os.environ["WORLD_SIZE"]) == 1:
            return cls()
        cuda = config.device.startswith(("cuda", "auto")) and torch.cuda.is_available()
        if not dist.is_initialized():  # by an earlier run of a sweep
            nccl = cuda and dist.is_nccl_available()
            dist.init_process_group("cpu:gloo,cuda:nccl" if nccl else "gloo", timeout=PATIENCE)
        ranks = cls(dist.get_rank(), dist.get_world_size(), dist.group.WORLD)
        config.output = ranks.gather(config.output)[0]
        ranks._require_same(asdict(config), "start all processes with the same command")
        with ranks.together():
            if cuda:
                _take_gpu(config.device, int(os.environ["LOCAL_RANK"]))
        return ranks

    @property
    def first(self) -> bool:
        """Whether this process writes the run's folder."""
        return self.rank == 0

    def share(self, config: Config) -> Config:
        """The configuration of this process: its share of what is divided, a seed of its own.

        Shares are equal, but for hindsight: of all processes' batches together, round(ratio * B)
        rows are relabelled, and processes differ by one (of a ratio that falls, at its two ends).

        Raises:
            ValueError: if they do not divide, or what one process plays chooses or judges goals.

        Examples:
            >>> mine = Ranks(rank=1, size=4).share(RecipeConfig())
            >>> mine.num_envs, mine.batch_size
            (8, 32)
        """
        if self.size == 1:
            return config
        for key, alone in (("goals", "uniform"), ("hindsight_by", "partner"), ("goal_words", [])):
            if getattr(config, key) != alone:
                raise ValueError(
                    f"{key} ({getattr(config, key)}) must be {alone} with {self.size} processes: "
                    "each would go by its own episodes alone"
                )
        shares: dict[str, Any] = {"seed": derive_seed(config.seed, self.rank, self.size)}
        for key in (key for key in _DIVIDED if hasattr(config, key)):
            value = getattr(config, key)
            if value % self.size:
                raise ValueError(
                    f"{key} ({value}) must be a multiple of the {self.size} processes that share "
                    "it: change it, or torchrun's --nproc-per-node and --nnodes"
                )
            shares[key] = value // self.size
        for key in ("hindsight_ratio", "hindsight_ratio_end"):
            if (ratio := getattr(config, key, None)) is not None:
                relabelled = round(ratio * config.batch_size)
                first, last = (relabelled * r // self.size for r in (self.rank, self.rank + 1))
                shares[key] = (last - first) / shares["batch_size"]
        return replace(config, **shares)

    def align(self, loss: nn.Module, seed: int) -> None:
        """Gives every process the first one's weights, and random numbers of its own from here on.

        Raises:
            ValueError: on every process, if weights that do not train differ between them.
        """
        if self.size == 1:
            return
        frozen = {n: _describe(p) for n, p in loss.trunk.named_parameters() if not p.requires_grad}
        self._require_same(frozen, "give all processes the same model")
        for tensor in {id(t): t for t in (*loss.parameters(), *loss.buffers())}.values():
            value = tensor.data.contiguous()
            self._send(dist.broadcast, value, src=0)
            tensor.data.copy_(value)
        seed_everything(seed)

    def require_alike(self, module: nn.Module) -> None:
        """Raises ValueError on every process if a parameter differs between them; names it."""
        if self.size > 1:
            weights = {name: _describe(weight) for name, weight in module.named_parameters()}
            self._require_same(weights, "trained weights have drifted apart")

    def all(self, flag: bool) -> bool:
        """Whether it is so on every process."""
        return all(self.gather(flag))

    def any(self, flag: bool) -> bool:
        """Whether it is so on any process."""
        return any(self.gather(flag))

    def gather(self, value: T) -> list[T]:
        """What each process gives, by rank; on every process."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        self._send(dist.all_gather_object, values, value)
        return values

    def sum(self, terms: TensorDictBase) -> TensorDictBase:
        """Entries, each summed over the processes, in float64 and main memory."""
        if self.size == 1:
            return terms
        return torch.stack(self.gather(terms.double().cpu())).sum(0)

    def mean(self, row: dict[str, float]) -> dict[str, float]:
        """Metrics of a row, each the mean of the processes; the largest where ``/max`` says so."""
        if self.size == 1:
            return row
        rows = self.gather(row)
        return {
            key: (max if key.endswith("/max") else fmean)(other[key] for other in rows)
            for key in row
        }

    def hand_over(self, *records: Any) -> None:
        """Merges records of all processes into the first one's, and clears the others.

        Records have ``state_dict``, ``merge`` (of such a state) and ``clear``.
        """
        states = self.gather([record.state_dict() for record in records])
        for number, record in enumerate(records):
            if not self.first:
                record.clear()
            for state in states[1:] if self.first else ():
                record.merge(state[number])

    @contextmanager
    def together(self) -> Iterator[None]:
        """An error on one process is raised on all, at the end of the block.

        Raises:
            OtherProcessError: on processes that succeeded, with the messages of those that failed.
        """
        failure = None
        try:
            yield
        except Exception as error:
            failure = error
        told = self.gather(failure and f"{type(failure).__name__}: {failure}")
        if failure is not None:
            raise failure
        for rank, words in enumerate(told):
            if words is not None:
                raise OtherProcessError(f"process {rank} of {self.size}: {words}")

    def _require_same(self, values: Mapping[str, Any], how: str) -> None:
        """Raises ValueError on every process if one has other values than the first."""
        told = self.gather(dict(values))
        for rank, other in enumerate(told):
            for name in told[0].keys() | other.keys():
                if told[0].get(name) != other.get(name):
                    raise ValueError(
                        f"{name} on process {rank} ({other.get(name)}) must be what it is on "
                        f"process 0 ({told[0].get(name)}): {how}"
                    )

    def _send(self, collective: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        try:
            collective(*args, group=self.group, **kwargs)
        except RuntimeError as error:
            raise lost(error) from error


def _describe(tensor: Tensor) -> str:
    """Shape and a checksum, which differs, most likely, where tensors do."""
    bytes_of = tensor.data.contiguous().reshape(-1).view(torch.uint8)
    half = len(bytes_of) // 2
    return f"{list(tensor.shape)} with checksum {31 * bytes_of.sum() + bytes_of[:half].sum()}"


def _take_gpu(device: str, local_rank: int) -> None:
    if ":" in device:
        raise ValueError(
            f"device ({device}) must be cuda or auto with several processes: each takes the GPU "
            "of its number"
        )
    if local_rank >= torch.cuda.device_count():
        raise ValueError(
            f"device ({device}): process {local_rank} of this machine has no GPU, as there are "
            f"{torch.cuda.device_count()}: take a smaller --nproc-per-node, or device=cpu"
        )
    torch.cuda.set_device(local_rank)
