"""Episodes as one HTML page that needs nothing else, not even a network."""

import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from torchrl_glam.models import Agent
from torchrl_glam.runs.files import replace_file


def write_page(
    path: str | Path,
    runs: Mapping[str, tuple[Agent, Sequence[Mapping[str, Any]]]],
    kinds: Sequence[str],
    about: str = "",
) -> None:
    """Writes the page of one agent's episodes, or of two agents' on the same scenes.

    Args:
        path: the HTML file; its folder is made if need be.
        runs: for every name of an agent, the agent and its episodes, as
            :func:`~torchrl_glam.viewing.record` gives them.
        kinds: names of the goal kinds.
        about: a line for the top of the page. Default: none.

    Raises:
        ValueError: if there are no episodes, more than two agents, or episodes of other goals.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> from torchrl_glam.models import zero_shot_agent
        >>> from torchrl_glam.viewing import record, tokenize
        >>> agent, env = zero_shot_agent("tiny"), PlaygroundTextEnv()
        >>> episodes = record(agent, tokenize(env, agent), max_steps=2)
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "page.html")
        ...     write_page(path, {"no training": (agent, episodes)}, env.goals.kinds)
        ...     "Grasp" in path.read_text(encoding="utf-8")
        True
    """
    packed = _pack(runs, kinds, about)
    data = json.dumps(packed, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    assets = files("torchrl_glam.viewing") / "assets"

    def asset(name: str) -> str:
        return (assets / name).read_text(encoding="utf-8")

    page = jinja2.Template(asset("viewer.html"), keep_trailing_newline=True).render(
        style=asset("base.css") + asset("viewer.css"),
        script="".join(map(asset, ("drawings.js", "scene.js", "viewer.js"))),
        # No text of an environment ends the element that holds it.
        data=data.replace("<", "\\u003c").replace("\u2028", "\\u2028"),
    )
    replace_file(Path(path), page)


def _pack(
    runs: Mapping[str, tuple[Agent, Sequence[Mapping[str, Any]]]], kinds: Sequence[str], about: str
) -> dict[str, Any]:
    """What the page holds: every text once, numbers short; the keys are those of viewer.js."""
    if not 1 <= len(runs) <= 2:
        raise ValueError(f"runs ({list(runs)}) must be of one agent, or of two side by side")
    played = [episodes for _, episodes in runs.values()]
    if not played[0]:
        raise ValueError("runs hold no episodes: record at least one")
    goals = [[(episode["goal"], episode["kind"]) for episode in episodes] for episodes in played]
    if any(other != goals[0] for other in goals):
        raise ValueError("runs have episodes of other goals: record them with the same seed")
    strings: dict[str, int] = {}

    def number(text: str) -> int:
        return strings.setdefault(text, len(strings))

    return {
        "about": about,
        "kinds": list(kinds),
        "agents": [
            {"name": name, "template": agent.template.text} for name, (agent, _) in runs.items()
        ],
        "episodes": [
            {
                "goal": number(same[0]["goal"]),
                "kind": same[0]["kind"],
                "runs": [_pack_run(episode, number) for episode in same],
            }
            for same in zip(*played, strict=True)
        ],
        "strings": list(strings),
    }


def _pack_run(episode: Mapping[str, Any], number) -> dict[str, Any]:
    steps = episode["steps"]
    run = {"success": episode["success"], "over": episode["over"]}
    run["steps"] = [_pack_step(step, number) for step in steps]
    if "scene" in steps[0]:
        run["objects"] = [number(name) for name in steps[0]["scene"]["objects"]]
    return run


def _pack_step(step: Mapping[str, Any], number) -> dict[str, Any]:
    packed = {
        "o": [number(line) for line in step["observation"].split("\n")],
        "c": [number(candidate) for candidate in step["candidates"]],
        "p": [round(1000 * probability) for probability in step["probability"]],
        "a": step["chosen"],
        "r": _number(step["reward"]),
        "n": [number(goal) for goal in step["named"]],
    }
    if "value" in step:
        packed["q"] = [_number(value) for value in step["value"]]
    if "state_value" in step:
        packed["v"] = _number(step["state_value"])
    if "scene" in step:
        scene = step["scene"]
        packed |= {"on": scene["on"], "h": scene["holding"], "g": scene["grown"]}
    return packed


def _number(value: float) -> float | None:
    """Three digits; None for what is not finite, which JSON has no word for."""
    return round(value, 3) if math.isfinite(value) else None
