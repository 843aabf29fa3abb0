"""The bill of runs: the costs of their jobs, and their share of the costs of EC2 nodes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from trialfleet import untrusted_files
from trialfleet.errors import InputError, OptimizerError
from trialfleet.infra.fleet.scaling.instance_costs import Lifetime
from trialfleet.infra.fleet.scaling.last_report import (
    default_report,
    kept_lifetimes,
    parse_lifetimes,
    read_report,
)
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.workflows.facts.jobs.executions import ExecutionEnd
from trialfleet.workflows.facts.jobs.job_log import PricedExecution
from trialfleet.workflows.facts.run_folder.dag_structure import build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.rules.cost_sums import CostItem, CostSum, Kind, add
from trialfleet.workflows.rules.node_costs import add_node_costs
from trialfleet.workflows.status.lost_work import region_executions
from trialfleet.workflows.status.run_trials import RunTrials
from trialfleet.workflows.status.status_reader import StatusReader, open_run
from trialfleet.workflows.study.frozen import FrozenStudy, load_frozen

_LOST = {ExecutionEnd.FAILED: Kind.FAILED, ExecutionEnd.EVICTED: Kind.EVICTED}


@dataclass(frozen=True)
class BilledRun:
    """A run, and the study as it was when the run was planned."""

    folder: RunFolder
    frozen: FrozenStudy

    @staticmethod
    def open(place: Path) -> BilledRun:
        """Open a run. InputError if the folder does not contain a run."""
        folder = open_run(place)
        return BilledRun(folder, load_frozen(folder.study))

    @property
    def name(self) -> tuple[str, str]:
        """The names of the study and of the run."""
        return self.frozen.study.name, self.frozen.run

    @property
    def fleet(self) -> Fleet | None:
        """The study's fleet, or None."""
        return self.frozen.study.fleet


@dataclass(frozen=True)
class Bill:
    """The costs of jobs and of machines' time without a job.

    `notices` name the missing costs. `remarks` explain amounts that another view shows otherwise.
    """

    items: tuple[CostItem, ...]
    notices: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def bill(runs: Iterable[BilledRun], lifetimes: Mapping[str, Lifetime], now: datetime) -> Bill:
    """Return the costs of runs and of EC2 nodes.

    `runs` must include all runs that used the nodes, because these runs share the cost of the
    nodes' time without a job. `lifetimes` has the lifetime of each EC2 instance. Nodes that still
    run are charged until `now`. If a run's cost can't be read, the bill has a notice.
    """
    runs = list(runs)
    items: list[CostItem] = []
    notices = []
    for run in runs:
        try:
            items += run_items(run)
        except (OptimizerError, OSError) as error:
            notices.append(f"the cost of {'/'.join(run.name)} is missing: {error}")
    whole = add_node_costs(items, lifetimes, now)
    return Bill(tuple(_place_idle_node(item, runs) for item in whole), tuple(notices))


def _place_idle_node(item: CostItem, runs: Sequence[BilledRun]) -> CostItem:
    """Return a cost with the study, day and team of its run, if it has none and the run is known.

    The cost of an EC2 node that ran no job has no study, because the node's tag names only the run.
    """
    same = [run for run in runs if run.fleet and run.frozen.run == item.run]
    if item.study or len(same) != 1:
        return item
    frozen = same[0].frozen
    team = frozen.study.team or ""
    return replace(item, study=frozen.study.name, day=str(frozen.cost_day), team=team)


# -- jobs ------------------------------------------------------------------------------------------


def run_items(run: BilledRun) -> list[CostItem]:
    """Return the costs of a run's jobs. OptimizerError if the run's trials can't be read."""
    folder, frozen = run.folder, run.frozen
    now = time.time() if StatusReader(folder).state().has_jobs else None
    trials = RunTrials(folder, frozen, brief=True).read()
    whose = CostItem(
        study=frozen.study.name,
        run=frozen.run,
        day=str(frozen.cost_day),
        team=frozen.study.team or "",
        kind=Kind.TRIAL,
        seconds=0.0,
        usd=None,
    )
    items = []
    for region in build_graph(frozen.study).regions:
        files = folder.region(region.slug)
        found = region_executions(files, trials[region.name], frozen.study, now)
        own = replace(whose, region=region.name)
        items += [_build_item(own, kind, stay) for kind, stay in found]
    return items


def _build_item(whose: CostItem, kind: Kind, stay: PricedExecution) -> CostItem:
    return replace(
        whose,
        kind=_LOST.get(stay.end, kind),
        seconds=stay.ended - stay.began,
        usd=stay.usd,
        instance=stay.instance,
    )


# -- one run's nodes -------------------------------------------------------------------------------


def reported_lifetimes(fleet: Fleet, reports: Iterable[Path]) -> dict[str, Lifetime]:
    """Return the lifetimes of a fleet's nodes, as far as this machine has a record of them.

    The sources are the files `reports`, the default report of the fleet's autoscaler, and the
    records of `fleet down`, which take precedence. Of several reports on a node, the newest counts.
    """
    found: dict[str, Lifetime] = {}
    files = (*reports, default_report(fleet.full_name))
    found_steps = ((read_report(file) or {}).get("step") for file in files)
    steps = [step for step in found_steps if isinstance(step, dict)]
    for step in sorted(steps, key=lambda step: str(step.get("at", ""))):  # all times are in UTC
        found |= parse_lifetimes(step.get("instances"))
    return found | kept_lifetimes(fleet.full_name)


def overhead(place: RunFolder, now: datetime) -> CostSum | None:
    """Return a run's costs, with its share of EC2 nodes' time without a job as `boot` and `idle`.

    Return None if the study has no fleet, or if no known node belongs to the run. Nodes are known
    from autoscalers' last reports and from the records of `fleet down`. AWS is not asked. Nodes
    that still run are charged until `now`.

    Time without a job is shared with other runs on the same fleet: runs of this study, and of
    studies whose folders are next to this study's.

    Raises OptimizerError if the run's trials can't be read.
    """
    run = BilledRun.open(place.root)
    if run.fleet is None or not (known := reported_lifetimes(run.fleet, [place.fleet_state])):
        return None
    used = {item.instance for item in run_items(run)}
    nodes = {k: v for k, v in known.items() if k in used or v.run == run.frozen.run}
    if not nodes:
        return None
    since = min(life.launched for life in nodes.values())
    others = [
        one
        for one in _sibling_runs(run, since)
        if one.fleet and one.fleet.full_name == run.fleet.full_name
    ]
    found = bill([run, *others], nodes, now).items
    return add([item for item in found if (item.study, item.run) == run.name])


def _sibling_runs(run: BilledRun, since: datetime) -> Iterator[BilledRun]:
    root = run.folder.root
    are_by_study = root.parent.name == run.frozen.study.name  # runs/STUDY/RUN
    for place in root.parent.parent.glob("*/*") if are_by_study else root.parent.glob("*"):
        folder = RunFolder(place)
        with suppress(InputError, OSError):  # moved, or being removed
            if place != root and folder.study.exists() and _last_event(folder) >= since.timestamp():
                yield BilledRun.open(place)


def _last_event(folder: RunFolder) -> float:
    return max(untrusted_files.file_stamp(dag.nodes_log)[1] for dag in folder.all_dags()) / 1e9
