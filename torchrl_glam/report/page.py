"""The page of a run: its newest figures, its charts, and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2

from torchrl_glam.report.charts import HEIGHT, WIDTH, draw, number
from torchrl_glam.report.contents import sections
from torchrl_glam.report.run import Run

_UNIT = "environment steps"


def make_page(run: Run) -> str:
    """The page of a run as HTML that needs nothing else, not even a network.

    Args:
        run: what is known of it so far.

    Examples:
        >>> page = make_page(Run("mine", [{"step": 32, "success": 0.5}]))
        >>> page[:15], "<h1>mine</h1>" in page
        ('<!DOCTYPE html>', True)
    """
    unit = str(run.record.get("unit", _UNIT))
    references = _numbers(run.record.get("references"))
    charts = sections(run.rows, references, unit)
    return _template().render(
        run=run,
        style=_asset("viewing", "base.css") + _asset("report", "report.css"),
        unit=unit,
        newest=list(_newest(run, unit)),
        sections=[(heading, [draw(chart) for chart in parts]) for heading, parts in charts],
        starts=[start for start in _list(run.record.get("starts")) if isinstance(start, dict)],
        width=WIDTH,
        height=HEIGHT,
    )


def _newest(run: Run, unit: str) -> Iterator[tuple[str, str, str]]:
    """Name, figure and a note of what is asked first."""
    last: dict[str, tuple[float, float]] = {}
    for row in run.rows:
        last |= {name: (value, row["step"]) for name, value in row.items()}
    yield unit, number(run.rows[-1]["step"]), ""
    for name, (value, step) in last.items():
        parts = name.split("/")
        if len(parts) == 4 and parts[0] == "eval" and parts[3] == "success":
            yield f"success, {parts[1]} goals, {parts[2]}", f"{value:.3f}", f"at {number(step)}"
    for name, digits in (("entropy", 3), ("updates", 0)):
        if name in last:
            yield name, f"{last[name][0]:,.{digits}f}", ""
    if "seconds" in last:
        yield "time", _duration(last["seconds"][0]), ""


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "unknown"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def _numbers(values: Any) -> dict[str, float]:
    """What is a number of a dictionary from a file."""
    pairs = values.items() if isinstance(values, dict) else ()
    return {k: v for k, v in pairs if isinstance(v, (int, float)) and math.isfinite(v)}


def _list(values: Any) -> list:
    return values if isinstance(values, list) else []


def _asset(package: str, name: str) -> str:
    return (files("torchrl_glam") / package / "assets" / name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_asset("report", "report.html"))
