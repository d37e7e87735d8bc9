"""Random play of Playground-Text as the embedded model reads it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.pretraining.exercises import Exercises, Reading

_TASKS = [("train", 6, 4), ("test", 6, 4), ("train", 3, 1), ("test", 3, 1)]
"""Split of goals, objects, and in how many of ten batches."""


def playground_readings(
    batch_size: int, questions: int = 4, seed: int = 0
) -> Iterator[list[Reading]]:
    """Exercises about Playground-Text while it is played at random, without an end.

    Both tasks of the paper and both splits of goals take turns: words and combinations that the
    training goals hold out are read as often as others.

    Args:
        batch_size: prompts in a batch.
        questions: questions about each prompt. Default: 4.
        seed: of environments and exercises. Default: 0.

    Examples:
        >>> batch = next(playground_readings(2))
        >>> len(batch), len(batch[0].answers)
        (2, 4)
    """
    sources, order = [], []
    for index, (split, objects, times) in enumerate(_TASKS):
        env = PlaygroundTextEnv(
            num_envs=batch_size,
            num_objects=objects,
            split=split,
            sequential=objects > 3,
            seed=seed + index,
        )
        exercises = Exercises(env.goals, seed=seed + index, questions=questions)
        sources.append([env, env.reset(), exercises])
        order += [index] * times
    for batch in count(1):
        source = sources[order[batch * 3 % len(order)]]  # 3: splits take turns
        env, state, exercises = source
        source[1] = env.step_and_maybe_reset(env.rand_action(state))[1]
        yield exercises(state)
