"""From strings to the entries of the text contract, for environments that hold Python strings."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Sized

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from torchrl_glam.envs.action_mask import CandidateActions
from torchrl_glam.text import encode_text
from torchrl_glam.text.encoding import End, Strings, cut_text


class TextLayout:
    """Writes an environment's specs, and packs its strings into the entries that they promise.

    Make a layout in ``__init__``, and return what :meth:`pack` gives from ``_reset`` and ``_step``.

    Notation: A candidate actions, H slots for goals named in hindsight.

    Args:
        env: the environment, whose specs are set, of batch size ``[]`` or ``[B]``, and device.
        max_actions: A, the most admissible actions of a state.
        max_hindsight: H, the most goals that one step reaches; 0 writes no hindsight. Default: 0.
        success: whether to write ``"success"``, for rewards that are positive on other steps too.
            Default: False.
        goal_kinds: names of the kinds of goals, for statistics. Default: one, ``"goal"``.
        goal_texts: table of goals, all of which differ. Their ids are then written, too:
            ``"goal_id"``, and ``("hindsight", "goal_id")``, -1 for other goals. Default: None.
        kind_of: index into ``goal_kinds`` of a goal's text. Default: 0 for all.
        goal_bytes, observation_bytes, action_bytes: widths. Defaults: 128, 1024, 64.
        keep: which end of a longer text is kept, in whole words: ``"head"`` or ``"tail"``.
            Default: None, a longer text is an error.

    Attributes:
        num_cut: texts cut so far, by the names ``"goal"``, ``"observation"`` and ``"action"``.

    Raises:
        ValueError: if an argument is out of range, or the environment has two dimensions or more.

    Examples:
        A lamp with a switch, without its ``_set_seed``:

        >>> class Lamp(EnvBase):
        ...     def __init__(self):
        ...         super().__init__(batch_size=[1])
        ...         self.layout = TextLayout(self, max_actions=2)
        ...
        ...     def _reset(self, tensordict):
        ...         self.on = False
        ...         return self.layout.pack(["Light"], ["It is dark"], [["wait", "switch on"]])
        ...
        ...     def _step(self, tensordict):
        ...         self.on = tensordict["action"] == 1
        ...         return self.layout.pack(
        ...             ["Light"], ["Now"], [["wait"]], reward=self.on, terminated=self.on
        ...         )
        ...
        ...     def _set_seed(self, seed):
        ...         pass
        >>> step = Lamp().rollout(1)
        >>> step["action_mask"], step["next", "action_mask"]
        (tensor([[[True, True]]]), tensor([[[ True, False]]]))
    """

    def __init__(
        self,
        env: EnvBase,
        *,
        max_actions: int,
        max_hindsight: int = 0,
        success: bool = False,
        goal_kinds: Sequence[str] = ("goal",),
        goal_texts: Sequence[str] | None = None,
        kind_of: Callable[[str], int] | None = None,
        goal_bytes: int = 128,
        observation_bytes: int = 1024,
        action_bytes: int = 64,
        keep: End | None = None,
    ) -> None:
        if len(env.batch_size) > 1:
            raise ValueError(f"env has the batch size {list(env.batch_size)}: it must be [] or [B]")
        if keep not in (None, "head", "tail"):
            raise ValueError(f'keep ({keep!r}) must be "head", "tail" or None')
        if isinstance(goal_kinds, str):
            raise ValueError(f"goal_kinds is the string {goal_kinds!r}: it must be a list of names")
        sizes = {"goal": goal_bytes, "observation": observation_bytes, "action": action_bytes}
        counts = {"max_actions": max_actions, "max_hindsight": max_hindsight}
        for name, value in {**counts, **{f"{slot}_bytes": n for slot, n in sizes.items()}}.items():
            least = 0 if name == "max_hindsight" else 1
            if value < least:
                raise ValueError(f"{name} ({value}) must be at least {least}")
        self._env = env
        self._number = env.batch_size.numel()  # 1 where there is no batch
        self.max_actions, self.max_hindsight, self.success = max_actions, max_hindsight, success
        self.goal_kinds, self.keep = tuple(goal_kinds), keep
        self.num_cut: Counter[str] = Counter()
        self._kind_of = kind_of
        self._sizes = sizes
        env.goal_kinds = self.goal_kinds  # what the contract asks of the environment itself
        self._ids: dict[str, int] | None = None  # of the goals in the table
        if goal_texts is not None:
            self._ids = ids = {text: number for number, text in enumerate(goal_texts)}
            if isinstance(goal_texts, str) or not ids or len(ids) < len(goal_texts) or "" in ids:
                raise ValueError(
                    f"goal_texts ({goal_texts!r}) must be a list of goals, none empty or twice"
                )
            env.goal_texts, env.goal_kind_ids = tuple(goal_texts), [*map(self._kind, goal_texts)]
        if success:
            env.success_key = "success"
        self._set_specs(env)

    def _set_specs(self, env: EnvBase) -> None:
        batch, device = env.batch_size, env.device

        def entry(kind: type, *args: object, shape: Sequence[int] = (), **kwargs: object):
            return kind(*args, shape=(*batch, *shape), device=device, **kwargs)

        def text(slot: str, *shape: int) -> Unbounded:
            return entry(Unbounded, shape=(*shape, self._sizes[slot]), dtype=torch.uint8)

        def flag(*shape: int) -> Categorical:
            return entry(Categorical, 2, shape=shape, dtype=torch.bool)

        def index(low: int, table: Sized, dtype: torch.dtype, *shape: int) -> Bounded:
            return entry(Bounded, low, len(table) - 1, shape=shape, dtype=dtype)

        kinds, ids, slots = self.goal_kinds, self._ids, self.max_hindsight
        spec = {
            "goal": text("goal"),
            "goal_kind": index(0, kinds, torch.int32),
            "observation": text("observation"),
            "actions": text("action", self.max_actions),
            "action_mask": flag(self.max_actions),
        }
        if ids is not None:
            spec["goal_id"] = index(0, ids, torch.int64)
        if slots:
            named = {"goal": text("goal", slots), "kind": index(-1, kinds, torch.int32, slots)}
            if ids is not None:
                named["goal_id"] = index(-1, ids, torch.int64, slots)
            spec["hindsight"] = Composite(named, shape=batch)
        if self.success:
            spec["success"] = flag(1)
        env.observation_spec = Composite(spec, shape=batch)
        env.action_spec = self._candidates = CandidateActions(self.max_actions, batch, device)
        env.reward_spec = entry(Unbounded, shape=(1,), dtype=torch.float32)
        ends = ("done", "terminated", "truncated")
        env.done_spec = Composite({end: flag(1) for end in ends}, shape=batch)

    def pack(
        self,
        goal: Sequence[str],
        observation: Sequence[str],
        actions: Sequence[Sequence[str]],
        *,
        hindsight: Sequence[Sequence[str]] | None = None,
        reward: Tensor | Sequence[float] | None = None,
        terminated: Tensor | Sequence[bool] | None = None,
        truncated: Tensor | Sequence[bool] | None = None,
        success: Tensor | Sequence[bool] | None = None,
    ) -> TensorDict:
        """Packs texts into the tensordict that ``_reset`` or ``_step`` returns.

        Args:
            goal, observation: a text for each environment, so one where there is no batch; goals
                of the table, if there is one.
            actions: for each, a list of at most A admissible actions.
            hindsight: for each, a list of at most H goals that the step reached. Default: none.
            reward: numbers. Default: None, for a reset.
            terminated, truncated: whether the episode ends. Default: it does not.
            success: whether the step reached the goal, which ends the episode. Default: it did not.

        Raises:
            ValueError: naming the key, if actions or goals are too many, missing, empty or
                duplicated, a text is no string or too long without ``keep``, or values do not fit.
        """
        self._check_number("goal", goal)
        self._check_number("observation", observation)
        rows = self._rows("actions", actions, self.max_actions)
        out = {
            "goal": self._encode("goal", goal),
            "goal_kind": torch.tensor([self._kind(text) for text in goal], dtype=torch.int32),
            "observation": self._encode("observation", observation),
            "actions": self._encode("action", rows),
            "action_mask": torch.tensor([[text != "" for text in row] for row in rows]),
        }
        self._check_actions(rows, out["actions"])
        if self._ids is not None:
            if unknown := [text for text in goal if text not in self._ids]:
                raise ValueError(f"goal is {unknown[0]!r}, which is not in goal_texts")
            out["goal_id"] = torch.tensor([self._ids[text] for text in goal])
        given = [()] * self._number if hindsight is None else hindsight
        named = self._rows("hindsight", given, self.max_hindsight)
        if self.max_hindsight:
            kinds = [[self._kind(text) if text else -1 for text in row] for row in named]
            goals = self._encode("goal", named)
            out["hindsight"] = {"goal": goals, "kind": torch.tensor(kinds, dtype=torch.int32)}
            if self._ids is not None:
                ids = [[self._ids.get(text, -1) for text in row] for row in named]
                out["hindsight"]["goal_id"] = torch.tensor(ids)
        if self.success:
            out["success"] = self._column("success", success, torch.bool)
        if reward is not None:
            out["reward"] = self._column("reward", reward, torch.float32)
        out["terminated"] = self._column("terminated", terminated, torch.bool)
        out["truncated"] = self._column("truncated", truncated, torch.bool)
        out["done"] = out["terminated"] | out["truncated"]
        packed = TensorDict(out, [self._number], device=self._env.device)
        packed = packed if self._env.batch_size else packed[0]
        self._candidates.update_mask(packed["action_mask"])
        return packed

    def _check_number(self, name: str, given: Sequence) -> None:
        if isinstance(given, str) or len(given) != self._number:
            got = repr(given) if isinstance(given, str) else f"a list of {len(given)}"
            raise ValueError(
                f"{name} is {got}: it must be a list with an entry for each environment "
                f"({self._number})"
            )

    def _rows(self, key: str, given: Sequence[Sequence[str]], width: int) -> list[list[str]]:
        """Lists of texts, filled up with empty ones to a width."""
        self._check_number(key, given)
        for index, row in enumerate(given):
            if isinstance(row, str):
                raise ValueError(f"{key}[{index}] is the string {row!r}: it must be a list")
            if len(row) > width:
                raise ValueError(
                    f"{key}[{index}] has {len(row)} entries, and max_{key} is {width}: raise it, "
                    "or leave some out"
                )
            if "" in row:
                raise ValueError(f"{key}[{index}, {row.index('')}] is empty: leave it out")
        return [[*row, *[""] * (width - len(row))] for row in given]

    def _kind(self, goal: str) -> int:
        kind = 0 if self._kind_of is None else self._kind_of(goal)
        if not 0 <= kind < len(self.goal_kinds):
            raise ValueError(
                f"kind_of gives {kind} for the goal {goal!r}: it must be an index into goal_kinds "
                f"({self.goal_kinds})"
            )
        return kind

    def _encode(self, slot: str, strings: Strings) -> Tensor:
        return encode_text(self._cut(slot, strings), self._sizes[slot])

    def _cut(self, slot: str, strings: Strings) -> Strings:
        if not isinstance(strings, str):
            if not isinstance(strings, Iterable):
                raise ValueError(f"{slot} is {strings!r}: it must be a string")
            return [self._cut(slot, one) for one in strings]
        size, length = self._sizes[slot], len(strings.encode())
        if length <= size:
            return strings
        if self.keep is None:
            raise ValueError(
                f"{slot}_bytes ({size}) is too small for {strings!r}, which takes {length} bytes: "
                "raise it, or say with keep which end to keep"
            )
        if not self.num_cut:
            warnings.warn(
                f"texts are cut ({self.keep} kept), the first one for {slot}_bytes; num_cut counts "
                "them: raise it if what is cut matters",
                stacklevel=2,
            )
        self.num_cut[slot] += 1
        return cut_text(strings, lambda part: len(part.encode()) <= size, self.keep)

    def _column(self, name: str, values: Tensor | Sequence | None, dtype: torch.dtype) -> Tensor:
        values = torch.as_tensor([0] * self._number if values is None else values)
        if values.numel() != self._number:
            raise ValueError(f"{name} has {values.numel()} values, expected {self._number}")
        return values.to("cpu", dtype).reshape(self._number, 1)

    def _check_actions(self, rows: list[list[str]], written: Tensor) -> None:
        """Refuses rows without an action, and actions that read alike as they were written."""
        for index, row in enumerate(rows):
            if not row[0]:
                raise ValueError(
                    f"actions[{index}] is empty: every state needs an admissible action, the last "
                    "of an episode too (those of the state before will do)"
                )
            places: dict[bytes, int] = {}
            for place, raw in enumerate(written[index, : len(row) - row.count("")].numpy()):
                other = places.setdefault(raw.tobytes(), place)
                if other != place:
                    raise ValueError(
                        f"actions[{index}] has two candidates that read alike, {row[other]!r} and "
                        f"{row[place]!r}: leave one out, or raise action_bytes "
                        f"({self._sizes['action']}) if they were cut"
                    )
