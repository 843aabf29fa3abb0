"""The storm itself: events at random moments, then none, and what became of the runs."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.storm.audit import Audit
from tests.storm.ground import Ground, Settings, Strike
from tests.storm.watch import Progress, Seen
from trialfleet import PoolError, TrialfleetError

START_SECONDS = 180.0  # for a pool on a busy machine
STILL_SECONDS = 300.0  # without any progress: it will not continue by itself
STOPPED_SECONDS = 60.0  # the same of one that says that it has ended, but not well
LULL_SECONDS = 60.0  # without an event, for a stalled run to continue
PERSONS = 3  # times that a run is helped before it is abandoned

Say = Callable[[str], None]
NOTHING = Seen(progress=Progress(), is_done=False, has_ended=False, message="", repairs=0)


@dataclass
class Storm:
    """A storm over runs; it records the events in `storm.log`."""

    folder: Path
    settings: Settings
    ground: Ground
    say: Say
    audit: Audit = field(default_factory=Audit)
    events: Counter[str] = field(default_factory=Counter)
    longest_standstill: float = 0.0
    recovery: float | None = None

    def __post_init__(self) -> None:
        self._random = random.Random(self.settings.seed)  # noqa: S311 - no secret
        self._log = (self.folder / "storm.log").open("a", buffering=1)
        self._later: list[tuple[float, Strike]] = []
        self._begin = time.monotonic()
        self._is_run = False
        self._seen = NOTHING
        self._since = time.monotonic()  # of the last progress
        self._next_look = 0.0

    # --- The course of a storm --------------------------------------------------------------------

    def rage(self) -> None:
        """Cause events during runs until the kills are used up; let each run end, and audit it."""
        self.ground.up()
        while self.events["kill"] < self.settings.kills:
            self._start_run()
            self._under_events()
            if not self._seen.is_done:
                self._calm()
                self.recovery = self._until_all_runs()
            self._until_the_end()
            self._close_run()

    def _under_events(self) -> None:
        while self.events["kill"] < self.settings.kills and not self._seen.is_done:
            if self._stands_still():
                self._lull()
            self._pass(self._random.expovariate(1 / self.settings.mean))
            names, weights = zip(*self.ground.shares.items(), strict=True)
            name = self._random.choices(["kill", *names], [1 - sum(weights), *weights])[0]
            if strike := self.ground.strike(name, self._random):
                self._note(strike)

    def _note(self, strike: Strike) -> None:
        self.events.update(strike.counts)
        self._print(strike.what)
        if strike.lasts:
            self._later.append((time.monotonic() + strike.lasts, strike))

    def _lull(self) -> None:
        """Cause no event while a stalled run recovers; resume it if it does not."""
        self.events["lull"] += 1
        self._print("a lull")
        self._calm()
        before, end = self._seen.progress, time.monotonic() + LULL_SECONDS
        while self._seen.progress == before and time.monotonic() < end:
            self._pass(1.0)
        if self._seen.progress == before and self.ground.missing():
            self._help()
        self._since = time.monotonic()

    def _calm(self) -> None:
        """Wait until all events that last some time, such as a suspended process, have ended."""
        while self._later:
            self._pass(1.0)

    def _until_all_runs(self) -> float:
        begin = time.monotonic()
        while lacking := self.ground.missing():
            self._pass(0.5)
            if time.monotonic() - begin > STILL_SECONDS:
                break
        seconds = time.monotonic() - begin
        self._print(f"{seconds:.1f} s after the last event all runs again")
        if seconds > self.ground.recovery_seconds:
            self.audit.needed(f"after {seconds:.0f} s not all runs again: {'; '.join(lacking)}")
        return seconds

    def _until_the_end(self) -> None:
        """Wait until the run is done; if it stalls, resume it as a person would."""
        for _ in range(PERSONS):
            while not self._seen.is_done and not self._stands_still():
                self._pass(1.0)
            if self._seen.is_done:
                return
            self._help()

    def _stands_still(self) -> bool:
        seconds = time.monotonic() - self._since
        return seconds > (STOPPED_SECONDS if self._seen.has_ended else STILL_SECONDS)

    def _help(self) -> None:
        self.audit.needed(f"run {self.audit.runs + 1}: nothing happened; {self._seen.message}")
        self._print(self.audit.evidence[-1])
        self._since = time.monotonic()
        with suppress(TrialfleetError):
            self.ground.resume()

    # --- Runs -------------------------------------------------------------------------------------

    def _start_run(self) -> None:
        number = self.audit.runs + 1
        self._calm()  # a person plans no run on a disk that is full
        self.ground.plan(number)
        self._is_run, self._seen, self._since = True, NOTHING, time.monotonic()
        self._print(f"run {number} begins")
        self._retrying(self.ground.submit, self.ground.resume)

    def _retrying(self, first: Callable[[], object], then: Callable[[], object]) -> None:
        """Call `first`, then `then` again and again while HTCondor can't be reached."""
        deadline, action = time.monotonic() + START_SECONDS, first
        while True:
            try:
                action()
            except PoolError:
                if time.monotonic() > deadline:
                    raise
                self._pass(1.0)
                action = then
            else:
                return

    def _close_run(self) -> None:
        self._calm()  # nothing can be read on a disk that is full
        found = len(self.audit.evidence)
        self._is_run = False
        self.ground.close(self.audit)
        for what in self.audit.evidence[found:]:
            self._print(what)

    # --- Time -------------------------------------------------------------------------------------

    def _pass(self, seconds: float) -> None:
        """Let time pass: end due strikes, act as a machine's systemd, and print the progress."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for item in [item for item in self._later if item[0] <= now]:
                self._later.remove(item)
                self._print(item[1].ended)
                item[1].ends()
            if now >= self._next_look:
                self._look()
            if time.monotonic() >= until:
                return
            time.sleep(max(0.0, min(0.2, until - time.monotonic())))

    def _look(self) -> None:
        for line in self.ground.tend():
            self._print(line)
        if self._is_run:
            before = self._seen.progress
            self._seen = self.ground.look(before)
            now = time.monotonic()
            self.longest_standstill = max(self.longest_standstill, now - self._since)
            if self._seen.progress != before:
                self._since = now
            self.say(self._line())
        self._next_look = time.monotonic() + self.ground.look_seconds

    def _line(self) -> str:
        of, progress = self.settings, self._seen.progress
        return (
            f"{time.monotonic() - self._begin:5.0f} s  kills {self.events['kill']}/{of.kills}"
            f"  run {self.audit.runs + 1}: trials {progress.told}/{of.regions * of.trials}"
            f"  published {progress.published}/{of.regions}"
            f"  repairs {self._seen.repairs}"
            f"  still {time.monotonic() - self._since:.0f} s"
        )

    def _print(self, what: str) -> None:
        self._log.write(f"{time.strftime('%H:%M:%S')} {what}\n")
