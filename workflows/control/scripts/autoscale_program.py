"""The program `autoscale FOLDER`: the fleet's autoscaler, started as the run's DAG node `fleet`."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from trialfleet.errors import InputError, TrialfleetError
from trialfleet.infra.fleet.aws import account
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.htcondor import demand as pool_demand
from trialfleet.infra.fleet.htcondor.provisioning import Graph
from trialfleet.infra.fleet.instances.launch import Progress
from trialfleet.infra.fleet.scaling import price_cap_stop
from trialfleet.infra.fleet.scaling.autoscaler import Autoscaler, Connections
from trialfleet.infra.fleet.scaling.autoscaler_process import LONGEST_PAUSE, Loop
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.status.status_reader import open_run
from trialfleet.workflows.study.frozen import load_frozen


def loop(
    aws: Aws,
    fleet: Fleet,
    *,
    run: str = "",
    folder: RunFolder | None = None,
    graph: Graph | None = None,
    progress: Progress = lambda _: None,
) -> Loop:
    """Return the autoscaler of a fleet as a `Loop` that is not yet started.

    The nodes' cost is attributed to the run with the id `run`. The autoscaler writes its report
    into the run's `folder`. If a `graph` is given, the autoscaler is that DAG's provisioner: the
    DAG's jobs start once a node has joined. `progress` is called with a line for each action.
    """
    own = str(folder.root) if folder else ""
    connections = Connections(
        read_run=partial(pool_demand.read_pool, folder=own, named=False),
        end=partial(price_cap_stop.end, folder=own),
    )
    planned = load_frozen(folder.study).created if folder else None
    autoscaler = Autoscaler(aws, fleet, connections, run=run, planned=planned, progress=progress)
    return Loop(
        autoscaler,
        fleet=fleet.full_name,
        run=run,
        report=folder.fleet_state if folder else None,
        graph=graph,
        ends_with_run=folder is not None,
        progress=progress,
        longest_pause=min(LONGEST_PAUSE, fleet.lease_minutes * 60 / 4),
    )


def main() -> None:
    """Scale the fleet of a run until the run's DAG is done."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("run", type=Path, help="the run's folder")
    arguments = parser.parse_args()
    try:
        folder = open_run(arguments.run)
        frozen = load_frozen(folder.study)
        fleet = frozen.study.fleet
        if fleet is None:
            raise InputError(f"{folder.study}: the study has no fleet")
        graph = Graph() if fleet.autoscale == "provisioner" else None
        aws = account.read(folder.aws).enter()
        say = partial(print, flush=True)
        loop(aws, fleet, run=frozen.run, folder=folder, graph=graph, progress=say).run()
    except TrialfleetError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
