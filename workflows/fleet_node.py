"""The fleet's autoscaler, joined to what it needs; as a node of a run's graph, or by hand.

`python -m trialfleet.workflows.fleet_node RUN` is the program of the graph's node `fleet`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trialfleet.errors import InputError, TrialfleetError
from trialfleet.infra.fleet import choice, supplies
from trialfleet.infra.fleet.autoscaler import Autoscaler, Progress, Ways
from trialfleet.infra.fleet.aws import Aws
from trialfleet.infra.fleet.provisioning import Graph
from trialfleet.infra.fleet.scaling_loop import Loop
from trialfleet.infra.fleet.spec import Fleet
from trialfleet.workflows.status import open_run
from trialfleet.workflows.study_file import load_frozen


def loop(
    aws: Aws,
    fleet: Fleet,
    *,
    run: str = "",
    report: Path | None = None,
    graph: Graph | None = None,
    progress: Progress = lambda _: None,
) -> Loop:
    """Return the autoscaler of a fleet as a loop, not started yet; see `Loop`."""
    ways = Ways(supplies=supplies.gather, choose=choice.candidates)
    autoscaler = Autoscaler(aws, fleet, ways, run=run, progress=progress)
    return Loop(
        autoscaler, fleet=fleet.called, run=run, report=report, graph=graph, progress=progress
    )


def main() -> None:
    """Scale the fleet of a run until its graph is done."""
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
        loop(
            Aws(), fleet, run=frozen.run, report=folder.fleet_state, graph=graph, progress=_say
        ).run()
    except TrialfleetError as error:
        sys.exit(str(error))


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
