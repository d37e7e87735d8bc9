"""The rules of Playground-Text as lookup tables, so that a batched step is a few gathers.

Conventions: ``N`` is the number of objects of a scene, which stand in slots ``0..N-1``. A *place*
numbers what the agent holds and what it is on: ``(holding + 1) * (N + 1) + (on + 1)``, both a slot
or -1 for nothing, so 0 is the start of an episode. Actions are ``Go to`` slot ``0..N-1``, then
``Grasp`` and ``Release``. An *event* is ``verb * 96 + object``, or ``NO_EVENT``; no action causes
more than one. A *cell* is a place and an action: ``place * (N + 3) + action``, where action
``N + 2`` is to stand still.
"""

import torch
from torch import Tensor

from torchrl_glam.envs.playground.goals import FEEDS
from torchrl_glam.envs.playground.vocabulary import OBJECTS

NOTHING = len(OBJECTS)
"""Object id of an empty slot."""
GRASPED = NOTHING + 1
"""Marks the second of a pair of objects when the first has just been grasped."""
NO_EVENT = 2 * len(OBJECTS)

_KINDS = len(OBJECTS) + 2  # the objects, NOTHING and GRASPED


class Dynamics:
    """What every action does in every place, and which event two objects that touch cause.

    Attributes:
        on, holding: slot that the agent is on, and holds, in each place; -1 for none; ``int64
            [P]``.
        admissible: ``bool [P, N + 2]``, False at ``Go to`` what is held and ``Release`` of nothing.
        allowed: the same by cell, ``bool [P * (N + 3)]``; False for standing still.

    Examples:
        >>> dynamics = Dynamics(num_objects=2)
        >>> dynamics.admissible[0].tolist()  # the start: empty hands, on nothing
        [True, True, True, False]
    """

    def __init__(self, num_objects: int, device: torch.device | None = None) -> None:
        self.num_objects = num_objects
        self.num_actions = num_objects + 2
        slots = range(-1, num_objects)
        places = [(holding, on) for holding in slots for on in slots]
        moves = [
            self._move(holding, on, action)
            for holding, on in places
            for action in range(self.num_actions + 1)
        ]
        allowed = torch.tensor([move[0] for move in moves]).view(len(places), -1)
        admissible = allowed[:, :-1]
        grower, event = _contacts()
        self.allowed = allowed.flatten().to(device)
        self.admissible = admissible.contiguous().to(device)
        self.holding = torch.tensor([place[0] for place in places], device=device)
        self.on = torch.tensor([place[1] for place in places], device=device)
        self._moves = torch.tensor([move[1:] for move in moves], device=device)
        self._grower, self._event = grower.to(device), event.to(device)

    def _move(self, holding: int, on: int, action: int) -> tuple[bool, int, int, int, int]:
        """Whether an action is admissible, the place it leads to, and the slots that touch.

        These are the held object and the one gone to, or the grasped object and the ``GRASPED``
        mark. Slot ``N`` holds ``NOTHING`` and slot ``N + 1`` ``GRASPED``.
        """
        nothing, grasped = self.num_objects, self.num_objects + 1
        touching, admissible = (nothing, nothing), False
        if action < self.num_objects and action != holding:  # Go to
            touching, admissible = (holding if holding >= 0 else nothing, action), True
            on = action
        elif action == self.num_objects:  # Grasp
            admissible = True
            if holding < 0 <= on:
                touching = (on, grasped)
                holding, on = on, -1
        elif action == self.num_objects + 1 and holding >= 0:  # Release
            admissible = True
            holding, on = -1, holding
        place = (holding + 1) * (self.num_objects + 1) + on + 1
        return (admissible, place, *touching, nothing)

    def cells(self, place: Tensor, action: Tensor) -> Tensor:
        """Returns the cell of each action.

        An action out of range gets a cell that is not allowed: above the range that of standing
        still, below 0 the last cell of the place before.
        """
        return torch.add(action.clamp(-1, self.num_actions), place, alpha=self.num_actions + 1)

    def step(self, cell: Tensor, scene: Tensor, grown: Tensor) -> tuple[Tensor, Tensor]:
        """Takes one admissible action, or stands still; gives the next place and the event, [B].

        Args:
            cell: ``int64 [B]``.
            scene: object ids, then ``NOTHING`` and ``GRASPED``, ``int64 [B, N + 2]``.
            grown: which objects have grown, then True, ``bool [B, N + 1]``; changed in place.
        """
        move = self._moves.index_select(0, cell)
        pair = scene.gather(1, move[:, 1:3])
        pair = torch.add(pair[:, 1:], pair[:, :1], alpha=_KINDS)
        slot = move.gather(1, self._grower.take(pair))  # the last column if nothing can grow
        event = self._event.take(torch.add(grown.gather(1, slot), pair, alpha=2))
        grown.scatter_(1, slot, True)
        return move[:, 0], event.squeeze(1)


def _contacts() -> tuple[Tensor, Tensor]:
    """Tabulates pairs of objects that touch: what grows, and the event.

    The first table, ``int64 [K * K]``, has the column of a move that names the slot that grows: 1
    for the first of the pair, 2 for the second, 3 for neither. The second has the event for each
    pair and whether what would grow has grown before, ``int64 [K * K * 2]``.
    """
    grower = torch.full((_KINDS, _KINDS), 3)
    event = torch.full((_KINDS, _KINDS, 2), NO_EVENT)
    event[: len(OBJECTS), GRASPED] = torch.arange(len(OBJECTS)).unsqueeze(1)
    supply, living = FEEDS.nonzero().unbind(1)
    grower[living, supply], grower[supply, living] = 1, 2
    event[living, supply, 0] = event[supply, living, 0] = len(OBJECTS) + living
    return grower.flatten(), event.flatten()
