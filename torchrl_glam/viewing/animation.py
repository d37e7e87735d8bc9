"""Episodes of Playground-Text as animated pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchrl_glam._files import open_below

_STEP, _END = 1100, 1800  # milliseconds that a picture is shown


def write_animation(path: str | Path, episodes: Sequence[Mapping[str, Any]]) -> None:
    """Writes a GIF: the scene of each step with the action taken, and how the episode ended.

    Args:
        path: the file; its folder is made if need be.
        episodes: as :func:`~torchrl_glam.viewing.record` gives them, one after the other.

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

    from torchrl_glam.envs.playground.picture import draw_scene  # slow to import

    images, durations = [], []
    for episode in episodes:
        taken = [step["candidates"][step["chosen"]] for step in episode["steps"]]
        shares = [step["probability"][step["chosen"]] for step in episode["steps"]]
        captions = [f"{action} ({share:.0%})" for action, share in zip(taken, shares, strict=True)]
        outcome = "goal reached" if episode["success"] else "ended without success"
        captions.append(f"{taken[-1]}: {outcome}")
        scenes = [step["scene"] for step in (*episode["steps"], episode["steps"][-1])]
        for scene, caption in zip(scenes, captions, strict=True):
            picture = draw_scene(**scene, title=episode["goal"], caption=caption)
            images.append(Image.fromarray(picture).quantize(128))
        durations += [_STEP] * len(taken) + [_END]
    path = Path(path)
    with open_below(path.parent, path.name, "wb") as file:
        options = {"save_all": True, "append_images": images[1:], "duration": durations, "loop": 0}
        images[0].save(file, format="GIF", **options)
