"""Which charts a run's page has: what is measured decides, and nothing measured is left out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchrl_glam.report.charts import Chart, Line

Column = tuple[list[float], list[float]]
"""Steps, and what was measured there."""


@dataclass(frozen=True)
class _Plan:
    """A chart, or several: one for each value of the pattern's group ``chart``.

    Its lines are the columns that the pattern matches; their names are the group ``line``, else
    ``label``. A name has the same style in all charts of a plan.
    """

    title: str
    about: str
    pattern: str
    label: str = ""
    options: Mapping[str, Any] = ()


_SHARE = {"limits": (0, 1)}
_SECTIONS: tuple[tuple[str, tuple[_Plan, ...]], ...] = (
    (
        "Success",
        (
            _Plan(
                "Success, actions sampled",
                "Share of the episodes that reach their goal: of evaluations, and of those played "
                "while training since the row before.",
                r"eval/(?P<line>[^/]+)/sampled/success|success",
                "while training",
                _SHARE,
            ),
            _Plan(
                "Success, likeliest actions",
                "Share of the evaluations' episodes that reach their goal when the policy takes "
                "its likeliest action.",
                r"eval/(?P<line>[^/]+)/greedy/success",
                options=_SHARE,
            ),
            _Plan(
                "Success by goal kind, {chart}",
                "Share of the episodes with goals of each kind that reach them.",
                r"(?:eval/(?P<chart>[^/]+/[^/]+)/)?success/(?P<line>.+)",
                options=_SHARE,
            ),
            _Plan(
                "Length of episodes",
                "Mean steps of an evaluation's episode.",
                r"eval/(?P<line>[^/]+/[^/]+)/length",
                options={"limits": (0, 0)},
            ),
        ),
    ),
    (
        "Values",
        (
            _Plan(
                "Q against return",
                "In evaluations: Q-values of the actions taken less the discounted returns that "
                "followed (0 is right, above 0 the critic promises too much), and the correlation "
                "of the two.",
                r"probe/q_(?P<line>error|correlation)",
                options={"limits": (0, 0)},
            ),
            _Plan(
                "Q-values in updates",
                "Means over the newest batch.",
                r"(?P<line>q_value|target_value)",
            ),
            _Plan(
                "Temporal-difference error",
                "Mean distance of Q-values from their targets in the newest batch.",
                r"td_error",
                "TD error",
                {"limits": (0, 0)},
            ),
            _Plan(
                "What values explain of returns",
                "1 is all of their variance, 0 no more than a constant would.",
                r"explained_variance",
                "explained variance",
            ),
        ),
    ),
    (
        "Policy",
        (
            _Plan("Entropy", "Of the policy, in nats.", r"entropy", "entropy", {"limits": (0, 0)}),
            _Plan(
                "Entropy coefficient",
                "What a nat of entropy is worth beside the reward.",
                r"alpha",
                "coefficient",
                {"log": True},
            ),
            _Plan(
                "Actions on a shortest plan, states of {chart}",
                "Shares of the states in which the policy's likeliest action, and the one of the "
                "largest Q-value, lie on a shortest plan, and the probability of all that do.",
                r"probe/(?P<chart>plan|random|policy)/(?P<line>policy|critic|probability"
                r"|(?:policy|critic)/second)",
                options=_SHARE,
            ),
            _Plan(
                "Lead of a shortest plan's actions",
                "Mean Q-value of the actions on a shortest plan less that of the others, in "
                "states of a plan, of random play and of the policy's own play.",
                r"probe/(?P<line>plan|random|policy)/lead",
                options={"limits": (0, 0)},
            ),
            _Plan(
                "Distance from the policy that played",
                "Share of clipped ratios, and Kullback-Leibler divergence.",
                r"(?P<line>clip_fraction|kl|kl_approx)",
                options={"limits": (0, 0)},
            ),
            _Plan(
                "Ratios to the policy that played",
                "Of the probabilities of actions.",
                r"(?P<line>max_ratio|mean_ratio)",
                options={"log": True},
            ),
        ),
    ),
    (
        "Losses and gradients",
        (
            _Plan("Loss: {chart}", "Mean over the newest batch.", r"loss_(?P<chart>.+)", "loss"),
            _Plan(
                "Norms of gradients",
                "Before clipping, of the newest update.",
                r"grad_norm(?:/(?P<line>.+))?",
                "all",
                {"log": True},
            ),
            _Plan(
                "Error of scores",
                "Largest distance of log-likelihoods from the language model's own, in nats.",
                r"score_error",
                "error",
                {"limits": (0, 0)},
            ),
        ),
    ),
    (
        "Experience",
        (
            _Plan(
                "Share of hindsight",
                "Of the transitions in the newest batch, and of all that are stored.",
                r"hindsight_in_(?P<line>.+)",
                options=_SHARE,
            ),
            _Plan(
                "Policy lag",
                "Updates since the policy that played the transitions.",
                r"policy_lag/(?P<line>.+)",
                options={"limits": (0, 0)},
            ),
            _Plan(
                "Goals named",
                "Different goals that were reached so far, whichever was pursued.",
                r"goals/named",
                "goals",
                {"limits": (0, 0)},
            ),
            _Plan(
                "New goals named",
                "In 1,000 environment steps.",
                r"goals/new_per_1000_steps",
                "goals",
                {"limits": (0, 0)},
            ),
            _Plan(
                "Transitions stored",
                "In the replay buffer.",
                r"buffer_size",
                "transitions",
                {"limits": (0, 0)},
            ),
            _Plan(
                "Episodes",
                "Ended since the row before.",
                r"episodes",
                "episodes",
                {"limits": (0, 0)},
            ),
        ),
    ),
    (
        "Time",
        (
            _Plan(
                "Where time went",
                "Share of the seconds since the row before; what is left of 1 went to playing, "
                "evaluations and checkpoints.",
                r"share/time/(?P<line>.+)",
                options=_SHARE,
            ),
            _Plan(
                "Pace",
                "Since the row before.",
                r"(?P<line>steps_per_second|updates_per_second)",
                options={"limits": (0, 0)},
            ),
            _Plan(
                "Seconds a call",
                "Mean since the row before.",
                r"time/(?P<line>.+)",
                options={"log": True},
            ),
            _Plan("Time so far", "Since the run began.", r"seconds", "seconds"),
        ),
    ),
    (
        "Other measurements",
        (_Plan("{chart}", "As in metrics.csv.", r"(?P<chart>[^/]+)(?:/(?P<line>.+))?", "value"),),
    ),
)
_APART = re.compile(r"step|updates|seconds/time/.*|probe/calibration/.*")  # shown otherwise
_TOTAL = "seconds/time/"
# Which charts some groups stand for.
_STATES = {
    None: "while training",
    "plan": "a plan",
    "random": "random play",
    "policy": "its own play",
}


def sections(
    rows: Sequence[Mapping[str, float]], references: Mapping[str, float], unit: str
) -> list[tuple[str, list[Chart]]]:
    """The charts of a run, under their headings.

    Args:
        rows: its metrics.
        references: success of other policies, by name.
        unit: what ``step`` counts.

    Examples:
        >>> rows = [{"step": 0, "entropy": 1.0}, {"step": 32, "entropy": 0.5, "tea/cups": 2}]
        >>> [(name, [chart.title for chart in charts]) for name, charts in sections(rows, {}, "")]
        [('Policy', ['Entropy']), ('Other measurements', ['tea'])]
    """
    columns = {**_columns(rows), **_shares(rows)}
    left = [name for name in columns if not _APART.fullmatch(name)]
    out = []
    for heading, plans in _SECTIONS:
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
    columns: dict[str, Column] = {}
    for row in rows:
        for name, value in row.items():
            steps, values = columns.setdefault(name, ([], []))
            steps.append(row["step"])
            values.append(value)
    return columns


def _shares(rows: Sequence[Mapping[str, float]]) -> dict[str, Column]:
    """What parts of the recipe's loop took of the seconds between two rows."""
    columns: dict[str, Column] = {}
    before = 0.0
    for row in rows:
        if "seconds" not in row:
            continue
        elapsed, before = row["seconds"] - before, row["seconds"]
        for name in row:
            if name.startswith(_TOTAL) and elapsed > 0:
                column = columns.setdefault(f"share/time/{name.removeprefix(_TOTAL)}", ([], []))
                column[0].append(row["step"])
                column[1].append(row[name] / elapsed)
    return columns


def _charts(
    plan: _Plan,
    matches: Mapping[str, re.Match],
    columns: Mapping[str, Column],
    references: Mapping[str, float],
    unit: str,
) -> list[Chart]:
    groups: dict[str, list[Line]] = {}
    styles: dict[str, int] = {}
    for name, match in matches.items():
        parts = match.groupdict()
        label = _words(parts.get("line") or plan.label)
        style = styles.setdefault(label, len(styles))
        title = plan.title.format(chart=_STATES.get(parts.get("chart"), parts.get("chart")))
        groups.setdefault(_words(title), []).append(Line(label, *columns[name], style))
    last = max((steps[-1] for steps, _ in columns.values()), default=0)
    return [
        Chart(
            title,
            plan.about,
            lines,
            references=references if title.startswith("Success, ") else {},
            x_label=unit,
            x_limits=(0, last),
            **dict(plan.options),
        )
        for title, lines in groups.items()
    ]


def _words(name: str) -> str:
    return name.replace("/", ", ").replace("_", " ")


def _calibration(columns: Mapping[str, Column]) -> list[Chart]:
    """Q against return, of the newest evaluation."""
    places = [
        (columns[name], columns[f"{name.removesuffix('/q')}/return"])
        for name in columns
        if re.fullmatch(r"probe/calibration/\d+/q", name)
    ]
    if not places:
        return []
    step = max(steps[-1] for (steps, _), _ in places)
    points = sorted((q[-1], value[-1]) for (_, q), (_, value) in places)
    line = Line(f"step {step:,.0f}", [q for q, _ in points], [value for _, value in points])
    about = (
        "Mean discounted return after the actions that the policy took, by fifths of their "
        "Q-values, in the newest evaluation; on the dashed line the critic is right."
    )
    return [Chart("Calibration", about, [line], x_label="mean Q-value", diagonal=True)]
