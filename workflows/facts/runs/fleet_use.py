"""Which runs that are in progress use a fleet, by the queue and by what their studies say."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from trialfleet.classads import Universe
from trialfleet.errors import TrialfleetError
from trialfleet.infra.pool import schedd
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.study.frozen import load_frozen

_DAGMANS = (
    f"JobUniverse == {Universe.SCHEDULER} && DAGManJobId =?= undefined "
    "&& TrialfleetFolder isnt undefined"
)


def runs_on(fleet: str) -> list[Path]:
    """Return the folders of the runs in the queue whose study names a fleet.

    Raises:
        PoolError: the queue can't be asked.
    """
    ads = schedd.query(_DAGMANS, ["TrialfleetFolder"])
    return [
        place
        for place in sorted({Path(ad["TrialfleetFolder"]) for ad in ads})
        if _names(place, fleet)
    ]


def _names(place: Path, fleet: str) -> bool:
    with suppress(TrialfleetError, OSError):
        own = load_frozen(RunFolder(place).study).study.fleet
        return own is not None and own.called == fleet
    return False
