"""Arguments and results of each system's program."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RESULTS = "results.json"


@dataclass(frozen=True)
class Arguments:
    """The folder for all files of the system, and the number of trials of each region."""

    folder: Path
    trials: int


def read_arguments() -> Arguments:
    """Return the arguments on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trials", type=int, required=True)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    return Arguments(given.folder.resolve(), given.trials)


def write_results(folder: Path, values: Mapping[str, list[float]]) -> None:
    """Write the objectives that the system itself has, by region."""
    (folder / RESULTS).write_text(json.dumps(values))
