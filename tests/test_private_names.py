"""Private names of other libraries that this package leans on, each touched once.

An upgrade that moves or drops one of them fails here, by its name, before it fails elsewhere. The
last test finds what the package uses and this file does not name, and what it names for nothing.
The version ranges in pyproject.toml are those for which this file was run.
"""

import ast
import importlib
import inspect
import pkgutil
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.utils._pytree
import torchrl
from tensordict import TensorDict
from torch import nn
from torchrl.collectors import Collector
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import TensorStorage
from torchrl.envs import EnvBase, PendulumEnv
from torchrl.envs.transforms import Transform
from torchrl.objectives import ClipPPOLoss, DiscreteSACLoss, LossModule
from transformers import PreTrainedModel, T5Config
from transformers.models.t5.modeling_t5 import T5Attention

import torchrl_glam
import torchrl_glam.envs


def made_by(module, kind, method="__init__"):
    """The names that a method of a class uses, without calling it."""

    def names():
        function = getattr(getattr(importlib.import_module(module), kind), method)
        return SimpleNamespace(**dict.fromkeys(function.__code__.co_names))

    return names


# Names, with something that has them.
OWNERS = [
    # torchrl: losses
    (made_by("torchrl.objectives", "LossModule"), "_has_update_associated _value_estimator"),
    (made_by("torchrl.objectives", "DiscreteSACLoss", "_make_vmap"), "_vmap_qnetworkN0"),
    (LossModule, "_AcceptedKeys _forward_value_estimator_keys _reduce_loss"),
    (LossModule, "_reset_module_parameters"),
    (DiscreteSACLoss, "_compute_target _set_in_keys"),
    (ClipPPOLoss, "_clip_bounds _log_weight"),
    # torchrl: replay and collection
    (TensorStorage, "_mutation_revision"),
    (Sampler, "_empty _rng"),
    (lambda: Collector(PendulumEnv(), None, frames_per_batch=1, total_frames=1), "_traj_pool"),
    (torchrl, "_utils"),
    # torchrl: what its documentation asks to override
    (Transform, "_apply_transform _call _inv_call _reset _reset_env_preprocess"),
    (EnvBase, "_reset _set_seed _step"),
    # torch, tensordict, transformers
    (torch, "_foreach_copy_"),
    (torch.utils, "_pytree"),
    (nn.Module, "_apply"),
    (lambda: nn.Linear(1, 1), "_forward_hooks _forward_pre_hooks"),
    (TensorDict, "_new_unsafe"),
    (T5Config, "_attn_implementation"),
    (PreTrainedModel, "_is_stateful"),
    (T5Attention, "_relative_position_bucket"),
]
for module, kind in (
    ("textworld_express", "TextWorldExpressEnv"),
    ("scienceworld", "ScienceWorldEnv"),
):
    if find_spec(module):  # the extra of that name
        OWNERS.append((made_by(module, kind), "_gateway"))
if find_spec("jericho"):
    OWNERS.append(
        (lambda: importlib.import_module("jericho").FrotzEnv, "_filter_candidate_actions")
    )
NAMES = [(name, owner) for owner, names in OWNERS for name in names.split()]


@pytest.mark.parametrize(("name", "owner"), NAMES, ids=[name for name, _ in NAMES])
def test_it_is_there(name, owner):
    assert hasattr(owner() if inspect.isfunction(owner) else owner, name)


def is_private(name):
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")


def names_in(path):
    """Private names that a file takes from objects, and those that it gives to its own."""
    taken, own = set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            (own if isinstance(node.ctx, ast.Store) else taken).add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.ImportFrom) and not node.module.startswith("torchrl_glam"):
            taken |= {*node.module.split("."), *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Call):  # getattr(x, "_name"), self.register_buffer("_name", ...)
            strings = {x.value for x in node.args if isinstance(x, ast.Constant)}
            function = getattr(node.func, "attr", getattr(node.func, "id", ""))
            taken |= strings if function in ("getattr", "hasattr") else set()
            own |= strings if function == "register_buffer" else set()
    return {*filter(is_private, taken)}, {*filter(is_private, own)}


def packages():
    for package in (torchrl_glam, torchrl_glam.envs):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            try:
                yield importlib.import_module(info.name)
            except ModuleNotFoundError as error:  # a game's extra that is not installed
                if "envs.games." not in info.name or "torchrl_glam" in error.name:
                    raise


def test_these_and_no_others_are_leaned_on():
    modules = [*packages()]
    names = [names_in(Path(module.__file__)) for module in modules]
    own = set().union(*(own for _, own in names))
    leaned_on = set().union(*(taken for taken, _ in names)) - own - {"_replace"}  # namedtuple's own
    for module, (_, defined) in zip(modules, names, strict=True):
        for kind in vars(module).values():
            if inspect.isclass(kind) and kind.__module__ == module.__name__:
                for base in kind.__mro__[:-1]:
                    if not base.__module__.startswith("torchrl_glam"):
                        leaned_on |= defined & {*vars(base)}  # overridden, or set
    known = {name for name, _ in NAMES}
    missing = leaned_on - known
    assert not missing, f"{sorted(missing)} of other libraries are used: name them above"
    unused = known - set().union(*(taken | defined for taken, defined in names))
    assert not unused, f"{sorted(unused)} are not used: take them out above"
