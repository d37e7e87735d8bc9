"""The page of a run: its newest figures, its charts, and where it comes from."""

import base64
import hashlib
import math
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2

from torchrl_glam.report import charts as drawing
from torchrl_glam.report.charts import draw, number
from torchrl_glam.report.contents import sections
from torchrl_glam.report.run import Run


def make_page(run: Run) -> str:
    """The page of a run as HTML that needs nothing else, not even a network.

    Args:
        run: as :func:`~torchrl_glam.report.read_run` gives it.

    Examples:
        >>> page = make_page(Run("mine", [{"step": 32, "success": 0.5}]))
        >>> page[:15], "<h1>mine</h1>" in page
        ('<!DOCTYPE html>', True)
    """
    references = _references(run.record.get("references"))
    charts = sections(run.rows, references, run.unit)
    script = _asset("report", "report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _template().render(
        run=run,
        style=_asset("viewing", "base.css") + _asset("report", "report.css"),
        script=script,
        script_source=f"sha256-{digest}",  # the browser runs this script, and no other
        newest=list(_newest(run)),
        sections=[(heading, [draw(chart) for chart in parts]) for heading, parts in charts],
        drawing=drawing,
    )


def _newest(run: Run) -> Iterator[tuple[str, str, str]]:
    """Name, figure and a note of what is asked first."""
    last: dict[str, tuple[float, float]] = {}
    for row in run.rows:
        last |= {name: (value, row["step"]) for name, value in row.items()}
    yield run.unit, number(run.rows[-1]["step"]), ""
    for name, (value, step) in last.items():
        parts = name.split("/")
        if len(parts) == 4 and parts[0] == "eval" and parts[3] == "success":
            yield f"success, {parts[1]} goals, {parts[2]}", f"{value:.3f}", f"at {number(step)}"
    for name, digits in (("entropy", 3), ("updates", 0)):
        if name in last:
            yield name, f"{last[name][0]:,.{digits}f}", ""
    if "seconds" in last:
        yield "minutes", number(round(last["seconds"][0] / 60, 1)), ""


def _references(values: Any) -> dict[str, list[float]]:
    """Heights of a file's references with, if they are known, the ends of their intervals."""
    found = {}
    for name, value in (values if isinstance(values, dict) else {}).items():
        numbers = value if isinstance(value, list) else [value]
        finite = all(isinstance(v, (int, float)) and abs(v) < math.inf for v in numbers)
        if len(numbers) in (1, 3) and finite:
            found[name] = numbers
    return found


def _asset(package: str, name: str) -> str:
    return (files("torchrl_glam") / package / "assets" / name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_asset("report", "report.html"))
