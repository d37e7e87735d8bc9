"""The process of a run: command, commit, versions and machine."""

import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch

from torchrl_glam import __version__

_PACKAGES = ("torch", "torchrl", "tensordict", "transformers", "peft")


def describe_process() -> dict[str, str]:
    """This process: ``command``, ``versions``, ``system``, ``processor``, and where there are any
    ``GPUs`` and ``commit``, of the script's repository, with ``-dirty`` if it was changed since.
    """
    found = {"torchrl_glam": __version__, **{name: version(name) for name in _PACKAGES}}
    versions = ", ".join(f"{name} {number}" for name, number in found.items())
    described = {
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "commit": _commit(Path(sys.argv[0]).resolve().parent),
        "versions": f"Python {platform.python_version()}, {versions}",
        "system": platform.platform(),
        "processor": f"{_processor()} (threads: {torch.get_num_threads()})",
        "GPUs": ", ".join(map(torch.cuda.get_device_name, range(torch.cuda.device_count()))),
    }
    return {name: value for name, value in described.items() if value}


def _commit(folder: Path) -> str:
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        said = subprocess.run(
            [*command, "--exclude=*"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):  # no git, or no repository
        return ""
    return said.stdout.strip()


def _processor() -> str:
    """Its name; Linux keeps it in a file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
