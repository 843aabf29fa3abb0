"""trialfleet: tunes and trains one model per region on a fleet that HTCondor manages.

    import trialfleet

    run = trialfleet.plan("study.yaml")     # writes the run's folder
    run.submit()                            # hands it to HTCondor
    status = run.wait()                     # until every region is published, or given up
    for settings in run.best():
        print(settings.region, settings.value, settings.params)

plan(study)         writes the folder of a run of a study, and returns the Run
Run(folder)         a run: submit, wait, watch, status, trials, best, stop, resume
load_study(study)   reads and checks a study file, or a dict, and returns the Study
Study               what a study file holds

Run.status() gives a RunStatus with a RegionStatus for each region, both with a RunState;
Run.trials() Trials, each with a row() for a table, so that
pandas.DataFrame([trial.row() for trial in run.trials()]) is one; Run.best() BestSettings. What goes
wrong is a TrialfleetError, whose text is for people. In a notebook, a Run shows where it stands;
`trialfleet init FOLDER --example notebook` writes one. The command line does the same; see
`trialfleet --help`.
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
    from trialfleet.workflows.control.models.predict import predict
    from trialfleet.workflows.control.run.new_run import plan
    from trialfleet.workflows.control.run.run import Run
    from trialfleet.workflows.rules.states import RunState, Stage, TrialState
    from trialfleet.workflows.status.best_settings import BestSettings
    from trialfleet.workflows.status.run_status import RegionStatus, RunStatus
    from trialfleet.workflows.status.run_trials import Trial
    from trialfleet.workflows.study.loading import load_study
    from trialfleet.workflows.study.spec import Study

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
    "Stage",
    "Study",
    "StudyError",
    "Trial",
    "TrialState",
    "TrialfleetError",
    "load_study",
    "plan",
    "predict",
]

_HOMES = {
    "workflows.status.best_settings": ("BestSettings",),
    "workflows.control.run.new_run": ("plan",),
    "workflows.control.models.predict": ("predict",),
    "workflows.control.run.run": ("Run",),
    "workflows.rules.states": ("RunState", "Stage", "TrialState"),
    "workflows.status.run_trials": ("Trial",),
    "workflows.status.run_status": ("RegionStatus", "RunStatus"),
    "workflows.study.spec": ("Study",),
    "workflows.study.loading": ("load_study",),
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: a trial's scripts need none of them."""
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(f"trialfleet.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'trialfleet' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, also those that are yet to be imported: for help() and completion."""
    return sorted({name for name in globals() if name.startswith("__")} | {*__all__})
