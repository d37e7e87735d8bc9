"""The start of an episode: its goal, and the scene, which objects are there."""

import torch
from torch import Tensor

from torchrl_glam.envs.playground.goals import FEEDS, GoalSpace
from torchrl_glam.envs.playground.vocabulary import OBJECTS, PLANTS, type_of

_FOODS = [item for item in range(len(OBJECTS)) if type_of(item) == "food"]
_WATERS = [item for item in range(len(OBJECTS)) if type_of(item) == "water"]


class SceneSampler:
    """Draws scenes in which a goal can be reached, for many goals at once.

    A scene holds an object for each part of the goal, a supply that works for each ``Grow``, and
    random objects; all differ, in random order. One supply serves both parts: water if one of them
    grows a plant, else water or food. Scenes of impossible goals are drawn the same
    way, without the objects that they must lack.

    Examples:
        >>> goals = GoalSpace("train", sequential=False)
        >>> scenes = SceneSampler(goals, num_objects=3)
        >>> goal = torch.tensor([goals.id_of("Grow red lion")])
        >>> scene = scenes.sample(goal, torch.Generator().manual_seed(0))
        >>> scene.shape, "red lion" in [OBJECTS[item] for item in scene[0]]
        (torch.Size([1, 3]), True)
    """

    def __init__(
        self, goals: GoalSpace, num_objects: int, device: torch.device | None = None
    ) -> None:
        need = 3 if goals.sequential else 2
        if num_objects < need:
            raise ValueError(
                f"num_objects ({num_objects}) is too small: a goal can need {need} objects, a "
                "living thing for each of its parts and a supply. Pass at least 3, or 2 with "
                "sequential=False for simple goals only."
            )
        if num_objects > len(OBJECTS):
            raise ValueError(
                f"num_objects ({num_objects}) must be at most {len(OBJECTS)}: the objects of a "
                "scene all differ."
            )
        self.num_objects = num_objects
        self._lack = Lack(goals, num_objects, device) if goals.impossible else None
        matches = goals.matches
        count = matches.sum(1)
        first, second = goals.parts.unbind(1)
        parts = torch.stack((first, torch.where(second < 0, first, second)), dim=1)
        # The part that fewer objects match draws first, as in "Grow any lion then grow red lion".
        parts = parts.gather(1, count[parts].argsort(dim=1, stable=True))
        plant = torch.tensor([type_of(item) in PLANTS for item in range(len(OBJECTS))])
        grow = torch.arange(goals.num_simple) >= goals.num_grasp
        # The objects of each simple goal come first in its row; their ranks are their places.
        members = (~matches).byte().argsort(dim=1, stable=True)
        rank = (matches.cumsum(1) - 1).masked_fill(~matches, len(OBJECTS))
        # Where the rows of a goal's parts start in the tables by simple goal and object.
        self._starts = (parts * len(OBJECTS)).to(device)
        self._num_choices = count[parts[:, 0]].float().to(device)
        self._is_sequence = (second >= 0).to(device)
        self._needs_supply = grow[first].to(device)
        self._members, self._rank = members.flatten().to(device), rank.flatten().to(device)
        # How many objects are left for a part when the other one has taken this object.
        self._num_others = (count.unsqueeze(1) - matches.long()).flatten().to(device)
        self._supplies = torch.tensor([*_FOODS, *_WATERS, *_WATERS, *_WATERS], device=device)
        # Where the supplies that work start: all of them, or those without food.
        self._first_supply = (6 * (grow.unsqueeze(1) & plant)).flatten().to(device)

    def sample(self, goal_ids: Tensor, generator: torch.Generator) -> Tensor:
        """Draws a scene for each goal, ``int64 [n]``: object ids, ``int64 [n, num_objects]``."""
        draw = torch.rand(
            (len(goal_ids), 3 + len(OBJECTS) + self.num_objects),
            generator=generator,
            device=goal_ids.device,
        )
        needed = self._needed(goal_ids, draw[:, :3])
        # The needed objects get the smallest keys, the others random ones.
        keys = draw[:, 3 : 3 + len(OBJECTS)].scatter(1, needed, -1.0)
        if self._lack is not None:
            keys.masked_fill_(self._lack.left_out(goal_ids, generator), 2.0)
        scene = keys.topk(self.num_objects, dim=1, largest=False, sorted=False).indices
        return scene.gather(1, draw[:, 3 + len(OBJECTS) :].argsort(1))

    def _needed(self, goal_ids: Tensor, draw: Tensor) -> Tensor:
        """Draws the objects that each goal needs, ``int64 [n, 3]``, with repetitions if fewer."""
        parts = self._starts.index_select(0, goal_ids)
        narrow, wide = parts[:, 0], parts[:, 1]
        choice = (draw[:, 0] * self._num_choices.take(goal_ids)).long()
        item = self._members.take(narrow + choice)
        # The object of the other part is another one: drawn from its matches without `item`.
        entry = wide + item
        rank = (draw[:, 1] * self._num_others.take(entry)).long()
        rank += rank >= self._rank.take(entry)
        other = self._members.take(wide + rank)
        other = torch.where(self._is_sequence.take(goal_ids), other, item)
        objects = torch.stack((item, other), dim=1)
        supply = (draw[:, 2] * 6).long() + self._first_supply.take(parts + objects).amax(1)
        supply = torch.where(self._needs_supply.take(goal_ids), self._supplies.take(supply), item)
        return torch.cat((objects, supply.unsqueeze(1)), dim=1)


class Lack:
    """Draws what scenes lack, so that goals from ``goals.first_lacking`` on cannot be reached.

    One part of the goal, drawn uniformly, lacks all objects that reach it. If the part is a
    ``Grow``, half of the time it lacks all supplies that feed one of these objects instead.
    """

    def __init__(self, goals: GoalSpace, num_objects: int, device: torch.device | None) -> None:
        supplies = goals.matches.float() @ FEEDS.T.float() > 0
        room = len(OBJECTS) - int(torch.cat((goals.matches, supplies)).sum(1).max())
        if num_objects > room:
            raise ValueError(
                f"num_objects ({num_objects}) must be at most {room} where there are impossible "
                "goals: a scene may have to do without all other objects."
            )
        self._first, self._num_grasp = goals.first_lacking, goals.num_grasp
        self._parts = goals.parts.to(device)
        self._objects, self._supplies = goals.matches.to(device), supplies.to(device)

    def left_out(self, goal_ids: Tensor, generator: torch.Generator) -> Tensor:
        """Objects that must not be there, for goals ``int64 [n]``: ``bool [n, 96]``."""
        draw = torch.rand((2, len(goal_ids)), generator=generator, device=goal_ids.device) < 0.5
        first, second = self._parts.index_select(0, goal_ids).unbind(1)
        part = torch.where(draw[0] & (second >= 0), second, first)
        supply = draw[1] & (part >= self._num_grasp)
        left_out = torch.where(supply.unsqueeze(1), self._supplies[part], self._objects[part])
        return left_out & (goal_ids >= self._first).unsqueeze(1)
