"""`python3 -m trialfleet.nodes.node_agent`, run by root, watches this node until it shuts down."""

from __future__ import annotations

import sys

from trialfleet.instance_aws import Imds
from trialfleet.nodes.bootstrap import settings
from trialfleet.nodes.bootstrap.host import Host, StepError
from trialfleet.nodes.node_agent.htcondor_tools import Condor
from trialfleet.nodes.node_agent.watch import Agent
from trialfleet.wall_clock import log_in_utc

STATE = "/run/trialfleet/agent.json"  # in /run, because a reboot must delete it
IMDS_TIMEOUT = 2.0  # seconds; the metadata service answers within milliseconds or never


def main() -> int:
    """Watch the node until it shuts down. Return 0, or 2 if the settings are missing."""
    log_in_utc("agent: %(message)s", sys.stdout)
    try:
        idle_minutes = settings.read(Host()).idle_minutes
    except StepError as error:
        print(error, file=sys.stderr)
        return 2
    Agent(Imds(timeout=IMDS_TIMEOUT), Condor(), idle_minutes, Host().place(STATE)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
