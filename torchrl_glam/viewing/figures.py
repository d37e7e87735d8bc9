"""Success of policies by goal kind, split and number of objects: measured, and as tables."""

import csv
from collections.abc import Sequence
from dataclasses import astuple, fields
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from textwrap import fill

from torchrl.envs import EnvBase

from torchrl_glam._files import open_below
from torchrl_glam.runs.evaluation import Policy, play_episodes
from torchrl_glam.runs.success import ALL, Result
from torchrl_glam.text import describe_env


def measure(
    policy: Policy | None,
    env: EnvBase,
    name: str,
    *,
    split: str,
    objects: int,
    seed: int,
    deterministic: bool = False,
) -> list[Result]:
    """Plays an episode in each instance of an environment.

    Args:
        policy: ``None`` plays admissible actions at random.
        env: text environment, with goal kinds and success as
            :func:`~torchrl_glam.text.describe_env` gives them.
        name: the policy's name, for the table.
        split, objects: the environment's split of goals and number of objects, for the table.
        seed, deterministic: as of :func:`~torchrl_glam.runs.evaluation.evaluate`.

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
    reached, length, kind = play_episodes(policy, env, seed=seed, deterministic=deterministic)
    parts, kinds = [(ALL, reached >= 0)], describe_env(env).goal_kinds
    if len(kinds) > 1:
        parts += [(goal, kind == index) for index, goal in enumerate(kinds)]
    return [
        Result(
            *(name, split, objects, goal),
            episodes=int(chosen.sum()),
            successes=int(reached[chosen].sum()),
            length=length[chosen].float().mean().item(),
        )
        for goal, chosen in parts
        if chosen.any()
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
    what = attrgetter("split", "objects", "kind")
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

    Args:
        results: as :func:`measure` gives them.

    Examples:
        >>> print(format_results([Result("agent", "train", 3, "all", 10, 9, 4.2)]))
        policy  goals  objects  kind  success      95 % interval  episodes  steps
        agent   train        3  all     0.900     0.596 to 0.982        10    4.2
    """
    rows = [("policy", "goals", "objects", "kind")]
    rows += [(r.policy, r.split, str(r.objects or ""), r.kind) for r in results]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    figures = [f"success  {'95 % interval':>17}  episodes  steps"]
    for result in results:
        ends = "{:.3f} to {:.3f}".format(*result.interval)
        counts = f"{result.episodes:8}  {result.length:5.1f}"
        figures.append(f"{result.success:7.3f}  {ends:>17}  {counts}")
    return "\n".join(
        f"{policy:{widths[0]}}  {split:{widths[1]}}  {objects:>7}  {kind:{widths[3]}}  {measured}"
        for (policy, split, objects, kind), measured in zip(rows, figures, strict=True)
    )


def write_results(results: Sequence[Result], path: str | Path) -> None:
    """Writes a CSV: a row for each result, with its success and the ends of its interval.

    Args:
        results: as :func:`measure` gives them.
        path: the file; its folder is made if need be.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "results.csv")
        ...     write_results([Result("agent", "train", 3, "all", 10, 9, 4.2)], path)
        ...     print(path.read_text())
        policy,split,objects,kind,episodes,successes,length,success,low,high,agents
        agent,train,3,all,10,9,4.2,0.9,0.59585,0.982124,1
        <BLANKLINE>
    """
    names = [entry.name for entry in fields(Result) if entry.name != "by_agent"]
    path = Path(path)
    with open_below(path.parent, path.name, newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*names, "success", "low", "high", "agents"])
        for result in results:
            *values, length, by_agent = astuple(result)
            shares = [round(share, 6) for share in (result.success, *result.interval)]
            writer.writerow([*values, round(length, 4), *shares, max(1, len(by_agent))])


def plot_results(results: Sequence[Result], path: str | Path) -> None:
    """Draws success with its intervals: by goal kind, or by objects where there are several.

    Args:
        results: as :func:`measure` gives them; each split of goals has a panel.
        path: the PNG; its folder is made if need be.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "results.png")
        ...     plot_results([Result("agent", "train", 3, "all", 10, 9, 4.2)], path)
        ...     path.read_bytes()[1:4]
        b'PNG'
    """
    from matplotlib import rc_context  # slow to import
    from matplotlib.figure import Figure

    splits = list(dict.fromkeys(result.split for result in results))
    sizes = sorted({result.objects for result in results})
    policies = list(dict.fromkeys(result.policy for result in results))
    path = Path(path)
    with rc_context({"text.parse_math": False}):  # a name with two $ is a name
        figure = Figure(figsize=(6.4, 3.6 * len(splits)), layout="constrained")
        panels = figure.subplots(len(splits), squeeze=False, sharey=True)[:, 0]
        for split, axes in zip(splits, panels, strict=True):
            of_split = [result for result in results if result.split == split]
            draw = _draw_sizes if len(sizes) > 1 else _draw_kinds
            draw(axes, of_split, policies)
            objects = f", {sizes[0]} objects" if len(sizes) == 1 and sizes[0] else ""
            axes.set(title=f"{split} goals{objects}", ylabel="success rate", ylim=(0, 1.05))
        handles, labels = panels[0].get_legend_handles_labels()
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
    names = [fill(kind.replace("_", " "), 12) for kind in kinds]
    axes.set_xticks(range(len(kinds)), names, fontsize=8)


def _draw_sizes(axes, results: Sequence[Result], policies: Sequence[str]) -> None:
    for index, policy in enumerate(policies):
        own = [r for r in results if r.policy == policy and r.kind == ALL]
        own.sort(key=lambda r: r.objects)
        x, y = [result.objects for result in own], [result.success for result in own]
        style = {"color": f"C{index}", "marker": "o", "capsize": 2}
        axes.errorbar(x, y, yerr=_errors(own), label=policy, **style)
    axes.set_xticks(sorted({result.objects for result in results}))
    axes.set_xlabel("objects in a scene")
