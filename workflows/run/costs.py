"""What runs have cost: read from their studies, from their jobs' logs and from fleets' records."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from trialfleet.errors import InputError, OptimizerError, TrialfleetError
from trialfleet.infra.fleet.scaling import ledger
from trialfleet.infra.fleet.scaling.last_report import default_report, read_report
from trialfleet.infra.fleet.scaling.ledger import Lifetime
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.workflows.costs.cost import End
from trialfleet.workflows.costs.items import Item, Kind
from trialfleet.workflows.costs.nodes import settled
from trialfleet.workflows.plan.folder import RunFolder
from trialfleet.workflows.plan.graph import graph_of
from trialfleet.workflows.run.lookup import find_run, runs_here
from trialfleet.workflows.status.job_costs import place_stays, trial_stays
from trialfleet.workflows.status.job_log import Stay
from trialfleet.workflows.status.run_trials import RunTrials
from trialfleet.workflows.status.states import RunState
from trialfleet.workflows.status.status import StatusReader, open_run
from trialfleet.workflows.study.frozen import FrozenStudy, load_frozen

_LOST = {End.FAILED: Kind.FAILED, End.EVICTED: Kind.EVICTED}


@dataclass(frozen=True)
class Costs:
    """What runs have cost.

    Attributes:
        items: of the runs asked for, and of their nodes' time without a job.
        notices: what is missing in them, and why.
    """

    items: tuple[Item, ...]
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Run:
    """A run and the study that it froze."""

    folder: RunFolder
    frozen: FrozenStudy

    @property
    def name(self) -> tuple[str, str]:
        """What its items have of it."""
        return self.frozen.study.name, self.frozen.run

    @property
    def fleet(self) -> Fleet | None:
        """The study's fleet."""
        return self.frozen.study.fleet


def read_costs(names: Sequence[str] = (), now: datetime | None = None) -> Costs:
    """Return what runs have cost.

    Args:
        names: of runs, as `find_run` takes them, or of studies, which stand for all of their runs;
            none for all runs in `./runs`, and all that their fleets have cost.
        now: until when nodes cost that live yet; default: the present.

    Raises:
        InputError: there is no such run or study.
    """
    chosen = [_opened(place) for place in _places(names)] if names else _all_here()
    fleets = {run.fleet.called: run.fleet for run in chosen if run.fleet}
    # whoever else used their nodes has a part in these nodes' idle time
    others = [run for run in _all_here() if run.fleet and run.fleet.called in fleets]
    runs = {run.folder.root: run for run in [*others, *chosen]} if fleets else {}
    runs |= {run.folder.root: run for run in chosen}
    lifetimes, notices = _lifetimes(runs.values(), fleets.values(), now)
    items = []
    for run in runs.values():
        try:
            items += run_items(run.folder)
        except OptimizerError as error:
            notices.append(f"what {'/'.join(run.name)} has cost is missing: {error}")
    whole = settled(items, lifetimes, now or datetime.now(UTC))
    items = [_placed(item, list(runs.values())) for item in whole]
    if names:
        wanted = {run.name for run in chosen}
        items = [item for item in items if (item.study, item.run) in wanted]
    return Costs(tuple(items), tuple(notices))


def _placed(item: Item, runs: Sequence[_Run]) -> Item:
    """Complete the item of a node that no job used: its tag tells the run's id alone."""
    same = [run for run in runs if run.fleet and run.frozen.run == item.run]
    if item.study or len(same) != 1:
        return item
    frozen = same[0].frozen
    team = frozen.study.team or ""
    return replace(item, study=frozen.study.name, day=str(frozen.of_day), team=team)


def _places(names: Iterable[str]) -> list[Path]:
    """The runs that are named; the name of a study stands for all of its runs."""
    here = runs_here()
    places: dict[Path, None] = {}
    for name in names:
        of_study = [run.folder for run in here if run.study == name]
        is_run = any(name in {run.run, run.name} for run in here)
        found = [find_run(name)] if is_run or not of_study else of_study
        places |= dict.fromkeys(place.absolute() for place in found)
    return list(places)


def _opened(place: Path) -> _Run:
    folder = open_run(place)
    return _Run(folder, load_frozen(folder.study))


def _all_here() -> list[_Run]:
    """The runs in `./runs`, but for those that can't be read."""
    found = []
    for run in runs_here():
        with suppress(InputError):
            found.append(_opened(run.folder))
    return found


# -- jobs ------------------------------------------------------------------------------------------


def run_items(folder: RunFolder) -> list[Item]:
    """Return what a run's jobs have cost.

    Raises:
        OptimizerError: its study can't be read.
    """
    frozen = load_frozen(folder.study)
    is_under_way = StatusReader(folder).state() in {RunState.RUNNING, RunState.HELD}
    now = time.time() if is_under_way else None
    trials = RunTrials(folder, frozen)
    items = []
    for region in graph_of(frozen.study).regions:
        files = folder.region(region.slug)
        jobs = [
            (Kind.TRIAL, stay)
            for trial in trials.of(region.name)
            for stay in trial_stays(files, trial, frozen.study, now)
        ]
        until = None if files.is_done else now
        for kind, place in ((Kind.FULL, files.best), (Kind.GATE, files.gate)):
            jobs += [(kind, stay) for stay in place_stays(place, frozen.study, until)]
        items += [_item(frozen, region.name, kind, stay) for kind, stay in jobs]
    return items


def _item(frozen: FrozenStudy, region: str, kind: Kind, stay: Stay) -> Item:
    return Item(
        study=frozen.study.name,
        run=frozen.run,
        day=str(frozen.of_day),
        team=frozen.study.team or "",
        region=region,
        kind=_LOST.get(stay.end, kind),
        seconds=stay.ended - stay.began,
        usd=stay.usd,
        instance=stay.instance,
    )


# -- nodes -----------------------------------------------------------------------------------------


def _lifetimes(
    runs: Iterable[_Run], fleets: Iterable[Fleet], now: datetime | None
) -> tuple[dict[str, Lifetime], list[str]]:
    """What the nodes of fleets have lived, and why some of that isn't known."""
    reports = [run.folder.fleet_state for run in runs if run.fleet]
    found: dict[str, Lifetime] = {}
    notices = []
    for fleet in fleets:
        for report in [*reports, default_report(fleet.called)]:
            found |= _reported(report)
        try:
            found |= _recorded(fleet, now)
        except TrialfleetError as error:
            notices.append(
                f"the nodes of the fleet {fleet.called} are those that its autoscaler has reported "
                f"here: {error}"
            )
    return found, notices


def _reported(report: Path) -> dict[str, Lifetime]:
    """The nodes that an autoscaler has reported on this machine."""
    try:
        step = (read_report(report) or {}).get("step") or {}
        return ledger.parse_lines(step.get("instances") or {})
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _recorded(fleet: Fleet, now: datetime | None) -> dict[str, Lifetime]:
    """The nodes that the fleet's own record has, and those that AWS lists now.

    Raises:
        FleetError: AWS can't be asked.
    """
    from trialfleet.infra.fleet.aws.clients import Aws
    from trialfleet.infra.fleet.commands.status import current_record

    return dict(current_record(Aws(), fleet, now).lifetimes)
