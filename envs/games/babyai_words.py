"""What an agent of BabyAI sees, in the words of BabyAI-Text (Carta et al., 2023)."""

from typing import Any

from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT

THINGS = ("door", "key", "ball", "box")
"""What missions and observations name."""
_DOORS = ("open", "closed", "locked")


def describe(image: Any) -> str:
    """What the agent sees, in sentences, from left to right.

    ``image`` is MiniGrid's encoding ``[W, W, 3]`` of the squares in view; the agent stands in the
    middle of the last row, where what it carries is written, and looks along its column.

    Examples:
        >>> import numpy as np
        >>> view = np.zeros((3, 3, 3), dtype=int)  # nothing is known
        >>> view[1, 0], view[1, 1], view[0, 2] = (2, 5, 0), (6, 0, 0), (4, 2, 1)
        >>> print(describe(view))
        You see a wall 2 steps forward
        You see a closed blue door 1 step left
        You see a red ball 1 step forward
    """
    width = len(image)
    middle, last = width // 2, width - 1
    names = [[IDX_TO_OBJECT[int(kind)] for kind in column] for column in image[..., 0]]
    ways = {
        "forward": [names[middle][last - n] for n in range(1, width)],
        "left": [names[middle - n][last] for n in range(1, middle + 1)],
        "right": [names[middle + n][last] for n in range(1, middle + 1)],
    }
    seen = [f"wall {_steps(w.index('wall') + 1, to)}" for to, w in ways.items() if "wall" in w]
    for column in range(width):
        for row in range(width):
            _, color, state = (int(value) for value in image[column, row])
            name, place = names[column][row], _place(column - middle, last - row)
            if name in THINGS and place:
                door = f"{_DOORS[state]} " if name == "door" else ""
                seen.append(f"{door}{IDX_TO_COLOR[color]} {name} {place}")
    lines = [f"You see a{'n' * text.startswith('open')} {text}" for text in seen]
    if names[middle][last] in THINGS:
        lines.append(
            f"You carry a {IDX_TO_COLOR[int(image[middle, last, 1])]} {names[middle][last]}"
        )
    return "\n".join(lines or ["You see nothing"])


def _place(right: int, forward: int) -> str:
    """Where a square is, ``""`` for the agent's own."""
    ways = ((abs(right), "right" if right > 0 else "left"), (forward, "forward"))
    return " and ".join(_steps(number, way) for number, way in ways if number)


def _steps(number: int, way: str) -> str:
    return f"{number} step{'s' * (number > 1)} {way}"
