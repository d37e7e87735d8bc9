"""pyproject.toml lists every package, so that a wheel holds what an editable install shows."""

import re
from pathlib import Path

import torchrl_glam

ROOT = Path(__file__).parents[1]


def test_every_package_is_listed():
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.findall(r'"([^"]+)"', re.search(r"^packages = \[(.*?)\]", settings, re.S | re.M)[1])
    folders = [init.parent.relative_to(ROOT) for init in ROOT.glob("torchrl_glam/**/__init__.py")]
    folders += [
        "torchrl_glam" / init.parent.relative_to(ROOT) for init in ROOT.glob("envs/**/__init__.py")
    ]
    assert sorted(listed) == sorted(".".join(folder.parts) for folder in folders)


def test_version_is_the_newest_of_the_changelog():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+)", changelog, re.M)[1] == torchrl_glam.__version__
