"""`python3 -m trialfleet.nodes.node_agent`, run by root, watches this node until it shuts down."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from trialfleet.instance_aws import Imds
from trialfleet.nodes.bootstrap.settings import FILE
from trialfleet.nodes.node_agent.htcondor_tools import Condor
from trialfleet.nodes.node_agent.watch import Agent

SETTINGS = Path(FILE)
STATE = Path("/run/trialfleet/agent.json")  # in /run, because a reboot must delete it
IMDS_TIMEOUT = 2.0  # seconds; the metadata service answers within milliseconds or never


def main(arguments: Sequence[str] | None = None) -> int:
    """Watch the node until it shuts down. Return 0, or 2 if the settings can't be used."""
    parser = argparse.ArgumentParser(prog="trialfleet.nodes.node_agent", description=__doc__)
    parser.add_argument(
        "--settings",
        type=Path,
        default=SETTINGS,
        help="the node's settings (default: %(default)s)",
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=STATE,
        help="the file in which the agent saves its memory (default: %(default)s)",
    )
    chosen = parser.parse_args(arguments)
    log_with_times()
    try:
        settings = json.loads(chosen.settings.read_text(encoding="utf-8"))
        idle_minutes = float(settings["idle_minutes"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        print(f"the settings file {chosen.settings} can't be used: {error!r}", file=sys.stderr)
        return 2
    Agent(Imds(timeout=IMDS_TIMEOUT), Condor(), idle_minutes, chosen.state).run()
    return 0


def log_with_times() -> None:
    """Log to standard output, with times in UTC and milliseconds."""
    logging.Formatter.converter = time.gmtime
    form = "%(asctime)s.%(msecs)03dZ agent: %(message)s"
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format=form, datefmt="%Y-%m-%dT%H:%M:%S"
    )


if __name__ == "__main__":
    sys.exit(main())
