"""Overview of a study's days, for `daily status` and the Python API."""

from __future__ import annotations

from contextlib import closing
from os import PathLike
from pathlib import Path

from trialfleet import wall_clock
from trialfleet.errors import OptimizerError, TrialfleetError
from trialfleet.workflows.control.daily.day_loop import open_journal
from trialfleet.workflows.control.daily.late_data import awaited_now
from trialfleet.workflows.control.daily.missed_days import next_start
from trialfleet.workflows.control.daily.schedule import find_schedule, why_unbegun
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.lease import Lease
from trialfleet.workflows.facts.journal.outbox import undelivered_lines
from trialfleet.workflows.facts.models.approval import UnapprovedModel, awaiting_by_region
from trialfleet.workflows.study.daily import parse_duration
from trialfleet.workflows.study.loading import load_published
from trialfleet.workflows.study.spec import Study
from trialfleet.workflows.views.terminal.days_table import DaysOverview, newest_days


def days(study: str | PathLike[str], *, most: int = 14) -> DaysOverview:
    """Return a study's newest days with the outcomes of their regions, at most `most` days.

    Call this function in the working directory of the runs, where the days are stored.

    Raises:
        InputError: the study can't be read, or it has neither a `daily:` table nor a past day.
    """
    return read_overview(Path(study), most)[2]


def read_overview(file: Path, most: int) -> tuple[Study, DailyFolder, DaysOverview]:
    """Return a study, the folder of its days, and an overview of the newest `most` days."""
    whole, folder, journal = open_journal(file)
    lease, away = _read_lease(whole, folder)
    now = wall_clock.real_time()
    shown = newest_days(journal, most)
    awaiting, models_away = _read_awaiting(file)
    clock, clock_fault = find_schedule(whole.name, folder)
    if clock and whole.daily and not clock_fault:
        clock_fault = why_unbegun(whole.name, whole.daily, folder, journal, now)
    found = DaysOverview(
        study=whole.name,
        days=shown,
        newest=shown[0].outcomes if shown else (),
        next_start=next_start(whole.daily, now) if whole.daily else None,
        clock=clock,
        clock_fault=clock_fault,
        awaiting=awaiting,
        models_away=models_away,
        awaited=awaited_now(file, journal, now) if whole.daily else {},
        lease=lease,
        database_away=away,
        undelivered=undelivered_lines(folder.alerts),
    )
    return whole, folder, found


def _read_awaiting(file: Path) -> tuple[dict[str, UnapprovedModel], str]:
    """Return the models that wait for approval, by region; or {} and why they are unknown."""
    try:
        return awaiting_by_region(load_published(file)), ""
    except (TrialfleetError, OSError) as error:
        return {}, f"it is unknown whether models wait for approval: {error}"


def _read_lease(study: Study, folder: DailyFolder) -> tuple[Lease | None, str]:
    """Update this machine's copy of the journal. Return the lease on the days, and an error's text.

    The lease is None if only one manager runs the days, if no day has begun, or if the managers'
    shared database can't be read. The text is "" if there is no error.
    """
    if study.daily is None or study.daily.takeover_after is None or study.storage is None:
        return None, ""
    from trialfleet.optimizer.run_ownership import this_owner
    from trialfleet.workflows.facts.journal.shared_journal import SharedJournal
    from trialfleet.workflows.facts.journal.shared_rows import SharedRows

    lasts = parse_duration(study.daily.takeover_after)
    try:
        owner = this_owner(folder.root)
        with closing(SharedRows(study.storage, study.name, owner, lasts)) as rows:
            SharedJournal(folder.journal, rows).pull()
            return rows.lease(), ""
    except OptimizerError as error:
        return None, str(error)
