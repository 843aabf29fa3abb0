"""The previous results from which a new run learns, as the study's key `learn_from` says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from trialfleet.errors import InputError, TrialfleetError
from trialfleet.objective import loss
from trialfleet.optimizer.sampling.names import OWN
from trialfleet.optimizer.sampling.warm_start import PreviousTask
from trialfleet.optimizer.stored_trials import StoredTrial, best_first
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.lookup import find_run, runs_here
from trialfleet.workflows.facts.runs.run_storage import study_name
from trialfleet.workflows.status.run_trials import RunTrials
from trialfleet.workflows.status.status_reader import open_run
from trialfleet.workflows.study.frozen import FrozenStudy, load_frozen
from trialfleet.workflows.study.spec import Study

MOST_RESULTS = 50  # per region: half of these are the best, the others a sample
MOST_TASKS = 100
_NEWEST = 5  # number of a study's runs to choose from
_LEAST_PART = 0.5  # least number of results, relative to the run with the most


def previous_tasks(study: Study) -> list[PreviousTask]:
    """Return the results from which a new run learns.

    The list is empty if the study uses one of Optuna's samplers: they can't use previous results.
    InputError if the study's `learn_from` can't be used.
    """
    if study.sampler != OWN:  # Optuna's samplers can't learn from previous results
        return []
    if study.learn_from is None:
        return _newest_tasks(study.name, study) or []
    found = [task for name in study.learn_from for task in _find_tasks(name, study)]
    return found[:MOST_TASKS]


def _find_tasks(name: str, study: Study) -> list[PreviousTask]:
    if any(run.study == name for run in runs_here()):
        tasks = _newest_tasks(name, study)
        if tasks is None:
            raise InputError(
                f"learn_from: no run of the study {name!r} has results for this study's objective, "
                f"{_objective(study)}; to list the runs: trialfleet runs"
            )
        return tasks
    try:
        folder = open_run(find_run(name))
        frozen = load_frozen(folder.study)
    except InputError as error:
        raise InputError(f"learn_from: {error}") from error
    if _objective(frozen.study) != _objective(study):
        raise InputError(
            f"learn_from: the run {name!r} tunes {_objective(frozen.study)}, but this study tunes "
            f"{_objective(study)}"
        )
    return _read_tasks(folder, frozen, study)


def earlier_runs(study: str) -> Iterator[tuple[RunFolder, FrozenStudy]]:
    """Yield a study's runs in ./runs, newest first, without those that can't be read."""
    for run in runs_here():
        if run.study in {study, ""}:  # "": not in a study's folder
            try:
                folder = open_run(run.folder)
                frozen = load_frozen(folder.study)
            except TrialfleetError:  # such as a run that was moved
                continue
            if frozen.study.name == study:
                yield folder, frozen


def _objective(study: Study) -> str:
    return f"{study.objective.metric} ({study.objective.direction})"


def _newest_tasks(name: str, study: Study) -> list[PreviousTask] | None:
    """Return the results of a study's newest run with enough results; None if no run has results.

    Only the `_NEWEST` newest runs with results are considered. A run has enough results if it has
    at least half as many as the run with the most.
    """
    runs = list(islice(_tasks_by_run(name, study), _NEWEST))
    most = max((_count(tasks) for tasks in runs), default=0)
    return next((tasks for tasks in runs if _count(tasks) >= _LEAST_PART * most), None)


def _tasks_by_run(name: str, study: Study) -> Iterator[list[PreviousTask]]:
    for folder, frozen in earlier_runs(name):
        if _objective(frozen.study) == _objective(study):
            tasks: list[PreviousTask] = []
            with suppress(TrialfleetError):  # its storage was removed
                tasks = _read_tasks(folder, frozen, study)
            if tasks:
                yield tasks


def _count(tasks: list[PreviousTask]) -> int:
    return sum(len(task.losses) for task in tasks)


def _read_tasks(folder: RunFolder, frozen: FrozenStudy, study: Study) -> list[PreviousTask]:
    reader = RunTrials(folder, frozen)
    direction = study.objective.direction
    found = []
    for region in islice(frozen.study.region_table, MOST_TASKS):
        known = best_first(reader.read_region(region), direction)
        if kept := _choose_results([trial for trial in known if "params" in trial.user_attrs]):
            found.append(
                PreviousTask(
                    name=study_name(frozen.study, frozen.run, region),
                    region=region,
                    points=tuple(trial.user_attrs["params"] for trial in kept),
                    losses=tuple(loss(trial.value, direction) for trial in kept),
                )
            )
    return found


def _choose_results(ordered: list[StoredTrial]) -> list[StoredTrial]:
    if len(ordered) <= MOST_RESULTS:
        return ordered
    best, others = ordered[: MOST_RESULTS // 2], ordered[MOST_RESULTS // 2 :]
    count = MOST_RESULTS - len(best)
    return best + [others[round(i * (len(others) - 1) / (count - 1))] for i in range(count)]
