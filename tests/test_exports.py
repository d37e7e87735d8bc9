"""What a user needs to know of models, objectives, replay and goals is exported and documented."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import torchrl_glam

FOLDERS = ["goals", "models", "objectives", "replay", "text"]
EXPORTED = [
    (folder, name)
    for folder in FOLDERS
    for name in importlib.import_module(f"torchrl_glam.{folder}").__all__
]


def members(module):
    """A module, its functions and classes, and their methods and properties."""
    yield module
    for item in vars(module).values():
        if getattr(item, "__module__", None) == module.__name__:
            yield item
            if inspect.isclass(item):
                own = vars(item).values()
                yield from (x for x in own if inspect.isfunction(x) or isinstance(x, property))


@pytest.mark.parametrize(("folder", "name"), EXPORTED)
def test_every_exported_name_is_documented(folder, name):
    item = getattr(importlib.import_module(f"torchrl_glam.{folder}"), name)
    if not (inspect.isclass(item) or inspect.isfunction(item)):
        return  # the values that an argument may have
    text = vars(item)["__doc__"] if inspect.isclass(item) else item.__doc__
    assert text and text.strip(), f"{folder}.{name} has no docstring"
    is_error = inspect.isclass(item) and issubclass(item, Exception)
    if not is_error and inspect.signature(item).parameters:
        assert re.search(r"Args:|Attributes:|Arguments\b", text), f"{folder}.{name}: no Args"
        assert "Examples:" in text or "Attributes:" in text, f"{folder}.{name}: no Examples"


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_are_short_and_of_one_dialect(folder):
    root = Path(torchrl_glam.__file__).parent
    for path in sorted((root / folder).glob("*.py")):
        module = importlib.import_module(f"torchrl_glam.{folder}.{path.stem}")
        for item in members(module):
            text = item.__doc__ or ""
            where = f"{path.name}: {getattr(item, '__name__', item)}"
            assert len(text.splitlines()) <= 60, f"{where} has more than 60 lines"
            found = re.search(r"Keyword Args:|\bExample:|Defaults?\s+to\b|\n +\w+ \(\w+\): ", text)
            assert not found, f"{where} says {found and found[0]!r}"
