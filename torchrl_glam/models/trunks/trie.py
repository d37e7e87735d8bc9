"""Candidate actions of a batch of states as token tries.

Conventions: B states, A candidate slots up to the last one in use, W tokens of the longest
candidate, N nodes of the largest trie of the batch. Node 0 of every trie is the start token, at
depth 0; a candidate of k tokens is the path of k nodes below it. Candidates that share a prefix
share its nodes, so the language model reads "Go to" once, however many objects there are.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchrl_glam.models.trunks.passes import fingerprint


class CandidateTrie(NamedTuple):
    """Token tries of B states.

    Attributes:
        tokens: ``[B, N]`` int64, token of each node; the start token at node 0.
        depth: ``[B, N]`` int64, number of tokens above the node; 0 where there is no node.
        valid: ``[B, N]`` bool, True where there is a node.
        ancestors: ``[B, N, N]`` bool, True at ``[b, n, m]`` if m is n or above n. A slot without
            a node sees itself only, so that attention stays defined there.
        path: ``[B, A, W]`` int64, node of each candidate's token; 0 where it has none.
        end: ``[B, A]`` int64, node of each candidate's last token; 0 for a masked candidate.
        targets: ``[B, A, W]`` int64, tokens of the candidates.
        is_target: ``[B, A, W]`` bool, True where an admissible candidate has a token.
    """

    tokens: Tensor
    depth: Tensor
    valid: Tensor
    ancestors: Tensor
    path: Tensor
    end: Tensor
    targets: Tensor
    is_target: Tensor

    @property
    def predicted_at(self) -> Tensor:
        """``[B, A, W]`` int64: the node after which each of ``targets`` comes."""
        return pad(self.path[..., :-1], (1, 0))


def build_trie(
    action_tokens: Tensor,
    action_mask: Tensor,
    start_id: int,
    pad_id: int,
    *,
    leaves: bool = True,
    pad_to_multiple_of: int = 1,
) -> CandidateTrie:
    """Merges the candidates of each state by token prefix, without a loop over states.

    On a GPU, the host waits twice: for the longest candidate and for the largest trie.

    Args:
        action_tokens: integers ``[B, S, L]``, S slots of L, padded on the right with ``pad_id``.
        action_mask: ``[B, S]`` bool, False at candidates to leave out. S and L may exceed A and W.
        start_id: token that starts the decoder.
        pad_id: padding token.
        leaves: whether tokens after which no token comes have nodes. Log-likelihoods do not need
            them, hidden states at the end of candidates do. Default: True.
        pad_to_multiple_of: N is rounded up to a multiple of this. Default: 1.

    Returns:
        A :class:`CandidateTrie`. Without leaves, ``end`` has no meaning.

    Raises:
        ValueError: if an admissible candidate has no tokens, or the tokens of another one.

    Examples:
        >>> tokens = torch.tensor([[[5, 6, 7], [5, 6, 8], [9, 0, 0]]])
        >>> trie = build_trie(tokens, torch.ones(1, 3, dtype=torch.bool), start_id=1, pad_id=0)
        >>> trie.tokens, trie.end
        (tensor([[1, 5, 9, 6, 7, 8]]), tensor([[4, 5, 2]]))
        >>> trie.ancestors[0, 5].int()  # of the last node: the start, 5, 6 and itself
        tensor([1, 1, 0, 1, 0, 1], dtype=torch.int32)
    """
    tokens, is_target = admissible_tokens(action_tokens, action_mask, pad_id)
    on_path = is_target if leaves else pad(is_target[..., 1:], (0, 1))
    path, is_node, size = _number(tokens, on_path)
    num_nodes = int(size.max()) if size.numel() else 1
    num_nodes += -num_nodes % pad_to_multiple_of

    # Slot 0 collects the tokens without a node; the root overwrites it.
    slot = torch.where(is_node, path, 0).flatten(1)

    def table(values: Tensor, empty: int, root: int) -> Tensor:
        out = values.new_full((len(path), num_nodes), empty).scatter_(1, slot, values.flatten(1))
        out[:, 0] = root
        return out

    level = torch.arange(1, path.shape[-1] + 1, device=path.device).expand_as(path)
    parent = table(pad(path[..., :-1], (1, 0)), 0, 0)
    valid = torch.arange(num_nodes, device=path.device) < size.unsqueeze(-1)
    return CandidateTrie(
        tokens=table(tokens, pad_id, start_id),
        depth=table(level, 0, 0),
        valid=valid,
        ancestors=_ancestors(parent, valid, path.shape[-1]),
        path=path,
        end=path.gather(-1, (on_path.sum(-1, keepdim=True) - 1).clamp_min(0)).squeeze(-1),
        targets=tokens,
        is_target=is_target,
    )


def admissible_tokens(
    action_tokens: Tensor, action_mask: Tensor, pad_id: int
) -> tuple[Tensor, Tensor]:
    """Tokens ``[B, A, W]``, without what no state uses, and which an admissible candidate has.

    Raises ValueError as :func:`build_trie` does.
    """
    tokens = action_tokens.long()
    is_target = (tokens != pad_id) & action_mask.unsqueeze(-1)
    if not action_mask.numel():
        return tokens, is_target
    empty = action_mask & ~is_target[..., :1].any(-1)
    code = fingerprint(tokens.masked_fill(~is_target, -1))
    # Masked candidates may be equal: each stands for its slot.
    slot = torch.arange(code.shape[-1], device=code.device)
    code = torch.where(action_mask, code, slot).sort(-1).values
    num_equal = (code[:, 1:] == code[:, :-1]).sum()
    # Asked at once, as on a GPU the host waits for the answer.
    asked = (action_mask.any(0) * slot).max(), is_target.sum(-1).max(), empty.sum(), num_equal
    last, longest, num_empty, num_equal = torch.stack(asked).tolist()
    if num_empty:
        state, action = empty.nonzero()[0].tolist()
        raise ValueError(
            f"action_tokens[{state}, {action}] is admissible but has no tokens: every candidate "
            "action must tokenise to at least one token (check the action's text and the tokenizer)"
        )
    if num_equal:
        _check_different(tokens, is_target, action_mask)
    used = (..., slice(last + 1), slice(max(longest, 1)))
    return tokens[used], is_target[used]


def _check_different(tokens: Tensor, is_target: Tensor, action_mask: Tensor) -> None:
    """Raises if two admissible candidates of a state have the same tokens."""
    tokens = torch.where(is_target, tokens, -1)
    equal = (tokens.unsqueeze(2) == tokens.unsqueeze(1)).all(-1)
    equal &= (action_mask.unsqueeze(2) & action_mask.unsqueeze(1)).tril(-1)
    if equal.any():
        state, second, first = equal.nonzero()[0].tolist()
        raise ValueError(
            f"action_tokens[{state}, {first}] and [{state}, {second}] are admissible and have the "
            f"same tokens ({tokens[state, first][is_target[state, first]].tolist()}), so the "
            "policy could not tell them apart: list each action once, or mask its copies; if their "
            "texts differ, choose a tokenizer that knows the words in which they do"
        )


def _number(tokens: Tensor, on_path: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Node of each token, whether it is the node's first, and sizes of the tries."""
    batch, num_actions, width = tokens.shape
    # owner[b, a, w]: the first candidate whose first w + 1 tokens are those of candidate a.
    same = (tokens.unsqueeze(2) == tokens.unsqueeze(1)) & on_path.unsqueeze(2)
    same &= on_path.unsqueeze(1)
    owner = same.cumprod(-1, dtype=torch.int8).argmax(2)
    is_node = on_path & (owner == torch.arange(num_actions, device=tokens.device).unsqueeze(1))

    # Nodes are numbered level by level, 1 onwards; shared tokens take their owner's number.
    by_level = is_node.transpose(1, 2).flatten(1)
    number = by_level.cumsum(-1).view(batch, width, num_actions).transpose(1, 2)
    path = torch.where(on_path, number.gather(1, owner), 0)
    return path, is_node, by_level.sum(-1) + 1


def _ancestors(parent: Tensor, valid: Tensor, width: int) -> Tensor:
    """``[B, N, N]``: climbs from every node to the root, which is above itself."""
    batch, num_nodes = parent.shape
    out = torch.eye(num_nodes, dtype=torch.bool, device=parent.device).repeat(batch, 1, 1)
    climb = torch.arange(num_nodes, device=parent.device).repeat(batch, 1)
    for _ in range(width):
        climb = parent.gather(1, climb)
        out.scatter_(2, climb.unsqueeze(-1), valid.unsqueeze(-1))
    return out
