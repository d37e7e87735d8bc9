"""A trained agent's way to a model hub: the README.md of its export, and the upload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torchrl_glam._files import kind_of, open_below, shorten
from torchrl_glam.models.card import README, AgentCard, find_export
from torchrl_glam.models.folder import ADAPTERS
from torchrl_glam.models.loading import EMBEDDED

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

# Files of an export. Others in its folder are not uploaded.
_PUSHED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", README)


class Evaluation(Protocol):
    """An evaluation that a model card can show."""

    policy: str
    split: str
    kind: str
    episodes: int
    success: float
    interval: tuple[float, float]


def write_model_card(
    folder: str | Path,
    *,
    results: Sequence[Evaluation] = (),
    origin: Mapping[str, str] | None = None,
    license: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes an export's ``README.md``: what the agent is, what it reached, how to load it.

    The YAML at its top is what hubs read (``base_model``, ``library_name``, ``model-index``).

    Args:
        folder: a folder that :func:`~torchrl_glam.models.export_agent` wrote with a card, or the
            folder of a run that ended.
        results: evaluations, with the attributes ``policy``, ``split``, ``kind``, ``episodes``,
            ``success`` and ``interval``. Default: none.
        origin: how it was made, by name, such as ``"command"`` and ``"commit"``. Default: nothing.
        license: of the agent's weights, as hubs write it (``"mit"``). Default: None, that of the
            base model: named where this package brings the model, else left to the reader.
        overwrite: whether to replace a ``README.md``. Default: False.

    Returns:
        The file.

    Raises:
        FileExistsError: if there is a ``README.md``, unless ``overwrite``.
        FileNotFoundError: if the folder holds no agent with a card (``agent.json``).
        ValueError: if that card is damaged, or ``README.md`` is a link.

    Examples:
        >>> import tempfile
        >>> from types import SimpleNamespace
        >>> from huggingface_hub import ModelCard
        >>> folder = tempfile.mkdtemp()
        >>> AgentCard(environment={"env_class": "rooms:Room"}, model="tiny").write(folder)
        >>> greedy = SimpleNamespace(
        ...     policy="greedy", split="train", kind="all", episodes=10, success=0.9,
        ...     interval=(0.6, 0.98),
        ... )
        >>> path = write_model_card(folder, results=[greedy])
        >>> ModelCard.load(path).data.eval_results[0].metric_value
        0.9
    """
    from huggingface_hub import ModelCardData

    folder = find_export(Path(folder))
    path = folder / README
    if path.is_file() and not overwrite:
        raise FileExistsError(f"{str(path)!r} is there: remove it, or give overwrite=True")
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
        eval_results=[_eval_result(game, result) for result in results] or None,
    )
    body = "\n\n".join(_sections(card, game, adapted, results, origin or {}, license))
    with open_below(folder, README) as file:
        file.write(f"---\n{data.to_yaml()}\n---\n\n{body}\n")
    return path


def push_agent(
    folder: str | Path, repo_id: str, *, private: bool | None = None, token: str | None = None
) -> str:
    """Uploads an export to a repository of the hub, which is made if it is not there.

    Only the files of the export are uploaded, and nothing else in its folder. Where it has no
    ``README.md``, :func:`~torchrl_glam.models.write_model_card` writes one.

    Args:
        folder: a folder that :func:`~torchrl_glam.models.export_agent` wrote with a card, or the
            folder of a run that ended.
        repo_id: ``"<user or organisation>/<name>"``.
        private: whether a new repository is private. Default: None, as the hub's settings say.
        token: of the hub. Default: None, that of ``hf auth login`` or ``HF_TOKEN``.

    Returns:
        The address of the repository.

    Raises:
        FileNotFoundError: if the folder holds no agent with a card (``agent.json``).
        ValueError: if ``repo_id`` is none, or a file of the export is a link.
        PermissionError: if there is no token, or the hub refuses it.
        ConnectionError: if the hub cannot be reached, or answers with another error.

    Examples:
        >>> push_agent("runs/sac_glam/best", "me/room/agent")
        Traceback (most recent call last):
            ...
        ValueError: repo_id ('me/room/agent') must be '<user or organisation>/<name>': ...
    """
    from huggingface_hub import HfApi

    check_repo_id("repo_id", repo_id)
    folder = find_export(Path(folder))
    token = token or require_token("repo_id", repo_id)
    if not (folder / README).exists():
        write_model_card(folder)
    names = sorted(p.name for p in folder.iterdir() if any(fnmatch(p.name, x) for x in _PUSHED))
    for name in names:
        if (kind := kind_of(folder / name)) != "file":
            raise ValueError(
                f"folder ({str(folder)!r}) holds {name!r}, which is a {kind}: only plain files "
                "are uploaded; remove it"
            )
    hub = HfApi(token=token)
    try:
        url = hub.create_repo(repo_id, private=private, exist_ok=True)
        hub.upload_folder(
            folder_path=folder,
            repo_id=url.repo_id,
            allow_patterns=names,
            commit_message="Agent trained with torchrl_glam",
        )
    except Exception as error:  # of the client, of the network, of the hub: in one voice
        raise _in_words(error, repo_id, folder, hub.endpoint) from error
    return str(url)


def check_repo_id(name: str, repo_id: str) -> None:
    """Raises ValueError for an invalid repository id; ``name`` is that of the argument or key."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    expected = f"{name} ({shorten(repr(repo_id))}) must be '<user or organisation>/<name>'"
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise ValueError(f"{expected}: {shorten(error)}") from None
    if "/" not in repo_id:
        raise ValueError(f"{expected}: it does not say whose")


def require_token(name: str, repo_id: str) -> str:
    """The hub's token of this machine; raises PermissionError if there is none."""
    from huggingface_hub import get_token

    if (token := get_token()) is None:
        raise PermissionError(
            f"{name} ({repo_id!r}) needs a token of the hub, and there is none: run `hf auth "
            "login`, or set HF_TOKEN in the environment"
        )
    return token


def _in_words(error: Exception, repo_id: str, folder: Path, endpoint: str) -> OSError:
    words = shorten(error) or type(error).__name__
    again = f"The agent is in {str(folder)!r} as before: push_agent({str(folder)!r}, {repo_id!r})"
    if getattr(getattr(error, "response", None), "status_code", None) in (401, 403):
        return PermissionError(
            f"repo_id ({repo_id!r}) was refused by {endpoint} ({words}): use a token that may "
            f"write there. {again}"
        )
    return ConnectionError(
        f"repo_id ({repo_id!r}) could not be written to at {endpoint} ({words}): try again. {again}"
    )


def _is_on_hub(model: str) -> bool:
    """Whether the base model's name is a hub's id, as far as can be told without a network."""
    try:
        check_repo_id("model", model)
    except ValueError:
        return False
    return not Path(model).exists()


def _eval_result(game: str, result: Evaluation) -> EvalResult:
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
    results: Sequence[Evaluation],
    origin: Mapping[str, str],
    license: str | None,
) -> list[str]:
    """The text below the metadata, paragraph by paragraph."""
    import yaml

    base = Path(card.model).name if Path(card.model).exists() else card.model
    made = "LoRA adapters on" if adapted else "a language model made of"
    texts = [
        f"# {game} agent",
        "An agent that reads a goal and an observation and chooses among candidate actions: "
        f"{made} {base or 'a model without a name'}, trained with `torchrl_glam`.",
    ]
    if card.pretraining:
        texts.append(f"The base model was pretrained on: {card.pretraining}.")
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
        texts += ["## Licence", "The licence of the base model applies."]
    return texts


def _row(result: Evaluation) -> str:
    low, high = result.interval
    share, interval = f"{result.success:.3f}", f"{low:.3f} to {high:.3f}"
    cells = (result.split, result.kind, result.policy, share, interval, str(result.episodes))
    return f"| {' | '.join(cells)} |"


def _plain(value: Any) -> Any:
    """Dictionaries and lists themselves, for YAML knows no subclasses and no tuples."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value
