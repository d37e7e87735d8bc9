"""Makes the pages of runs: ``python -m torchrl_glam.report FOLDER ...``; see the package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torchrl_glam.report.page import make_page
from torchrl_glam.report.run import read_run
from torchrl_glam.runs.files import replace_file
from torchrl_glam.runs.run_folder import PAGE


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m torchrl_glam.report",
        description=f"Writes {PAGE} to the folder of each run, finished or not.",
    )
    parser.add_argument("folders", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("--out", type=Path, help=f"file of the page, of one run (default: {PAGE})")
    options = parser.parse_args(arguments)
    if options.out and len(options.folders) > 1:
        parser.error(f"--out ({options.out}) takes the page of one run, not {len(options.folders)}")
    for folder in options.folders:
        path = options.out or folder / PAGE
        try:
            replace_file(path, make_page(read_run(folder)))
        except (OSError, ValueError) as error:
            parser.error(str(error))
        sys.stdout.write(f"Open {path} in a browser\n")


if __name__ == "__main__":
    main()
