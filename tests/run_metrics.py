"""What two runs of the recipe must share to count as the same run."""

import csv

CLOCK = ("seconds", "steps_per_second", "updates_per_second", "time/")


def metrics(folder):
    """The metrics file of a run without the columns that tell the time."""
    with open(folder / "metrics.csv", newline="") as file:
        return [
            {name: value for name, value in row.items() if not name.startswith(CLOCK)}
            for row in csv.DictReader(file)
        ]
