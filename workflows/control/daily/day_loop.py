"""The work on a study's days, day by day, with further attempts for regions with late data."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.errors import InputError, StudyError, TrialfleetError
from trialfleet.files import shell_quoted, write_atomic
from trialfleet.wall_clock import real_time
from trialfleet.workflows.control.daily.alert_sending import Sender, send_remaining
from trialfleet.workflows.control.daily.day_alerts import awaited_event, takeover_event, tell_days
from trialfleet.workflows.control.daily.day_attempt import Clock, DailyWork, Say
from trialfleet.workflows.control.daily.day_lock import day_lock
from trialfleet.workflows.control.daily.late_data import late_regions, write_times
from trialfleet.workflows.control.daily.missed_days import (
    days_to_do,
    is_missed,
    next_start_text,
)
from trialfleet.workflows.control.daily.pool_watch import BusyDayWatch
from trialfleet.workflows.control.plan.run_ids import published_already
from trialfleet.workflows.control.run.reopened_days import reopen
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import (
    Attempt,
    Ending,
    Journal,
    Outcome,
    latest_outcomes,
    next_number,
)
from trialfleet.workflows.facts.journal.lease import Lease, LeaseLostError
from trialfleet.workflows.facts.journal.outbox import Outbox
from trialfleet.workflows.study.daily import Daily
from trialfleet.workflows.study.loading import load_day, load_published, load_whole
from trialfleet.workflows.study.spec import Study

if TYPE_CHECKING:
    from trialfleet.workflows.control.takeover.manager_lease import Managers

BATCH_SECONDS = 120.0  # between two checks for late data, so that several regions share a run
MANY_DAYS = 100  # a backfill of more days is probably a typing error


def daily_study(file: Path) -> tuple[Study, Daily]:
    """Return a study and its `daily:` table.

    InputError if the study can't be read or has no `daily:` table.
    """
    study = load_whole(file)
    if study.daily is None:
        raise StudyError(
            f"{file}: the study has no `daily:` table; add one, such as `daily: {{at: '02:30'}}`"
        )
    return study, study.daily


def open_journal(file: Path) -> tuple[Study, DailyFolder, Journal]:
    """Return a study, the folder of its days, and the journal with the outcomes of all days.

    Raises:
        InputError: the study can't be read, or it has neither a `daily:` table nor a journal.
    """
    study = load_whole(file)
    folder = DailyFolder.for_study(study.name)
    if not folder.journal.exists():
        daily_study(file)
        folder.root.mkdir(parents=True, exist_ok=True)
    return study, folder, Journal(folder.journal)


class Days:
    """The days of a study. Their journal is in the working directory, next to the runs."""

    def __init__(self, file: Path, *, clock: Clock = real_time, say: Say = print) -> None:
        """Open the journal. InputError if the study can't be read or has no `daily:` table."""
        self._study, self._daily = daily_study(file)
        self._file, self._clock, self._say = file, clock, say
        self.folder = DailyFolder.for_study(self._study.name)
        self.folder.root.mkdir(parents=True, exist_ok=True)
        write_atomic(self.folder.study, f"{file.absolute()}\n")
        managers = self._managers = self._two_managers()
        self.journal = managers.journal if managers else Journal(self.folder.journal)
        self._work = DailyWork(file, self.folder, self.journal, clock, say, self.tell, managers)
        self._sender: Sender | None = None

    def run(self, day: date | None = None) -> list[date]:
        """Work on a day until its end, and return the days that were worked on.

        If `day` is None, work on the latest due day, and on days that become due during this work.
        With `missed: all` in the study, also work on missed days. With `missed: none`, do nothing
        if the latest due day was missed. InputError if the study can't be used, or if `day` is in
        the future.
        """
        if day:
            self._check_past(day)
            self._finish_day(day)
            return [day]
        begun = {attempt.date for attempt in self.journal.attempts()}
        if is_missed(self._daily, begun, now := self._clock()):
            due, following = self._daily.due_day(now), next_start_text(self._daily, now)
            self._say(f"{due} was missed; the next day begins {following}")
            return []
        done: list[date] = []
        while not done or self._daily.due_day(self._clock()) > done[-1]:
            begun = {attempt.date for attempt in self.journal.attempts()}
            for each in days_to_do(self._daily, begun, self._clock()):
                self._finish_day(each)
                done.append(each)
        return done

    def backfill(
        self, first: date, last: date, *, only_missing: bool, however_many: bool = False
    ) -> list[date]:
        """Train the missing regions of past days, and return the days that had missing regions.

        The oldest day goes first. A region is missing if it failed or has no outcome. Without
        `however_many`, at most `MANY_DAYS` days are allowed.

        Raises:
            InputError: the study can't be used, `first` is after `last`, a day is in the future,
                there are too many days, or regions have succeeded and `only_missing` is not set.
        """
        self._check_past(last)
        if first > last:
            raise InputError(f"--from {first} is after --to {last}")
        count = (last - first).days + 1
        if count > MANY_DAYS and not however_many:
            raise InputError(
                f"from {first} to {last} are {count:,} days, more than {MANY_DAYS}; "
                "correct --from, or give --yes"
            )
        if not only_missing:
            self._check_nothing_ended_well(first, last)
        days = [first + timedelta(days=number) for number in range(count)]
        return [
            day
            for number, day in enumerate(days, start=1)
            if self._backfill_day(day, f"{number:,} of {count:,} days")
        ]

    def tell(
        self, planned: Attempt | None = None, awaited: Mapping[str, str] | None = None
    ) -> None:
        """Send alerts to the study's channels in the background. An error is printed, not raised.

        `awaited` has the regions of `planned` whose data can't be used yet, each with the reason.
        An alert lists these regions.
        """
        try:
            channels = self._study.channels(self._file.absolute().parent)
            study = load_published(self._file)
            outbox = Outbox(self.folder.alerts) if channels else None
            if outbox:
                self._share_alerts(outbox)
                if self._managers is None or self._managers.has_worked:
                    tell_days(study, channels, outbox, self.folder, self.journal, self._clock())
            if outbox and planned and awaited:
                until = self._daily.data_deadline(planned.date)
                event = awaited_event(study.name, self.journal, planned, awaited, until)
                outbox.put([event], channels, is_daily=True)
        except (TrialfleetError, OSError) as error:
            self._say(f"alerts: {error}")
            return
        if outbox and not (self._sender and self._sender.is_alive()):
            self._sender = Sender(outbox, channels)
            self._sender.start()

    def _share_alerts(self, outbox: Outbox) -> None:
        """Skip alerts that the other manager sent. Tell it which were sent here."""
        if self._managers:
            outbox.skip(self._managers.sent_events)
            self._managers.note_sent(outbox.sent_events())

    def finish_telling(self) -> None:
        """Try once more to send the waiting alerts, and leave the rest to an HTCondor job."""
        self.tell()
        if self._sender is None:
            return
        self._sender.finish()
        try:
            self._share_alerts(self._sender.outbox)
            line = send_remaining(self._sender.outbox, self._study.name, self._file, self.folder)
        except (TrialfleetError, OSError) as error:
            line = f"alerts: {error}"
        if line:
            self._say(line)
        self._sender = None

    def _two_managers(self) -> Managers | None:
        if self._daily.takeover_after is None:
            return None
        from trialfleet.workflows.control.takeover.manager_lease import Managers

        return Managers(load_published(self._file), self.folder, self._say)

    def _check_past(self, day: date) -> None:
        today = self._daily.today(self._clock())
        if day > today:
            raise InputError(f"{day} is in the future: today is {today}")

    def _check_nothing_ended_well(self, first: date, last: date) -> None:
        counted = latest_outcomes(self.journal.outcomes(first, last)).values()
        good = [one for one in counted if one.ending is not Ending.FAILED]
        if good:
            raise InputError(
                f"from {first} to {last}, regions have succeeded already ({len(good)} in all, such "
                f"as {good[0].region} on {good[0].date}: {good[0].ending}). A backfill does not "
                "train these again: give --only missing to train only the other regions"
            )

    # -- one day -----------------------------------------------------------------------------------

    def _finish_day(self, day: date) -> None:
        """Work on a day until its end, or wait until another process has finished it."""
        if self._managers is None:
            self._first_attempt(day)
            reopen(self.folder, self.journal, self._clock())
        waits = BusyDayWatch(self._say)

        def gives_up(busy: date | None) -> bool:
            known = self.journal.attempts(day)
            if _all_ended(known):  # the day is finished
                return True
            waits.update(busy)
            return (
                bool(known) and known[0].is_past_deadline(self._clock()) and busy not in {None, day}
            )

        with day_lock(self.folder, day, gives_up) as ours:
            if ours:
                while not self._work_on(day):
                    self._say("another manager continues the day; this manager is on standby")
            else:
                self._abandon(day, f"the work on another day, {waits.busy},")
        self.tell()

    def _work_on(self, day: date) -> bool:
        """Work on a day, or wait until another manager has finished it.

        Return False if this manager lost the lease.
        """
        try:
            with self._lease(day) as ours:
                if not ours:
                    return True
                self._first_attempt(day)
                self._finish_open()
                if late := self._newly_arrived(day):
                    self._begin(day, late)
                    self._finish_open()
        except LeaseLostError:
            return False
        return True

    def _abandon(self, day: date, blocker: str) -> None:
        """Record that the regions of `day` failed, because `blocker` didn't end by the deadline.

        `blocker` is a text such as "the work on another day, 2026-11-22,".
        """
        attempt = next(iter(self.journal.attempts(day)), None)
        if attempt and not attempt.ended and self._managers is None:
            why = f"the day's deadline was over before {blocker} ended"
            self._work.fail(attempt, dict.fromkeys(self._work.remaining_regions(attempt), why))
            self.journal.end(attempt, self._clock())

    @contextmanager
    def _lease(self, day: date, *, is_backfill: bool = False) -> Iterator[bool]:
        """Wait for the lease, and yield True. Yield False if the other manager finishes `day`.

        This manager holds the lease during the `with` block. Before the block, it copies the other
        manager's models and outcomes. With `is_backfill`, it waits even after the other manager has
        finished `day`. A single manager needs no lease.
        """
        managers = self._managers
        if managers is None:
            yield True
            return

        def gives_up() -> bool:
            return not is_backfill and _all_ended(self.journal.attempts(day))

        with managers.hold_lease(gives_up, at_once=is_backfill) as ours:
            if ours:
                if managers.taken_from:
                    self._tell_takeover(day, managers.taken_from)
                managers.restore(self._regions(day))
                for attempt in self.journal.attempts():
                    if not attempt.ended:
                        found = managers.outcomes(attempt, self._work.remaining_regions(attempt))
                        self.journal.record(found, self._clock())
            yield ours

    def _tell_takeover(self, day: date, previous: Lease) -> None:
        self._say(f"{day}: taken over from {previous.host}, which stopped responding")
        event = takeover_event(self._study.name, self.journal, day, previous)
        if channels := self._study.channels(self._file.absolute().parent):
            Outbox(self.folder.alerts).put([event], channels, is_daily=True)
            self.tell()

    def _backfill_day(self, day: date, progress: str) -> bool:
        """Train a day's missing regions, and return whether any were missing.

        `progress` is a text such as "3 of 10 days".
        """
        waits = BusyDayWatch(self._say)
        with day_lock(self.folder, day, waits.update), self._lease(day, is_backfill=True):
            self._finish_open()
            regions = self._missing(day)
            if not regions:
                return False
            if absent := self._absence_reasons(day, regions):
                more = f"; {len(absent) - 1} more without data" if len(absent) > 1 else ""
                self._say(f"{day} ({progress}): nothing is started: {absent[0]}{more}")
                return True
            which = f"{len(regions)} region{'s' if len(regions) > 1 else ''}"
            self._say(f"{day} ({progress}): {which} to backfill")
            self._begin(day, regions)
            self._finish_open()
        self.tell()
        return True

    def _finish_open(self) -> None:
        """Finish all open attempts, the oldest day first."""
        reopen(self.folder, self.journal, self._clock())
        while open_days := [one.date for one in self.journal.attempts() if not one.ended]:
            self._finish(min(open_days))

    def _finish(self, day: date) -> None:
        """Finish a day's open attempts, and begin others for regions whose data arrives late."""
        steps: dict[int, Iterator[float]] = {}
        due: dict[int, float] = {}
        begun = time.monotonic()  # when the last attempt began
        while True:
            open_ones = [one for one in self.journal.attempts(day) if not one.ended]
            if not open_ones:
                return
            if self._managers:
                self._managers.check()
            for one in open_ones:
                steps.setdefault(one.attempt, self._work.steps(one))
                if time.monotonic() >= due.get(one.attempt, 0.0):
                    due[one.attempt] = time.monotonic() + next(steps[one.attempt], 0.0)
            if time.monotonic() - begun >= BATCH_SECONDS:
                if come := [region for one in open_ones for region in self._work.take_arrived(one)]:
                    self._begin(day, come)
                begun = time.monotonic()
            time.sleep(max(0.0, min(due[one.attempt] for one in open_ones) - time.monotonic()))

    def _newly_arrived(self, day: date) -> list[str]:
        """Return the regions that failed because of their data, and have usable new data now."""
        found = load_day(self._file, day)
        late = late_regions(found, day, self._daily)
        ended = latest_outcomes(self.journal.outcomes(day, day))
        return [
            name
            for (_, name), one in ended.items()
            if one.ending is Ending.FAILED and one.run is None
            if found.study and name in found.usable and name not in late
            if _has_other_data(one, found.study)
        ]

    def _missing(self, day: date) -> list[str]:
        endings = latest_outcomes(self.journal.outcomes(day, day))
        ended = {o.region for o in endings.values() if o.ending is not Ending.FAILED}
        return [region for region in self._regions(day) if region not in ended]

    def _absence_reasons(self, day: date, regions: list[str]) -> list[str]:
        """Return why `regions` failed, if the same is still wrong with the data of all of them.

        Otherwise return an empty list.
        """
        unusable = late_regions(load_day(self._file, day), day, None)
        whys = [unusable[name] for name in regions if name in unusable]
        ended = latest_outcomes(self.journal.outcomes(day, day))
        noted = [ended[day, name].why for name in regions if (day, name) in ended]
        return whys if whys == noted and len(whys) == len(regions) else []

    def _regions(self, day: date) -> list[str]:
        found = load_day(self._file, day)
        return [*found.usable, *found.unusable]

    def _first_attempt(self, day: date) -> Attempt:
        known = self.journal.attempts(day)
        return known[0] if known else self._begin(day, self._regions(day))

    def _begin(self, day: date, regions: list[str]) -> Attempt:
        """Record a new attempt at a day.

        If another attempt at the day is still open, the new attempt gets the same deadline.
        """
        now, known = self._clock(), self.journal.attempts(day)
        number = next_number(known)
        going_on = [one.deadline for one in known if not one.ended]
        return self.journal.begin(
            Attempt(
                date=day,
                attempt=number,
                run=self._free_run(day, number),
                regions=tuple(regions),
                started=now,
                deadline=going_on[0] if going_on else self._daily.deadline_after(now),
            )
        )

    def _free_run(self, day: date, number: int) -> str:
        study = load_day(self._file, day).study
        taken = {attempt.run for attempt in self.journal.attempts()}
        while True:
            run = str(day) if number == 1 else f"{day}-{number}"
            is_free = run not in taken and not self.folder.run(run).exists()
            if is_free and not (study and published_already(study, run)):
                return run
            number += 1


def _all_ended(attempts: list[Attempt]) -> bool:
    return bool(attempts) and all(one.ended for one in attempts)


def _has_other_data(one: Outcome, study: Study) -> bool:
    """Return whether the data that made a region fail has changed since then."""
    if one.why.startswith(f"data of {one.date} "):
        return True
    recorded = one.recorded.timestamp() if one.recorded else 0.0
    data = study.data_paths(one.region)
    spellings = {each: {each, shell_quoted(Path(each))} for each in data}
    blamed = [Path(each) for each in data if any(name in one.why for name in spellings[each])]
    return any(moment > recorded for place in blamed for moment in write_times(place))
