"""`python3 -m trialfleet.nodes.probe [--json]` measures GPUs, and prints a verdict as a ClassAd.

The probe takes up to a minute. After a boot it takes longest, because torch and CUDA are read from
a cold disk.

If TRIALFLEET_PROBE_READINGS names a JSON file, the probe judges the readings in the file and
measures nothing. So a test of sick GPUs needs no GPU. The output of `--json` has readings in this
format under "readings".
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from trialfleet.nodes.probe.classad import classad
from trialfleet.nodes.probe.gather import gather
from trialfleet.nodes.probe.gpu_health import Thresholds, verdict
from trialfleet.nodes.probe.readings import Readings

STAND_IN = "TRIALFLEET_PROBE_READINGS"
SECONDS = 60.0  # time limit for all readings


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the verdict, and return 0 for any verdict. Exit with 2 for wrong arguments."""
    chosen = parser().parse_args(arguments)
    thresholds = Thresholds(
        **{each.name: getattr(chosen, each.name) for each in fields(Thresholds)}
    )
    readings = read_readings(os.environ[STAND_IN]) if STAND_IN in os.environ else gather(SECONDS)
    health = verdict(readings, thresholds)
    if chosen.json:
        print(json.dumps({**asdict(health), "readings": asdict(readings)}, indent=1))
    else:
        print(classad(readings, health), end="")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, which has an option for each threshold."""
    made = argparse.ArgumentParser(
        prog="trialfleet.nodes.probe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--json", action="store_true", help="print JSON instead of a ClassAd")
    for each in fields(Thresholds):
        made.add_argument(
            f"--{each.name.replace('_', '-')}",
            type=type(each.default),
            default=each.default,
            help=f"{each.metadata['help']}; default: %(default)s",
        )
    return made


def read_readings(path: str) -> Readings:
    """Return the readings in the file `path`.

    If the file can't be used, return readings with the error as their only problem.
    """
    try:
        return Readings.from_table(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        return Readings(problems=(f"{STAND_IN}={path}: {error}",))


if __name__ == "__main__":
    sys.exit(main())
