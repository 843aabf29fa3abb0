"""trialfleet: tunes and trains one model per region on a fleet that HTCondor manages.

    import trialfleet

    run = trialfleet.plan("study.yaml")     # writes the run's folder
    run.submit()                            # hands it to HTCondor
    status = run.wait()                     # until every region is published, or given up
    for settings in run.best():
        print(settings.region, settings.value, settings.params)

The command line does the same; see `trialfleet --help`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trialfleet.errors import (
    FleetError,
    InputError,
    OptimizerError,
    PoolError,
    StudyError,
    TrialfleetError,
)

if TYPE_CHECKING:
    from trialfleet.workflows.run import BestSettings, Run, TrialRecord, plan
    from trialfleet.workflows.status import RegionStatus, RunState, RunStatus
    from trialfleet.workflows.study import Study
    from trialfleet.workflows.study_file import load_study

__all__ = [
    "BestSettings",
    "FleetError",
    "InputError",
    "OptimizerError",
    "PoolError",
    "RegionStatus",
    "Run",
    "RunState",
    "RunStatus",
    "Study",
    "StudyError",
    "TrialRecord",
    "TrialfleetError",
    "load_study",
    "plan",
]

_HOMES = {
    "workflows.run": ("BestSettings", "Run", "TrialRecord", "plan"),
    "workflows.status": ("RegionStatus", "RunState", "RunStatus"),
    "workflows.study": ("Study",),
    "workflows.study_file": ("load_study",),
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: a trial's scripts need none of them."""
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"trialfleet.{module}"), name)
    raise AttributeError(f"module 'trialfleet' has no attribute {name!r}")
