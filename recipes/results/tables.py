"""Tables of results in Markdown, made from the measurements in this folder.

    python recipes/results/tables.py

A table stands between two comments. The first says what it is made of:

    <!-- table: taught/comparison.csv
    head: agent | success after 16,000 steps | steps to 0.8
    where: label = SAC-GLAM; PPO-GLAM
    row: {label} | {iqm:.3f} ({iqm_low:.3f} to {iqm_high:.3f}) | {steps_to_0.8:,.0f}
    -->
    <!-- end -->

The files, separated by commas, are CSVs or JSON objects in this folder; objects in objects have
names such as ``train/success``, and ``folder`` is the name of the file's folder. ``row`` is written
for every row of the files, with the columns in braces formatted as Python does; several rows may be
given. ``where`` keeps the rows in which a column has one of several values, and may be given
several times. What is not a finite number is shown as a dash.

Measurements along a column become columns of one row by

    group: label, run
    across: step

so that ``{success@3200}`` is the success at step 3200 of a label and run, and ``{success@last}``
that of its last row.
"""

import csv
import json
import math
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent
REPOSITORY = RESULTS.parents[1]
PAGES = ("README.md", "recipes/**/*.md")
_TABLE = re.compile(r"(<!-- table: ([^\n]+)\n(.*?)-->\n)(.*?)(<!-- end -->)", re.S)
_FIELD = re.compile(r"\{([^{}:]+)(?::([^{}]+))?\}")
_KEYS = ("head", "row", "where", "group", "across")


def pages() -> list[Path]:
    """The Markdown files that may have tables."""
    return sorted(path for pattern in PAGES for path in REPOSITORY.glob(pattern))


def rewrite(text: str) -> str:
    """The text of a page with all of its tables made anew."""
    return _TABLE.sub(lambda t: t[1] + "\n" + "\n".join(_table(t[2], t[3])) + "\n\n" + t[5], text)


def _table(files: str, description: str) -> Iterator[str]:
    said: dict[str, list[str]] = {key: [] for key in _KEYS}
    for line in filter(None, description.splitlines()):
        key, colon, value = line.partition(": ")
        if not colon or key not in said:
            raise ValueError(f"table of {files}: {line!r} must begin with one of {_KEYS} and ': '")
        said[key].append(value.strip())
    [head] = said["head"]
    yield from _head(head.split(" | "))
    records = [row for file in files.split(", ") for row in read(RESULTS / file)]
    wanted = [where.partition(" = ")[::2] for where in said["where"]]
    try:
        records = [row for row in records if all(row[k] in v.split("; ") for k, v in wanted)]
        if said["across"]:
            records = list(_spread(records, said["group"][0].split(", "), said["across"][0]))
        lines = [_line(row, record) for record in records for row in said["row"]]
    except KeyError as error:
        raise KeyError(f"table of {files}: {error} is none of {list(records[0])}") from None
    if not lines:
        raise ValueError(f"table of {files}: where {said['where']} leaves no rows")
    yield from lines


def markdown(columns: dict[str, str], rows: list[dict[str, Any]]) -> str:
    """A table whose columns hold what a ``row`` above would; what a row lacks is a dash."""
    lacking = {name: math.nan for cell in columns.values() for name, _ in _FIELD.findall(cell)}
    template = " | ".join(columns.values())
    return "\n".join([*_head(columns), *(_line(template, lacking | row) for row in rows), ""])


def _head(columns: Collection[str]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)


def _line(template: str, record: dict[str, Any]) -> str:
    cells = _FIELD.sub(lambda field: _format(record, *field.groups()), template)
    return f"| {cells.replace(' (– to –)', '')} |"


def runs_of(figure: Path) -> list[Path]:
    """The folders of a figure's runs, ``<arm>/<seed>``; a ValueError if there is none."""
    runs = sorted(path.parent for path in figure.glob("*/*/metrics.csv"))
    if not runs:
        raise ValueError(
            f"{str(figure)!r} holds no run of an arm, <arm>/<seed>/metrics.csv: give the folder of "
            "a figure, or a label and runs"
        )
    return runs


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV, or the one object of a JSON file."""
    folder = {"folder": path.parent.name}
    if path.suffix == ".json":
        return [folder | dict(_flat(json.loads(path.read_text(encoding="utf-8"))))]
    with path.open(newline="", encoding="utf-8") as file:
        return [folder | row for row in csv.DictReader(file)]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """A CSV with the columns of the row that has most, rounded; ``nan`` is what a row lacks."""
    with path.open("w", newline="", encoding="utf-8") as file:
        columns = list(max(rows, key=len))
        writer = csv.DictWriter(file, columns, restval="nan", lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()})


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _flat(item, f"{name}/{key}" if name else str(key))
    else:
        yield name, value


def _spread(rows: list[dict[str, Any]], group: list[str], across: str) -> Iterator[dict[str, Any]]:
    """One record for each group, with the measurements of its rows; a dash where it has none."""
    groups: dict[tuple, dict[str, Any]] = {}
    places = {_place(row[across]) for row in rows}
    missing = {f"{name}@{place}": "nan" for name in rows[0] for place in places} if rows else {}
    for row in rows:
        record = groups.setdefault(tuple(row[name] for name in group), dict(missing))
        here = (_place(row[across]), "last")
        record |= row | {f"{name}@{place}": row[name] for name in row for place in here}
    yield from groups.values()


def _place(value: str) -> str:
    """A step as tables name it: 3200 for 3200.0."""
    try:
        return f"{float(value):g}" if abs(float(value)) < 1e5 else f"{float(value):.0f}"
    except ValueError:
        return value


def _format(record: dict[str, Any], name: str, form: str | None) -> str:
    if form is None:
        return "–" if record[name] is math.nan else str(record[name]).replace("|", "\\|")
    number = float(record[name])
    return format(number, form) if math.isfinite(number) else "–"


def main() -> None:
    """Rewrites the tables of all pages, and names the pages that have changed."""
    for path in pages():
        old = path.read_text(encoding="utf-8")
        if (new := rewrite(old)) != old:
            print(path.relative_to(REPOSITORY))
            path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
