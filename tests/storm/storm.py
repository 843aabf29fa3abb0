"""The storm itself: processes killed at random moments, and what else befalls a machine."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.storm.audit import Audit
from tests.storm.clock import Clock
from tests.storm.ground import Ground
from tests.storm.victims import KINDS, SHORT_LIVED, Victim, catch, victims
from tests.storm.watch import Progress, missing, progress
from trialfleet import PoolError, Run, RunState, Study, TrialfleetError, plan
from trialfleet.infra.pool.connection import use
from trialfleet.infra.pool.embedded import Pool
from trialfleet.workflows.dagman.mend import mends
from trialfleet.workflows.plan.folder import RunFolder

TRAINER = Path(__file__).parent.parent / "pool" / "trainers" / "moody.py"
CPUS = 8  # more than a small machine has: the jobs mostly sleep
START_SECONDS = 180.0  # for a pool on a busy machine
FROZEN_SECONDS, FULL_SECONDS, PROTECTED_SECONDS, WRONG_SECONDS = 30.0, 40.0, 20.0, 30.0
MOST_WRONG = 3600  # seconds, by which a clock is set ahead or back
STILL_SECONDS = 300.0  # without any progress: it will not go on by itself
STOPPED_SECONDS = 60.0  # the same of one that says that it has ended, but not well
PERSONS = 3  # times that a run is helped before it is given up
RECOVERY_SECONDS = 60.0  # after the last event, for all to run again
SHARES = {"freeze": 0.03, "crash": 0.01, "restart": 0.01, "fill": 0.01, "protect": 0.01}

RATES = {"master": 0.2}  # of a kind's deaths; a master's takes the whole pool with it

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How bad a storm is.

    Attributes:
        kills: processes to kill.
        seed: of the order of events; which process is there to be killed is the machine's word.
        regions: of each run.
        trials: of each region.
        mean: seconds between two events on average.
        clocks: the share of events that set the clock.
    """

    kills: int
    seed: int
    regions: int
    trials: int
    mean: float
    clocks: float


@dataclass
class Storm:
    """A storm over runs in a pool of its own, in a folder of its own."""

    folder: Path
    settings: Settings
    say: Say
    audit: Audit = field(default_factory=Audit)
    events: Counter[str] = field(default_factory=Counter)
    longest_standstill: float = 0.0
    recovery: float | None = None

    def __post_init__(self) -> None:
        self._random = random.Random(self.settings.seed)  # noqa: S311 - no secret
        self.pool = Pool(self.folder / "pool", cpus=CPUS)
        self.ground = Ground(self.folder / "runs")
        self.clock = Clock()
        self._log = (self.folder / "storm.log").open("a", buffering=1)
        self._later: list[tuple[float, str, Callable[[], None]]] = []
        self._begin = time.monotonic()
        self._run: Run | None = None
        self._progress = Progress()
        self._since = time.monotonic()  # of the last progress
        self._next_look = 0.0

    # --- The course of a storm --------------------------------------------------------------------

    def rage(self) -> None:
        """Do all of it: runs under events until the kills are spent; then calm; then the audit."""
        self.pool.up(seconds=START_SECONDS)
        use(self.pool.environment())
        while self.events["kill"] < self.settings.kills:
            self._start_run()
            self._under_events()
            if not self._is_over():
                self._calm()
                self.recovery = self._until_all_runs()
            self._until_the_end()
            self._close_run()

    def _under_events(self) -> None:
        while self.events["kill"] < self.settings.kills and not self._is_over():
            if self._stands_still():
                self._lull()
            self._pass(self._random.expovariate(1 / self.settings.mean))
            shares = {**SHARES, "clock": self.settings.clocks}
            names, weights = zip(*shares.items(), strict=True)
            name = self._random.choices(["kill", *names], [1 - sum(weights), *weights])[0]
            getattr(self, f"_{name}")()

    def _lull(self) -> None:
        """Leave a run alone that nothing came of for long; help it if it does not go on."""
        self.events["lull"] += 1
        self._tell("a lull")
        self._calm()
        before, end = self._progress, time.monotonic() + RECOVERY_SECONDS
        while self._progress == before and time.monotonic() < end:
            self._pass(1.0)
        if self._progress == before and missing(self.pool, self._run):
            self._help()
        self._since = time.monotonic()

    def _calm(self) -> None:
        """Let what was begun come to its end, such as a freeze."""
        while self._later:
            self._pass(1.0)

    def _until_all_runs(self) -> float:
        begin = time.monotonic()
        while lacking := missing(self.pool, self._run):
            self._pass(0.5)
            if time.monotonic() - begin > STILL_SECONDS:
                break
        seconds = time.monotonic() - begin
        self._tell(f"{seconds:.1f} s after the last event all runs again")
        if seconds > RECOVERY_SECONDS:
            self.audit.needed(f"after {seconds:.0f} s not all runs again: {'; '.join(lacking)}")
        return seconds

    def _until_the_end(self) -> None:
        """Wait until the run is done; where it stands still, be the person that it needs."""
        for _ in range(PERSONS):
            while not self._is_over() and not self._stands_still():
                self._pass(1.0)
            if self._is_over():
                return
            self._help()

    def _is_over(self) -> bool:
        if self._run is None:
            return True
        try:
            return self._progress.reported and self._run.status().state is RunState.DONE
        except TrialfleetError:
            return False

    def _stands_still(self) -> bool:
        assert self._run is not None, "a run goes on"
        seconds = time.monotonic() - self._since
        if seconds < STOPPED_SECONDS:
            return False
        try:
            has_stopped = self._run.status().ended
        except TrialfleetError:
            has_stopped = False
        return has_stopped or seconds > STILL_SECONDS

    def _help(self) -> None:
        assert self._run is not None, "a run goes on"
        self.audit.needed(f"{self._run.folder}: {self._what_it_says()}")
        self._tell(self.audit.evidence[-1])
        self._since = time.monotonic()
        with suppress(TrialfleetError):
            self._run.resume()

    def _what_it_says(self) -> str:
        assert self._run is not None, "a run goes on"
        try:
            status = self._run.status()
        except TrialfleetError as error:
            return str(error)
        return f"{status.state}, nothing happened; {'; '.join(status.troubles) or 'no trouble'}"

    # --- Runs -------------------------------------------------------------------------------------

    def _start_run(self) -> None:
        number = self.audit.runs + 1
        study = Study.model_validate(self._study()).resolve(self.ground.root)
        self._run = plan(study, run=f"s{number}", out=self.ground.root / f"s{number}")
        self._progress, self._since = Progress(), time.monotonic()
        self._tell(f"run {number} begins")
        self._retrying(self._run.submit, self._run.resume)

    def _study(self) -> dict[str, Any]:
        return {
            "name": "storm",
            "regions": [f"R{number:03}" for number in range(self.settings.regions)],
            "objective": {"metric": "loss", "direction": "minimize"},
            "search_space": {
                "x": {"type": "float", "low": 0.0, "high": 1.0},
                "steps": 4,
                "seconds": 0.2,
                "save_every": 1,
            },
            "budget": {"trials": self.settings.trials, "lanes": 2},
            "trainer": {"command": ["python3", TRAINER.name], "files": [str(TRAINER)]},
            "resources": {"memory": "100MB", "disk": "20MB"},
            "accelerator": "cpu",
            "retries": 5,
        }

    def _retrying(self, first: Callable[[], object], then: Callable[[], object]) -> None:
        """Submitting is a person's act, who tries again while HTCondor is away."""
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
        assert self._run is not None, "a run has ended"
        found = len(self.audit.evidence)
        self.audit.add(self._run)
        for what in self.audit.evidence[found:]:
            self._tell(what)
        if len(self.audit.evidence) == found:
            shutil.rmtree(self._run.folder)  # room for the next
        self._run = None

    # --- Time -------------------------------------------------------------------------------------

    def _pass(self, seconds: float) -> None:
        """Let time pass: what is due is done, a machine's systemd lives, progress is told."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for item in [item for item in self._later if item[0] <= now]:
                self._later.remove(item)
                self._tell(item[1])
                item[2]()
            if now >= self._next_look:
                self._look()
            if time.monotonic() >= until:
                return
            time.sleep(max(0.0, min(0.2, until - time.monotonic())))

    def _look(self) -> None:
        self._next_look = time.monotonic() + 1.0
        if not self.pool.is_up():
            self._up()
        if self._run is None:
            return
        before = self._progress
        self._progress = progress(self._run, before)
        now = time.monotonic()
        self.longest_standstill = max(self.longest_standstill, now - self._since)
        if self._progress != before:
            self._since = now
        self.say(self._line())

    def _line(self) -> str:
        of = self.settings
        assert self._run is not None, "a run goes on"
        return (
            f"{time.monotonic() - self._begin:5.0f} s  kills {self.events['kill']}/{of.kills}"
            f"  run {self.audit.runs + 1}: trials {self._progress.told}/{of.regions * of.trials}"
            f"  published {self._progress.published}/{of.regions}"
            f"  mends {len(mends(RunFolder(self._run.folder)))}"
            f"  still {time.monotonic() - self._since:.0f} s"
        )

    def _tell(self, what: str) -> None:
        self._log.write(f"{time.strftime('%H:%M:%S')} {what}\n")

    def _in(self, seconds: float, what: str, action: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, what, action))

    # --- Events -----------------------------------------------------------------------------------

    def _kill(self) -> None:
        order = {kind: self._random.expovariate(RATES.get(kind, 1.0)) for kind in KINDS}
        kinds = sorted(KINDS, key=order.__getitem__)
        found = next(filter(None, map(self._of_kind(), kinds)), [])
        if not found:  # the pool is down
            return
        victim = self._random.choice(found)
        with suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGKILL)
            self.events["kill"] += 1
            self.events[victim.kind] += 1
            self._tell(f"killed {victim.kind} ({victim.pid})")

    def _of_kind(self) -> Callable[[str], list[Victim]]:
        """Return what gives the processes of a kind, looked for once; a short-lived is caught."""
        alive = victims(self.pool.condor_config)

        def of_kind(kind: str) -> list[Victim]:
            if kind in SHORT_LIVED and alive:
                return catch(self.pool.condor_config, kind)
            return [victim for victim in alive if victim.kind == kind]

        return of_kind

    def _freeze(self) -> None:
        found = victims(self.pool.condor_config)
        if not found:
            return
        kind = self._random.choice(sorted({victim.kind for victim in found}))
        victim = self._random.choice([one for one in found if one.kind == kind])

        def thaw() -> None:
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGCONT)

        with suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGSTOP)
            self.events["freeze"] += 1
            self._tell(f"stopped {victim.kind} ({victim.pid})")
            self._in(FROZEN_SECONDS, f"{victim.kind} ({victim.pid}) goes on", thaw)

    def _crash(self) -> None:
        """The machine dies and comes back."""
        self.events["crash"] += 1
        self._tell("killed the whole pool")
        self.pool.down(grace=0)

    def _restart(self) -> None:
        self.events["restart"] += 1
        self._tell("pool down")
        self.pool.down()

    def _up(self) -> None:
        """What systemd does on a real machine."""
        try:
            self.pool.up(seconds=START_SECONDS)
            self._tell("pool up")
        except PoolError as error:
            self._tell(f"pool up: {error}")

    def _fill(self) -> None:
        if self.ground.is_small and not self._is_spoilt():
            self.events["full disk"] += 1
            self._tell("disk full")
            self.ground.fill()
            self._in(FULL_SECONDS, "disk has room", self.ground.empty)

    def _protect(self) -> None:
        if not self._is_spoilt():
            self.events["read-only folder"] += 1
            self._tell("run's folder read-only")
            self.ground.protect()
            self._in(PROTECTED_SECONDS, "run's folder writable", self.ground.allow)

    def _clock(self) -> None:
        """The machine's clock is set wrong, by seconds or by up to an hour; NTP sets it right."""
        size = self._random.choice([-1, 1]) * round(MOST_WRONG ** self._random.random())
        if self.clock.can_be_set and not self.clock.wrong:
            self.events["clock"] += 1
            self._tell(f"clock {size:+} s")
            self.clock.set(size)
            self._in(WRONG_SECONDS, "clock right", lambda: self.clock.set(0))

    def _is_spoilt(self) -> bool:
        return any("disk" in what or "folder" in what for _, what, _ in self._later)
