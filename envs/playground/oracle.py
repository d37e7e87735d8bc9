"""The shortest plan for every goal of Playground-Text: a yardstick for agents."""

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_glam.envs.playground.goals import FEEDS, GoalSpace
from torchrl_glam.envs.playground.vocabulary import VERBS

_GRASP, _GROW = range(len(VERBS))
_NEVER = 1000  # cost of what cannot be reached


class OraclePolicy(TensorDictModuleBase):
    """Takes the first action of a shortest plan, from the symbolic state.

    To grow something the agent holds a supply or a living thing and goes to the other. The plan is
    the cheapest such pair, or object to grasp, together with what the second part of a sequential
    goal will then cost. Where the goal is out of reach, the action is ``Grasp``. From the start of
    an episode plans take 2 to 6 actions.

    Args:
        goals: the goals of the environment, ``env.goals``.

    Examples:
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> env = PlaygroundTextEnv(num_envs=4, seed=0)
        >>> policy = OraclePolicy(env.goals)
        >>> steps = env.rollout(7, policy, break_when_any_done=False)
        >>> bool(steps["next", "terminated"].any(1).all())
        True
    """

    def __init__(self, goals: GoalSpace) -> None:
        super().__init__()
        entries = ("objects", "on", "holding", "grown", "stage")
        self.in_keys = ["goal_id", *(("state", key) for key in entries)]
        self.out_keys = ["action"]
        # The last simple goal stands for "no second part": nothing reaches it.
        nothing = torch.zeros_like(goals.reached_by[:1])
        kept = {"persistent": False}
        self.register_buffer("_feeds", FEEDS, **kept)
        self.register_buffer("_reached_by", torch.cat((goals.reached_by, nothing)), **kept)
        self.register_buffer("_parts", goals.parts, **kept)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes ``"action"`` (``int64``, the batch shape of ``"goal_id"``)."""
        costs, actions = self._plans(tensordict)
        cost, choice = costs.min(1, keepdim=True)
        grasp = tensordict["state", "objects"].shape[-1]
        action = actions.gather(1, choice).where(cost < _NEVER, grasp)
        return tensordict.set("action", action.view(tensordict["goal_id"].shape))

    def shortest_plans(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Says which actions begin a shortest plan, and how many steps such a plan takes.

        Ignores the time limit, and plans to reach a goal again that has been reached.

        Args:
            tensordict: states, ``[*B]``; see ``in_keys``.

        Returns:
            ``bool [*B, A]``, all ``False`` where the goal is out of reach; and ``int64 [*B]``, -1
            where it is.

        Examples:
            >>> from torchrl_glam.envs import PlaygroundTextEnv
            >>> env = PlaygroundTextEnv(1, num_objects=3, sequential=False, seed=1, text=False)
            >>> state = env.reset()
            >>> print(env.render())
            Goal: Grow red animal (step 0 of 16)
            You see: red chameleon, red sofa, blue water
            You are on: nothing
            You are holding: nothing
            You have grown: nothing
            Actions: 0 Go to red chameleon | 1 Go to red sofa | 2 Go to blue water | 3 Grasp
            >>> OraclePolicy(env.goals).shortest_plans(state)
            (tensor([[ True, False,  True, False, False]]), tensor([3]))
        """
        costs, actions = self._plans(tensordict)
        steps = costs.amin(1, keepdim=True)
        shortest = (costs == steps) & (steps < _NEVER)
        number = actions.new_zeros((len(costs), tensordict["state", "objects"].shape[-1] + 2))
        number.scatter_add_(1, actions, shortest.long())  # of such plans
        shape = tensordict["goal_id"].shape
        return (number > 0).view(*shape, -1), steps.where(steps < _NEVER, -1).view(shape)

    def _plans(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Plans that grasp slot u, then those that hold u and go to slot v.

        How many steps each takes, and its first action, ``int64 [B, N + N * N]`` both.
        """
        goal_id, objects, on, holding, grown, stage = (tensordict[key] for key in self.in_keys)
        parts, stage = self._parts[goal_id.flatten()], stage.flatten()
        objects, grown = (table.reshape(-1, table.shape[-1]) for table in (objects, grown))
        on, holding = on.reshape(-1, 1), holding.reshape(-1, 1)  # [B, 1]
        size = objects.shape[1]
        slots = torch.arange(size, device=objects.device)
        # feeds[b, s, x]: the object in slot s feeds that in slot x, which can still grow.
        feeds = self._feeds[objects.unsqueeze(2), objects.unsqueeze(1)] & ~grown.unsqueeze(1)
        now = torch.where(stage == 0, parts[:, 0], parts[:, 1])
        later = torch.where(stage == 0, parts[:, 1], -1)
        grasped, grows = self._matches(now, objects)
        # Steps until the object in a slot is held: the agent releases, goes to it, grasps it.
        empty, held, stood = holding < 0, holding == slots, on == slots
        to_hold = torch.where(held, 0, torch.where(empty, 2 - (empty & stood).long(), 3))
        to_grasp = torch.where(held, 2, to_hold)  # released first, to be picked up again
        grasp_cost = to_grasp.masked_fill(~grasped, _NEVER)
        # Growing: hold the object in slot u, go to that in slot v.
        meets = feeds & grows.unsqueeze(1)
        meets = meets | meets.mT
        grow_cost = to_hold.unsqueeze(2) + 1 + self._second_cost(later, objects, feeds)
        costs = torch.cat((grasp_cost, grow_cost.where(meets, _NEVER).flatten(1)), dim=1)
        take = torch.where(empty, slots.where(~stood, size), size + 1)  # go to u, Grasp or Release
        bring = torch.where(held.unsqueeze(2), slots, take.unsqueeze(2))
        return costs, torch.cat((take, bring.flatten(1)), dim=1)

    def _matches(self, goal: Tensor, objects: Tensor) -> tuple[Tensor, Tensor]:
        """Which objects reach a simple goal when grasped and when grown, ``bool [B, N]`` each."""
        table = self._reached_by[goal]  # [B, 2, 96]
        return table[:, _GRASP].gather(1, objects), table[:, _GROW].gather(1, objects)

    def _second_cost(self, later: Tensor, objects: Tensor, feeds: Tensor) -> Tensor:
        """Steps of the second part after holding slot u, going to slot v, ``int64 [B, N, N]``."""
        size = objects.shape[1]
        grasped, grows = self._matches(later, objects)
        # Grasp: release what is held; take it again, or go to another object and take that.
        grasp = torch.where(grasped, 2, 3).unsqueeze(2).expand(-1, -1, size)
        grasp = grasp.where(grasped.any(1)[:, None, None], _NEVER)
        # Grow something other than what has grown in the first part: with the supply in hand, or
        # release, go to, grasp and bring another pair together.
        other = ~torch.eye(size, dtype=torch.bool, device=objects.device)
        feeds_later = feeds & grows.unsqueeze(1)  # [B, supply, living]
        # after[b, s, x]: the supply in slot s feeds a match other than slot x.
        after = (feeds_later.unsqueeze(2) & other).any(3)
        any_after = after.any(1)
        grown_slot_v = torch.where(after, 1, 4).where(any_after.unsqueeze(1), _NEVER)
        grown_slot_u = torch.full_like(grown_slot_v, 4).where(any_after.unsqueeze(2), _NEVER)
        grow = torch.where(feeds, grown_slot_v, grown_slot_u)  # fed by u, in hand: v has grown
        return torch.minimum(grasp, grow).where((later >= 0)[:, None, None], 0)
