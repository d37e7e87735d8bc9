"""Checks that a trunk computes the same as its model's own forward.

Fresh weights are small: attention is nearly even, logits are nearly linear, and a wrong mask or a
forgotten cap moves them by less than rounding. So :func:`check_exactness` scales the output of
every matrix of the model up to the size of a trained one, in the trunk's pass and in the model's
own; by less if rounding would then dominate. Both run in float32, whatever the type of the weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from torchrl_glam._files import shorten
from torchrl_glam.models.trunks.trie import CandidateTrie

if TYPE_CHECKING:
    from torchrl_glam.models.trunks.encoded_actions import EncodedActionsTrunk
    from torchrl_glam.models.trunks.trunk import CandidateTrunk

# Largest difference of logits that rounding makes, as a share of their norm.
_ROUNDING = 1e-3
# Prompts are made longer than the windows of a model up to this one.
LONGEST_PROBE = 1024
# Outputs of matrices are scaled to the first of these root mean squares at which rounding is small.
_TRAINED_SIZES = (2.0, 0.5, 0.0)
# Logits are scaled to this, so that caps of some tens show.
_TRAINED_LOGITS = 8.0


class InexactTrunkError(ValueError):
    """A trunk does not compute what its model computes."""


@torch.no_grad()
def check_exactness(trunk: CandidateTrunk) -> int:
    """Compares the logits along candidates that share prefixes with the model's own forward.

    Prompts of unequal length stand in one batch; the longest exceeds every window of at most 1,024
    tokens that the model still reads. Dropout is off; weights and generators are left as they are.
    Returns the width of the embeddings, and raises InexactTrunkError if logits differ by more than
    rounding, or the model takes no such input.
    """
    base = trunk.base_model
    prompt, prompt_mask, candidates = probe(trunk)
    try:
        with _undisturbed(trunk):
            for size in _TRAINED_SIZES:
                with _as_if_trained(base, size):
                    plain = _plain_rows(trunk, prompt, prompt_mask, candidates)
                    with _after_matrices(base, _nudge):
                        moved = _plain_rows(trunk, prompt, prompt_mask, candidates)
                    noise = max(float(_relative(moved[key], plain[key]).max()) for key in plain)
                    if noise > _ROUNDING / 10 and size > 0:
                        continue
                    hidden = trunk._read(prompt, prompt_mask, candidates)
                    errors, _ = _compare(trunk, candidates, hidden, plain)
                    break
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InexactTrunkError(
            f"model ({base.__class__.__name__}) cannot be read by {trunk.__class__.__name__}, "
            f"which gives it a mask and positions of its own: {shorten(error)}"
        ) from error
    error = float(errors.max())
    if not error <= min(max(_ROUNDING, 10 * noise), 0.05):
        raise InexactTrunkError(
            f"model ({base.__class__.__name__}) cannot be read by {trunk.__class__.__name__}: "
            f"logits differ from the model's own by {error:.2g} of their norm. It does something "
            "to masks, positions or logits that this trunk does not know; choose another model"
        )
    return hidden.shape[-1]


@torch.no_grad()
def score_error(
    trunk: CandidateTrunk | EncodedActionsTrunk, states: TensorDictBase, rows: int = 2
) -> float:
    """The largest difference between a trunk's scores and the model's own forward.

    The trunk reads the candidates in one batch, the model reads them one at a time; both in
    float32, without ``autocast``. It costs about as much as scoring ``rows`` states
    one candidate at a time.

    Args:
        trunk: the trunk.
        states: any batch of its inputs.
        rows: states to check, with prompts from the shortest to the longest. Default: 2.

    Returns:
        Largest difference of a candidate's log-likelihood, in nats: about 1e-5 if all is well. A
        warning is given above one hundredth of a nat and of the log-likelihood.

    Raises:
        ValueError: if no state has an admissible candidate.

    Examples:
        >>> from torchrl.envs import TransformedEnv
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> from torchrl_glam.text import TokenizeText
        >>> from torchrl_glam.models import load_language_model, make_trunk
        >>> model, tokenizer = load_language_model("tiny")
        >>> env = TransformedEnv(PlaygroundTextEnv(num_envs=4, seed=0), TokenizeText(tokenizer))
        >>> score_error(make_trunk(model, tokenizer), env.reset()) < 1e-3
        True
    """
    trunk = getattr(trunk, "trunk", trunk)
    goal, observation, actions, mask = trunk.flat_inputs(states)
    prompt, prompt_mask = trunk.prompt(goal, observation)
    order = prompt_mask.sum(-1).argsort(stable=True)
    order = order[mask[order].any(-1)]
    if not len(order):
        raise ValueError("states: none has an admissible candidate, so there is nothing to score")
    chosen = order[torch.linspace(0, len(order) - 1, min(rows, len(order))).long()]
    prompt, prompt_mask = prompt[chosen], prompt_mask[chosen]
    trie = trunk._trie(actions[chosen], mask[chosen])
    with _undisturbed(trunk):
        plain = _plain_rows(trunk, prompt, prompt_mask, trie)
        _, nats = _compare(trunk, trie, trunk._read(prompt, prompt_mask, trie), plain)
    error, size = float(nats[:, 0].max()), float(nats[:, 1].abs().max())
    if not error <= 0.01 * max(1.0, size):
        warnings.warn(
            f"log-likelihoods of {type(trunk).__name__} differ by {error:.3g} nats from those of "
            f"{type(trunk.base_model).__name__}'s own forward: the policy is not what it scores",
            stacklevel=2,
        )
    return error


def probe(trunk: CandidateTrunk) -> tuple[Tensor, Tensor, CandidateTrie]:
    """Three prompts ``[3, T]``, their mask, and three or four candidates of each."""
    turn = max((n for n in trunk.turning_points if n <= LONGEST_PROBE), default=0)
    longest = max(1, min(max(24, turn + 12), trunk.limit.tokens - 4))
    weight = trunk.base_model.get_input_embeddings().weight
    ids = _plain_ids(trunk, 40, weight.device)
    lengths = torch.tensor([min(3, longest), min(11, longest), longest], device=weight.device)
    at = torch.arange(longest, device=weight.device)
    mask = at < lengths.unsqueeze(-1)
    prompt = ids[(at * 7 + lengths.unsqueeze(-1)) % len(ids)]
    a, b, c, d, e = ids[[5 % len(ids), 11 % len(ids), 0, 1 % len(ids), 2 % len(ids)]].tolist()
    pad = trunk.prompt.pad_id
    rows = [[a, b, c], [a, b, d], [a, pad, pad], [e, c, a]]
    candidates = torch.tensor(rows, device=weight.device).expand(3, -1, -1)
    admissible = torch.ones(3, len(rows), dtype=torch.bool, device=weight.device)
    admissible[0, -1] = False  # so that its trie is smaller than the others
    return prompt.where(mask, pad), mask, trunk._trie(candidates, admissible)


def _plain_ids(trunk: CandidateTrunk, number: int, device: torch.device) -> Tensor:
    """Tokens that stand for nothing but themselves, from all over the vocabulary."""
    config = trunk.text_config
    size = min(config.vocab_size, trunk.base_model.get_input_embeddings().weight.shape[0])
    special = {trunk.prompt.pad_id, *trunk.special_ids}
    for part in (config, trunk.base_model.config):
        for name, value in part.to_dict().items():
            if name.endswith(("token_id", "token_index")) and value is not None:
                special.update(value if isinstance(value, list) else [value])
    usable = [i for i in range(size) if i not in special]
    usable = usable[:: max(1, len(usable) // number)][:number]
    return torch.tensor(usable, device=device)


def _compare(
    trunk: CandidateTrunk, trie: CandidateTrie, hidden: Tensor, plain: dict[tuple[int, int], Tensor]
) -> tuple[Tensor, Tensor]:
    """Relative differences of logits; differences and sizes of log-likelihoods ``[K, 2]``."""
    before, errors, nats = trie.predicted_at, [], []
    for (state, action), expected in plain.items():
        tokens = trie.targets[state, action][trie.is_target[state, action]]
        nodes = torch.cat([before[state, action, : len(tokens)], trie.end[state, action, None]])
        logits = trunk._logits(hidden[state, nodes])
        errors.append(_relative(logits, expected))
        ours, theirs = (
            values[:-1].float().log_softmax(-1).gather(1, tokens.unsqueeze(-1)).sum()
            for values in (logits, expected)
        )
        nats.append(torch.stack([(ours - theirs).abs(), theirs]))
    return torch.cat(errors), torch.stack(nats)


def _relative(logits: Tensor, expected: Tensor) -> Tensor:
    """Difference of each row of logits, as a share of its norm."""
    difference = (logits.float() - expected.float()).norm(dim=-1)
    return difference / expected.float().norm(dim=-1).clamp_min(1e-12)


def _plain_rows(
    trunk: CandidateTrunk, prompt: Tensor, prompt_mask: Tensor, trie: CandidateTrie
) -> dict[tuple[int, int], Tensor]:
    """Logits before and after every token of each candidate, ``[w + 1, V]``, nothing padded."""
    rows = {}
    lengths = trie.is_target.sum(-1)
    for state in range(len(prompt)):
        alone = prompt[state : state + 1, prompt_mask[state]]
        for length in lengths[state].unique().tolist():
            actions = (lengths[state] == length).nonzero().squeeze(-1)
            if not length:  # masked candidates
                continue
            candidates = trie.targets[state, actions, :length]
            logits = trunk._plain_logits(alone.expand(len(actions), -1), candidates)
            for action, row in zip(actions.tolist(), logits, strict=True):
                rows[state, action] = row
    return rows


@contextmanager
def _changed(changes: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Within it, attributes have other values: owner, name and value of each."""
    with ExitStack() as stack:
        for owner, name, value in changes:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


def without_dropout(model: nn.Module) -> AbstractContextManager[None]:
    """Within it, a model is in eval mode, whatever mode its parts are in before and after."""
    return _changed((module, "training", False) for module in model.modules())


@contextmanager
def _undisturbed(trunk: CandidateTrunk) -> Iterator[None]:
    """Within it: no dropout, float32, exact products. Weights are the same tensors after it."""
    model, half = trunk.model, (torch.bfloat16, torch.float16)
    device = trunk.base_model.get_input_embeddings().weight.device
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    halves = [v for v in (*model.parameters(), *model.buffers()) if v.dtype in half]
    quantised = [m for m in model.modules() if getattr(m, "compute_dtype", None) in half]
    changes = [(backend, "fp32_precision", "ieee") for backend in backends]
    changes += [(value, "data", value.data.float()) for value in halves]
    changes += [(module, "compute_dtype", torch.float32) for module in quantised]
    with _changed(changes), without_dropout(model), torch.autocast(device.type, enabled=False):
        yield


def _as_if_trained(base: nn.Module, size: float) -> AbstractContextManager[None]:
    """Within it, what matrices and embeddings give has the root mean square ``size`` or more.

    Each is enlarged by a power of two, so nothing is rounded, that is chosen when it is used first.
    """
    factors: dict[nn.Module, float] = {}
    head = base.get_output_embeddings()

    def enlarge(module: nn.Module, output: Tensor) -> Tensor:
        if module not in factors:
            given = output.float().square().mean().sqrt().clamp_min(1e-12)
            wanted = _TRAINED_LOGITS if module is head else size
            factors[module] = 2.0 ** float((wanted / given).log2().ceil().clamp(0, 10))
        return output * factors[module]

    return _after_matrices(base, enlarge)


def _nudge(module: nn.Module, output: Tensor) -> Tensor:
    """The output of a matrix, off by some roundings."""
    return output * (1 + 3e-7 * torch.arange(output.shape[-1], device=output.device).cos())


@contextmanager
def _after_matrices(
    base: nn.Module, change: Callable[[nn.Module, Tensor], Tensor]
) -> Iterator[None]:
    """Within it, what matrices and embeddings give is changed."""

    def hook(module: nn.Module, inputs: tuple, output: Any) -> Any:
        # Routers of experts give several tensors.
        return change(module, output) if isinstance(output, Tensor) else output

    with ExitStack() as stack:
        for module in base.modules():
            weight = dict(module.named_parameters(recurse=False)).get("weight")
            if weight is not None and weight.dim() == 2:
                stack.callback(module.register_forward_hook(hook).remove)
        yield
