"""Goals that an agent composes itself from the words of those it knows."""

import random
from collections import defaultdict
from collections.abc import Sequence

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torch.nn.functional import pad
from torchrl.data import Composite
from torchrl.envs import Transform

from torchrl_glam.goals.judge import WordJudge
from torchrl_glam.goals.sampler import GoalSampler
from torchrl_glam.text import decode_text, encode_text

_TRIES = 50  # compositions drawn for each that is wanted, and for a hundred more


def imagine_goals(goal_texts: Sequence[str], count: int, *, seed: int = 0) -> dict[str, int]:
    """Composes goals as IMAGINE does (Colas et al., 2020, construction grammar heuristic).

    Words are equivalent if two goals differ in them alone. A goal is imagined by exchanging a word
    of a known goal for an equivalent one.

    Args:
        goal_texts: the goals known.
        count: goals to compose, or fewer where there are not so many.
        seed: of the choice among all of them. Default: 0.

    Returns:
        The texts, none of them known and none longer in bytes than the longest known, each with the
        index of the known goal that it was composed from.

    Examples:
        >>> known = ["Grasp red cat", "Grasp red rose", "Grow blue cat"]
        >>> imagine_goals(known, 5)
        {'Grow blue rose': 2}
    """
    known = set(goal_texts)
    longest = max((len(text.encode()) for text in known), default=0)
    goals = {i: text.split() for i, text in enumerate(goal_texts) if text.split()}
    fitting = defaultdict(dict)  # the words that fit into a gap, in the order met
    for words in goals.values():
        for at, word in enumerate(words):
            fitting[(*words[:at], None, *words[at + 1 :])][word] = True
    alike = defaultdict(dict)
    for group in fitting.values():
        for word in group:
            alike[word] |= group
    choose, found, places = random.Random(seed), {}, [*goals]
    for _ in range(_TRIES * (count + 100)):
        if len(found) >= count or not places:
            break
        goal = choose.choice(places)
        words = list(goals[goal])
        at = choose.randrange(len(words))
        words[at] = choose.choice([*alike[words[at]]])
        text = " ".join(words)
        if text not in known and len(text.encode()) <= longest:
            found.setdefault(text, goal)
    return found


class ImaginedGoals(Transform):
    """Lets an environment pursue goals that it does not have; a judge says when they are reached.

    The environment plays on under a hidden goal of its own, drawn uniformly, which gives the scene.
    Its reward is replaced: an imagined goal is reached, and ends the episode, where the judge's
    log-odds are above ``sure``. Where the hidden goal ends the episode, it is truncated.

    Put it before :class:`~torchrl_glam.text.TokenizeText`, and pass its method ``draw`` to the
    environment as ``goal_sampler``. IMAGINE (Colas et al., 2020) imagines goals in the same way,
    with a reward function that a social partner teaches.

    Args:
        sampler: draws among the environment's goals and, behind them, the imagined ones.
        num_known: goals of the environment.
        judge: of the same table as ``sampler``; it may learn in the meantime.
        sure: log-odds above which a goal counts as reached. Default: 1.
        goal_key, goal_id_key, goal_kind_key: the goal pursued, as text, as an id and its kind.
            Defaults: ``"goal"``, ``"goal_id"``, ``"goal_kind"``.
        observation_key, actions_key, action_key: what the judge reads. Defaults:
            ``"observation"``, ``"actions"``, ``"action"``.
        reward_key, success_key: entries that reaching a goal makes positive. Defaults:
            ``"reward"``, for both.

    Raises:
        ValueError: if ``num_known`` does not fit the sampler, imagined texts are longer than the
            environment's, or the environment does not draw its goals here.

    Examples:
        >>> from torchrl.envs import TransformedEnv
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> from torchrl_glam.goals import UniformGoals
        >>> known = PlaygroundTextEnv(1).goal_texts
        >>> table = (*known, *imagine_goals(known, 200))
        >>> goals = ImaginedGoals(UniformGoals(table), len(known), WordJudge(table))
        >>> env = TransformedEnv(PlaygroundTextEnv(64, goal_sampler=goals.draw), goals)
        >>> (env.reset()["goal_id"] >= len(known)).any()
        tensor(True)
    """

    def __init__(
        self,
        sampler: GoalSampler,
        num_known: int,
        judge: WordJudge,
        *,
        sure: float = 1.0,
        goal_key: NestedKey = "goal",
        goal_id_key: NestedKey = "goal_id",
        goal_kind_key: NestedKey = "goal_kind",
        observation_key: NestedKey = "observation",
        actions_key: NestedKey = "actions",
        action_key: NestedKey = "action",
        reward_key: NestedKey = "reward",
        success_key: NestedKey = "reward",
    ) -> None:
        super().__init__(in_keys=[], out_keys=[])
        if not 0 < num_known < len(sampler.goal_texts):
            raise ValueError(
                f"num_known ({num_known}) must be from 1 to {len(sampler.goal_texts) - 1}: sampler "
                f"has {len(sampler.goal_texts)} goals, of which the last are imagined"
            )
        self.sampler, self.num_known, self.judge, self.sure = sampler, num_known, judge, sure
        self._texts = encode_text(sampler.goal_texts[num_known:])
        self._goal_keys = goal_key, goal_id_key, goal_kind_key
        self._read_keys = observation_key, actions_key, action_key
        self._reward_keys = {reward_key, success_key}
        self._drawn = torch.zeros(0, dtype=torch.int64)

    def draw(self, generator: torch.Generator | None, count: int) -> Tensor:
        """Draws goals for the environment, its argument ``goal_sampler``; hidden ones too."""
        ids = self.sampler.sample(count)
        self._drawn = torch.cat((self._drawn, ids))
        device = None if generator is None else generator.device
        hidden = torch.randint(self.num_known, (count,), generator=generator, device=device)
        return ids.where(ids < self.num_known, hidden.cpu())

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        self._drawn = self._drawn[:0]
        return super()._reset_env_preprocess(tensordict)

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        ids = tensordict_reset[self._goal_keys[1]].clone()
        resets = tensordict.get("_reset", None)
        resets = torch.ones_like(ids, dtype=torch.bool) if resets is None else resets.view_as(ids)
        begin, drawn = int(resets.sum()), self._drawn.to(ids.device)
        if len(drawn) == ids.numel():  # a first reset may begin more episodes than it is asked for
            drawn = drawn[resets.flatten()]
        if len(drawn) != begin:
            raise ValueError(
                f"{begin} episodes begin, and goals were drawn for {len(drawn)}: give the "
                "environment the method draw of this transform as goal_sampler"
            )
        ids[resets] = drawn
        return self._write(tensordict_reset, ids, resets & (ids >= self.num_known))

    def _write(self, tensordict: TensorDictBase, ids: Tensor, rows: Tensor) -> TensorDictBase:
        goal_key, id_key, kind_key = self._goal_keys
        goal, kind = tensordict[goal_key].clone(), tensordict[kind_key].clone()
        chosen = ids[rows].cpu()
        texts = self._texts[chosen - self.num_known].to(goal.device)
        if (room := goal.shape[-1] - texts.shape[-1]) < 0:
            raise ValueError(
                f"imagined goals have up to {texts.shape[-1]} bytes, and {goal_key!r} of the "
                f"environment has room for {goal.shape[-1]}: imagine_goals makes none so long"
            )
        goal[rows] = pad(texts, (0, room))
        kind[rows] = self.sampler.kinds[chosen].to(kind)
        return tensordict.update({goal_key: goal, id_key: ids, kind_key: kind})

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        ids = tensordict[self._goal_keys[1]]
        rows = ids >= self.num_known
        if not rows.any():
            return next_tensordict
        after = self._write(next_tensordict, ids, rows)
        if (moves := tensordict.get("_step", None)) is not None:  # the others stand still
            moves, ends = moves.view_as(ids), ("done", "terminated", "truncated")
            was, now = (state.select(*ends, strict=False) for state in (tensordict, after))
            after.update(was.where(rows & ~moves, now))
            rows = rows & moves
        reached = torch.zeros_like(rows)
        reached[rows] = self._judge(tensordict[rows], after[rows], ids[rows])
        rows, reached = (each.view(after["done"].shape) for each in (rows, reached))
        done = after["done"] | reached
        for key in self._reward_keys:
            after[key] = reached.to(after[key].dtype).where(rows, after[key])
        after["terminated"] = reached.where(rows, after["terminated"])
        if "truncated" in after.keys():
            after["truncated"] = (done & ~reached).where(rows, after["truncated"])
        return after.set("done", done)

    def _judge(self, before: TensorDictBase, after: TensorDictBase, ids: Tensor) -> Tensor:
        """Which of some steps reached their goals, bool ``[n]``."""
        seen, actions, action = self._read_keys
        rows = zip(decode_text(before[actions]), before[action].tolist(), strict=True)
        texts = decode_text(before[seen]), [row[i] for row, i in rows], decode_text(after[seen])
        odds = self.judge(self.judge.read(*texts))
        return odds.to(ids.device).gather(1, ids.unsqueeze(1)).squeeze(1) > self.sure

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Gives the ids of goals their new bound."""
        key = self._goal_keys[1]
        spec = observation_spec[key].clone()
        spec.space.high = torch.full_like(spec.space.high, len(self.sampler.goal_texts) - 1)
        observation_spec[key] = spec
        return observation_spec
