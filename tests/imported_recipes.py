"""What recipes import, imported once: runs are forks of a process that has imported this module."""

import copy
import importlib
import runpy
from pathlib import Path

from hydra.core.config_store import ConfigStore

from torchrl_glam.models import load_language_model

store = ConfigStore.instance()
known = copy.deepcopy(store.repo)
for name in ("sac_glam.py", "ppo_glam.py"):
    runpy.run_path(str(Path(__file__).parents[1] / "recipes" / name))
store.repo = known  # a run knows the keys of its own recipe
load_language_model("tiny")  # for what transformers imports then
importlib.import_module("scipy.stats")  # as the first interval does
importlib.import_module("forked_recipe")
