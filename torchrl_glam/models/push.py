"""A trained agent's way to a model hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from torchrl_glam.models.card import README
from torchrl_glam.models.export_folder import find_export
from torchrl_glam.models.model_card import write_model_card

# What an export consists of. Other files of its folder stay where they are.
_PUSHED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", README)


def push_agent(
    folder: str | Path, repo_id: str, *, private: bool | None = None, token: str | None = None
) -> str:
    """Uploads an export to a repository of the hub, which is made if it is not there.

    What an export consists of is uploaded, and nothing else that lies in its folder. Where it has
    no ``README.md``, :func:`~torchrl_glam.models.write_model_card` writes one.

    Args:
        folder: what :func:`~torchrl_glam.models.export_agent` wrote with a card, or the folder of
            a run that ended.
        repo_id: ``"<user or organisation>/<name>"``.
        private: whether a new repository is private. Default: None, as the hub's settings say.
        token: of the hub. Default: None, that of ``hf auth login`` or ``HF_TOKEN``.

    Returns:
        The address of the repository.

    Raises:
        FileNotFoundError: if the folder holds no agent with a card (``agent.json``).
        ValueError: if ``repo_id`` is none.
        PermissionError: if there is no token, or the hub refuses it.
        ConnectionError: if the hub cannot be reached, or answers with another error.

    Examples:
        >>> push_agent("runs/sac_glam/best", "me/room/agent")
        Traceback (most recent call last):
            ...
        ValueError: repo_id ('me/room/agent') must be '<user or organisation>/<name>': ...
    """
    check_repo_id("repo_id", repo_id)
    folder = find_export(Path(folder))
    token = token or require_token("repo_id", repo_id)
    if not (folder / README).exists():
        write_model_card(folder)
    hub = HfApi(token=token)
    try:
        url = hub.create_repo(repo_id, private=private, exist_ok=True)
        hub.upload_folder(
            folder_path=folder,
            repo_id=url.repo_id,
            allow_patterns=list(_PUSHED),
            commit_message="Agent trained with torchrl_glam",
        )
    except Exception as error:  # of the client, of the network, of the hub: in one voice
        raise _in_words(error, repo_id, folder, hub.endpoint) from error
    return str(url)


def check_repo_id(name: str, repo_id: str) -> None:
    """Raises ValueError for what is no repository's id; ``name`` is that of the argument or key.

    Examples:
        >>> check_repo_id("push", "me/agent")
        >>> check_repo_id("push", "agent")
        Traceback (most recent call last):
            ...
        ValueError: push ('agent') must be '<user or organisation>/<name>': it does not say whose
    """
    expected = f"{name} ({repo_id!r}) must be '<user or organisation>/<name>'"
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise ValueError(f"{expected}: {error}") from None
    if "/" not in repo_id:
        raise ValueError(f"{expected}: it does not say whose")


def require_token(name: str, repo_id: str) -> str:
    """The hub's token of this machine; raises PermissionError if there is none."""
    if (token := get_token()) is None:
        raise PermissionError(
            f"{name} ({repo_id!r}) needs a token of the hub, and there is none: run `hf auth "
            "login`, or set HF_TOKEN in the environment"
        )
    return token


def _in_words(error: Exception, repo_id: str, folder: Path, endpoint: str) -> OSError:
    words = " ".join(str(error).split()) or type(error).__name__
    again = f"The agent is in {str(folder)!r} as before: push_agent({str(folder)!r}, {repo_id!r})"
    if getattr(getattr(error, "response", None), "status_code", None) in (401, 403):
        return PermissionError(
            f"repo_id ({repo_id!r}) was refused by {endpoint} ({words}): use a token that may "
            f"write there. {again}"
        )
    return ConnectionError(
        f"repo_id ({repo_id!r}) could not be written to at {endpoint} ({words}): try again. {again}"
    )
