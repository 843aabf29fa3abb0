"""trialfleet: tunes and trains one model per region on machines that HTCondor manages.

    import trialfleet

    run = trialfleet.plan("study.yaml")     # writes the run's folder
    run.submit()                            # hands it to HTCondor
    status = run.wait()                     # until every region has ended
    for settings in run.best():
        print(settings.region, settings.value, settings.params)

plan(study)         plans a run of a study: writes its folder, and returns the Run
Run(folder)         a run: submit, wait, watch, status, trials, best, stop, resume
load_study(study)   reads and checks a study file, or a dict, and returns the Study
Study               the content of a study file

Run.status() returns a RunStatus with a RegionStatus for each region; both have a RunState.
Run.trials() returns Trials. Each Trial has a row() for a table:
pandas.DataFrame([trial.row() for trial in run.trials()]). Run.best() returns BestSettings.

Errors are subclasses of TrialfleetError, with a message for the user. In a notebook, a Run shows
its status; `trialfleet init FOLDER --example notebook` writes a notebook. The command line has
these functions and more; see `trialfleet --help`.
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
    from trialfleet.workflows.control.daily.overview import days
    from trialfleet.workflows.control.models.prediction_file import predict
    from trialfleet.workflows.control.promote_and_rollback import Switch, promote, rollback
    from trialfleet.workflows.control.run.new_run import plan
    from trialfleet.workflows.control.run.run import Run
    from trialfleet.workflows.facts.journal.journal import Ending, Outcome
    from trialfleet.workflows.facts.models.listing import PublishedModel
    from trialfleet.workflows.facts.runs.model_lookup import RegionModels, models
    from trialfleet.workflows.rules.cost_sums import CostSum
    from trialfleet.workflows.rules.states import RunState, Stage, TrialState
    from trialfleet.workflows.status.costs.run_costs import Costs, cost
    from trialfleet.workflows.status.run_trials import Trial
    from trialfleet.workflows.status.status_types import BestSettings, RegionStatus, RunStatus
    from trialfleet.workflows.study.loading import load_study
    from trialfleet.workflows.study.spec import Study
    from trialfleet.workflows.views.terminal.days_table import DaysOverview, DayView

__all__ = [
    "BestSettings",
    "CostSum",
    "Costs",
    "DayView",
    "DaysOverview",
    "Ending",
    "FleetError",
    "InputError",
    "OptimizerError",
    "Outcome",
    "PoolError",
    "PublishedModel",
    "RegionModels",
    "RegionStatus",
    "Run",
    "RunState",
    "RunStatus",
    "Stage",
    "Study",
    "StudyError",
    "Switch",
    "Trial",
    "TrialState",
    "TrialfleetError",
    "cost",
    "days",
    "load_study",
    "models",
    "plan",
    "predict",
    "promote",
    "rollback",
]

_HOMES = {
    "workflows.control.run.new_run": ("plan",),
    "workflows.control.daily.overview": ("days",),
    "workflows.control.promote_and_rollback": ("Switch", "promote", "rollback"),
    "workflows.control.models.prediction_file": ("predict",),
    "workflows.control.run.run": ("Run",),
    "workflows.facts.journal.journal": ("Ending", "Outcome"),
    "workflows.facts.models.listing": ("PublishedModel",),
    "workflows.facts.runs.model_lookup": ("RegionModels", "models"),
    "workflows.rules.cost_sums": ("CostSum",),
    "workflows.status.costs.run_costs": ("Costs", "cost"),
    "workflows.views.terminal.days_table": ("DaysOverview", "DayView"),
    "workflows.rules.states": ("RunState", "Stage", "TrialState"),
    "workflows.status.run_trials": ("Trial",),
    "workflows.status.status_types": ("BestSettings", "RegionStatus", "RunStatus"),
    "workflows.study.spec": ("Study",),
    "workflows.study.loading": ("load_study",),
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use, so that `import trialfleet` is fast."""
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(f"trialfleet.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'trialfleet' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, imported or not, for help() and completion."""
    return sorted({name for name in globals() if name.startswith("__")} | {*__all__})
