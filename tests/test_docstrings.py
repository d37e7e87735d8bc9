"""Docstrings: their examples run and show what they say, and exported names have what a user needs.

pytest's own ``--doctest-modules`` names modules after their folders and would import ``envs/`` a
second time, as ``envs`` instead of ``torchrl_glam.envs``.
"""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import torchrl_glam
import torchrl_glam.envs

# Where there are no links, envs/ lies outside the folder of torchrl_glam.
PACKAGES = (torchrl_glam, torchrl_glam.envs)
MODULES = {package.__name__ for package in PACKAGES}
for package in PACKAGES:
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    MODULES |= {module.name for module in found}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_examples(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not name.startswith("torchrl_glam.envs.games."):
            raise
        pytest.skip(f"{error.name} is an extra, which is not installed")
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples failed, see above"


FOLDERS = ("envs", "goals", "models", "objectives", "pretraining", "replay", "report", "text")
FOLDERS += ("viewing",)
EXPORTED = [
    (folder, name)
    for folder in FOLDERS
    for name in importlib.import_module(f"torchrl_glam.{folder}").__all__
]


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


def members(module):
    """A module, its functions and classes, and their methods and properties."""
    yield module
    for item in vars(module).values():
        if getattr(item, "__module__", None) == module.__name__:
            yield item
            if inspect.isclass(item):
                own = vars(item).values()
                yield from (x for x in own if inspect.isfunction(x) or isinstance(x, property))


# Environments have more to say of themselves.
@pytest.mark.parametrize("name", sorted(name for name in MODULES if ".envs" not in name))
def test_docstrings_are_short_and_of_one_dialect(name):
    for item in members(importlib.import_module(name)):
        text = item.__doc__ or ""
        where = f"{name}: {getattr(item, '__name__', item)}"
        assert len(text.splitlines()) <= 60, f"{where} has more than 60 lines"
        found = re.search(r"Keyword Args:|\bExample:|Defaults?\s+to\b|\n +\w+ \(\w+\): ", text)
        assert not found, f"{where} says {found and found[0]!r}"
