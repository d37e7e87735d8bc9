"""The table of several games: how far each agent comes in each, and how soon."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mode
from typing import Any

from torchrl_glam._files import read_json
from torchrl_glam.report.comparison import METRIC, comparison_table, summarise, with_interval

HELD_OUT = "eval/test/sampled/success"
"""The same on new ones, and goals held out."""


def read_report(path: Path) -> dict[str, Any]:
    """Reads the ``report.json`` that ``recipes/pretrain.py`` writes; ValueError if it is none."""
    try:
        report, why = read_json(path), ""
    except ValueError as error:
        report, why = None, f" ({error})"
    known = report if isinstance(report, dict) else {}
    kinds = {"settings": dict, "steps_of_play": int}
    if not all(isinstance(known.get(key), kind) for key, kind in kinds.items()):
        raise ValueError(
            f"{str(path)!r} is no report of pretrain.py{why}: remove it, and make the model again"
        )
    return known


def game_rows(
    arms: Mapping[str, Sequence[Sequence[Mapping[str, float]]]],
    report: Mapping[str, Any],
    thresholds: Sequence[float] = (0.5, 0.8),
) -> list[dict[str, Any]]:
    """What random play, the pretrained model and every arm reach in one game.

    Args:
        arms: runs of each arm. A run is its evaluations in order, each with ``step``, ``seconds``
            since the run began, :data:`~torchrl_glam.report.comparison.METRIC` and
            :data:`HELD_OUT`, NaN where none are played.
        report: ``report.json`` of ``recipes/pretrain.py`` for the model that the runs began with.
        thresholds: of success on training games.

    Returns:
        Rows with ``agent``; ``runs``; ``steps`` of learning, those of the shortest run, and
        ``pretraining_steps`` of random play before; ``success`` and ``new`` at the end, means over
        runs with the ends ``_low`` and ``_high`` of their 95 % bootstrap interval; for every
        threshold ``steps_to_0.5`` and ``seconds_to_0.5``, medians, ``inf`` where half of the runs
        did not come to it; and ``minutes`` of a run. What is not known is left out, or NaN.

    Examples:
        >>> before = {"step": 0, "seconds": 0, METRIC: 0.25, HELD_OUT: 0.25}
        >>> after = {"step": 800, "seconds": 90, METRIC: 0.75, HELD_OUT: 0.5}
        >>> report = {"train/random_success": 0.125, "steps_of_play": 4096}
        >>> rows = game_rows({"hindsight": [[before, after]]}, report, thresholds=[0.5])
        >>> [(row["agent"], row["success"], row["new"]) for row in rows]
        [('random play', 0.125, nan), ('pretrained', 0.25, 0.25), ('hindsight', 0.75, 0.5)]
        >>> rows[2]["steps_to_0.5"], rows[2]["minutes"]
        (800.0, 1.5)
    """
    chance = {"success": "train/random_success", "new": "test/random_success"}
    read = {"pretraining_steps": report["steps_of_play"]}
    begun = max(arms.values(), key=len, default=[])  # one run of each model
    rows: list[dict[str, Any]] = [
        {"agent": "random play", **{k: report.get(v, math.nan) for k, v in chance.items()}},
        {"agent": "pretrained", "runs": len(begun), **read, **_means([run[0] for run in begun])},
    ]
    for arm, runs in arms.items():
        end = min(run[-1]["step"] for run in runs)
        [row] = comparison_table({arm: [summarise(run, end, thresholds) for run in runs]}, end)
        soon = {key: value for key, value in row.items() if "_to_" in key}
        minutes = sum(run[-1]["seconds"] for run in runs) / len(runs) / 60
        row = {"agent": arm, "runs": len(runs), **read, "steps": end}
        rows.append({**row, **_means([run[-1] for run in runs]), **soon, "minutes": minutes})
    return rows


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Success over runs, on training games and on new ones, with intervals."""
    success, new = ([row[metric] for row in rows] for metric in (METRIC, HELD_OUT))
    return with_interval("success", success) | with_interval("new", new)


def unusual(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """The settings in which each of several runs, by name, differs from most of them.

    They are texts such as ``"gamma=0.95"``. Of equally frequent values the first is usual.

    Examples:
        >>> unusual({"a": {"gamma": 0.9}, "b": {"gamma": 0.95}, "c": {"gamma": 0.9}})
        {'a': [], 'b': ['gamma=0.95'], 'c': []}
    """
    texts = {name: {k: json.dumps(v) for k, v in some.items()} for name, some in settings.items()}
    keys = {key for some in texts.values() for key in some}
    usual = {key: mode(some[key] for some in texts.values() if key in some) for key in keys}
    return {
        name: [f"{key}={settings[name][key]}" for key, text in some.items() if text != usual[key]]
        for name, some in texts.items()
    }
