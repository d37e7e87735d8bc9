"""Candidate actions of a batch of states as token tries.

Conventions: B states, A candidate actions a state, W tokens of the longest candidate, N nodes of
the largest trie of the batch. Node 0 of every trie is the decoder's start token, at depth 0;
a candidate of k tokens is the path of k nodes below it. Candidates that share a prefix share its
nodes, so the language model reads "Go to" once, however many objects there are to go to.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class CandidateTrie(NamedTuple):
    """Token tries of B states.

    Attributes:
        tokens: ``[B, N]`` int64, token of each node; the start token at node 0.
        depth: ``[B, N]`` int64, number of tokens above the node; 0 where there is no node.
        parent: ``[B, N]`` int64, index of the parent; 0 for node 0 and where there is no node.
        valid: ``[B, N]`` bool, True where there is a node.
        ancestors: ``[B, N, N]`` bool, True at ``[b, n, m]`` if m is n or above n. A slot without
            a node sees itself only, so that attention stays defined there.
        path: ``[B, A, W]`` int64, node of each candidate's token; 0 where it has none.
        on_path: ``[B, A, W]`` bool, True where the candidate's token has a node.
        end: ``[B, A]`` int64, node of each candidate's last token; 0 for a masked candidate.
        targets: ``[B, A, W]`` int64, tokens of the candidates.
        is_target: ``[B, A, W]`` bool, True where an admissible candidate has a token.
    """

    tokens: Tensor
    depth: Tensor
    parent: Tensor
    valid: Tensor
    ancestors: Tensor
    path: Tensor
    on_path: Tensor
    end: Tensor
    targets: Tensor
    is_target: Tensor

    @property
    def predicted_at(self) -> Tensor:
        """``[B, A, W]`` int64: the node after which each of ``targets`` comes."""
        return torch.nn.functional.pad(self.path[..., :-1], (1, 0))


def build_trie(
    action_tokens: Tensor,
    action_mask: Tensor,
    start_id: int,
    pad_id: int,
    *,
    leaves: bool = True,
) -> CandidateTrie:
    """Merges the candidates of each state by token prefix, without a loop over states.

    Args:
        action_tokens: ``[B, A, W]`` integers, padded on the right with ``pad_id``.
        action_mask: ``[B, A]`` bool, False at candidates to leave out.
        start_id: token that starts the decoder.
        pad_id: padding token.
        leaves: whether tokens after which no token comes have nodes. Log-likelihoods do not need
            them, hidden states at the end of candidates do. Default: True.

    Returns:
        A :class:`CandidateTrie`. Without leaves, ``end`` has no meaning.

    Raises:
        ValueError: if an admissible candidate has no tokens.

    Examples:
        >>> tokens = torch.tensor([[[5, 6, 7], [5, 6, 8], [9, 0, 0]]])
        >>> trie = build_trie(tokens, torch.ones(1, 3, dtype=torch.bool), start_id=1, pad_id=0)
        >>> trie.tokens
        tensor([[1, 5, 9, 6, 7, 8]])
        >>> trie.parent
        tensor([[0, 0, 0, 1, 3, 3]])
        >>> trie.end
        tensor([[4, 5, 2]])
        >>> build_trie(tokens, torch.ones(1, 3, dtype=torch.bool), 1, 0, leaves=False).tokens
        tensor([[1, 5, 6]])
    """
    tokens = action_tokens.long()
    is_target = (tokens != pad_id) & action_mask.unsqueeze(-1)
    empty = action_mask & ~is_target[..., :1].any(-1)
    if empty.any():
        state, action = empty.nonzero()[0].tolist()
        raise ValueError(
            f"action_tokens[{state}, {action}] is admissible but has no tokens: every candidate "
            "action must tokenise to at least one token (check the action's text and the tokenizer)"
        )
    longest = max(int(is_target.sum(-1).max()), 1) if is_target.numel() else is_target.shape[-1]
    tokens, is_target = tokens[..., :longest], is_target[..., :longest]
    batch, num_actions, width = tokens.shape
    on_path = is_target
    if not leaves:
        on_path = torch.nn.functional.pad(is_target[..., 1:], (0, 1))

    # owner[b, a, w]: the first candidate whose first w + 1 tokens are those of candidate a.
    same = (tokens.unsqueeze(2) == tokens.unsqueeze(1)) & on_path.unsqueeze(2)
    same &= on_path.unsqueeze(1)
    same = same.cumprod(-1, dtype=torch.int8)
    owner = same.argmax(2)
    candidate = torch.arange(num_actions, device=tokens.device).view(1, -1, 1)
    is_node = on_path & (owner == candidate)

    # Nodes are numbered level by level, 1 onwards; shared tokens take their owner's number.
    by_level = is_node.transpose(1, 2).reshape(batch, -1)
    number = by_level.cumsum(-1).view(batch, width, num_actions).transpose(1, 2)
    path = torch.where(on_path, number.gather(1, owner), 0)
    num_nodes = (int(by_level.sum(-1).max()) if by_level.numel() else 0) + 1

    nodes = _nodes(tokens, is_node, path, num_nodes, start_id, pad_id)
    last = (on_path.sum(-1) - 1).clamp_min(0).unsqueeze(-1)
    end = path.gather(-1, last).squeeze(-1)
    return CandidateTrie(*nodes, path, on_path, end, tokens, is_target)


def _nodes(
    tokens: Tensor, is_node: Tensor, path: Tensor, num_nodes: int, start_id: int, pad_id: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Tokens, depths, parents, validity and ancestors of the nodes."""
    batch, _, width = path.shape
    # Slot 0 collects what is no node of its own; it is overwritten with the start token.
    slot = torch.where(is_node, path, 0).flatten(1)
    above = torch.nn.functional.pad(path[..., :-1], (1, 0)).flatten(1)
    level = torch.arange(1, width + 1, device=path.device).expand_as(path).flatten(1)

    def table(values: Tensor, empty: int, root: int) -> Tensor:
        out = values.new_full((batch, num_nodes), empty).scatter_(1, slot, values)
        out[:, 0] = root
        return out

    node_tokens = table(tokens.flatten(1), pad_id, start_id)
    parent = table(above, 0, 0)
    depth = table(level, 0, 0)
    count = is_node.flatten(1).sum(-1, keepdim=True)
    valid = torch.arange(num_nodes, device=path.device) <= count

    ancestors = torch.eye(num_nodes, dtype=torch.bool, device=path.device).repeat(batch, 1, 1)
    climb = torch.arange(num_nodes, device=path.device).repeat(batch, 1)
    for _ in range(width):
        climb = parent.gather(1, climb)
        ancestors.scatter_(2, climb.unsqueeze(-1), valid.unsqueeze(-1))
    return node_tokens, depth, parent, valid, ancestors
