"""Days whose failed regions get another attempt, because a person has resumed the day's run.

If a day's run is stopped, its unfinished regions count as failed on this day. When a person resumes
the run, these outcomes stay in the journal, which also gets another attempt at the resumed regions.
The run's state says whether it was resumed. So nothing is lost if the process that resumes the run
crashes.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path

from trialfleet.errors import InputError, OptimizerError, TrialfleetError
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import (
    Attempt,
    Ending,
    Journal,
    Outcome,
    latest_outcomes,
    next_number,
)
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.status.status_reader import StatusReader, open_run


def reopen(folder: DailyFolder, journal: Journal, now: datetime) -> None:
    """Record another attempt in the journal for each resumed run with failed regions."""
    for (day, run), failed in _failed_with_runs(journal).items():
        if regions := _resumed_regions(folder, run, failed):
            journal.begin(_new_attempt(journal, day, run, regions, now))


def reopen_day(run: Path) -> None:
    """Record another attempt in the journal for the day of the resumed run in the folder `run`.

    If this fails, the next `trialfleet daily run` records the attempt.
    """
    folder = DailyFolder(run.parent)
    if folder.journal.exists():
        with suppress(TrialfleetError):
            reopen(folder, Journal(folder.journal), datetime.now(UTC))


def record_command(run: Path) -> str:
    """Return a sentence with the command that records the result of a resumed run's day.

    `run` is the run's folder. Return "" if the journal has no unfinished attempt of the run.
    """
    folder = DailyFolder(run.parent)
    known = Journal(folder.journal).attempts() if folder.journal.exists() else []
    days = [one.date for one in known if one.run == run.name and one.ended is None]
    return "".join(
        f"the day {day} of this run continues, too; the next daily run records the result; "
        f"to record it now: trialfleet daily run {folder.study_as_typed} --date {day}"
        for day in days[-1:]
    )


def _failed_with_runs(journal: Journal) -> dict[tuple[date, str], list[Outcome]]:
    """Return the failed outcomes by day and run, without regions that have another attempt now."""
    outcomes = journal.outcomes()
    open_now = {(a.date, r) for a in journal.attempts() if a.ended is None for r in a.regions}
    failed = {key for key, one in latest_outcomes(outcomes).items() if one.ending is Ending.FAILED}
    found: dict[tuple[date, str], dict[str, Outcome]] = defaultdict(dict)
    for one in outcomes:  # if a region failed twice in a run, the last counts
        if one.run is not None and (one.date, one.region) in failed - open_now:
            found[one.date, one.run][one.region] = one
    return {key: list(regions.values()) for key, regions in found.items()}


def _resumed_regions(folder: DailyFolder, run: str, failed: list[Outcome]) -> list[str]:
    """Return the `failed` regions for which the journal needs another attempt.

    If the resumed run is under way, these are all. Otherwise they are the regions that now have a
    model.
    """
    files = RunFolder(folder.run(run))
    if not _has_continued(files, failed):
        return []
    try:
        status = StatusReader(open_run(files.root), brief=True).read()
    except (InputError, OptimizerError):  # moved, or no storage: retried at the next check
        return []
    with_model = {region.name for region in status.regions if region.stage.has_model}
    goes_on = status.state.has_jobs
    return [one.region for one in failed if goes_on or one.region in with_model]


def _has_continued(files: RunFolder, failed: list[Outcome]) -> bool:
    """Return whether a DAGMan of the run was submitted or ended after the first failed outcome."""
    try:
        last = files.dag_files.log.stat().st_mtime
    except OSError:
        return False
    recorded = [one.recorded.timestamp() for one in failed if one.recorded]
    return bool(recorded) and last >= min(recorded)


def _new_attempt(
    journal: Journal, day: date, run: str, regions: list[str], now: datetime
) -> Attempt:
    before = journal.attempts(day)
    return Attempt(
        date=day,
        attempt=next_number(before),
        run=run,
        regions=tuple(regions),
        started=now,
        deadline=next((one.deadline for one in before if one.run == run), None),
    )
