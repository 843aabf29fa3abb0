"""The choice of the manager that works on a study's days, by a lease in a shared database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from trialfleet.errors import ExportError, OptimizerError
from trialfleet.optimizer.run_ownership import this_owner
from trialfleet.workflows.control.takeover.models_in_s3 import ModelsInS3
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Attempt, Ending, Outcome
from trialfleet.workflows.facts.journal.lease import Lease, LeaseLostError
from trialfleet.workflows.facts.journal.shared_journal import SharedJournal
from trialfleet.workflows.facts.journal.shared_rows import SharedRows
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.run_storage import take_over
from trialfleet.workflows.study.daily import parse_duration
from trialfleet.workflows.study.spec import Study

AWAY_SECONDS = 15.0  # between two tries while the database or S3 is unreachable
_OFTEN = 4  # renewals during the validity of a lease

T = TypeVar("T")


class Managers:
    """This manager's lease on a study's days, and its access to the other manager's results.

    Most methods wait while the database or S3 is unreachable. LeaseLostError if the lease is lost
    during this wait.
    """

    def __init__(self, study: Study, folder: DailyFolder, say: Callable[[str], None]) -> None:
        """Open the database of a study with `daily.takeover_after`; wait while it is unreachable.

        `study` was read by `load_published`. `say` is called with a line about each wait and each
        restored model.
        """
        assert study.daily
        assert study.daily.takeover_after
        assert study.storage
        self._say, self._study = say, study
        own, lasts = this_owner(folder.root), parse_duration(study.daily.takeover_after)
        storage, name = study.storage, study.name
        self._seconds = lasts.total_seconds()
        self._lost = threading.Event()
        self._rows = self._retry(lambda: SharedRows(storage, name, own, lasts))
        self._models = ModelsInS3(study)
        self.journal = SharedJournal(folder.journal, self._rows, self._wait)
        self.sent_events = set(self._retry(self.journal.pull))  # ids of events that were sent
        self._holder: Lease | None = None  # at the last check
        self.has_worked = False  # True once this manager held the lease; before, it sends no alerts
        self.taken_from: Lease | None = None  # the other manager's lease, if it expired

    @contextmanager
    def hold_lease(self, gives_up: Callable[[], bool], *, at_once: bool) -> Iterator[bool]:
        """Wait for the lease, and yield True. Yield False once `gives_up` returns True.

        This manager holds the lease during the `with` block. With `at_once`, a free lease is taken
        at once. Otherwise, if the other manager held the lease last, this manager first waits for
        the duration of a lease. In this time the other manager can take the lease again. It should,
        because its machine has the last days' results.
        """
        self._lost.clear()
        begun, shown = time.monotonic(), ""
        while not self._take(at_once=at_once or time.monotonic() - begun >= self._seconds):
            self.sent_events.update(self._retry(self.journal.pull))
            if gives_up():
                yield False
                return
            if self._holder and self._holder.host != shown:
                shown = self._holder.host
                self._say(
                    f"{shown} works on the daily runs, or did last; this manager is on standby"
                )
            time.sleep(min(AWAY_SECONDS, self._seconds / _OFTEN))
        self.has_worked = True
        ends = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(ends,), daemon=True)
        renewing.start()
        try:
            self.sent_events.update(self._retry(self.journal.pull))
            yield True
        finally:
            ends.set()
            renewing.join()
            with suppress(OptimizerError):  # the lease expires by itself
                self._rows.give_back()

    def check(self) -> None:
        """Raise LeaseLostError if the other manager has taken the lease, or may have taken it."""
        if self._lost.is_set():
            raise LeaseLostError(
                f"another manager may have taken over the daily runs of {self._study.name!r}"
            )

    def take_over_run(self, run: Path) -> None:
        """Make this manager the owner of a run's Optuna studies, instead of the other manager."""
        self._retry(lambda: take_over(RunFolder(run)))

    def is_safe(self, outcome: Outcome) -> bool:
        """Return whether the other manager could go on from `outcome` if this machine were lost.

        This is so if the outcome's model is in S3, or if the outcome has no model. ExportError if
        S3 refuses a request or is unreachable.
        """
        if outcome.run is None or outcome.ending is Ending.FAILED:
            return True
        return self._models.has(outcome.region, outcome.run)

    def restore(self, regions: Iterable[str]) -> None:
        """Make the other manager's current models current on this machine.

        A region's current model stays if this machine chose it after the choice in S3.
        """
        self._retry(lambda: self._models.restore(regions, self._say))

    def outcomes(self, attempt: Attempt, regions: Iterable[str]) -> list[Outcome]:
        """Return the outcomes of those `regions` whose models the other manager has published.

        Only models from the run of `attempt` count. They are copied to this machine.
        """
        return self._retry(lambda: self._models.outcomes(attempt, regions))

    def note_sent(self, events: list[str]) -> None:
        """Tell the other manager which events were sent; if that fails, the next call retries."""
        if new := set(events) - self.sent_events:
            with suppress(OptimizerError):  # the next event tries again
                self.journal.note_sent(new)
                self.sent_events |= new

    def _take(self, *, at_once: bool) -> bool:
        self._holder = self._retry(self._rows.lease)
        other = None if self._holder is None or self._holder.is_ours else self._holder
        if (other and not at_once) or not self._retry(self._rows.take):
            return False
        self.taken_from = other if other and other.seconds else None
        return True

    def _renew(self, ends: threading.Event) -> None:
        renewed = time.monotonic()
        while not ends.wait(self._seconds / _OFTEN):
            tried = time.monotonic()
            try:
                if not self._rows.take():
                    self._lost.set()
                    return
                renewed = tried
            except OptimizerError:
                if time.monotonic() - renewed >= self._seconds:
                    self._lost.set()
                    return

    def _retry(self, ask: Callable[[], T]) -> T:
        while True:
            try:
                return ask()
            except (OptimizerError, ExportError) as error:
                self._wait(error)

    def _wait(self, error: Exception) -> None:
        self._say(f"retried in {AWAY_SECONDS:.0f} s: {error}")
        time.sleep(AWAY_SECONDS)
        self.check()
