"""Imports between the package's folders go down, and take public names only.

Imports inside functions and those for type checkers count too.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
# From the bottom. Folders of one floor stand side by side and import nothing of one another.
FLOORS = [
    ["_extras", "_files"],  # private to the package, and open to all of its folders
    ["text"],
    ["envs", "models", "replay", "objectives"],
    ["goals", "pretraining"],
    ["runs"],
    ["viewing", "report"],
]
FLOOR = {folder: floor for floor, folders in enumerate(FLOORS) for folder in folders}
# Losses know the protocol that a trunk follows.
ALLOWED = {"objectives: models.protocol.Part", "objectives: models.protocol.Trunk"}


def imports():
    """Folder and full name of each import from another folder of the package."""
    for path in [*ROOT.glob("torchrl_glam/*/**/*.py"), *ROOT.glob("envs/**/*.py")]:
        folder = path.relative_to(ROOT).as_posix().removeprefix("torchrl_glam/").split("/")[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path} has a relative import"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                package, _, inner = name.partition(".")
                if package == "torchrl_glam" and inner.split(".")[0] != folder:
                    yield folder, inner


def test_imports_go_down_and_take_public_names():
    found = set()
    for folder, name in imports():
        parts = name.split(".")
        goes_down = FLOOR.get(parts[0], -1) < FLOOR[folder]
        private = any(p.startswith("_") and not p.startswith("__") for p in parts[1:])
        if private or not goes_down:
            found.add(f"{folder}: {name}")
    assert sorted(found - ALLOWED) == []
