"""The agent card, a small JSON file beside an export's weights; and finding an export."""

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args
from unicodedata import category

from torchrl_glam._files import open_below, read_json, shorten
from torchrl_glam.models.critic import CriticInput
from torchrl_glam.models.loading import is_embedded
from torchrl_glam.models.trunks.likelihood import Normalisation
from torchrl_glam.text import PromptTemplate

CARD = "agent.json"
HEADS = "heads.safetensors"
README = "README.md"
_LOCK = "run.lock"  # of a run
_LARGEST = 2**20  # bytes
_TEMPLATE = ("text", "action_lead", "special_tokens")
_DTYPES = ("float32", "bfloat16")
_CHOICES = {
    "normalisation": get_args(Normalisation),
    "critic": (*get_args(CriticInput), "state"),
    "compute_dtype": _DTYPES,
    "dtype": _DTYPES,
}

Head = Literal[CriticInput, "state"]
"""Input of the value heads; ``"state"`` is PPO's: the prompt alone, one value."""


@dataclass
class AgentCard:
    """How an agent reads, scores and values, and where it was trained.

    Args:
        environment: the environment's settings, by name: text, numbers, truth values, lists and
            dictionaries, at most eight deep. Default: none.
        template: the prompt. Default: :class:`~torchrl_glam.text.PromptTemplate`.
        normalisation: that of the trunk. Default: ``"sum"``.
        critic: input of the value heads, as in :func:`~torchrl_glam.models.make_critic`, or
            ``"state"`` for a :class:`~torchrl_glam.models.ValueHead`. Default:
            ``"observation-action"``.
        hidden_sizes: units of the heads' hidden layers. Default: ``(1024, 1024)``.
        num_actions: candidate slots of the environment that it was trained on; a head of input
            ``"observation"`` has that many outputs. Default: None, unknown.
        num_critics: value heads; 0 for an agent without. Default: 1.
        model: the base model's name. Default: ``""``, unknown.
        pretraining: what the base model was trained on; name labels of the task there. Default:
            ``""``, unknown.
        load_in_4bit, compute_dtype: how adapters' base weights were held. Defaults: False,
            ``"bfloat16"``.
        dtype: of the other weights. Default: ``"float32"``.

    Raises:
        ValueError: for a value of another type, out of range or too long, and for text with
            control characters; names the entry.

    Examples:
        >>> import tempfile
        >>> card, folder = AgentCard(hidden_sizes=(16,)), tempfile.mkdtemp()
        >>> card.write(folder)
        >>> AgentCard.read(folder) == card
        True
    """

    environment: dict[str, Any] = field(default_factory=dict)
    template: PromptTemplate = field(default_factory=PromptTemplate)
    normalisation: Normalisation = "sum"
    critic: Head = "observation-action"
    hidden_sizes: tuple[int, ...] = (1024, 1024)
    num_actions: int | None = None
    num_critics: int = 1
    model: str = ""
    pretraining: str = ""
    load_in_4bit: bool = False
    compute_dtype: str = "bfloat16"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        def require(key: str, fits: bool, expected: str) -> None:
            if not fits:
                value = shorten(repr(getattr(self, key)), 80)
                raise ValueError(f"{key} ({value}) must be {expected}")

        sizes, actions = self.hidden_sizes, self.num_actions
        fits = isinstance(sizes, (list, tuple)) and len(sizes) <= 64 and all(map(_is_whole, sizes))
        settings = isinstance(self.environment, dict) and _is_plain(self.environment)
        plain = (
            "a dictionary of text without control characters, numbers, truth values, lists and "
            "dictionaries, at most eight deep"
        )
        require("environment", settings, plain)
        require("template", isinstance(self.template, PromptTemplate), "a PromptTemplate")
        whole = "from 1 to 1048576"
        require("hidden_sizes", fits, f"a list of at most 64 whole numbers {whole}")
        known = _is_whole(actions) or (actions is None and self.critic != "observation")
        slots = f"a whole number {whole}, or None for a critic of another input than 'observation'"
        require("num_actions", known, slots)
        require("num_critics", _is_whole(self.num_critics, 0, 64), "a whole number from 0 to 64")
        require("load_in_4bit", isinstance(self.load_in_4bit, bool), "true or false")
        for key, most in (("model", 4_096), ("pretraining", 1_000)):
            words = f"text of at most {most} characters, none of them control characters"
            require(key, _is_text(getattr(self, key), most), words)
        for key, choices in _CHOICES.items():
            require(key, getattr(self, key) in choices, f"one of {choices}")
        self.hidden_sizes = tuple(sizes)

    def write(self, folder: str | Path) -> None:
        """Writes ``agent.json``; what has no place in JSON raises TypeError."""
        values = asdict(self)
        values["template"] = {name: getattr(self.template, name) for name in _TEMPLATE}
        text = json.dumps({"format": 1} | values, indent=2, ensure_ascii=False)
        with open_below(folder, CARD) as file:
            file.write(text + "\n")

    @classmethod
    def read(cls, folder: str | Path) -> "AgentCard":
        """Reads ``agent.json``.

        Raises:
            FileNotFoundError: if there is none.
            ValueError: if it is damaged, or of a later format; names the entry.
        """
        path = Path(folder, CARD)
        if not os.path.isfile(path):
            raise FileNotFoundError(f"folder {str(folder)!r} holds no {CARD}")
        try:
            values = read_json(path, _LARGEST)
            if not isinstance(values, dict):
                raise ValueError(f"it holds a {type(values).__name__}, expected entries by name")
            if (written := values.pop("format", None)) != 1:
                raise ValueError(f"format ({written!r}) must be 1: a later version wrote it")
            if unknown := sorted(values.keys() ^ {entry.name for entry in fields(cls)}):
                raise ValueError(f"the entries {unknown} are missing or unknown")
            values["template"] = _read_template(values["template"])
            return cls(**values)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{str(path)!r} is damaged ({shorten(error)}): export the agent anew"
            ) from None


def _read_template(values: Any) -> PromptTemplate:
    """A template by its entries, looked at before they are searched for slots."""
    if not isinstance(values, dict) or set(values) - set(_TEMPLATE):
        raise ValueError(f"template ({shorten(repr(values), 80)}) must have entries of {_TEMPLATE}")
    for key, value in values.items():
        flag = key == "special_tokens"
        if not (isinstance(value, bool) if flag else _is_text(value)):
            kind = "true or false" if flag else "text of 20,000 characters at most"
            raise ValueError(f"template.{key} ({shorten(repr(value), 80)}) must be {kind}")
    return PromptTemplate(**values)


def _is_text(value: Any, most: int = 20_000) -> bool:
    """Text that a terminal shows as it is, without control characters or lone surrogates."""
    short = isinstance(value, str) and len(value) <= most
    return short and not any(category(c) in ("Cc", "Cs") and c not in "\n\t" for c in value)


def _is_plain(value: Any, depth: int = 8) -> bool:
    """Whether settings are text, numbers, truth values, and lists and dictionaries of them."""
    if isinstance(value, dict):
        return all(_is_plain(key, 1) for key in value) and _is_plain(list(value.values()), depth)
    if isinstance(value, (list, tuple)):
        return depth > 0 and all(_is_plain(entry, depth - 1) for entry in value)
    return value is None or isinstance(value, (bool, int, float)) or _is_text(value)


def _is_whole(value: Any, low: int = 1, high: int = 2**20) -> bool:
    return type(value) is int and low <= value <= high


def find_export(folder: str | Path) -> Path:
    """The folder that holds an agent's card: the one given, or that of a run's export.

    ``"tiny"`` is the embedded agent. Raises FileNotFoundError naming what is missing.
    """
    if is_embedded(folder):
        return Path(__file__).parents[1] / "assets" / "agent"
    folder = Path(folder)
    for place in (folder, folder / "model"):
        if os.path.isfile(place / CARD):
            return place
    if not os.path.isdir(folder):
        why = "is not there"
    elif any((place / _LOCK).is_file() for place in (folder, folder.resolve().parent)):
        why = (
            f"belongs to a run that has not ended ({_LOCK}): wait for its end, or resume it "
            "(resume=...) if it was killed"
        )
    else:
        why = (
            f"holds no {CARD}, which says how an agent reads and scores: resume its run "
            "(resume=...) if it was stopped before its end, or write a card to a language model "
            "(AgentCard(...).write(folder))"
        )
    raise FileNotFoundError(
        f"folder ({str(folder)!r}) {why}; an agent is in the folder of a run that ended, or in its "
        "export (<run>/model)"
    )
