"""The vectorised text environment Playground-Text."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.nn.functional import embedding
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from torchrl_glam.envs.description import Describer
from torchrl_glam.envs.dynamics import GRASPED, NO_EVENT, NOTHING, Dynamics
from torchrl_glam.envs.goals import GoalSpace, Split
from torchrl_glam.envs.partner import SocialPartner
from torchrl_glam.envs.rendering import render_state
from torchrl_glam.envs.scenes import SceneSampler
from torchrl_glam.envs.text import decode_text, encode_text
from torchrl_glam.envs.vocabulary import OBJECTS

GoalSampler = Callable[[torch.Generator, int], Tensor]


class PlaygroundTextEnv(EnvBase):
    """Playground-Text: reach goals in a room that is described in words.

    Description:
        The room holds ``num_objects`` different objects, each a colour and a type: furniture,
        plants, animals, food, water. The agent walks to objects, picks them up, and makes plants
        and animals grow by bringing them together with water or (animals only) food. A goal asks
        it to grasp or grow some object, or to do one after the other. All text is a ``uint8``
        tensor of UTF-8 bytes, see :mod:`torchrl_glam.envs.text`.

    Action Space:
        ``"action"``, ``int64 [B]``, an index into the ``A = num_objects + 2`` candidate actions:
        ``Go to <object>`` for each object in slot order, ``Grasp``, ``Release``. ``Go to`` the held
        object and ``Release`` with empty hands are masked out.

        - ``Go to X``: the agent is on X. If it holds a supply that feeds X, X grows; if X is a
          supply that feeds what it holds, that grows. Water feeds plants and animals, food feeds
          animals; each object grows once, supplies are not used up.
        - ``Grasp``: with empty hands and on an object, the agent holds it and is on nothing.
        - ``Release``: the agent is on what it held.

    Observation Space:
        - ``"goal"`` ``uint8 [B, G]``, ``"observation"`` ``uint8 [B, L]``, ``"actions"``
          ``uint8 [B, A, W]``: text (with ``text=True``).
        - ``"action_mask"`` ``bool [B, A]``: admissible actions.
        - ``"goal_id"`` ``int64 [B]`` in ``env.goals``, ``"goal_kind"`` ``int8 [B]`` in
          ``env.goals.kinds``.
        - ``("hindsight", "goal_id")`` ``int64 [B, H]``, ``("hindsight", "kind")`` ``int8 [B, H]``
          (-1 for none), ``("hindsight", "goal")`` ``uint8 [B, H, G]`` (with ``text=True``): the
          goals that the social partner names after this step, see
          :class:`~torchrl_glam.envs.partner.SocialPartner`.
        - ``("state", "objects")`` ``int64 [B, N]``: object ids; ``("state", "on")`` and
          ``("state", "holding")`` ``int64 [B]``: slots, -1 for nothing; ``("state", "grown")``
          ``bool [B, N]``; ``("state", "stage")`` ``int64 [B]``: 1 once the first part of a
          sequential goal is reached, else 0.

    Starting State:
        A goal from ``goal_sampler``, and a scene in which it can be reached, see
        :class:`~torchrl_glam.envs.scenes.SceneSampler`. The agent is on nothing, its hands are
        empty, nothing has grown.

    Rewards:
        1 on the step that completes the goal, else 0; ``float32 [B, 1]``.

    Episode End:
        ``terminated`` when the goal is completed; ``truncated`` when it is not by step
        ``max_steps``.

    Args:
        num_envs (int, optional): number of environments, ``B``. Defaults to 32.
        num_objects (int, optional): objects of a scene, ``N``. Defaults to 6.
        split (str, optional): goals to pursue and to name, ``"train"`` or ``"test"``. Defaults to
            ``"train"``.
        sequential (bool, optional): whether there are sequential goals. Defaults to ``True``.
        max_steps (int, optional): steps of an episode. Defaults to 16, more than twice the
            longest shortest plan.
        seed (int, optional): seed of the private generator. Defaults to one that
            ``torch.manual_seed`` determines.
        goal_sampler (callable, optional): called with a generator and a number ``n``, returns
            ``int64 [n]`` ids of goals for ``n`` new episodes. Defaults to uniform sampling.
        text (bool, optional): whether to write the text entries. Defaults to ``True``.
        device (torch.device, optional): where the tensors live. Defaults to the CPU.

    Raises:
        ValueError: if an argument is out of range; on a step, if an action is out of range or
            masked out.

    References:
        Gaven et al., 2024, "SAC-GLAM: Improving Online RL for LLM agents with Soft Actor-Critic and
        Hindsight Relabeling", section 4. Colas et al., 2020, "Language as a Cognitive Tool to
        Imagine Goals in Curiosity-Driven Exploration" (the vocabulary).

    Version History:
        - v0: first version.

    Examples:
        >>> from torchrl_glam.envs import PlaygroundTextEnv, decode_text
        >>> env = PlaygroundTextEnv(num_envs=1, num_objects=3, sequential=False, seed=0)
        >>> state = env.reset()
        >>> print(env.render(ansi=False))
        Goal: Grow blue cow (step 0 of 16)
        You see: blue mouse, red food, blue cow
        You are on: nothing
        You are holding: nothing
        You have grown: nothing
        Actions: 0 Go to blue mouse | 1 Go to red food | 2 Go to blue cow | 3 Grasp
        >>> state = env.step(state.set("action", torch.tensor([2])))["next"]
        >>> state = env.step(state.set("action", torch.tensor([3])))["next"]
        >>> print(decode_text(state["observation"][0]))
        You see: blue mouse, red food
        You are on: nothing
        You are holding: blue cow
        You have grown: nothing
        >>> [goal for goal in decode_text(state["hindsight", "goal"][0]) if goal][:2]
        ['Grasp blue cow', 'Grasp any cow']
    """

    def __init__(
        self,
        num_envs: int = 32,
        num_objects: int = 6,
        split: Split = "train",
        sequential: bool = True,
        max_steps: int = 16,
        seed: int | None = None,
        goal_sampler: GoalSampler | None = None,
        text: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}.")
        if not 1 <= max_steps <= torch.iinfo(torch.int16).max:
            raise ValueError(f"max_steps must be in [1, 32767], got {max_steps}.")
        device = torch.device("cpu" if device is None else device)
        super().__init__(device=device, batch_size=(num_envs,))
        self.num_objects, self.max_steps, self.text = num_objects, max_steps, text
        self.goals = GoalSpace(split, sequential)
        self.goal_sampler = goal_sampler
        self.scenes = SceneSampler(self.goals, num_objects)
        self.dynamics = Dynamics(num_objects)
        self.describer = Describer(self.dynamics)
        self.partner = SocialPartner(self.goals, num_objects, max_steps)
        self._register_goal_tables()
        self._register_state()
        super(EnvBase, self).to(device)
        self._make_specs()
        self._set_seed(seed)

    def _register_goal_tables(self) -> None:
        """Registers what is looked up by goal id; not part of the state dict."""
        goals, simple = self.goals, self.goals.num_simple
        kept = {"persistent": False}
        self.register_buffer("_goal_text", encode_text(goals.texts), **kept)
        self.register_buffer("_goal_kind", goals.kind_ids, **kept)
        # By 2 * goal + stage: the simple goal to reach next, and whether it is the last.
        self.register_buffer("_target", goals.parts.clamp(min=0).flatten(), **kept)
        last = torch.stack((goals.parts[:, 1] < 0, torch.ones(len(goals), dtype=torch.bool)), 1)
        self.register_buffer("_is_last", last.flatten(), **kept)
        reached = torch.zeros((simple, NO_EVENT + 1), dtype=torch.bool)
        reached[:, :NO_EVENT] = goals.reached_by.flatten(1)
        self.register_buffer("_reached_by", reached, **kept)

    def _register_state(self) -> None:
        """Registers the state of all episodes, saved by ``state_dict``."""
        num_envs = self.batch_size[0]
        scene = torch.full((num_envs, self.num_objects + 2), NOTHING)
        scene[:, -1] = GRASPED
        self.register_buffer("_scene", scene)
        self.register_buffer("_place", torch.zeros(num_envs, dtype=torch.int64))
        grown = torch.zeros((num_envs, self.num_objects + 1), dtype=torch.bool)
        grown[:, -1] = True
        self.register_buffer("_grown", grown)
        self.register_buffer("_goal_id", torch.zeros(num_envs, dtype=torch.int64))
        self.register_buffer("_stage", torch.zeros(num_envs, dtype=torch.int64))
        self.register_buffer("_steps", torch.zeros(num_envs, dtype=torch.int16))
        self.register_buffer("_records", self.partner.empty_records(num_envs))

    def _make_specs(self) -> None:
        size, objects, device = self.batch_size[0], self.num_objects, self.device
        actions, names = self.dynamics.num_actions, self.partner.max_names
        kinds = len(GoalSpace.kinds)

        def ids(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Bounded:
            return Bounded(low, high, shape=(size, *shape), dtype=dtype, device=device)

        def text(*shape: int) -> Unbounded:
            return Unbounded(shape=(size, *shape), dtype=torch.uint8, device=device)

        def flag(*shape: int) -> Categorical:
            return Categorical(2, shape=(size, *shape), dtype=torch.bool, device=device)

        hindsight = {
            "goal_id": ids(-1, len(self.goals) - 1, names),
            "kind": ids(-1, kinds - 1, names, dtype=torch.int8),
        }
        spec = {
            "action_mask": flag(actions),
            "goal_id": ids(0, len(self.goals) - 1),
            "goal_kind": ids(0, kinds - 1, dtype=torch.int8),
            "state": Composite(
                objects=ids(0, len(OBJECTS) - 1, objects),
                on=ids(-1, objects - 1),
                holding=ids(-1, objects - 1),
                grown=flag(objects),
                stage=ids(0, 1),
                shape=(size,),
            ),
        }
        if self.text:
            goal_length = self._goal_text.shape[-1]
            hindsight["goal"] = text(names, goal_length)
            spec["goal"] = text(goal_length)
            spec["observation"] = text(self.describer.length)
            spec["actions"] = text(actions, self.describer.action_length)
        spec["hindsight"] = Composite(hindsight, shape=(size,))
        self.observation_spec = Composite(spec, shape=(size,))
        self.action_spec = Categorical(actions, shape=(size,), device=device)
        self.reward_spec = Bounded(0, 1, shape=(size, 1), dtype=torch.float32, device=device)
        ends = ("done", "terminated", "truncated")
        self.done_spec = Composite({end: flag(1) for end in ends}, shape=(size,))

    def _set_seed(self, seed: int | None) -> None:
        self._generator = torch.Generator(self.device)
        if seed is None:
            seed = int(torch.empty((), dtype=torch.int64).random_())
        self._generator.manual_seed(seed)

    def get_extra_state(self) -> Tensor:
        """Returns the state of the private generator, for ``state_dict``."""
        return self._generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Restores the private generator, for ``load_state_dict``."""
        self._generator.set_state(state.cpu())

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Draws an admissible action for each environment, uniformly."""
        draw = torch.rand(self.batch_size, device=self.device)
        action = self.dynamics.choose(self._place, draw)
        if tensordict is None:
            tensordict = TensorDict(batch_size=self.batch_size, device=self.device)
        return tensordict.set("action", action)

    def render(self, index: int = 0, ansi: bool = True) -> str:
        """Draws one environment as text.

        Args:
            index (int, optional): which environment. Defaults to 0.
            ansi (bool, optional): whether to use ANSI colours. Defaults to ``True``.

        Raises:
            IndexError: if there is no such environment.
        """
        if not 0 <= index < self.batch_size[0]:
            raise IndexError(f"index must be in [0, {self.batch_size[0]}), got {index}.")
        one = slice(index, index + 1)
        scene, grown = self._scene[one], self._grown[one]
        progress = f"step {self._steps[index]} of {self.max_steps}"
        return render_state(
            goal=self.goals[int(self._goal_id[index])],
            observation=decode_text(self.describer.observation(self._place[one], scene, grown)[0]),
            actions=decode_text(self.describer.actions(scene)[0]),
            admissible=self.dynamics.admissible[self._place[index]].tolist(),
            progress=progress + (", first part reached" if self._stage[index] else ""),
            ansi=ansi,
        )

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs) -> TensorDictBase:
        reset = None if tensordict is None else tensordict.get("_reset", None)
        if reset is None:
            envs = torch.arange(self.batch_size[0], device=self.device)
        else:
            envs = reset.view(-1).nonzero().squeeze(1)
        goal_id = self._sample_goals(len(envs))
        self._goal_id.index_copy_(0, envs, goal_id)
        self._scene[envs, : self.num_objects] = self.scenes.sample(goal_id, self._generator)
        self._grown[envs, : self.num_objects] = False
        for zeroed in (self._place, self._stage, self._steps):
            zeroed.index_fill_(0, envs, 0)
        self.partner.forget(self._records, envs)
        out = self._observe(None)
        for end in ("done", "terminated", "truncated"):
            out[end] = torch.zeros((*self.batch_size, 1), dtype=torch.bool, device=self.device)
        return self._wrap(out)

    def _sample_goals(self, count: int) -> Tensor:
        if self.goal_sampler is None:
            return torch.randint(
                len(self.goals), (count,), generator=self._generator, device=self.device
            )
        goal_id = torch.as_tensor(self.goal_sampler(self._generator, count), device=self.device)
        valid = goal_id.shape == (count,) and not goal_id.is_floating_point()
        if not valid or (count and not 0 <= goal_id.min() <= goal_id.max() < len(self.goals)):
            raise ValueError(
                f"goal_sampler must return {count} goal ids in [0, {len(self.goals)}), "
                f"got {goal_id.dtype} of shape {tuple(goal_id.shape)}: {goal_id}."
            )
        return goal_id.long()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action, moves = tensordict.get("action"), tensordict.get("_step", None)
        if moves is not None:  # the others stand still; Grasp is always admissible
            moves = moves.view(-1)
            action = torch.where(moves, action, self.num_objects)
        self._check_action(action)
        place, grown, event = self.dynamics.step(self._place, action, self._scene, self._grown)
        if moves is not None:
            place = torch.where(moves, place, self._place)
            grown = torch.where(moves.unsqueeze(1), grown, self._grown)
            event = event.masked_fill(~moves, NO_EVENT)
        self._place.copy_(place)
        self._grown.copy_(grown)
        self._steps += 1 if moves is None else moves
        pursued = 2 * self._goal_id + self._stage
        reached = self._reached_by[self._target.take(pursued), event]
        terminated = reached & self._is_last.take(pursued)
        reward = terminated.float()
        self._stage += reached & ~terminated
        names = self.partner.name(event, self._steps, self._goal_id, self._records)
        if moves is not None:  # episodes that were over stay so
            terminated = terminated | (tensordict.get("terminated").view(-1) & ~moves)
        truncated = (self._steps >= self.max_steps) & ~terminated
        out = self._observe(names)
        out["reward"] = reward.unsqueeze(1)
        out["terminated"] = terminated.unsqueeze(1)
        out["truncated"] = truncated.unsqueeze(1)
        out["done"] = (terminated | truncated).unsqueeze(1)
        return self._wrap(out)

    def _check_action(self, action: Tensor) -> None:
        """Raises for the first environment whose action is out of range or masked out."""
        allowed = self.dynamics.allows(self._place, action)
        if allowed.all():
            return
        env = int(allowed.logical_not().nonzero()[0])
        index = int(action[env])
        texts = decode_text(self.describer.actions(self._scene[env : env + 1])[0])
        in_range = 0 <= index < len(texts)
        what = f"{texts[index]!r} is masked out" if in_range else "is out of range"
        mask = self.dynamics.admissible[self._place[env]].tolist()
        admissible = [f"{i}: {text}" for i, text in enumerate(texts) if mask[i]]
        raise ValueError(f"action[{env}] = {index} {what}. Admissible are {', '.join(admissible)}.")

    def _observe(self, names: tuple[Tensor, Tensor, Tensor] | None) -> dict:
        """Returns the entries that steps and resets have in common.

        Args:
            names (tuple of Tensor, optional): what the social partner names, see
                :meth:`~torchrl_glam.envs.partner.SocialPartner.name`.
        """
        place, dynamics = self._place, self.dynamics
        on, holding = dynamics.on.take(place), dynamics.holding.take(place)
        shape = (self.batch_size[0], self.partner.max_names)
        hindsight = {
            "goal_id": torch.full(shape, -1, device=self.device),
            "kind": torch.full(shape, -1, dtype=torch.int8, device=self.device),
        }
        out = {
            "action_mask": embedding(place, dynamics.admissible),
            "goal_id": self._goal_id.clone(),
            "goal_kind": self._goal_kind.take(self._goal_id),
            "state": {
                "objects": self._scene[:, : self.num_objects].clone(),
                "on": on,
                "holding": holding,
                "grown": self._grown[:, : self.num_objects].clone(),
                "stage": self._stage.clone(),
            },
            "hindsight": hindsight,
        }
        if self.text:
            text = self._goal_text
            out["goal"] = embedding(self._goal_id, text)
            out["observation"] = self.describer.observation(place, self._scene, self._grown)
            out["actions"] = self.describer.actions(self._scene)
            hindsight["goal"] = text.new_zeros((*shape, text.shape[-1]))
        if names is not None:
            envs, slots, goal_ids = names
            entry = envs * self.partner.max_names + slots
            hindsight["goal_id"].view(-1).index_copy_(0, entry, goal_ids)
            hindsight["kind"].view(-1).index_copy_(0, entry, self._goal_kind.take(goal_ids))
            if self.text:
                named = hindsight["goal"].view(-1, text.shape[-1])
                named.index_copy_(0, entry, embedding(goal_ids, text))
        return out

    def _wrap(self, entries: dict) -> TensorDict:
        """Makes a TensorDict without checking each entry, which would take longer than the step."""
        return TensorDict._new_unsafe(entries, batch_size=self.batch_size, device=self.device)
