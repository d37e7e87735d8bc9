"""Success of policies by goal kind, split and number of objects: measured, and as tables."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import groupby
from math import isnan
from pathlib import Path

from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from torchrl_glam._files import open_below
from torchrl_glam.runs.evaluation import play_episodes
from torchrl_glam.runs.success import ALL, Result
from torchrl_glam.text import describe_env


def measure(
    policy: Callable[[TensorDictBase], TensorDictBase] | None,
    env: EnvBase,
    name: str,
    *,
    split: str,
    objects: int,
    seed: int,
    deterministic: bool = False,
    progress: Callable[[int], None] = lambda over: None,
) -> list[Result]:
    """Plays an episode in each instance of an environment.

    Args:
        policy: writes the action; ``None`` plays admissible actions at random.
        env: text environment; :func:`~torchrl_glam.text.describe_env` gives its goal kinds and its
            ``success_key``.
        name: the policy's name, for the table.
        split, objects: the environment's split of goals and number of objects, for the table.
        seed: seed of environment and policy.
        deterministic: take the most likely action instead of sampling. Default: False.
        progress: called with the number of finished episodes before each step of a policy, and at
            the end. Default: nothing is called.

    Returns:
        A result for each goal kind that occurred, and one for all of them.

    Examples:
        >>> from torchrl_glam.envs import OraclePolicy, PlaygroundTextEnv
        >>> env = PlaygroundTextEnv(num_envs=8, num_objects=3, sequential=False, text=False)
        >>> options = {"split": "train", "objects": 3, "seed": 0}
        >>> results = measure(OraclePolicy(env.goals), env, "oracle", **options)
        >>> [(result.kind, result.success) for result in results]
        [('all', 1.0), ('grasp', 1.0), ('grow', 1.0)]
    """
    description = describe_env(env)
    total = env.batch_size.numel()

    def told(states: TensorDictBase) -> TensorDictBase:
        progress(total - len(states))
        return policy(states)

    reached, length, kind = play_episodes(
        None if policy is None else told,
        env,
        success_key=description.success_key,
        seed=seed,
        deterministic=deterministic,
    )
    progress(total)
    parts = [(ALL, reached >= 0)]
    parts += [(goal, kind == index) for index, goal in enumerate(description.goal_kinds)]
    return [
        Result(
            *(name, split, objects, goal),
            episodes=int(chosen.sum()),
            successes=int(reached[chosen].sum()),
            length=length[chosen].float().mean().item(),
        )
        for goal, chosen in parts
        if chosen.any() and not (goal != ALL and len(description.goal_kinds) == 1)
    ]


def pool(results: Sequence[Result], policy: str) -> list[Result]:
    """Averages the results of several agents trained with the same settings.

    Args:
        results: results of the agents on the same goals, with the same numbers of episodes.
        policy: name of the average.

    Examples:
        >>> apart = [Result(name, "train", 3, "all", 10, n, 4.0) for name, n in zip("ab", (9, 5))]
        >>> pool(apart, "2 agents")[0].by_agent
        (0.9, 0.5)
    """

    def what(result: Result) -> tuple[str, int, str]:
        return result.split, result.objects, result.kind

    groups = [list(group) for _, group in groupby(sorted(results, key=what), what)]
    return [
        Result(
            *(policy, *what(group[0])),
            episodes=sum(result.episodes for result in group),
            successes=sum(result.successes for result in group),
            length=sum(result.length for result in group) / len(group),
            by_agent=tuple(result.success for result in group),
        )
        for group in groups
    ]


def format_results(results: Sequence[Result]) -> str:
    """A table for the terminal.

    Examples:
        >>> print(format_results([Result("agent", "train", 3, "all", 10, 9, 4.2)]))
        policy  goals  objects  kind  success      95 % interval  episodes  steps
        agent   train        3  all     0.900     0.596 to 0.982        10    4.2
    """
    head = ("policy", "goals", "objects", "kind", "success", "95 % interval", "episodes", "steps")
    rows = [head]
    for result in results:
        low, high = result.interval
        what = (result.policy, result.split, str(result.objects or ""), result.kind)
        length = "" if isnan(result.length) else f"{result.length:.1f}"
        figures = (f"{result.success:.3f}", f"{low:.3f} to {high:.3f}", str(result.episodes))
        rows.append((*what, *figures, length))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[5] = max(widths[5], 17)
    texts = (0, 1, 3)  # the columns that stand on the left
    lines = (
        "  ".join(
            cell.ljust(width) if index in texts else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def write_results(results: Sequence[Result], path: str | Path) -> None:
    """Writes a CSV: a row for each result, with its success and the ends of its interval."""
    names = [entry.name for entry in fields(Result) if entry.name not in ("by_agent", "length")]
    path = Path(path)
    with open_below(path.parent, path.name, newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*names, "length", "success", "low", "high", "agents"])
        for result in results:
            values = [getattr(result, name) for name in names]
            shares = [round(share, 6) for share in (result.success, *result.interval)]
            agents = max(1, len(result.by_agent))
            writer.writerow([*values, round(result.length, 4), *shares, agents])


def plot_results(results: Sequence[Result], path: str | Path) -> None:
    """Draws success with its intervals: by goal kind, and by objects where there are several.

    A row of panels for each split of goals.

    Args:
        results: the results.
        path: PNG to write.
    """
    from matplotlib import rc_context  # slow to import

    with rc_context({"text.parse_math": False}):  # a name with two $ is a name
        _plot(results, Path(path))


def _plot(results: Sequence[Result], path: Path) -> None:
    from matplotlib.figure import Figure

    splits = list(dict.fromkeys(result.split for result in results))
    sizes = sorted({result.objects for result in results})
    columns = 2 if len(sizes) > 1 else 1
    figure = Figure(figsize=(6.4 * columns, 3.6 * len(splits)), layout="constrained")
    panels = figure.subplots(len(splits), columns, squeeze=False, sharey=True)
    policies = list(dict.fromkeys(result.policy for result in results))
    for split, row in zip(splits, panels, strict=True):
        of_split = [result for result in results if result.split == split]
        of_size = [result for result in of_split if result.objects == sizes[0]]
        objects = f", {sizes[0]} objects" if sizes[0] else ""
        _draw_kinds(row[0], of_size, policies)
        row[0].set(title=f"{split} goals{objects}", ylabel="success rate", ylim=(0, 1.05))
        if columns == 2:
            _draw_sizes(row[1], [r for r in of_split if r.kind == ALL], policies)
            row[1].set(title=f"{split} goals", xlabel="objects in a scene")
            row[1].set_xticks(sizes)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(policies), 4))
    with open_below(path.parent, path.name, "wb") as file:
        figure.savefig(file, dpi=120, format="png")


def _errors(results: Sequence[Result]) -> list[list[float]]:
    ends = [(r.success - r.interval[0], r.interval[1] - r.success) for r in results]
    return [[max(end, 0) for end in side] for side in zip(*ends, strict=True)]


def _draw_kinds(axes, results: Sequence[Result], policies: Sequence[str]) -> None:
    kinds = list(dict.fromkeys(result.kind for result in results))
    width = 0.8 / len(policies)
    for index, policy in enumerate(policies):
        own = [result for result in results if result.policy == policy]
        places = [kinds.index(r.kind) + (index - (len(policies) - 1) / 2) * width for r in own]
        heights = [result.success for result in own]
        style = {"color": f"C{index}", "ecolor": "0.3", "capsize": 2}
        axes.bar(places, heights, width * 0.9, yerr=_errors(own), label=policy, **style)
    axes.set_xticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds], fontsize=8)


def _draw_sizes(axes, results: Sequence[Result], policies: Sequence[str]) -> None:
    for index, policy in enumerate(policies):
        own = sorted((r for r in results if r.policy == policy), key=lambda r: r.objects)
        x, y = [result.objects for result in own], [result.success for result in own]
        axes.errorbar(x, y, yerr=_errors(own), color=f"C{index}", marker="o", capsize=2)
