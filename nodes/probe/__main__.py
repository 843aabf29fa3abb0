"""`python3 -m trialfleet.nodes.probe [--json|--classad]`: measures, judges, prints; 10 s at most.

TRIALFLEET_PROBE_READINGS names a JSON file of readings (as `--json` prints them under "readings")
that is judged instead of the machine's own: a stand-in, so that a laboratory without a GPU can play
a healthy or a sick one. Nothing is measured then.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from trialfleet.nodes.probe.classad import classad
from trialfleet.nodes.probe.gather import gather
from trialfleet.nodes.probe.readings import Readings
from trialfleet.nodes.probe.verdict import Thresholds, verdict

STAND_IN = "TRIALFLEET_PROBE_READINGS"
SECONDS = 9.0  # for all readings; the rest of the 10 is this program's own


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the verdict; exit code 0 whatever it is, 2 for wrong arguments."""
    chosen = parser().parse_args(arguments)
    thresholds = Thresholds(
        ecc_uncorrected=chosen.ecc_uncorrected,
        launch_microseconds=chosen.launch_microseconds,
        bandwidth=chosen.bandwidth,
        bandwidth_share=chosen.bandwidth_share,
    )
    readings = recorded(os.environ[STAND_IN]) if STAND_IN in os.environ else gather(SECONDS)
    judged = verdict(readings, thresholds)
    if chosen.json:
        print(json.dumps({**asdict(judged), "readings": readings.as_json()}, indent=1))
    else:
        print(classad(readings, judged), end="")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the reader of the command line; the thresholds are those of `verdict.Thresholds`."""
    usual = Thresholds()
    made = argparse.ArgumentParser(
        prog="trialfleet.nodes.probe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    form = made.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="readings and verdict as JSON")
    form.add_argument("--classad", action="store_true", help="attributes (the default)")
    for name, words in (
        ("ecc_uncorrected", "so many uncorrectable memory errors are still good"),
        ("launch_microseconds", "so long a launch is still good"),
        ("bandwidth", "GB/s that any GPU must reach"),
        ("bandwidth_share", "of the data sheet's bandwidth that a known GPU must reach"),
    ):
        value = getattr(usual, name)
        option = f"--{name.replace('_', '-')}"
        made.add_argument(
            option, type=type(value), default=value, help=f"{words}; default: %(default)s"
        )
    return made


def recorded(path: str) -> Readings:
    """Return readings from a file; a file that can't be used is a sick machine."""
    try:
        return Readings.of(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        return Readings(problems=(f"{STAND_IN}={path}: {error}",))


if __name__ == "__main__":
    sys.exit(main())
