"""States of Playground-Text as pictures: what ``drawings.json`` describes, by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cache
from textwrap import wrap
from xml.etree import ElementTree

import numpy as np
from fontTools.pens.recordingPen import RecordingPen
from fontTools.svgLib.path.parser import parse_path
from fontTools.svgLib.path.shapes import PathBuilder
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

from torchrl_glam.envs.playground.drawings import DRAWINGS

_CELL, _HEAD, _FLOOR = 104, 52, 64  # of a thing, above all of them, and below
_CODES = {"moveTo": [1], "lineTo": [2], "qCurveTo": [3, 3], "curveTo": [4, 4, 4]}  # matplotlib's


def draw_scene(
    objects: Sequence[str],
    on: int = -1,
    holding: int = -1,
    grown: Collection[int] = (),
    *,
    title: str = "",
    caption: str = "",
    scale: float = 1.0,
) -> np.ndarray:
    """Draws a state as the pages of episodes do.

    ``objects`` are names of the things; ``on``, ``holding`` and ``grown`` their slots, -1 for none.
    A thing takes 104 by 104 units, of ``scale`` pixels each. The result is ``uint8 [H, W, 3]``, of
    the same size for as many objects.

    Examples:
        >>> draw_scene(["red lion", "blue water"], on=1, title="Grasp red lion").shape
        (220, 312, 3)
    """
    most = 4 if len(objects) <= 4 else math.ceil(math.sqrt(len(objects) * 1.4))
    columns = min(most, len(objects))
    rows = math.ceil(len(objects) / columns)
    width, height = max(columns, 3) * _CELL, rows * _CELL + _HEAD + _FLOOR
    figure = Figure(figsize=(width / 72, height / 72), dpi=72 * scale)  # a unit is a point
    figure.set_facecolor(_colour("room"))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    for line, words in enumerate(wrap(title, width // 8)[:2]):
        _write(axes, width / 2, 22 + 18 * line, words, size=13, weight="bold")
    agent, side = (width / 2, height - 34), 1
    left = (width - columns * _CELL) / 2
    for slot, name in enumerate(objects):
        x = left + slot % columns * _CELL + _CELL / 2
        y = _HEAD + slot // columns * _CELL + 46
        _write(axes, x, y + 46, name)
        if slot == holding:
            axes.add_patch(Rectangle((x - 24, y - 24), 48, 48, **_paint("gap")))
            _write(axes, x, y + 4, "held")
            continue
        if slot == on:
            axes.add_patch(Ellipse((x, y), 96, 70, **_paint("here")))
            side = -1 if slot % columns == columns - 1 else 1  # there is no room on the right
            agent = x + 32 * side, y + 8
        _draw_thing(axes, name, x, y, 62 if slot in grown else 46)
        if slot in grown:
            _draw(axes, DRAWINGS["star"], "star", x - 34, y - 26)
    _draw(axes, DRAWINGS["agent"], "agent", *agent)
    if holding >= 0:
        size = 36 if holding in grown else 28
        _draw_thing(axes, objects[holding], agent[0] + 28 * side, agent[1] - 2, size)
        if holding in grown:
            _draw(axes, DRAWINGS["star"], "star", agent[0] + 48 * side, agent[1] - 18)
    _write(axes, width / 2, height - 6, caption)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _write(axes: Axes, x: float, y: float, words: str, size: float = 11, **style) -> None:
    options = {"ha": "center", "va": "baseline", "parse_math": False, "color": _colour("ink")}
    axes.text(x, y, words, fontsize=size, **options, **style)


def _draw_thing(axes: Axes, name: str, x: float, y: float, size: float) -> None:
    colour, _, kind = name.partition(" ")
    _draw(axes, DRAWINGS["things"][kind], "thing", x - size / 2, y - size / 2, size / 48, colour)


def _draw(
    axes: Axes, shapes: str, group: str, x: float, y: float, scale: float = 1, colour: str = ""
) -> None:
    to = Affine2D().scale(scale).translate(x, y)
    for kind, path in _paths(shapes):
        style = _paint(group, kind, scale=scale, colour=colour)
        axes.add_patch(PathPatch(path.transformed(to), joinstyle="round", **style))


def _paint(*classes: str, scale: float = 1, colour: str = "") -> dict:
    """What matplotlib is told of a shape; later classes go over earlier ones."""
    paint = {"width": 1}
    for name in filter(None, classes):
        paint |= DRAWINGS["paints"][name]
    fill = colour if paint["fill"] == "currentColor" else paint["fill"]
    style = {"facecolor": _colour(fill), "edgecolor": _colour(paint["stroke"])}
    style["linewidth"] = paint["width"] * scale
    if "dash" in paint:
        style["linestyle"] = (0, tuple(paint["dash"]))
    return style


def _colour(name: str) -> str:
    return DRAWINGS["colours"].get(name, name)


@cache
def _paths(shapes: str) -> list[tuple[str, Path]]:
    """Class and outline of each SVG shape."""
    found = []
    for shape in ElementTree.fromstring(f"<svg>{shapes}</svg>"):
        builder, pen = PathBuilder(), RecordingPen()
        if not builder.add_path_from_element(shape):
            raise ValueError(f"drawings.json has a {shape.tag}, which cannot be drawn")
        parse_path(builder.paths[0], pen)
        points, codes = [], []
        for name, arguments in pen.value:
            if name == "closePath":
                points.append(points[-1])
                codes.append(Path.CLOSEPOLY)
            else:
                points += arguments
                codes += _CODES.get(name, [])
        path = Path(points, codes)
        matrix = builder.transforms[0]
        if matrix is not None:
            path = path.transformed(Affine2D.from_values(*matrix))
        found.append((shape.get("class", ""), path))
    return found
