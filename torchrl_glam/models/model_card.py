"""The README.md of an exported agent: its text, and above it the metadata that hubs read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from torchrl_glam.models._folder import ADAPTERS
from torchrl_glam.models.card import README, AgentCard
from torchrl_glam.models.export_folder import find_export
from torchrl_glam.models.loading import EMBEDDED

if TYPE_CHECKING:
    from torchrl_glam.viewing import Result


def write_model_card(
    folder: str | Path,
    *,
    results: Sequence[Result] = (),
    origin: Mapping[str, str] | None = None,
    license: str | None = None,
) -> Path:
    """Writes an export's ``README.md``: what the agent is, what it reached, how to load it.

    The YAML at its top is what hubs read (``base_model``, ``library_name``, ``model-index``).

    Args:
        folder: what :func:`~torchrl_glam.models.export_agent` wrote with a card, or the folder of
            a run that ended. A ``README.md`` in it is replaced.
        results: evaluations, as :func:`~torchrl_glam.viewing.measure` gives them. Default: none.
        origin: what is known of how it was made, by name, such as ``"command"`` and ``"commit"``.
            Default: nothing.
        license: of the agent's weights, as hubs write it (``"mit"``). Default: None, that of the
            base model: named where this package brings the model, else left to the reader.

    Returns:
        The file.

    Raises:
        FileNotFoundError: if the folder holds no agent with a card (``agent.json``).
        ValueError: if that card is damaged.

    Examples:
        >>> import tempfile
        >>> from torchrl_glam.viewing import Result
        >>> folder = tempfile.mkdtemp()
        >>> AgentCard(environment={"env_class": "rooms:Room"}, model="tiny").write(folder)
        >>> greedy = Result("greedy", "train", 0, "all", episodes=10, successes=9, length=4.2)
        >>> path = write_model_card(folder, results=[greedy])
        >>> ModelCard.load(path).data.eval_results[0].metric_value
        0.9
    """
    folder = find_export(Path(folder))
    card = AgentCard.read(folder)
    game = str(card.environment.get("env_class") or "text environment").rpartition(":")[2]
    adapted = (folder / ADAPTERS).exists()
    if license is None and card.model in EMBEDDED:
        license = "mit"
    data = ModelCardData(
        library_name="torchrl_glam",
        pipeline_tag="reinforcement-learning",
        tags=["reinforcement-learning", "text-game", "torchrl", *(["peft"] if adapted else [])],
        base_model=card.model if _is_on_hub(card.model) else None,
        license=license,
        model_name=f"{game} agent",
        eval_results=[_evaluation(game, result) for result in results] or None,
    )
    body = "\n\n".join(_sections(card, game, adapted, results, origin or {}, license))
    path = folder / README
    ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}\n").save(path)
    return path


def _is_on_hub(model: str) -> bool:
    """Whether the base model's name is a hub's id, as far as can be told without a network."""
    try:
        validate_repo_id(model)
    except HFValidationError:
        return False
    return "/" in model and not Path(model).exists()


def _evaluation(game: str, result: Result) -> EvalResult:
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


_TABLE = """| goals | kind | policy | success | 95 % interval (Wilson) | episodes |
|---|---|---|---|---|---|"""

_LOADING = """```bash
hf download <this repository> --local-dir agent
```

```python
from torchrl_glam.models import load_agent

agent = load_agent("agent")  # trunk, actor, value heads, tokenizer, prompt
```"""

_PLAIN = """The language model alone, without `torchrl_glam`:

```python
{peft}from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

config = AutoConfig.from_pretrained({source})
kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
model = kind.from_pretrained({source}){adapters}
```"""


def _sections(
    card: AgentCard,
    game: str,
    adapted: bool,
    results: Sequence[Result],
    origin: Mapping[str, str],
    license: str | None,
) -> list[str]:
    """The text below the metadata, paragraph by paragraph."""
    base = Path(card.model).name if Path(card.model).exists() else card.model
    made = "LoRA adapters on" if adapted else "a language model made of"
    texts = [
        f"# {game} agent",
        "An agent that reads a goal and an observation and chooses among candidate actions: "
        f"{made} {base or 'a model without a name'}, trained with `torchrl_glam`.",
    ]
    if results:
        texts += ["## Results", "\n".join([_TABLE, *map(_row, results)])]
    texts += ["## Load", _LOADING]
    if not adapted:
        texts.append(_PLAIN.format(peft="", source='"agent"', adapters=""))
    elif card.model not in EMBEDDED:  # which only this package has
        peft, adapters = "from peft import PeftModel\n", "model = PeftModel.from_pretrained(model, "
        texts.append(_PLAIN.format(peft=peft, source=repr(base), adapters=f'\n{adapters}"agent")'))
    settings = yaml.safe_dump(_plain(card.environment), sort_keys=False, allow_unicode=True)
    texts += ["## Environment", f"```yaml\n{settings}```"]
    if origin:
        lines = [f"- {name}: `{value}`" for name, value in origin.items()]
        texts += ["## How it was made", "\n".join(lines)]
    if license is None:
        texts += ["## Licence", "That of the base model applies to what is made of it."]
    return texts


def _row(result: Result) -> str:
    low, high = result.interval
    share, interval = f"{result.success:.3f}", f"{low:.3f} to {high:.3f}"
    cells = (result.split, result.kind, result.policy, share, interval, str(result.episodes))
    return f"| {' | '.join(cells)} |"


def _plain(value: Any) -> Any:
    """Dictionaries and lists themselves, for YAML knows no subclasses and no tuples."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value
