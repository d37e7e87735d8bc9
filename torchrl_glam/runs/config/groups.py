"""Configuration groups, such as ``model=...`` and ``env=...``, which all recipes share."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from torchrl_glam._files import shorten
from torchrl_glam.runs.config.base import RecipeConfig

GROUPS = {
    "run": "where and how long, what is measured and kept",
    "model": "the language model",
    "env": "the environment",
    "algorithm": "how it learns",
    "replay": "what batches are made of",
    "scale": "how large the runs of a figure are",
}
# The configuration that each kind of sweep starts from.
_STARTS = {"+figure": "sequential", "+games": "games"}
# Options of each sweep's groups, such as the arms of +figure=9. Hydra is given only those of the
# sweep asked for, as it copies its store many times. A faulty table is kept as its error, which is
# raised when it is asked for.
_SWEPT: dict[str, dict[str, dict] | ValueError] = {}
_MOST_CHANGED = 2  # keys of a game


def register(name: str, kind: type[RecipeConfig], folder: Path) -> None:
    """Makes a recipe's schema, and the groups that all recipes share, known to Hydra.

    Args:
        name: of the recipe; its schema is called ``<name>_schema``.
        kind: its configuration.
        folder: ``group=option`` stands for its file ``<group>/<option>.yaml``.
    """
    schema = OmegaConf.structured(kind)
    schema.env, schema.eval_splits = {}, {}  # those of the option alone
    store = ConfigStore.instance()
    # Hydra copies the whole store for each group that --help lists, which takes two seconds; it
    # copies each node again when it reads it
    store.__deepcopy__ = lambda memo: store
    store.store(name=f"{name}_schema", node=schema)
    known = {"defaults", *map(str, schema)}
    for group in GROUPS:
        for file in sorted((folder / group).glob("*.yaml")):
            node = OmegaConf.load(file)
            if group == "scale":  # which names keys of all recipes
                node = {key: node[key] for key in node if key in known}
            store.store(group=group, name=file.stem, node=node, package="_global_")
    for sweep, add in (("figure", _register_figure), ("games", partial(_register_games, known))):
        for file in sorted((folder / sweep).glob("*.yaml")):
            try:
                add(name, file.stem, OmegaConf.load(file))
            except (ValueError, TypeError, AttributeError, YAMLError, OmegaConfBaseException) as e:
                _SWEPT[f"+{sweep}={file.stem}"] = ValueError(f"{sweep}/{file.name}: {shorten(e)}")


def _register_figure(recipe: str, name: str, figure: DictConfig) -> None:
    """Makes ``+figure=<name>`` known: a sweep over arms and seeds, each run in its own folder."""
    if (owner := figure.pop("recipe")) != recipe:
        raise ValueError(f"its runs are those of {owner}.py")
    folder, arms, seeds = f"multirun/figure_{name}", figure.pop("arms"), figure.pop("seeds")
    arms = {
        str(arm): {**settings, "output": f"{folder}/{arm}/${{seed}}", "resume": "auto"}
        for arm, settings in arms.items()
    }
    _register_sweep(f"+figure={name}", folder, {f"arm_{name}": arms}, seeds, figure)


def _register_games(known: set[str], recipe: str, name: str, sweep: DictConfig) -> None:
    """Makes ``+games=<name>`` known: a sweep over games, arms and seeds.

    Each game has a model for each seed, made by the arm ``model``. A recipe takes its own keys.
    """
    if recipe not in sweep.arms:
        return
    folder, games = f"multirun/games_{name}", {}
    for game, about in sweep.games.items():
        option, arguments, changed = (about.get(key) for key in ("env", "arguments", "changed"))
        if unknown := sorted({*about} - {"env", "arguments", "changed"}):
            raise ValueError(f"{game} has keys {unknown}: a game has env, arguments and changed")
        if len(changed or {}) > _MOST_CHANGED:
            raise ValueError(
                f"{game} has changed ({[*changed]}): change {_MOST_CHANGED} keys at most, and put "
                "what suits all games into <recipe>/games.yaml"
            )
        own_class = {"env_class": option} if ":" in option else {}
        node = {
            "defaults": [{"override /env": "custom" if own_class else option}],
            **own_class,
            "env": arguments or {},
            "language_model": f"{folder}/{game}/model/${{seed}}",
            "output": f"{folder}/{game}/${{hydra:runtime.choices.arm}}/${{seed}}",
            "resume": "auto",
            **(changed or {}),
        }
        games[str(game)] = {key: value for key, value in node.items() if key in known}
    groups = {"game": games, "arm": dict(sweep.arms[recipe])}
    _register_sweep(f"+games={name}", folder, groups, sweep.seeds, {})


def _register_sweep(
    name: str, folder: str, groups: dict[str, dict], seeds: Sequence[int], shared: Mapping
) -> None:
    """Makes ``+figure=9`` or the like known to Hydra: a sweep over groups of options and seeds."""
    _SWEPT[name] = groups
    params = {f"+{group}": ",".join(map(str, options)) for group, options in groups.items()}
    sweep = {"sweep": {"dir": folder, "subdir": "."}, "sweeper": {"params": params}}
    params["seed"] = ",".join(map(str, seeds))
    kind, _, option = name.removeprefix("+").partition("=")
    node = {**shared, "hydra": {"mode": "MULTIRUN", **sweep}}
    ConfigStore.instance().store(group=kind, name=option, node=node, package="_global_")


def options_of(group: str) -> list[str]:
    """The options of a group that :func:`register` made known."""
    found = ConfigStore.instance().repo.get(group, {})
    return sorted(name.removesuffix(".yaml") for name in found)


def spell_out(arguments: Sequence[str]) -> list[str]:
    """A command line as Hydra takes it: ``env=module:Name`` names an environment of any package,
    ``model=PATH`` any language model, ``env.key=value`` any argument of the environment;
    ``+figure=...`` starts from the configuration ``sequential``, and ``+games=...`` from ``games``.

    Examples:
        >>> spell_out(["env=games.lake:Lake", "env.size=4", "seed=1"])
        ['env=custom', "++env_class='games.lake:Lake'", '++env.size=4', 'seed=1']
    """
    out, models = [], options_of("model")
    named = any(argument.split("=")[0] in ("--config-name", "-cn") for argument in arguments)
    starts = [_STARTS[key] for key in (a.split("=")[0] for a in arguments) if key in _STARTS]
    if starts and not named:
        out += ["--config-name", starts[0]]
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and f"+{key}" in _STARTS:
            raise ValueError(f"{argument} is a sweep of many runs: write --multirun +{argument}")
        if key == "env" and ":" in value:
            quoted = value.strip("'\"").replace("'", r"\'")
            out += ["env=custom", f"++env_class='{quoted}'"]
        elif key == "model" and not {*value.split(",")} <= {*models}:
            out.append(f"language_model={value}")
        elif key in _STARTS:
            out.append(f"{key}='{value}'")  # Hydra takes no number for an option
            swept = _SWEPT.get(argument, {})
            if isinstance(swept, ValueError):
                raise swept
            for group, options in swept.items():
                for name, node in options.items():
                    option = {"group": group, "name": str(name), "package": "_global_"}
                    ConfigStore.instance().store(node=node, **option)
        else:
            out.append(f"++{argument}" if key.startswith("env.") else argument)
    return out


def unknown_key(message: str) -> str:
    """What to add to Hydra's error about a key that there is not, or that takes a list.

    Examples:
        >>> unknown_key("Could not override 'algoritm'.")
        "there is no key 'algoritm'; did you mean algorithm?"
        >>> unknown_key("str is not a ListConfig, list or tuple\\n    full_key: splits")
        'it takes a list: splits=[...]'
    """
    if "is not a ListConfig" in message and (key := re.search(r"full_key: (\S+)", message)):
        return f"it takes a list: {key[1]}=[...]"
    found = re.search(r"(?:Could not override|Key) '([^']+)'", message)
    if found is None:
        return ""
    name = found[1]
    group = name.split(".")[0].split("/")[0]
    if offers := options_of(group):
        if group not in GROUPS:  # of its own groups, and of a sweep's, Hydra says enough
            return ""
        offers = ", ".join(offers)
        return f"{group} ({GROUPS[group]}) has no key {name!r}: it offers {group}={offers}"
    store = ConfigStore.instance()
    schemas = (store.load(file).node for file in store.repo if file.endswith("_schema.yaml"))
    known = [*GROUPS, *(str(key) for schema in schemas for key in schema)]
    if name in known:  # of other recipes than the one that runs
        return ""
    near = get_close_matches(name, known, 1)
    also = f"did you mean {near[0]}?" if near else f"groups are {', '.join(GROUPS)}"
    return f"there is no key {name!r}; {also}"
