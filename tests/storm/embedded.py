"""A storm in an embedded pool (HTCondor on this machine), whose processes and machine fail."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Literal

from tests.pool_settings import configured_pool
from tests.storm.audit import Audit
from tests.storm.clock import Clock
from tests.storm.disk import Disk
from tests.storm.ground import Settings, Strike
from tests.storm.victims import KINDS, SHORT_LIVED, Victim, catch, job_of, victims
from tests.storm.watch import Progress, Seen, missing, seen
from tests.storm.words import MOMENTS, Words
from trialfleet import PoolError, Run, Study, plan
from trialfleet.infra.pool.connection import use

TRAINER = Path(__file__).parent / "trainer.py"
CPUS = 8  # more than a small machine has: the jobs mostly sleep
START_SECONDS = 180.0  # for a pool on a busy machine
FROZEN_SECONDS, FULL_SECONDS, PROTECTED_SECONDS, WRONG_SECONDS = 30.0, 40.0, 20.0, 30.0
MOST_WRONG = 3600  # seconds, by which a clock is set ahead or back
AMBUSH_SECONDS = 3.0
TALKING = ("agent", "service", "starter", "shadow", "schedd")
RATES = {"master": 0.2}  # of a kind's deaths; a master's takes the whole pool with it


def study(settings: Settings, ledger: Path) -> dict[str, Any]:
    """Return a study with a known loss and trials of one second, or six with early stopping."""
    return {
        **_plain(settings, ledger),
        **({"early_stopping": _STOPPING} if settings.stopping else {}),
    }


def _plain(settings: Settings, ledger: Path) -> dict[str, Any]:
    curve = {"curve": 1, "steps": 24, "seconds": 0.25}
    return {
        "name": "storm",
        "regions": {f"R{n:03}": _region(n, settings) for n in range(settings.regions)},
        "objective": {"metric": "loss", "direction": "minimize"},
        "search_space": {
            "x": {"type": "float", "low": 0.0, "high": 1.0},
            "ledger": str(ledger),
            **(curve if settings.stopping else {"steps": 4, "seconds": 0.2}),
        },
        "budget": {"trials": settings.trials, "lanes": 2},
        "trainer": {"command": ["python3", TRAINER.name], "files": [str(TRAINER)]},
        "resources": {"memory": "100MB", "disk": "20MB"},
        "accelerator": "cpu",
        "retries": 5,
    }


def _region(number: int, settings: Settings) -> dict[str, Any]:
    """Return a region; its `number` decides trials per job, resident trainer and checkpoints."""
    per_job = settings.trials_per_job or TRIALS_PER_JOB[number % len(TRIALS_PER_JOB)]
    stays, saves, is_brief = number // 3 % 2, number % 5 == 4, number % 4 == 3
    return {
        "search_space": {"stays": stays, **({"yield_every": 2} if saves else {})},
        "budget": {"trials_per_job": per_job, **({"job_minutes": 0.2} if is_brief else {})},
    }


TRIALS_PER_JOB: tuple[Literal["all"] | int, ...] = ("all", 1, 2)
_STOPPING: dict[str, Any] = {"min_steps": 3, "startup_trials": 2, "grace_seconds": 5}


class Embedded:
    """An embedded pool in a separate folder; see `Ground`."""

    look_seconds = 1.0
    recovery_seconds = 60.0

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.pool = configured_pool(folder / "pool", cpus=CPUS)
        self._settings = settings
        self._disk = Disk(folder / "runs")
        self._clock = Clock()
        self._spoilt = False
        self._run: Run | None = None
        self._words: Words | None = None
        self._ledgers = folder / "ledgers"
        small = {"freeze": 0.03, "crash": 0.01, "restart": 0.01, "fill": 0.01, "protect": 0.01}
        rare = {"clock": settings.clocks, "ambush": settings.ambushes}
        self.shares: Mapping[str, float] = {**small, **rare}
        self.left_out: Sequence[str] = [
            *([] if self._disk.is_small else ["full disk: no mount namespace may be made"]),
            *([] if self._clock.can_be_set else ["clock: no mount namespace, overlay or cc"]),
        ]

    def up(self) -> None:
        self._ledgers.mkdir()
        self.pool.up(seconds=START_SECONDS)
        use(self.pool.environment())

    def tend(self) -> list[str]:
        """Restart the pool if it is down, as systemd does on a real machine."""
        if self.pool.is_up():
            return []
        try:
            self.pool.up(seconds=START_SECONDS)
        except PoolError as error:
            return [f"pool up: {error}"]
        return ["pool up"]

    def down(self, kept: Path | None) -> None:
        self.pool.down(grace=0)
        if kept:
            self._disk.keep(kept)
        self._disk.remove()

    # --- A run ------------------------------------------------------------------------------------

    def plan(self, number: int) -> None:
        name, root = f"s{number}", self._disk.root
        resolved = Study.model_validate(study(self._settings, self._ledgers / name)).resolve(root)
        self._run = plan(resolved, run=name, out=root / name)
        self._words = Words(self._run.folder)

    def submit(self) -> None:
        assert self._run is not None, "it was planned"
        self._run.submit()

    def resume(self) -> None:
        assert self._run is not None, "it was planned"
        self._run.resume()

    def look(self, before: Progress) -> Seen:
        assert self._run is not None, "it was planned"
        return seen(self._run, before)

    def missing(self) -> list[str]:
        return missing(self.pool, self._run)

    def close(self, audit: Audit) -> None:
        assert self._run is not None, "it was planned"
        assert self._words is not None, "likewise"
        self._words.close()
        found = len(audit.evidence)
        audit.add(self._run, self._words.all, self._ledgers / self._run.folder.name)
        if len(audit.evidence) == found:
            shutil.rmtree(self._run.folder)  # room for the next
        self._run = None

    # --- Events -----------------------------------------------------------------------------------

    def strike(self, event: str, random: Random) -> Strike | None:
        strikes: dict[str, Callable[[Random], Strike | None]] = {
            "kill": self._kill,
            "ambush": self._ambush,
            "freeze": self._freeze,
            "crash": self._crash,
            "restart": self._restart,
            "fill": self._fill,
            "protect": self._protect,
            "clock": self._set_clock,
        }
        return strikes[event](random)

    def _kill(self, random: Random) -> Strike | None:
        order = {kind: random.expovariate(RATES.get(kind, 1.0)) for kind in KINDS}
        kinds = sorted(KINDS, key=order.__getitem__)
        found = next(filter(None, map(self._of_kind(), kinds)), [])
        if not found:  # the pool is down
            return None
        victim = random.choice(found)
        with suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGKILL)
            return Strike(what=f"killed {victim.kind} ({victim.pid})", counts=("kill", victim.kind))
        return None

    def _ambush(self, random: Random) -> Strike | None:
        """Kill a process just when a job's agent and the optimiser's service exchange a message."""
        assert self._words is not None, "there is a run"
        kind, moments = random.choice(TALKING), {"asked", random.choice(MOMENTS)}  # one is rare
        kinds = frozenset({kind})
        before = {one.pid: job_of(one) for one in victims(self.pool.condor_config, kinds)}
        if (word := self._words.next(moments, AMBUSH_SECONDS)) is None:
            return None
        pids = [pid for pid, job in before.items() if job in {None, word.job}]
        if not pids:  # its job is younger
            found = victims(self.pool.condor_config, kinds)
            pids = [one.pid for one in found if job_of(one) in {None, word.job}]
        if not pids:
            return None
        with suppress(ProcessLookupError):
            os.kill(pids[0], signal.SIGKILL)
            what = f"{word.moment} {word.trial or word.node}: killed {kind} ({pids[0]})"
            return Strike(what=what, counts=("kill", kind, f"at the moment: {word.moment}"))
        return None

    def _of_kind(self) -> Callable[[str], list[Victim]]:
        """Return a function that returns a kind's processes; it waits for a short-lived kind."""
        alive = victims(self.pool.condor_config)

        def of_kind(kind: str) -> list[Victim]:
            if kind in SHORT_LIVED and alive:
                return catch(self.pool.condor_config, kind)
            return [victim for victim in alive if victim.kind == kind]

        return of_kind

    def _freeze(self, random: Random) -> Strike | None:
        found = victims(self.pool.condor_config)
        if not found:
            return None
        kind = random.choice(sorted({victim.kind for victim in found}))
        victim = random.choice([one for one in found if one.kind == kind])

        def thaw() -> None:
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGCONT)

        with suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGSTOP)
            return Strike(
                what=f"stopped {kind} ({victim.pid})",
                counts=("freeze",),
                lasts=FROZEN_SECONDS,
                ends=thaw,
                ended=f"{kind} ({victim.pid}) goes on",
            )
        return None

    def _crash(self, _: Random) -> Strike:
        """Kill all of the pool's processes, as if the machine failed; `tend` restarts the pool."""
        self.pool.down(grace=0)
        return Strike(what="killed the whole pool", counts=("crash",))

    def _restart(self, _: Random) -> Strike:
        self.pool.down()
        return Strike(what="pool down", counts=("restart",))

    def _fill(self, _: Random) -> Strike | None:
        if not self._disk.is_small or self._spoilt:
            return None
        self._disk.fill()
        return self._spoiling("disk full", "full disk", FULL_SECONDS, self._disk.empty)

    def _protect(self, _: Random) -> Strike | None:
        if self._spoilt:
            return None
        self._disk.protect()
        return self._spoiling(
            "run's folder read-only", "read-only folder", PROTECTED_SECONDS, self._disk.allow
        )

    def _spoiling(
        self, what: str, counts: str, seconds: float, repair: Callable[[], None]
    ) -> Strike:
        def ends() -> None:
            repair()
            self._spoilt = False

        self._spoilt = True
        return Strike(
            what=what, counts=(counts,), lasts=seconds, ends=ends, ended=f"no longer: {what}"
        )

    def _set_clock(self, random: Random) -> Strike | None:
        """Set the clock wrong by up to an hour, and right again later, as NTP would."""
        wrong = random.choice([-1, 1]) * round(MOST_WRONG ** random.random())
        if not self._clock.can_be_set or self._clock.wrong:
            return None
        self._clock.set(wrong)
        return Strike(
            what=f"clock {wrong:+} s",
            counts=("clock",),
            lasts=WRONG_SECONDS,
            ends=lambda: self._clock.set(0),
            ended="clock right",
        )
