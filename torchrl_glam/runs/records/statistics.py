"""What a run counts of its episodes and goals."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from torchrl_glam.models.trunks.passes import fingerprint
from torchrl_glam.text import EnvDescription


def goals_reached(after: TensorDictBase, success_key: NestedKey = "reward") -> Tensor:
    """Which steps end an episode by reaching its goal, bool ``[*B]``.

    The environment says it by an entry that is positive, or True, on that step and on no other.

    Args:
        after: what steps led to, ``"next"``, of any batch shape.
        success_key: the entry, ``[*B]`` or ``[*B, 1]``. Default ``"reward"``.

    Raises:
        ValueError: if there is no such entry, or it is positive where no episode ends, as rewards
            are that reward progress.

    Examples:
        >>> from tensordict import TensorDict
        >>> done = torch.tensor([[True], [True], [False]])
        >>> after = TensorDict({"done": done, "reward": torch.tensor([[1.0], [0.0], [0.0]])}, [3])
        >>> goals_reached(after)
        tensor([ True, False, False])
    """
    value = after.get(success_key, None)
    if value is None:
        raise ValueError(
            f"key {success_key!r} is missing: success_key must name an entry that is positive, or "
            "True, on the step that reaches the goal"
        )
    done = after["done"].squeeze(-1)
    reached = (value > 0).reshape(done.shape)
    if (reached & ~done).any():
        raise ValueError(
            f"{success_key!r} is positive on a step that does not end an episode, so it does not "
            "say which episodes reach their goal: end the episode there, or let the environment "
            "write a bool entry that does, and name it in success_key"
        )
    return reached


class EpisodeStatistics:
    """Goals and success of the episodes that ended since the last call of :meth:`summary`.

    ``kinds/pursued/<kind>`` is the share of episodes that pursued a kind. Where steps hold
    ``"goal_tokens"``, ``goals/reached`` counts the different goals that were reached so far.

    Args:
        kinds: names of the goal kinds, as :func:`~torchrl_glam.text.describe_env` tells them.
            Default: one kind, ``"goal"``.
        success_key: entry of ``"next"`` that says which episodes reach their goal, see
            :func:`goals_reached`. Default ``"reward"``.

    Examples:
        >>> from tensordict import TensorDict
        >>> reward = torch.tensor([[1.0], [0.0]])
        >>> after = {"done": torch.ones(2, 1, dtype=torch.bool), "reward": reward}
        >>> statistics = EpisodeStatistics(["grasp", "grow"])
        >>> statistics.add(TensorDict({"goal_kind": torch.tensor([0, 1]), "next": after}, [2]))
        >>> statistics.summary()
        {'episodes': 2, 'success': 0.5, 'success/grasp': 1.0, 'kinds/pursued/grasp': 0.5,
        'success/grow': 0.0, 'kinds/pursued/grow': 0.5}
    """

    def __init__(
        self,
        kinds: Sequence[str] = EnvDescription.goal_kinds,
        success_key: NestedKey = "reward",
    ) -> None:
        self._kinds = tuple(kinds)
        self._success_key = success_key
        self.clear()

    def add(self, steps: TensorDictBase) -> None:
        """Counts the episodes that end in a batch of steps of any batch shape.

        Raises:
            ValueError: if a goal kind is none of ``kinds``.
        """
        after = steps["next"]
        done, reached_now = after["done"].squeeze(-1), goals_reached(after, self._success_key)
        kinds = _named_kinds("goal_kind", steps["goal_kind"][done], self._kinds).tolist()
        self._ended.update(self._kinds[kind] for kind in kinds)
        self._reached.update(self._kinds[kind] for kind in steps["goal_kind"][reached_now].tolist())
        tokens = steps.get("goal_tokens", None)
        if tokens is not None:
            self._take(fingerprint(tokens[reached_now]).cpu())

    def _take(self, goals: Tensor) -> None:
        self._goals = torch.cat((self._goals, goals)).unique()

    def summary(self) -> dict[str, float]:
        """Number of episodes, success over all and by kind; then counts anew."""
        ended = sum(self._ended.values())
        out: dict[str, float] = {"episodes": ended}
        if ended:
            out["success"] = sum(self._reached.values()) / ended
        for kind in self._kinds:
            if self._ended[kind]:
                out[f"success/{kind}"] = self._reached[kind] / self._ended[kind]
            if ended and len(self._kinds) > 1:
                out[f"kinds/pursued/{kind}"] = self._ended[kind] / ended
        if len(self._goals):
            out["goals/reached"] = len(self._goals)
        self._ended.clear()
        self._reached.clear()
        return out

    def clear(self) -> None:
        """Starts anew."""
        self._ended: Counter[str] = Counter()
        self._reached: Counter[str] = Counter()
        self._goals = torch.empty(0, dtype=torch.int64)  # that were reached

    def merge(self, state_dict: dict[str, Any]) -> None:
        """Adds the counts of another's :meth:`state_dict`."""
        self._ended.update(state_dict["ended"])
        self._reached.update(state_dict["reached"])
        self._take(state_dict["goals"])

    def state_dict(self) -> dict[str, Any]:
        """Counts since the last summary, and the goals reached so far."""
        return {"ended": dict(self._ended), "reached": dict(self._reached), "goals": self._goals}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the counts."""
        self.clear()
        self.merge(state_dict)


class GoalCoverage:
    """Which goals the social partner has ever named, and of which kinds: what hindsight can teach.

    It reads the entries ``("hindsight", "goal_tokens")``, ``[*B, H, T]``, and ``("hindsight",
    "kind")``, -1 in empty slots, ``[*B, H]``, of ``"next"``.

    Args:
        kinds: names of the goal kinds. Default: one kind, ``"goal"``.

    Examples:
        >>> from tensordict import TensorDict
        >>> tokens = torch.tensor([[[5], [6]], [[5], [0]]])
        >>> named = {"goal_tokens": tokens, "kind": torch.tensor([[0, 1], [0, -1]])}
        >>> coverage = GoalCoverage(["grasp", "grow"])
        >>> coverage.add(TensorDict({"next": {"hindsight": named}}, batch_size=[2]))
        >>> for metric in coverage.summary().items():
        ...     print(*metric)
        goals/named 2
        goals/new_per_1000_steps 1000.0
        kinds/named/grasp 0.6666666666666666
        kinds/named/grow 0.3333333333333333
    """

    def __init__(self, kinds: Sequence[str] = EnvDescription.goal_kinds) -> None:
        self._kinds = tuple(kinds)
        self.clear()

    def clear(self) -> None:
        """Forgets all of it."""
        self._seen = torch.empty(0, dtype=torch.int64)
        self._named = torch.zeros(len(self._kinds), dtype=torch.int64)
        self._steps = self._before = 0

    def add(self, steps: TensorDictBase) -> None:
        """Takes note of the goals that steps of any batch shape reached.

        Raises:
            ValueError: if a goal kind is none of ``kinds``.
        """
        tokens, kinds = (steps["next", "hindsight", key] for key in ("goal_tokens", "kind"))
        named = kinds >= 0
        kinds = _named_kinds(("hindsight", "kind"), kinds[named], self._kinds)
        counts = kinds.cpu().bincount(minlength=len(self._kinds))
        self._take(fingerprint(tokens[named]).cpu(), counts, steps.numel())

    def merge(self, state_dict: dict[str, Tensor | int]) -> None:
        """Takes note of what another, since it was last cleared, says by its :meth:`state_dict`."""
        self._take(*(state_dict[name] for name in ("seen", "named", "steps")))

    def _take(self, seen: Tensor, named: Tensor, steps: int) -> None:
        self._seen = torch.cat((self._seen, seen)).unique()
        self._named = self._named + named
        self._steps += steps

    def summary(self) -> dict[str, float]:
        """Number of goals ever named, how fast new ones came since the last call, and shares."""
        seen = len(self._seen)
        new = 1000 * (seen - self._before) / max(self._steps, 1)
        shares = shares_of_kinds(self._named, self._kinds, "named")
        self._before, self._steps, self._named = seen, 0, torch.zeros_like(self._named)
        return {"goals/named": seen, "goals/new_per_1000_steps": new, **shares}

    def state_dict(self) -> dict[str, Tensor | int]:
        """What has been named, and the counts since the last summary."""
        counts = {"named": self._named, "steps": self._steps, "before": self._before}
        return {"seen": self._seen, **counts}

    def load_state_dict(self, state_dict: dict[str, Tensor | int]) -> None:
        """Restores what :meth:`state_dict` returned."""
        self._seen, self._named = state_dict["seen"].clone(), state_dict["named"].clone()
        self._steps, self._before = state_dict["steps"], state_dict["before"]


def _named_kinds(key: NestedKey, kinds: Tensor, names: Sequence[str]) -> Tensor:
    """The goal kinds, which must all have a name."""
    if len(kinds) and not 0 <= kinds.min() <= kinds.max() < len(names):
        raise ValueError(
            f"{key!r} is from {kinds.min()} to {kinds.max()}, and must count in the {len(names)} "
            f"goal kinds {names}: let the environment's goal_kinds name them all"
        )
    return kinds


def of_replay(
    rows: TensorDictBase, updates: int, of: str, kinds: Sequence[str]
) -> dict[str, float]:
    """The shares of hindsight and of goal kinds, named ``kinds``, in transitions ``[*B]``.

    Also their :func:`policy_lag`, with ``updates`` and ``of`` as there.
    """
    counts = rows["goal_kind"].flatten().bincount(minlength=len(kinds))
    return {
        f"hindsight_in_{of}": rows["is_hindsight"].float().mean().item(),
        **shares_of_kinds(counts, kinds, of),
        **policy_lag(rows["recorded_at"], updates, of),
    }


def shares_of_kinds(counts: Tensor, kinds: Sequence[str], of: str) -> dict[str, float]:
    """The share of each goal kind in counts of them, integers ``[K]``; nothing if all are 0.

    Examples:
        >>> shares_of_kinds(torch.tensor([3, 1]), ["grasp", "grow"], "batch")
        {'kinds/batch/grasp': 0.75, 'kinds/batch/grow': 0.25}
    """
    total = counts.sum().item()
    if not total:
        return {}
    shares = (counts.double() / total).tolist()
    return {f"kinds/{of}/{kind}": share for kind, share in zip(kinds, shares, strict=True)}


def policy_lag(recorded_at: torch.Tensor, updates: int, of: str) -> dict[str, float]:
    """How far behind the policy that made some transitions is (SAC-GLAM, section 2.2).

    Args:
        recorded_at: updates before each transition was recorded, integers of any shape.
        updates: that it has had by now.
        of: what the transitions are, to name the metrics.

    Examples:
        >>> policy_lag(torch.tensor([0, 6]), updates=10, of="batch")
        {'policy_lag/batch/mean': 7.0, 'policy_lag/batch/max': 10.0}
    """
    lag = updates - recorded_at.double()
    return {
        f"policy_lag/{of}/mean": lag.mean().item(),
        f"policy_lag/{of}/max": lag.max().item(),
    }
