"""The charts of a run's page: everything that was measured is in one."""

import re
from collections.abc import Mapping, Sequence

from torchrl_glam.report.charts import Chart, Line, number
from torchrl_glam.report.plans import SECTIONS, Plan

Column = tuple[list[float], list[float]]
"""Steps, and what was measured there."""

_APART = re.compile(r"step|updates|seconds/time/.*|probe/calibration/.*")  # shown otherwise
_TOTAL = "seconds/time/"


def sections(
    rows: Sequence[Mapping[str, float]], references: Mapping[str, Sequence[float]], unit: str
) -> list[tuple[str, list[Chart]]]:
    """The charts of a run, under their headings.

    ``references`` are those of a :class:`~torchrl_glam.report.Chart`; ``step`` counts ``unit``.
    """
    columns = _columns(rows)
    left = [name for name in columns if not _APART.fullmatch(name)]
    out = []
    for heading, plans in SECTIONS.items():
        charts = []
        for plan in plans:
            matches = {name: m for name in left if (m := re.fullmatch(plan.pattern, name))}
            left = [name for name in left if name not in matches]
            charts += _charts(plan, matches, columns, references, unit)
        if heading == "Values":
            charts += _calibration(columns)
        if charts:
            out.append((heading, charts))
    return out


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, Column]:
    """What is in rows, and what parts of the recipe's loop took of the seconds between them."""
    columns: dict[str, Column] = {}
    before = 0.0
    for row in rows:
        now = row.get("seconds", before)
        times = [name for name in row if name.startswith(_TOTAL) and now > before]
        shares = {name.replace(_TOTAL, "share/time/"): row[name] / (now - before) for name in times}
        before = now
        for name, value in {**row, **shares}.items():
            steps, values = columns.setdefault(name, ([], []))
            steps.append(row["step"])
            values.append(value)
    return columns


def _charts(
    plan: Plan,
    matches: Mapping[str, re.Match],
    columns: Mapping[str, Column],
    references: Mapping[str, Sequence[float]],
    unit: str,
) -> list[Chart]:
    groups: dict[str, list[Line]] = {}
    styles: dict[str, int] = {}
    for name, match in matches.items():
        parts = {"line": None, "chart": None} | match.groupdict()
        label = _words(parts["line"] or plan.words.get(name, name))
        chart = plan.words.get(parts["chart"], parts["chart"])
        style = styles.setdefault(label, len(styles))
        title = _words(plan.title.format(chart=chart))
        groups.setdefault(title, []).append(Line(label, *columns[name], style))
    last = max((steps[-1] for steps, _ in columns.values()), default=0)
    return [
        Chart(
            title,
            plan.about,
            lines,
            references=references if title.startswith("Success, ") else {},
            x_label=unit,
            x_limits=(0, last),
            **plan.options,
        )
        for title, lines in groups.items()
    ]


def _words(name: str) -> str:
    return name.replace("/", ", ").replace("_", " ")


def _calibration(columns: Mapping[str, Column]) -> list[Chart]:
    """Q against return, of the newest evaluation."""
    places = [
        (columns[name], columns[of])
        for name in columns
        if re.fullmatch(r"probe/calibration/\d+/q", name)
        and (of := f"{name.removesuffix('/q')}/return") in columns
    ]
    if not places:
        return []
    step = max(steps[-1] for (steps, _), _ in places)
    points = sorted((q[-1], value[-1]) for (_, q), (_, value) in places)
    line = Line(f"step {number(step)}", [q for q, _ in points], [value for _, value in points])
    about = (
        "Mean discounted return after the actions that the policy took, by fifths of their "
        "Q-values, in the newest evaluation; on the dashed line the critic is right."
    )
    return [Chart("Calibration", about, [line], x_label="mean Q-value", diagonal=True)]
