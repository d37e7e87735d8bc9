"""Line charts as SVG: their geometry; ``assets/report.html`` writes it down.

A page is drawn again with nearly every row of the metrics. A chart takes some tenths of a
millisecond, where matplotlib's own SVG takes some tens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 398, 10, 202  # of what the axes enclose
_POINTS = 240  # of a line at the most: more cannot be told apart
_MARKED = 30  # points of a line up to which each has a mark
_ROWS = 40  # of a chart's table
_STYLES = 6  # of lines, in report.css
_INTERVALS = 5  # between ticks, at the most


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Args:
        label: its name.
        x: where it was measured, ascending.
        y: what was measured there; what is not finite is a gap.
        style: number of its style; there are six. Default: 0.

    Examples:
        >>> Line("success", x=[0, 800], y=[0.02, 0.4]).style
        0
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: int = 0


@dataclass(frozen=True)
class Chart:
    """A chart of lines over the steps of a run.

    Args:
        title: its heading.
        about: a sentence on what it shows.
        lines: what was measured.
        limits: ends of the vertical axis that are there whatever was measured. Default: none.
        log: whether the vertical axis is logarithmic, where every value is above 0. Default: False.
        references: dashed lines by name: a height and, if known, its 95 % interval. Default: none.
        x_label: name of the horizontal axis. Default: ``"environment steps"``.
        x_limits: ends of the horizontal axis, as ``limits``. Default: none.
        diagonal: whether to draw where x equals y. Default: False.

    Examples:
        >>> chart = Chart("Success", "Share of episodes.", [Line("train", [0, 800], [0, 0.5])])
        >>> draw(chart)["rows"]
        [('0', ['0']), ('800', ['0.5'])]
    """

    title: str
    about: str
    lines: Sequence[Line]
    limits: tuple[float, float] | None = None
    log: bool = False
    references: Mapping[str, Sequence[float]] = field(default_factory=dict)
    x_label: str = "environment steps"
    x_limits: tuple[float, float] | None = None
    diagonal: bool = False


def draw(chart: Chart) -> dict[str, Any]:
    """Computes the data of a chart for the page's template; places are in the drawing's units.

    ``newest`` has name and figure of each line if none has two points to draw a line between, else
    None. ``lines`` have a path for each stretch without a gap.
    """
    finite = [(x, y) for line in chart.lines for x, y in zip(line.x, line.y, strict=True)]
    finite = [(x, y) for x, y in finite if math.isfinite(x) and math.isfinite(y)]
    heights = [y for _, y in finite] + [y for ends in chart.references.values() for y in ends]
    heights += chart.limits or ()
    log = chart.log and bool(heights) and min(heights) > 0
    widths = [*(x for x, _ in finite), *(chart.x_limits or ())]
    if chart.diagonal:  # which is seen whole in axes of one range
        widths = heights = [*widths, *heights]
    across, up = _Axis(widths, LEFT, RIGHT), _Axis(heights, BOTTOM, TOP, log)
    lines = [_draw_line(line, across, up) for line in chart.lines]
    newest = [(line.label, number(y)) for line in chart.lines for y in line.y]
    drawable = chart.diagonal or any(len(line.x) > 1 for line in chart.lines)
    return {
        "title": chart.title,
        "about": chart.about,
        "x_label": chart.x_label,
        "newest": None if drawable else newest,
        "x_ticks": across.ticks(),
        "y_ticks": up.ticks(),
        "lines": lines,
        "marked": sum(len(line.x) for line in chart.lines) <= _MARKED * len(lines),
        "references": [(up.place(v[0]), name, _figures(v)) for name, v in chart.references.items()],
        "diagonal": [(LEFT, BOTTOM), (RIGHT, TOP)] if chart.diagonal else None,
        **_table(chart),
    }


def _figures(reference: Sequence[float]) -> str:
    height, *ends = map(number, reference)
    return f"{height} ({' to '.join(ends)})" if ends else height


class _Axis:
    """From values to places; the ends are ticks."""

    def __init__(
        self, values: Sequence[float], start: float, end: float, log: bool = False
    ) -> None:
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        if log:
            self._ticks = _logarithmic_ticks(low, high)
        else:
            if math.isclose(low, high, rel_tol=1e-9, abs_tol=1e-300):
                low, high = low - (abs(low) / 10 or 1), high + (abs(high) / 10 or 1)
            self._ticks = _linear_ticks(low, high)
        self._scale = math.log10 if log else float
        self.low, self.high = float(self._ticks[0]), float(self._ticks[-1])
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        low, high = self._scale(self.low), self._scale(self.high)
        share = (self._scale(value) - low) / (high - low)
        return round(self._start + share * (self._end - self._start), 1)

    def ticks(self) -> list[tuple[float, str]]:
        return [(self.place(float(tick)), number(float(tick))) for tick in self._ticks]


def _linear_ticks(low: float, high: float) -> list[float]:
    """Round values around some others."""
    least = high / _INTERVALS - low / _INTERVALS
    power = 10.0 ** math.floor(math.log10(least))
    for step in (power * digit for digit in (1, 2, 2.5, 5, 10, 20, 25)):
        first, last = math.floor(low / step), math.ceil(high / step)
        if last - first <= _INTERVALS:
            break
    return [place * step for place in range(first, last + 1)]


def _logarithmic_ticks(low: float, high: float) -> list[float]:
    """Powers of ten around some values; where these are few, their doubles and halves too."""
    if low == high:
        low, high = low / 2, high * 2
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = math.ceil((last - first) / 6)
    subs = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [sub * 10.0**power for power in range(first, last + every, every) for sub in subs]
    below, above = [t for t in ticks if t <= low], [t for t in ticks if t >= high]
    return [t for t in ticks if max(below, default=ticks[0]) <= t <= min(above, default=ticks[-1])]


def number(value: float) -> str:
    """A number with four digits, and commas in thousands."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e9 else f"{value:.4g}"


def _draw_line(line: Line, across: _Axis, up: _Axis) -> dict[str, Any]:
    points = zip(line.x, line.y, strict=True)
    stretches = groupby(points, lambda point: all(map(math.isfinite, point)))
    kept = [thin(list(stretch), _POINTS) for whole, stretch in stretches if whole]
    return {
        "label": line.label,
        "style": line.style % _STYLES,
        "paths": [
            {
                "points": " ".join(f"{across.place(x)},{up.place(y)}" for x, y in part),
                "x": " ".join(number(x) for x, _ in part),
                "y": " ".join(number(y) for _, y in part),
            }
            for part in kept
        ],
    }


def thin(points: Sequence[tuple[float, float]], most: int) -> Sequence[tuple[float, float]]:
    """Fewer points of a line that looks the same: of every stretch the lowest and the highest."""
    if len(points) <= most:
        return points
    stretches = most // 2
    ends = [round(i * len(points) / stretches) for i in range(stretches + 1)]
    out = []
    for start, end in zip(ends, ends[1:], strict=False):
        places = range(start, end)
        lowest = min(places, key=lambda i: points[i][1])
        highest = max(places, key=lambda i: points[i][1])
        out += [points[i] for i in sorted({lowest, highest})]
    return out


def _table(chart: Chart) -> dict[str, Any]:
    columns = [dict(zip(line.x, line.y, strict=True)) for line in chart.lines]
    places = sorted({x for line in chart.lines for x in line.x})
    every = max(1, math.ceil(len(places) / _ROWS))
    shown = places[::-1][::every][::-1]  # the newest is always there
    rows = [
        (number(x), [number(column[x]) if x in column else "" for column in columns]) for x in shown
    ]
    return {"rows": rows, "thinned": len(shown) < len(places)}
