"""What runs leave: tables, checkpoints, and what two runs must share to count as the same run."""

import csv

CLOCK = ("seconds", "steps_per_second", "updates_per_second", "time/")


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def saved_steps(folder):
    """The steps after which a run saved the checkpoints that it has, in order."""
    saved = (folder / "checkpoints").glob("step-*")
    return sorted(int(path.name.removeprefix("step-")) for path in saved)


def metrics(folder):
    """The metrics file of a run without the columns that tell the time."""
    return [
        {name: value for name, value in row.items() if not name.startswith(CLOCK)}
        for row in read_csv(folder / "metrics.csv")
    ]
