"""Goals that earlier episodes pursued, which show others what does not reach them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from tensordict import NestedKey

from torchrl_glam.replay._strategies import in_episode


class Drawn(NamedTuple):
    """Goals drawn for finished episodes, none of which reached its own; every field is [D].

    Args:
        episode: Episode of each, int64.
        goal: Which of the goals pursued lately it is, int64.
    """

    episode: torch.Tensor
    goal: torch.Tensor


class PursuedGoals:
    """The goals that episodes pursued lately, each as often as it was pursued.

    Relabelling an episode with the goals that it reached shows a critic successes only. Under a
    goal that it did not reach, every step shows a failure. So does the strategy "random" of
    Hindsight Experience Replay (Andrychowicz et al., 2017, section 4.5), with goals that others
    reached; those that they pursued come in the shares in which the agent meets them.

    Args:
        capacity: Goals to keep. Default: 10,000.

    Examples:
        >>> others = PursuedGoals()
        >>> others.add({"goal": torch.tensor([[7], [8]])})
        >>> episode, reached, pursued = torch.tensor([0]), torch.tensor([[7]]), torch.tensor([[5]])
        >>> generator = torch.Generator().manual_seed(0)
        >>> drawn = others.draw("goal", 9, episode, reached, episode, pursued, generator)
        >>> drawn.episode, others["goal"][drawn.goal]
        (tensor([0]), tensor([[8]]))
    """

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._entries: dict[NestedKey, torch.Tensor] = {}

    def __getitem__(self, key: NestedKey) -> torch.Tensor:
        return self._entries[key]

    def add(self, entries: dict[NestedKey, torch.Tensor]) -> None:
        """Adds goals, each entry [S, ...]; after a change of entries it begins anew."""
        if self._entries.keys() == entries.keys():
            entries = {
                key: torch.cat([self._entries[key], value]) for key, value in entries.items()
            }
        self._entries = {key: value[-self._capacity :] for key, value in entries.items()}

    def draw(
        self,
        key: NestedKey,
        count: int,
        episode: torch.Tensor,
        reached: torch.Tensor,
        drawing: torch.Tensor,
        pursued: torch.Tensor,
        generator: torch.Generator,
    ) -> Drawn:
        """Draws goals for episodes.

        Args:
            key: Entry that tells goals apart.
            count: How many to draw for each episode. Those that it reached or pursued, and
                repetitions, then fall away, so it gets at most as many.
            episode: Episode that reached each of the goals named, int64 [S].
            reached: These goals, [S, ...].
            drawing: Episodes to draw for, int64 [E].
            pursued: The goals that they pursued, [E, ...].
            generator: Source of randomness.
        """
        if key not in self._entries or not len(self._entries[key]):
            return Drawn(drawing[:0], drawing[:0])
        others = len(episode) + len(drawing)
        pool, into = self._entries[key], drawing.repeat_interleave(count)
        goal = torch.randint(
            len(pool), into.shape, generator=generator, device=generator.device
        ).to(into.device)
        # reached or pursued ones first: what is alike takes the place of the first of its kind
        everything = in_episode(
            torch.cat([episode, drawing, into]),
            torch.cat([reached, pursued.to(reached.dtype), pool[goal].to(reached.dtype)]),
        )
        _, alike = torch.unique(everything, dim=0, return_inverse=True)
        place = torch.arange(alike.shape[0], device=alike.device)
        first = torch.full_like(alike, alike.shape[0]).scatter_reduce(0, alike, place, "amin")
        new = (first[alike] == place)[others:]
        return Drawn(into[new], goal[new])

    def state_dict(self) -> dict[NestedKey, torch.Tensor]:
        """The goals."""
        return dict(self._entries)

    def load_state_dict(self, state: dict[NestedKey, torch.Tensor]) -> None:
        """Restores what :meth:`state_dict` returned."""
        self._entries = dict(state)
