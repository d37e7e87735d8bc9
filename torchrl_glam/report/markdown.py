"""Tables in Markdown."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

_FIELD = re.compile(r"\{([^{}:]+):?([^{}]*)\}")
_NO_INTERVAL = " (– to –)"


def markdown_table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A table with a line for each row.

    Args:
        columns: by name, what a cell holds: ``{key:.2f}`` stands for an entry of the row, as Python
            formats it, or a dash if it is missing or not finite. An interval of dashes is left out.
        rows: entries by key.
    """
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    template = f"| {' | '.join(columns.values())} |"
    for row in rows:
        line = _FIELD.sub(lambda field: _entry(row, field[1], field[2]), template)  # noqa: B023
        lines.append(line.replace(_NO_INTERVAL, ""))
    return "\n".join([*lines, ""])


def _entry(row: Mapping[str, Any], key: str, form: str) -> str:
    value = row.get(key, math.nan)
    return "–" if value in (math.inf, -math.inf) or value != value else format(value, form)
