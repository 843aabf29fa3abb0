"""The trial database of a run, and the manager that owns the run's Optuna studies in it.

Functions that ask for the owner raise OptimizerError if the database can't be used.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trialfleet import nodes
from trialfleet.errors import InputError, OptimizerError
from trialfleet.optimizer.stored_trials import Reader, reader_of_file, reader_of_url
from trialfleet.workflows.facts.run_folder.folder import TRIALS, RunFolder
from trialfleet.workflows.study.frozen import FrozenStudy, load_frozen
from trialfleet.workflows.study.spec import Study

if TYPE_CHECKING:
    from trialfleet.optimizer.run_ownership import Owner, Ownership
    from trialfleet.optimizer.storage_transactions import TrialStorage


def storage_url(folder: RunFolder, study: Study) -> str:
    """Return the URL of a run's trial database: the study's `storage`, or a file in `folder`."""
    from trialfleet.optimizer.storage_url import sqlite_url

    return study.storage or sqlite_url(folder.database)


def trials_reader(folder: RunFolder, study: Study, *, brief: bool = False) -> Reader:
    """Return a reader of a run's trials.

    With `brief`, the trials may lack their intermediate values and some of their attributes.
    """
    if study.storage:
        return reader_of_url(study.storage, brief=brief)
    return reader_of_file(folder.database, brief=brief)


def check_not_lost(folder: RunFolder, study: Study) -> None:
    """Raise OptimizerError if a run has trials, but its own database file is missing or empty."""
    if study.storage:
        return
    try:
        state = None if folder.database.stat().st_size else "empty"
    except FileNotFoundError:
        state = "missing"
    except OSError:  # unreachable: opening it reports that
        return
    if state and any(folder.regions.glob(f"*/{TRIALS}/*/{nodes.TRIAL}")):
        raise OptimizerError(
            f"the records of the run's trials are lost: {str(folder.database)!r} is {state}; "
            "restore a copy of the file, or start another run"
        )


def run_name(study: Study, run: str) -> str:
    """Return the name of a run, unique among all runs that share a trial database."""
    return f"{study.name}/{run}"


def study_name(study: Study, run: str, region: str) -> str:
    """Return the name of a region's Optuna study, unique among all that share a database."""
    return f"{run_name(study, run)}/{region}"


def get_ownership(frozen: FrozenStudy, folder: RunFolder, storage: TrialStorage) -> Ownership:
    """Return an object that checks or changes which manager owns a run's Optuna studies.

    In the database, this manager is identified by this machine and `folder`.
    """
    from trialfleet.optimizer.run_ownership import Ownership, this_owner

    return Ownership(storage, run_name(frozen.study, frozen.run), this_owner(folder.root))


def other_owner_error(frozen: FrozenStudy, folder: RunFolder, owner: Owner) -> str:
    """Return the error message for a run that belongs to another manager."""
    return (
        f"the run {run_name(frozen.study, frozen.run)!r} belongs to another manager: {owner}; "
        f"if that manager is gone for good: trialfleet takeover {shlex.quote(str(folder.root))}; "
        "otherwise plan with another --run-id"
    )


def check_ours(frozen: FrozenStudy, folder: RunFolder) -> None:
    """Make this manager the owner of a run's Optuna studies; InputError if another one owns them.

    A run with its own database file has no owner. OptimizerError is raised if the trials in this
    file are lost.
    """
    if not frozen.study.storage:
        check_not_lost(folder, frozen.study)
        return  # the file is the run's own; the service checks before it writes
    with _open_storage(frozen, folder) as storage:
        if owner := get_ownership(frozen, folder, storage).other_owner():
            raise InputError(other_owner_error(frozen, folder, owner))


def other_manager(frozen: FrozenStudy, folder: RunFolder) -> Owner | None:
    """Return the other manager that owns a run's Optuna studies; None if no other manager does."""
    if not frozen.study.storage:
        return None
    with _open_storage(frozen, folder) as storage:
        return get_ownership(frozen, folder, storage).known_other()


def is_taken_over(frozen: FrozenStudy, folder: RunFolder) -> bool | None:
    """Return whether another manager took over a daily run; None if the database is unreachable.

    Another manager may then be sending the alerts and exporting the models.
    """
    daily = frozen.study.daily
    if daily is None or daily.takeover_after is None:
        return False
    try:
        return other_manager(frozen, folder) is not None
    except OptimizerError:
        return None


def take_over(folder: RunFolder) -> Owner | None:
    """Make `folder` on this machine the owner of a run's Optuna studies.

    Return the previous owner; None if no other manager owned them.
    """
    frozen = load_frozen(folder.study)
    with _open_storage(frozen, folder) as storage:
        return get_ownership(frozen, folder, storage).take_over()


@contextmanager
def _open_storage(frozen: FrozenStudy, folder: RunFolder) -> Iterator[TrialStorage]:
    from trialfleet.optimizer.storage import close_storage, open_storage

    storage = open_storage(storage_url(folder, frozen.study))
    try:
        yield storage
    finally:
        close_storage(storage)
