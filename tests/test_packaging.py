"""What is installed, from a wheel, from a source distribution or in place, is the whole package."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import torchrl_glam

ROOT = Path(__file__).parents[1]


def test_version_is_the_newest_of_the_changelog():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+)", changelog, re.M)[1] == torchrl_glam.__version__


def run(*arguments, cwd, fails=False, **environment):
    """What a Python process says, or what it says of an error that ends it."""
    command = [sys.executable, *map(str, arguments)]
    result = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True
    )
    assert bool(result.returncode) == fails, result.stderr
    return result.stderr if fails else result.stdout


def test_a_wheel_made_of_the_source_distribution_is_whole(tmp_path):
    """It is imported from a folder of its own: nothing of this one, and no name twice."""
    source, installed = tmp_path / "source", tmp_path / "installed"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("torchrl_glam", "envs"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    sdist = f"import setuptools.build_meta as b; b.build_sdist({str(tmp_path)!r})"
    run("-c", sdist, cwd=source)  # as pip does it
    [archive] = tmp_path.glob("*.tar.gz")
    options = ("--no-index", "--no-deps", "--no-build-isolation", "--target", installed)
    run("-m", "pip", "install", *options, archive, cwd=tmp_path)
    files = {path.relative_to(installed) for path in installed.rglob("*.py")}
    assert files == {path.relative_to(source) for path in source.glob("torchrl_glam/**/*.py")} | {
        Path("torchrl_glam") / path.relative_to(source) for path in source.glob("envs/**/*.py")
    }
    for name in ("report/assets/report.html", "viewing/assets/base.css"):
        assert (installed / "torchrl_glam" / name).is_file()
    (tmp_path / "script.py").write_text(
        "import torchrl_glam.envs\n"
        "from torchrl_glam.envs import PlaygroundTextEnv\n"
        "from torchrl_glam.models import load_tokenizer\n"
        "PlaygroundTextEnv(num_envs=2).reset(), load_tokenizer('tiny')\n"
        "print(torchrl_glam.envs.__file__)\n"
    )
    said = run(tmp_path / "script.py", cwd=tmp_path, PYTHONPATH=str(installed))
    assert said.strip() == str(installed / "torchrl_glam" / "envs" / "__init__.py")


COMPONENTS = ("envs", "goals", "models", "objectives", "replay", "text")
# Packages that come with an extra, or that take seconds to import.
HEAVY = ("bitsandbytes", "hydra", "jinja2", "matplotlib", "peft", "scipy", "transformers")


@pytest.mark.slow
def test_importing_components_imports_nothing_heavy(tmp_path):
    """Nor needs an extra: they are there for those who have the core alone."""
    parts = ", ".join(f"torchrl_glam.{name}" for name in COMPONENTS)
    blocked = f"import sys; sys.modules.update(dict.fromkeys({HEAVY}))"
    run("-c", f"{blocked}; import {parts}", cwd=tmp_path)


@pytest.mark.slow
def test_a_recipe_without_its_extra_says_what_to_install(tmp_path):
    blocked = "import runpy, sys; sys.modules.update(dict.fromkeys(('hydra', 'omegaconf')))"
    script = f"{blocked}; runpy.run_path({str(ROOT / 'recipes' / 'sac_glam.py')!r})"
    said = run("-c", script, cwd=tmp_path, fails=True).splitlines()[-1]
    assert "needs hydra" in said and 'pip install -e ".[recipes]"' in said


def test_the_package_is_whole_in_its_folder_too():
    """Python started here takes it from this folder, installed or not, and so do type checkers."""
    assert (ROOT / "torchrl_glam" / "envs").resolve() == ROOT / "envs"
    said = run("-c", "import envs", cwd=ROOT, fails=True)
    assert "envs is no package of its own: import torchrl_glam.envs" in said


@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_a_type_checker_finds_every_name(tmp_path):
    packages = [importlib.import_module(f"torchrl_glam.{name}") for name in COMPONENTS]
    lines = [f"from {each.__name__} import {', '.join(each.__all__)}\n" for each in packages]
    (tmp_path / "script.py").write_text("".join(lines))
    command = ["pyright", "--pythonpath", sys.executable, "script.py"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
