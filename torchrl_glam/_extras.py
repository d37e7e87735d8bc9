"""Errors for missing optional packages, which say what to install."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Within it, ``what`` needs a package; a missing one is told with the extra that brings it.

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
