"""The runs in progress that use a fleet, from the queue and from their studies."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from trialfleet.classads import Universe
from trialfleet.errors import PoolError, TrialfleetError
from trialfleet.infra.fleet.pool.demand import fleet_machines
from trialfleet.infra.pool import schedd
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.study.frozen import load_frozen

_DAGMANS = (
    f"JobUniverse == {Universe.SCHEDULER} && DAGManJobId =?= undefined "
    "&& TrialfleetFolder isnt undefined"
)


def find_fleet_runs(fleet: str) -> list[Path]:
    """Return the folders of queued runs that use `fleet`; PoolError if HTCondor is unreachable."""
    ads = schedd.query(_DAGMANS, ["TrialfleetFolder", "TrialfleetRun"])
    there: set[str] = set()
    with suppress(PoolError):
        machines = fleet_machines(fleet, named=True)
        there = {trial.run for machine in machines for trial in machine.trials}
    found = {Path(ad["TrialfleetFolder"]): ad.get("TrialfleetRun") in there for ad in ads}
    return [place for place, is_there in sorted(found.items()) if is_there or _names(place, fleet)]


def _names(place: Path, fleet: str) -> bool:
    with suppress(TrialfleetError, OSError):
        own = load_frozen(RunFolder(place).study).study.fleet
        return own is not None and own.full_name == fleet
    return False
