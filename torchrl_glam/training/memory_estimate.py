"""What a run will need of its device's memory, before its language model is loaded."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchrl_glam.models import (
    CandidateTrie,
    DecoderOnlyTrunk,
    EncoderDecoderTrunk,
    build_trie,
    load_tokenizer,
)
from torchrl_glam.models._likelihood import log_sum_exp
from torchrl_glam.models._skeleton import load_skeleton, unchecked, weight_bytes


@dataclass(frozen=True)
class PassShape:
    """States that are read at a time, as many as an update keeps activations of.

    Args:
        states: how many.
        prompt_tokens: tokens of each one's prompt.
        num_actions: candidate actions of each.
        action_tokens: tokens of a candidate; the first two are taken to be shared ("Go to").
    """

    states: int
    prompt_tokens: int
    num_actions: int
    action_tokens: int

    @property
    def nodes(self) -> int:
        """Nodes of each state's token trie."""
        shared = min(2, self.action_tokens - 1)
        return 1 + shared + self.num_actions * (self.action_tokens - shared)

    @classmethod
    def of_tokens(cls, tokens: int) -> PassShape:
        """The shape of a pass of so many tokens, prompts and tries together, of Playground-Text.

        Examples:
            >>> PassShape.of_tokens(4096)
            PassShape(states=35, prompt_tokens=90, num_actions=8, action_tokens=5)
        """
        one = cls(1, prompt_tokens=90, num_actions=8, action_tokens=5)
        return cls(max(1, tokens // (90 + one.nodes)), 90, 8, 5)


# What libraries hold for kernels, and allocators between tensors: 70 to 150 MiB beyond what tensors
# take, for three models on a CPU (tests/benchmarks/bench_memory_estimate.py).
LIBRARIES = 100 * 2**20


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that an update takes at its peak.

    Args:
        weights: of the language model, as they are held.
        training: of what trains (adapters, or all weights) and critics: targets, gradients and
            the moments of Adam, critics themselves included.
        activations: the most that one pass of the language model holds, forward or backward.

    Examples:
        >>> estimate = MemoryEstimate(3_000_000_000, 500_000_000, 1_250_000_000)
        >>> print(f"{estimate} of 24.0 GB")
        4.9 GB (weights 3.0, training 0.5, activations 1.2, libraries 0.1) of 24.0 GB
    """

    weights: int
    training: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.training + self.activations + LIBRARIES

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "training": self.training,
            "activations": self.activations,
            "libraries": LIBRARIES,
        }
        listed = ", ".join(f"{name} {value / 1e9:.1f}" for name, value in parts.items())
        return f"{self.total / 1e9:.1f} GB ({listed})"


def estimate_memory(
    name: str,
    shape: PassShape,
    *,
    lora: LoraConfig | None = None,
    load_in_4bit: bool = False,
    dtype: torch.dtype = torch.float32,
    compute_dtype: torch.dtype = torch.bfloat16,
    autocast: torch.dtype | None = None,
    attention: str | None = None,
    gradient_checkpointing: bool = False,
    critic_hidden_sizes: tuple[int, ...] = (1024, 1024),
    separate: bool = True,
    targets: bool = True,
    several_passes: bool = True,
) -> MemoryEstimate:
    """Memory of a SAC or PPO update, by the model's configuration alone.

    Weights and what trains are counted. Activations are those of one pass, forward and backward,
    through a model whose tensors hold nothing. What libraries keep for themselves is counted as
    100 MiB; on a GPU the context of CUDA, some hundred MB, comes on top.

    Args:
        name: of the language model, see :func:`~torchrl_glam.models.load_language_model`; no folder
            of adapters.
        shape: the states of one pass.
        lora, load_in_4bit, dtype, compute_dtype, attention, gradient_checkpointing: how it is
            loaded, see there.
        autocast: type of matrix products, see :class:`~torchrl_glam.models.CandidateTrunk`.
        critic_hidden_sizes: of the critic. Default: ``(1024, 1024)``.
        separate: two Adams on the trunk (:class:`~torchrl_glam.objectives.SharedTrunkOptimizer`).
        targets: whether there are target weights, and next states are read while activations are
            held, as SAC does.
        several_passes: whether an update has more than one, so that gradients are kept beside the
            activations of the next.

    Raises:
        FileNotFoundError, ValueError: as :func:`~torchrl_glam.models.load_language_model`.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model = load_skeleton(
        name,
        mode,
        lora=lora,
        load_in_4bit=load_in_4bit,
        dtype=dtype,
        compute_dtype=compute_dtype,
        attention=attention,
        gradient_checkpointing=gradient_checkpointing,
    )
    trunk = _make_trunk(model, name, autocast)
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    sizes = [trunk.embedding_dim, *critic_hidden_sizes, 1]
    critic = 4 * sum((a + 1) * b for a, b in zip(sizes[:-1], sizes[1:], strict=True))
    groups = 2 if separate else 1
    # Of each Adam two moments; gradients of each, and one less where they come in one pass only.
    copies = targets + 2 * groups + groups - (not several_passes)
    training = trained * copies + critic * (2 + targets + 2)
    activations = _peak(trunk, mode, shape, twice=separate, next_states=targets)
    return MemoryEstimate(weight_bytes(model), training, activations)


def _make_trunk(model: nn.Module, name: str, autocast: torch.dtype | None):
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    kind = EncoderDecoderTrunk if base.config.is_encoder_decoder else DecoderOnlyTrunk
    return unchecked(kind)(model, load_tokenizer(name), autocast=autocast)


def _peak(
    trunk: Any, mode: FakeTensorMode, shape: PassShape, twice: bool, next_states: bool
) -> int:
    """Most bytes that a pass holds, forward and backward, beside weights and their gradients."""
    prompt = torch.ones(shape.states, shape.prompt_tokens, dtype=torch.int64)
    tokens = torch.ones(shape.states, shape.num_actions, shape.action_tokens, dtype=torch.int64)
    shared = min(2, shape.action_tokens - 1)
    tokens[..., shared:] = torch.arange(2, 2 + shape.num_actions).view(1, -1, 1)
    everything = torch.ones(tokens.shape[:2], dtype=torch.bool)
    trie = build_trie(tokens, everything, trunk._start_id(), 0)
    # The vocabulary head reads the nodes that something comes after.
    scored = shape.states * (shape.nodes - shape.num_actions)
    inputs = (prompt, torch.ones_like(prompt, dtype=torch.bool), *trie)
    parameters = [p for p in trunk.parameters() if p.requires_grad]
    with mode, LiveBytes() as live:
        prompt, mask, *trie = (mode.from_tensor(value) for value in inputs)
        trie = CandidateTrie(*trie)

        def read() -> Tensor:
            with trunk._autocast(prompt.device):
                hidden = trunk._read(prompt, mask, trie)
                rows = hidden.flatten(0, 1)[:scored]
                logits = trunk._logits(rows)
            return logits[:, 0].float().sum() - log_sum_exp(logits).sum() + hidden.float().sum()

        value = read()
        if next_states:
            with torch.no_grad():
                read()
        for last in (False, True) if twice else (True,):
            gradients = torch.autograd.grad(value, parameters, retain_graph=not last)
            del gradients
    return live.most


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of storages made within it, by operations, that are there at a time.

    Attributes:
        now: bytes that are there.
        most: the most that were.

    Examples:
        >>> with LiveBytes() as live:
        ...     _ = torch.ones(3) + torch.ones(3)
        >>> live.most
        36
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        old = {
            value.untyped_storage()._cdata
            for value in tree_leaves((args, kwargs))
            if isinstance(value, Tensor)
        }
        for value in tree_leaves(out):
            if isinstance(value, Tensor):
                self._add(value.untyped_storage(), old)
        self.most = max(self.most, self.now)
        return out

    def _add(self, storage: torch.UntypedStorage, old: set[int]) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen or key in old:
            return
        self._seen.add(key)
        self.now += size
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size
