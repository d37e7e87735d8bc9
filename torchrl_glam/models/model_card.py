"""The README.md of an export, as model hubs read it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchrl_glam._files import open_below
from torchrl_glam.models.card import README, AgentCard, find_export
from torchrl_glam.models.folder import ADAPTERS
from torchrl_glam.models.loading import EMBEDDED, is_embedded

if TYPE_CHECKING:
    from huggingface_hub import EvalResult


def write_model_card(
    folder: str | Path,
    *,
    results: Sequence[Any] = (),
    origin: Mapping[str, str] | None = None,
    license: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes an export's ``README.md``: what the agent is, what it reached, how to load it.

    Returns its path. The YAML at its top is what hubs read (``base_model``, ``model-index``, ...).

    Args:
        folder: a folder that :func:`~torchrl_glam.models.export_agent` wrote with a card, or the
            folder of a run that ended.
        results: evaluations, with the attributes ``policy``, ``split``, ``kind``, ``episodes``,
            ``success`` and ``interval``. Default: none.
        origin: how it was made, by name, such as ``"command"`` and ``"commit"``. Default: nothing.
        license: of the agent's weights, as hubs write it (``"mit"``). Default: None, that of the
            embedded model, else left to the reader.
        overwrite: whether to replace a ``README.md``. Default: False.

    Raises:
        FileExistsError: if there is a ``README.md``, unless ``overwrite``.
        FileNotFoundError: if the folder holds no agent with a card (``agent.json``).
        ValueError: if that card is damaged, ``README.md`` is a link, or the agent is embedded.

    Examples:
        >>> import tempfile
        >>> from huggingface_hub import ModelCard
        >>> folder = tempfile.mkdtemp()
        >>> AgentCard(environment={"env_class": "rooms:Room"}, model="tiny").write(folder)
        >>> ModelCard.load(write_model_card(folder)).data.model_name
        'Room agent'
    """
    import yaml
    from huggingface_hub import ModelCard, ModelCardData

    folder = Path(folder)
    if is_embedded(folder):
        raise ValueError(
            f"folder ({str(folder)!r}) is the embedded agent, which is part of this package: give "
            "the folder of an agent of your own"
        )
    folder = find_export(folder)
    path = folder / README
    if path.is_file() and not overwrite:
        raise FileExistsError(f"{str(path)!r} is there: remove it, or give overwrite=True")
    card = AgentCard.read(folder)
    game = str(card.environment.get("env_class") or "text environment").rpartition(":")[2]
    adapted = (folder / ADAPTERS).exists()
    if license is None and card.model in EMBEDDED:
        license = "mit"
    text = ModelCard.from_template(
        ModelCardData(
            library_name="torchrl_glam",
            pipeline_tag="reinforcement-learning",
            tags=["reinforcement-learning", "text-game", "torchrl"] + ["peft"] * adapted,
            base_model=card.model if _is_on_hub(card.model) else None,
            license=license,
            model_name=f"{game} agent",
            eval_results=[_eval_result(game, result) for result in results] or None,
        ),
        template_str=files("torchrl_glam").joinpath("assets/model_card.md").read_text("utf-8"),
        card=card,
        game=game,
        adapted=adapted,
        embedded=card.model in EMBEDDED,
        base=Path(card.model).name if os.path.exists(card.model) else card.model,
        results=results,
        origin=origin,
        settings=yaml.safe_dump(card.environment, sort_keys=False, allow_unicode=True),
    )
    with open_below(folder, README) as file:
        file.write(f"{text}\n")
    return path


def _is_on_hub(model: str) -> bool:
    """Whether the base model's name is a hub's id, as far as can be told without a network."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(model)
    except HFValidationError:
        return False
    return "/" in model and not Path(model).exists()


def _eval_result(game: str, result: Any) -> EvalResult:
    from huggingface_hub import EvalResult

    low, high = result.interval
    return EvalResult(
        task_type="reinforcement-learning",
        dataset_type=game,
        dataset_name=game,
        dataset_config=result.kind,
        dataset_split=result.split,
        metric_type="success_rate",
        metric_name=f"success rate, {result.policy}",
        metric_value=round(result.success, 4),
        metric_args={"episodes": result.episodes, "low": round(low, 4), "high": round(high, 4)},
    )
