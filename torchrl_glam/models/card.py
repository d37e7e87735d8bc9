"""What an export's weights do not say of an agent, in a small JSON file beside them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from torchrl_glam.models._likelihood import Normalisation
from torchrl_glam.models.critic import CriticInput
from torchrl_glam.text import PromptTemplate

CARD = "agent.json"
HEADS = "heads.safetensors"
README = "README.md"

Head = Literal[CriticInput, "state"]
"""What the value heads read; ``"state"`` is PPO's: the prompt alone, one value."""


@dataclass
class AgentCard:
    """How an agent reads, scores and values, and where it was trained.

    Args:
        environment: the environment's settings, by name; text, numbers, truth values, lists and
            dictionaries of them only. Default: none.
        template: the prompt. Default: :class:`~torchrl_glam.text.PromptTemplate`.
        normalisation, score_eos: those of the trunk. Defaults: ``"sum"``, False.
        critic: input of the value heads, as in :func:`~torchrl_glam.models.make_critic`, or
            ``"state"`` for a :class:`~torchrl_glam.models.ValueHead`. Default:
            ``"observation-action"``.
        hidden_sizes: units of the heads' hidden layers. Default: ``(1024, 1024)``.
        num_actions: candidate slots of the environment that it was trained on; a head of input
            ``"observation"`` has so many outputs. Default: None, unknown.
        num_critics: value heads; 0 for an agent without. Default: 1.
        model: the base model's name. Default: ``""``, unknown.
        load_in_4bit, compute_dtype: how adapters' base weights were held. Defaults: False,
            ``"bfloat16"``.
        dtype: of the other weights. Default: ``"float32"``.

    Raises:
        ValueError: for a value of another type or out of range; names the entry.

    Examples:
        >>> import tempfile
        >>> card = AgentCard(environment={"num_objects": 3}, hidden_sizes=(16,))
        >>> folder = Path(tempfile.mkdtemp())
        >>> card.write(folder)
        >>> AgentCard.read(folder) == card
        True
        >>> AgentCard(num_critics=-1)
        Traceback (most recent call last):
            ...
        ValueError: num_critics (-1) must be a whole number of at least 0
    """

    environment: dict[str, Any] = field(default_factory=dict)
    template: PromptTemplate = field(default_factory=PromptTemplate)
    normalisation: Normalisation = "sum"
    score_eos: bool = False
    critic: Head = "observation-action"
    hidden_sizes: tuple[int, ...] = (1024, 1024)
    num_actions: int | None = None
    num_critics: int = 1
    model: str = ""
    load_in_4bit: bool = False
    compute_dtype: str = "bfloat16"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        sizes = self.hidden_sizes
        _require(isinstance(self.environment, dict), self, "environment", "be a dictionary")
        kind = PromptTemplate
        _require(isinstance(self.template, kind), self, "template", f"be a {kind.__name__}")
        inputs = (*get_args(CriticInput), "state")
        for key, choices in (
            ("normalisation", get_args(Normalisation)),
            ("critic", inputs),
            ("compute_dtype", ("float32", "bfloat16")),
            ("dtype", ("float32", "bfloat16")),
        ):
            _require(getattr(self, key) in choices, self, key, f"be one of {choices}")
        for key in ("score_eos", "load_in_4bit"):
            _require(isinstance(getattr(self, key), bool), self, key, "be true or false")
        _require(isinstance(self.model, str), self, "model", "be text")
        whole = isinstance(sizes, (list, tuple)) and all(_is_whole(size, 1) for size in sizes)
        _require(whole, self, "hidden_sizes", "be a list of whole numbers of at least 1")
        self.hidden_sizes = tuple(sizes)
        known = self.num_actions is None and self.critic != "observation"
        whole = known or _is_whole(self.num_actions, 1)
        _require(whole, self, "num_actions", "be a whole number of at least 1")
        whole = _is_whole(self.num_critics, 0)
        _require(whole, self, "num_critics", "be a whole number of at least 0")

    def write(self, folder: str | Path) -> None:
        """Writes ``agent.json``; what has no place in JSON raises TypeError."""
        values = asdict(self)
        names = ("text", "action_lead", "special_tokens")
        values["template"] = {name: getattr(self.template, name) for name in names}
        text = json.dumps({"format": 1} | values, indent=2, ensure_ascii=False)
        Path(folder, CARD).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: str | Path) -> AgentCard:
        """Reads ``agent.json``.

        Raises:
            FileNotFoundError: if there is none.
            ValueError: if it is damaged, or of a later format; names the entry.
        """
        path = Path(folder, CARD)
        if path.is_symlink() or not path.is_file():
            raise FileNotFoundError(f"folder {str(folder)!r} holds no {CARD}")
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(values, dict):
                raise ValueError(f"it holds a {type(values).__name__}, expected entries by name")
            if (written := values.pop("format", None)) != 1:
                raise ValueError(f"format ({written!r}) must be 1: a later version wrote it")
            known = {entry.name for entry in fields(cls)}
            if unknown := sorted(set(values) ^ known):
                raise ValueError(f"the entries {unknown} are missing or unknown")
            if not isinstance(values["template"], dict):
                raise ValueError(f"template ({values['template']!r}) must be a dictionary")
            values["template"] = PromptTemplate(**values["template"])
            return cls(**values)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{str(path)!r} is damaged ({error}): export the agent anew") from None


def _is_whole(value: Any, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _require(holds: bool, card: AgentCard, key: str, expected: str) -> None:
    if not holds:
        raise ValueError(f"{key} ({getattr(card, key)!r}) must {expected}")
