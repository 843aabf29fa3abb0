"""The daily schedule, which is a systemd timer or an HTCondor job.

While this job is on hold, an alert is sent each day.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from trialfleet.errors import PoolError
from trialfleet.files import lock_file, shell_quoted, write_atomic
from trialfleet.infra.pool.connection import named_configuration, start_command
from trialfleet.infra.pool.embedded import embedded_folder
from trialfleet.workflows.control.dagman.alert_and_export_processes import SCHEDULE_LOCK, be_watcher
from trialfleet.workflows.control.daily.day_loop import daily_study
from trialfleet.workflows.control.daily.htcondor_timer import install_job, job_there, remove_job
from trialfleet.workflows.control.daily.missed_days import LATE, next_start_text
from trialfleet.workflows.control.daily.start_script import write_start
from trialfleet.workflows.control.daily.systemd_timer import Units, is_lingering
from trialfleet.workflows.control.notify.delivery import LOOK_SECONDS, deliver_all
from trialfleet.workflows.facts.journal.event import Event, event_id
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Journal
from trialfleet.workflows.facts.journal.outbox import Outbox
from trialfleet.workflows.formatting import in_one_line
from trialfleet.workflows.study.daily import Daily
from trialfleet.workflows.study.loading import load_whole

Say = Callable[[str], None]


def install(file: Path, say: Say, *, system: bool = False) -> None:
    """Install or update the schedule of a study's days. `say` gets a line for each action.

    With `system`, the machine's systemd is used. Otherwise the user's systemd is used, or HTCondor
    if the user's systemd does not run.

    Raises:
        InputError: the study can't be used, or only root may install this schedule.
        PoolError: systemd or HTCondor refuses the schedule.
        TrialfleetError: the journal can't be used.
    """
    study, daily = daily_study(file)
    folder = DailyFolder.for_study(study.name)
    owner = _owner(folder)
    if system:
        _make_runs_folder(folder, owner)
    text = write_start(folder, study.name, file)
    units = Units.for_study(study.name, folder, system=system)
    if system or units.can_be_used():
        units.install(study.name, daily, folder.start, owner)
        say(f"installed {units.timer}, which starts {folder.start}")
        if not system and not is_lingering():
            say("the timer works while you are logged in; to change this: loginctl enable-linger")
    else:
        write_atomic(folder.study, f"{file.absolute()}\n")
        if study.notify:
            Outbox(folder.alerts)  # for an alert before the first day
        job = install_job(study.name, daily, folder, text)
        say(f"systemd does not run here; HTCondor's job {job} starts {folder.start} each day")
        # nothing starts an embedded pool after a reboot
        is_embedded = embedded_folder(named_configuration()) is not None
        after_a_reboot = f": after a reboot, {start_command()}" if is_embedded else ""
        say(f"the job starts it only while HTCondor is up{after_a_reboot}")
    now = datetime.now(UTC)
    due = daily.due_day(now)
    has_begun = folder.journal.exists() and Journal(folder.journal).attempts(due)
    if daily.missed != "none" and not has_begun:
        say(f"the day {due} is due, so the timer begins it within an hour")
    say(f"next day begins {next_start_text(daily, now)}")


def _owner(folder: DailyFolder) -> str:
    """Return the account that works on the days.

    This is the journal's owner. Without a journal, this is the account that called sudo. Without
    sudo, this is the owner of the runs' folder or of its nearest existing parent.
    """
    if not folder.journal.exists() and (asks := os.environ.get("SUDO_USER")):
        return asks
    places = (folder.journal, folder.root, *folder.root.parents)
    return pwd.getpwuid(next(p for p in places if p.exists()).stat().st_uid).pw_name


def _make_runs_folder(folder: DailyFolder, owner: str) -> None:
    """Create the runs' folder. As root, give this folder and its new parents to `owner`.

    An existing folder without a journal is also given to `owner`, because an interrupted
    installation may have left it.
    """
    missing = [place for place in folder.root.parents if not place.exists()]
    folder.root.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0 and not folder.journal.exists():
        account = pwd.getpwnam(owner)
        for place in (*missing, folder.root):
            os.chown(place, account.pw_uid, account.pw_gid)


def remove(file: Path, say: Say) -> None:
    """Stop scheduling a study's days. A running day continues, and the journal stays.

    Raises:
        InputError: the study can't be read. The study may lack the table `daily:`.
        PoolError: systemd refuses. If HTCondor refuses, a line goes to `say` instead.
    """
    study = load_whole(file)
    folder = DailyFolder.for_study(study.name)
    removed = False
    for system in (False, True):
        units = Units.for_study(study.name, folder, system=system)
        if units.remove():
            say(f"removed {units.timer}")
            removed = True
    try:
        if remove_job(folder):
            say("removed HTCondor's job")
            removed = True
    except PoolError as error:
        say(f"HTCondor's job was not removed, if there is one: {error}")
    folder.start.unlink(missing_ok=True)
    if not removed:
        say(f"no schedule was installed for {study.name} here")


def find_schedule(study: str, folder: DailyFolder) -> tuple[str | None, str]:
    """Return the name of the timer or job that starts a study's days, and what is wrong with it.

    The name is None if neither was found. If HTCondor is unreachable, no job can be found. The
    second text is "" if nothing prevents the next day's start, or if no schedule is installed. It
    is also "" if the timer's systemd can't be asked.
    """
    for system in (False, True):
        units = Units.for_study(study, folder, system=system)
        if units.timer.exists():
            return str(units.timer), units.find_fault()
    try:
        found = job_there(folder)
    except PoolError:
        is_installed = folder.start.exists()  # the start script, which is removed with the schedule
        away = f"HTCondor, which starts it, is unreachable: {start_command()}"
        return None, away if is_installed else ""
    if found is None:
        return None, ""
    job, reason = found
    name = f"HTCondor's job {job}"
    held = f"{name}, which starts it, is on hold ({reason}): condor_release {job}"
    return name, "" if reason is None else held


def why_unbegun(
    study: str, daily: Daily, folder: DailyFolder, journal: Journal, now: datetime
) -> str:
    """Return that the installed schedule has not begun the due day in time, or an empty text."""
    due, attempts = daily.due_day(now), journal.attempts()
    begins, start = daily.start_time(due), folder.start
    is_late = now - begins > LATE and start.exists() and start.stat().st_mtime < begins.timestamp()
    if not is_late or any(one.date == due for one in attempts):
        return ""
    both = (Units.for_study(study, folder, system=system) for system in (False, True))
    outputs = (units.output for units in both if units.timer.exists())
    output = next(outputs, shell_quoted(folder.log))
    unended = next((f" ({one.date} has not ended)" for one in attempts if not one.ended), "")
    return f"the day {due} was due at {begins:%H:%M} UTC, but has not begun{unended}: see {output}"


def watch_held_job(folder: DailyFolder) -> None:
    """Send an alert each day while the job that starts the daily runs is on hold.

    Return at once if another process already does this. TrialfleetError if the study or the stored
    alerts can't be used.
    """
    with lock_file(folder.alerts / SCHEDULE_LOCK, wait=False) as ours:
        if ours:
            _send_while_held(folder)


def _send_while_held(folder: DailyFolder) -> None:
    file, outbox = Path(folder.study.read_text().removesuffix("\n")), Outbox(folder.alerts)
    while True:
        study, daily = daily_study(file)
        name, fault = find_schedule(study.name, folder)
        if name is None or not fault:
            return
        event = Event(
            id=event_id(folder.root, "schedule", daily.due_day(datetime.now(UTC)), fault),
            kind="attention",
            study=study.name,
            title=in_one_line(f"{study.name}: no day starts: {fault}"),
            text=f"More: trialfleet daily status {folder.study_as_typed}",
        )
        outbox.put([event], channels := study.channels(file.parent), is_daily=True)
        deliver_all(outbox, partial(tuple, channels))
        time.sleep(LOOK_SECONDS)


def main() -> None:
    """Send alerts while the job that starts a study's days is on hold."""
    be_watcher(lambda days: watch_held_job(DailyFolder(days)), main.__doc__)
