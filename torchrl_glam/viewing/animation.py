"""Episodes of Playground-Text as animated pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchrl_glam._files import open_below

_STEP, _END = 1100, 1800  # milliseconds that a picture is shown


def write_animation(
    path: str | Path, episodes: Sequence[Mapping[str, Any]], *, scale: float = 1.0
) -> None:
    """Writes a GIF: the scene of each step with the action taken, and how the episode ended.

    Args:
        path: the file; its folder is made if need be.
        episodes: as :func:`~torchrl_glam.viewing.record` gives them, one after the other.
        scale: size; an object takes 104 by 104 pixels at 1. Default: 1.

    Raises:
        ValueError: if there are none, or of an environment without a scene to draw.
    """
    if not episodes:
        raise ValueError("episodes are none, and a picture needs one")
    if any("scene" not in step for episode in episodes for step in episode["steps"]):
        raise ValueError(
            f"{str(path)!r} cannot be drawn: only Playground-Text has scenes; write a page (.html)"
        )
    from PIL import Image  # an extra

    shown = [frame for episode in episodes for frame in _frames(episode, scale)]
    images = [Image.fromarray(picture).quantize(128) for picture, _ in shown]
    path = Path(path)
    with open_below(path.parent, path.name, "wb") as file:
        images[0].save(
            file,
            format="GIF",
            save_all=True,
            append_images=images[1:],
            duration=[milliseconds for _, milliseconds in shown],
            loop=0,
        )


def _frames(episode: Mapping[str, Any], scale: float) -> Iterator[tuple[np.ndarray, int]]:
    for step in episode["steps"]:
        chosen = step["chosen"]
        action, probability = step["candidates"][chosen], step["probability"][chosen]
        yield _draw(episode, step, f"{action} ({probability:.0%})", scale), _STEP
    outcome = "goal reached" if episode["success"] else "ended without success"
    yield _draw(episode, step, f"{action}: {outcome}", scale), _END


def _draw(
    episode: Mapping[str, Any], step: Mapping[str, Any], caption: str, scale: float
) -> np.ndarray:
    from torchrl_glam.envs.playground.picture import draw_scene  # slow to import

    return draw_scene(**step["scene"], title=episode["goal"], caption=caption, scale=scale)
