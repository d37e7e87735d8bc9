"""States for people, as text and as pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from torchrl_glam._extras import needs
from torchrl_glam.envs.playground.vocabulary import OBJECTS
from torchrl_glam.text import decode_text


def render_refusal(env: int, index: int, actions: Sequence[str], admissible: Sequence[bool]) -> str:
    """Says why action ``index`` of environment ``env`` cannot be taken, and which can."""
    in_range = 0 <= index < len(actions)
    what = f"{actions[index]!r} is masked out" if in_range else "is out of range"
    choice = [f"{i}: {text}" for i, text in enumerate(actions) if admissible[i]]
    return f"action[{env}] = {index} {what}. Admissible are {', '.join(choice)}."


class Rendering:
    """The pictures and texts of :class:`~torchrl_glam.envs.PlaygroundTextEnv` for people."""

    def render(
        self,
        index: int | None = None,
        *,
        mode: Literal["text", "rgb_array"] = "text",
        scale: float = 1.0,
    ) -> str | np.ndarray:
        """Draws environments as text or as pictures.

        With ``mode="rgb_array"`` TorchRL's ``PixelRenderTransform`` and ``VideoRecorder`` take the
        pictures of a rollout.

        Args:
            index: which environment. Default: all of them as pictures, the first as text.
            mode: ``"text"`` or ``"rgb_array"``. Default: ``"text"``.
            scale: size of pictures; an object takes 104 by 104 pixels at 1. Default: 1.

        Returns:
            The text; or ``uint8 [H, W, 3]`` of one environment, ``[B, H, W, 3]`` of all.

        Raises:
            IndexError: if there is no such environment.
            ValueError: if there is no such mode, or ``scale`` is not above 0.

        Examples:
            >>> from torchrl_glam.envs import PlaygroundTextEnv
            >>> env = PlaygroundTextEnv(num_envs=2, num_objects=3)
            >>> _ = env.reset()
            >>> env.render(mode="rgb_array").shape
            (2, 220, 312, 3)
        """
        if index is not None and not 0 <= index < self.batch_size[0]:
            raise IndexError(f"index must be in [0, {self.batch_size[0]}), got {index}.")
        if mode == "rgb_array":
            if not 0 < scale < math.inf:
                raise ValueError(f"scale must be above 0 and finite, got {scale}.")
            drawn = range(self.batch_size[0]) if index is None else (index,)
            pictures = [self._draw(row, scale) for row in drawn]
            return np.stack(pictures) if index is None else pictures[0]
        if mode != "text":
            raise ValueError(f"mode must be 'text' or 'rgb_array', got {mode!r}.")
        return self._describe(index or 0)

    def _draw(self, index: int, scale: float) -> np.ndarray:
        with needs("recipes", "A picture"):
            from torchrl_glam.envs.playground.picture import draw_scene

        place, dynamics = self._place[index], self.dynamics
        return draw_scene(
            [OBJECTS[slot] for slot in self._scene[index, :-2].tolist()],
            on=int(dynamics.on[place]),
            holding=int(dynamics.holding[place]),
            grown=self._grown[index, :-1].nonzero().flatten().tolist(),
            title=self.goals[int(self._goal_id[index])],
            caption=f"step {self._steps[index]} of {self.max_steps}",
            scale=scale,
        )

    def _describe(self, index: int) -> str:
        one = slice(index, index + 1)
        scene, place = self._scene[one], self._place[one]
        observation = self.describer.observation(place, scene, self._grown[one])[0]
        actions = decode_text(self.describer.actions(scene)[0])
        admissible = self.dynamics.admissible[place[0]].tolist()
        choices = [f"{i} {text}" for i, text in enumerate(actions) if admissible[i]]
        progress = f"step {self._steps[index]} of {self.max_steps}"
        progress += ", first part reached" if self._stage[index] else ""
        return (
            f"Goal: {self.goals[int(self._goal_id[index])]} ({progress})\n"
            f"{decode_text(observation)}\nActions: {' | '.join(choices)}"
        )
