"""What to install where an optional package is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Within it, a missing package is reported with the command that installs it.

    Args:
        extra: the extra of this package that brings it.
        what: the thing that needs it, to open the message with.

    Raises:
        ModuleNotFoundError: naming the package and the command.

    Examples:
        >>> with needs("recipes", "A picture"):
        ...     import not_there
        Traceback (most recent call last):
            ...
        ModuleNotFoundError: A picture needs not_there: pip install 'torchrl_glam[recipes]', or
        pip install -e ".[recipes]" in the repository
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "torchrl_glam":
            raise
        command = f"pip install 'torchrl_glam[{extra}]'"
        command += f', or pip install -e ".[{extra}]" in the repository'
        raise ModuleNotFoundError(
            f"{what} needs {error.name}: {command}", name=error.name
        ) from error
