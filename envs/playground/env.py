"""The vectorised text environment Playground-Text."""

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from torchrl_glam.envs.action_mask import CandidateActions
from torchrl_glam.envs.game import GoalFunction, sample_goals
from torchrl_glam.envs.playground.description import Describer
from torchrl_glam.envs.playground.dynamics import GRASPED, NO_EVENT, NOTHING, Dynamics
from torchrl_glam.envs.playground.goals import GoalSpace, Split
from torchrl_glam.envs.playground.oracle import OraclePolicy
from torchrl_glam.envs.playground.partner import SocialPartner
from torchrl_glam.envs.playground.scenes import SceneSampler
from torchrl_glam.envs.playground.vocabulary import OBJECTS
from torchrl_glam.text import decode_text, encode_text


class PlaygroundTextEnv(EnvBase):
    """Playground-Text: reach goals in a room that is described in words.

    Description:
        The room holds ``num_objects`` different objects, each a colour and a type: furniture,
        plants, animals, food, water. The agent walks to objects, picks them up, and makes plants
        and animals grow by bringing them together with water or (animals only) food. A goal asks
        it to grasp or grow some object, or to do one after the other. All text is a ``uint8``
        tensor of UTF-8 bytes, see :mod:`torchrl_glam.text.encoding`.

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
          (-1 for none): the goals that the social partner names after this step, see
          :class:`~torchrl_glam.envs.playground.partner.SocialPartner`; ``env.goals.texts_of(ids)``
          gives their texts.
        - ``("state", "objects")`` ``int64 [B, N]``: object ids; ``("state", "on")`` and
          ``("state", "holding")`` ``int64 [B]``: slots, -1 for nothing; ``("state", "grown")``
          ``bool [B, N]``; ``("state", "stage")`` ``int64 [B]``: 1 once the first part of a
          sequential goal is reached, else 0.

    Starting State:
        A goal from ``goal_sampler``, and a scene in which it can be reached, unless it is an
        impossible one; see :class:`~torchrl_glam.envs.playground.scenes.SceneSampler`. The agent is
        on nothing, its hands are empty, nothing has grown.

    Rewards:
        1 on the step that completes the goal, else 0; ``float32 [B, 1]``.

    Episode End:
        ``terminated`` when the goal is completed; ``truncated`` when it is not by step
        ``max_steps``.

    Args:
        num_envs: number of environments, ``B``. Default: 32.
        num_objects: objects of a scene, ``N``. Default: 6.
        split: goals to pursue and to name, ``"train"`` or ``"test"``. Default: ``"train"``.
        sequential: whether there are sequential goals. Default: True.
        max_steps: steps of an episode. Default: 16, more than twice the longest shortest plan.
        seed: seed of the private generator. Default: one that ``torch.manual_seed`` determines.
        goal_sampler: function of a generator and a number ``n`` that returns the goal ids of ``n``
            new episodes, ``int64 [n]``; see :mod:`torchrl_glam.goals`. Default: uniform sampling.
        text: whether to write the text entries. Default: True.
        device: where the tensors live. Default: the CPU.
        impossible: share of impossible goals in uniform sampling, see
            :class:`~torchrl_glam.envs.GoalSpace`. Default: 0, there are none.

    Raises:
        ValueError: if an argument is out of range; on a step, if an action is out of range or
            masked out, or the time limit of an episode is past.

    References:
        Gaven et al., 2024, "SAC-GLAM: Improving Online RL for LLM agents with Soft Actor-Critic and
        Hindsight Relabeling", section 4. Colas et al., 2020, "Language as a Cognitive Tool to
        Imagine Goals in Curiosity-Driven Exploration" (the vocabulary).

    Examples:
        >>> env = PlaygroundTextEnv(num_envs=1, num_objects=3, sequential=False, seed=0)
        >>> state = env.reset()
        >>> print(env.render())
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
        >>> env.goals.texts_of(state["hindsight", "goal_id"][0])[:2]
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
        goal_sampler: GoalFunction | None = None,
        text: bool = True,
        device: torch.device | str | None = None,
        impossible: float = 0.0,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}.")
        if not 1 <= max_steps <= torch.iinfo(torch.int16).max:
            raise ValueError(f"max_steps must be in [1, 32767], got {max_steps}.")
        device = torch.device("cpu" if device is None else device)
        super().__init__(device=device, batch_size=(num_envs,))
        self.num_objects, self.max_steps, self.text = num_objects, max_steps, text
        self.goals = GoalSpace(split, sequential, impossible)
        self.goal_sampler = goal_sampler
        self._make_tables()
        # what torchrl_glam.text.EnvDescription asks
        self.goal_kinds, self.longest_texts = self.goals.kinds, self.describer.longest_texts
        self.goal_kind_prior = self.goals.kind_shares if goal_sampler is None else None
        self.is_subgoal = self.goals.is_subgoal
        self.goal_texts, self.goal_kind_ids = self.goals.texts, self.goals.kind_ids
        self._register_state()
        super(EnvBase, self).to(device)
        self._make_specs()
        self._set_seed(seed)

    def __repr__(self) -> str:
        goals = f"split={self.goals.split!r}, sequential={self.goals.sequential}"
        goals += f", impossible={self.goals.impossible}" if self.goals.impossible else ""
        size = f"num_envs={self.batch_size[0]}, num_objects={self.num_objects}"
        return f"{type(self).__name__}({size}, {goals}, max_steps={self.max_steps})"

    def make_oracle(self) -> OraclePolicy:
        """A policy that takes the first action of a shortest plan."""
        return OraclePolicy(self.goals).to(self.device)

    def _make_tables(self) -> None:
        """Makes what is looked up, on the environment's device."""
        goals, device = self.goals, self.device
        self.scenes = SceneSampler(goals, self.num_objects, device)
        self.dynamics = Dynamics(self.num_objects, device)
        self.describer = Describer(self.dynamics, device)
        self.partner = SocialPartner(goals, self.num_objects, self.max_steps, device)
        self._goal_text = encode_text(goals.texts).to(device)
        self._goal_kind = goals.kind_ids.to(device)
        # By 2 * goal + stage: where the row of the simple goal to reach next starts in the table
        # of what events reach, and whether it is the last.
        self._target = (goals.parts.clamp(min=0).flatten() * (NO_EVENT + 1)).to(device)
        last = torch.stack((goals.parts[:, 1] < 0, torch.ones(len(goals), dtype=torch.bool)), 1)
        self._is_last = last.flatten().to(device)
        reached = torch.nn.functional.pad(goals.reached_by.flatten(1), (0, 1))  # not by NO_EVENT
        self._reached_by = reached.flatten().to(device)

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
        over = torch.full((num_envs,), self.max_steps, dtype=torch.int16)
        self.register_buffer("_steps", over)  # no episode has begun
        self.register_buffer("_records", self.partner.empty_records(num_envs))

    def _make_specs(self) -> None:
        size, objects, device = self.batch_size[0], self.num_objects, self.device
        actions, names = self.dynamics.num_actions, self.partner.max_names
        kinds = len(self.goals.kinds)

        def ids(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Bounded:
            return Bounded(low, high, shape=(size, *shape), dtype=dtype, device=device)

        def text(*shape: int) -> Unbounded:
            return Unbounded(shape=(size, *shape), dtype=torch.uint8, device=device)

        def flag(*shape: int) -> Categorical:
            return Categorical(2, shape=(size, *shape), dtype=torch.bool, device=device)

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
            "hindsight": Composite(
                goal_id=ids(-1, len(self.goals) - 1, names),
                kind=ids(-1, kinds - 1, names, dtype=torch.int8),
                shape=(size,),
            ),
        }
        if self.text:
            spec["goal"] = text(self._goal_text.shape[-1])
            spec["observation"] = text(self.describer.length)
            spec["actions"] = text(actions, self.describer.action_length)
        self.observation_spec = Composite(spec, shape=(size,))
        self.action_spec = self._candidates = CandidateActions(actions, (size,), device)
        self.reward_spec = Bounded(0, 1, shape=(size, 1), dtype=torch.float32, device=device)
        ends = ("done", "terminated", "truncated")
        self.done_spec = Composite({end: flag(1) for end in ends}, shape=(size,))

    def _set_seed(self, seed: int | None) -> None:
        if seed is None:
            seed = int(torch.empty((), dtype=torch.int64).random_())
        self._generator = torch.Generator(self.device).manual_seed(seed)

    def get_extra_state(self) -> Tensor:
        """Returns the state of the private generator, for ``state_dict``."""
        return self._generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Restores the private generator, for ``load_state_dict``."""
        self._generator.set_state(state.cpu())
        self._candidates.update_mask(self.dynamics.admissible.index_select(0, self._place))

    def to(self, device: torch.device | str) -> "PlaygroundTextEnv":
        """Moves the environment; a new device has a new random stream, seeded by the old one."""
        before, seed = self.device, torch.empty((), dtype=torch.int64, device=self.device)
        super().to(device)
        if self.device != before:
            self._set_seed(int(seed.random_(generator=self._generator)))
            self._make_tables()
        return self

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Draws an admissible action for each environment, uniformly."""
        if tensordict is None:
            tensordict = TensorDict(batch_size=self.batch_size, device=self.device)
        return tensordict.set("action", self._candidates.rand())

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs) -> TensorDictBase:
        reset = None if tensordict is None else tensordict.get("_reset", None)
        if reset is None:
            envs = torch.arange(self.batch_size[0], device=self.device)
        else:
            envs = reset.view(-1).nonzero().squeeze(1)
        draw = self.goals.draw if self.goal_sampler is None else self.goal_sampler
        goal_id = sample_goals(draw, len(self.goals), len(envs), self._generator)
        self._goal_id.index_copy_(0, envs, goal_id)
        scene, grown = self._scene, self._grown
        scene[:, :-2].index_copy_(0, envs, self.scenes.sample(goal_id, self._generator))
        grown[:, :-1].index_fill_(0, envs, False)
        for zeroed in (self._place, self._stage, self._steps):
            zeroed.index_fill_(0, envs, 0)
        self.partner.forget(self._records, envs)
        out = self._observe()
        if self.text:
            # Describing takes longest, so the others' rows are left empty: what a reset returns
            # counts in the environments that it resets.
            place = goal_id.new_zeros(len(envs))
            text = self.describer.observation(
                place, scene.index_select(0, envs), grown.index_select(0, envs)
            )
            empty = text.new_zeros((*self.batch_size, text.shape[1]))
            out["observation"] = empty.index_copy_(0, envs, text)
        return TensorDict._new_unsafe(out, batch_size=self.batch_size, device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action, moves = tensordict.get("action").view(-1), tensordict.get("_step", None)
        if moves is not None:  # the others stand still
            moves = moves.view(-1)
            action = action.where(moves, self.dynamics.num_actions)
        cell = self._check_action(action, moves)
        scene, grown, steps = self._scene, self._grown, self._steps
        goal_id, stage = self._goal_id, self._stage
        place, event = self.dynamics.step(cell, scene, grown)
        self._place.copy_(place)
        steps += 1 if moves is None else moves
        pursued = torch.add(stage, goal_id, alpha=2)
        reached = self._reached_by.take(self._target.take(pursued) + event)
        terminated = reached & self._is_last.take(pursued)
        reward = terminated.float()
        stage += reached > terminated
        if moves is not None:  # episodes that were over stay so
            over = tensordict.get("terminated", torch.zeros_like(moves)).view(-1)
            terminated = terminated | (over & ~moves)
        truncated = (steps >= self.max_steps) > terminated
        out = self._observe(self.partner.name(event, steps, goal_id, self._records))
        if self.text:
            out["observation"] = self.describer.observation(place, scene, grown)
        out["reward"] = reward.unsqueeze(1)
        out["terminated"] = terminated.unsqueeze(1)
        out["truncated"] = truncated.unsqueeze(1)
        out["done"] = (terminated | truncated).unsqueeze(1)
        # Without checking each entry, which would take longer than the step.
        return TensorDict._new_unsafe(out, batch_size=self.batch_size, device=self.device)

    def _check_action(self, action: Tensor, moves: Tensor | None) -> Tensor:
        """The cells of the actions; refuses the first that is out of range or masked out."""
        cell = self.dynamics.cells(self._place, action)
        allowed = self.dynamics.allowed.take(cell) > (self._steps >= self.max_steps)
        if moves is not None:
            allowed = allowed | ~moves
        if allowed.all():
            return cell
        env = int(allowed.logical_not().nonzero()[0])
        if self._steps[env] >= self.max_steps:
            raise ValueError(f"the episode of environment {env} is over: reset it first")
        texts, admissible = self._choices(env)
        what = "is out of range"
        if 0 <= (index := int(action[env])) < len(texts):
            what = f"{texts[index]!r} is masked out"
        choice = [f"{i}: {texts[i]}" for i in admissible]
        raise ValueError(f"action[{env}] = {index} {what}. Admissible are {', '.join(choice)}.")

    def _choices(self, env: int) -> tuple[list[str], list[int]]:
        """Texts of an environment's actions, and which of them are admissible."""
        texts = decode_text(self.describer.actions(self._scene[env : env + 1])[0])
        return texts, self.dynamics.admissible[self._place[env]].nonzero().flatten().tolist()

    def render(self, index: int = 0) -> str:
        """Describes an environment for people: goal, state and admissible actions.

        ``index`` says which one, by default the first; IndexError if there is none.
        """
        if not 0 <= index < self.batch_size[0]:
            raise IndexError(f"index must be in [0, {self.batch_size[0]}), got {index}.")
        state = (table[index : index + 1] for table in (self._place, self._scene, self._grown))
        texts, admissible = self._choices(index)
        progress = f"step {self._steps[index]} of {self.max_steps}"
        progress += ", first part reached" if self._stage[index] else ""
        return (
            f"Goal: {self.goals[int(self._goal_id[index])]} ({progress})\n"
            f"{decode_text(self.describer.observation(*state)[0])}\n"
            f"Actions: {' | '.join(f'{i} {texts[i]}' for i in admissible)}"
        )

    def _observe(self, names: tuple[Tensor, Tensor] | None = None) -> dict:
        """Returns the entries that steps and resets share, with what the social partner names."""
        place, scene, goal_id, dynamics = self._place, self._scene, self._goal_id, self.dynamics
        shape = (self.batch_size[0], self.partner.max_names)
        named_ids = torch.full(shape, -1, device=self.device)
        named_kinds = torch.full(shape, -1, dtype=torch.int8, device=self.device)
        if names is not None:
            entry, ids = names
            named_ids.view(-1).index_copy_(0, entry, ids)
            named_kinds.view(-1).index_copy_(0, entry, self._goal_kind.take(ids))
        action_mask = dynamics.admissible.index_select(0, place)
        self._candidates.update_mask(action_mask)
        out = {
            "action_mask": action_mask,
            "goal_id": goal_id.clone(),
            "goal_kind": self._goal_kind.take(goal_id),
            "state": {
                "objects": scene[:, :-2].clone(),
                "on": dynamics.on.take(place),
                "holding": dynamics.holding.take(place),
                "grown": self._grown[:, :-1].clone(),
                "stage": self._stage.clone(),
            },
            "hindsight": {"goal_id": named_ids, "kind": named_kinds},
        }
        if self.text:
            out["goal"] = self._goal_text.index_select(0, goal_id)
            out["actions"] = self.describer.actions(scene)
        return out
