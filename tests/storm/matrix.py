"""Each kind of process is killed once in each phase of a region: how long until all run again.

The region is kept in its phase: its trainers wait for a file, or the phase's program is suspended.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.pool_settings import configured_pool
from tests.storm.audit import Audit
from tests.storm.embedded import CPUS, START_SECONDS
from tests.storm.storm import Say
from tests.storm.victims import KINDS, victims
from tests.storm.watch import Progress, missing, progress
from trialfleet import PoolError, Run, RunState, Study, TrialfleetError, plan
from trialfleet.infra.pool.connection import use
from trialfleet.infra.pool.embedded import Pool
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.run_folder.folder import RunFolder

TRAINER = Path(__file__).parent.parent / "pool" / "trainers" / "moody.py"
TRIALS = ("A.l1.t01", "A.l2.t01")  # of two lanes: the second node of each is skipped
PHASES = ("asking", "first trials", "last trial", "best", "publish", "report")
STOPPED = {
    "asking": "service",
    "publish": "publish",
    "report": "report",
}  # the program that is stopped there
PHASE_SECONDS, RECOVERY_SECONDS, END_SECONDS = 180.0, 60.0, 300.0
FAILED = "FAILED"

Row = dict[str, str]


class Matrix:
    """Kills by phase, in a new pool."""

    def __init__(self, folder: Path, say: Say) -> None:
        self.pool = configured_pool(folder / "pool", cpus=CPUS)
        self.audit = Audit()
        self._runs = folder / "runs"
        self._say = say

    def rows(self, phases: Iterable[str] = PHASES) -> dict[str, Row]:
        """Return for each phase and kind the seconds until all processes ran again, or FAILED."""
        self._runs.mkdir()
        self.pool.up(seconds=START_SECONDS)
        use(self.pool.environment())
        return {phase: self._row(phase) for phase in phases}

    def _row(self, phase: str) -> Row:
        gate = self._runs / f"gate-{PHASES.index(phase)}"
        gate.mkdir()
        region = _Region(self.pool, self._plan(phase, gate), gate, STOPPED.get(phase))
        if not region.reach(phase):
            return dict.fromkeys(KINDS, FAILED)
        row = {kind: self._cell(region, phase, kind) for kind in KINDS}
        if not region.end():
            row = dict.fromkeys(KINDS, FAILED)
        self.audit.add(region.run)
        return row

    def _plan(self, phase: str, gate: Path) -> Run:
        number = PHASES.index(phase)
        study: dict[str, Any] = {
            "name": "matrix",
            "regions": ["A"],
            "objective": {"metric": "loss", "direction": "minimize"},
            "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}, "gate": str(gate)},
            "budget": {"trials": 2, "lanes": 2, "trials_per_job": 1},
            "trainer": {"command": ["python3", TRAINER.name], "files": [str(TRAINER)]},
            "resources": {"memory": "100MB", "disk": "20MB"},
            "accelerator": "cpu",
            "retries": 20,
        }
        resolved = Study.model_validate(study).resolve(self._runs)
        return plan(resolved, run=f"m{number}", out=self._runs / f"m{number}")

    def _cell(self, region: _Region, phase: str, kind: str) -> str:
        found = victims(self.pool.condor_config, frozenset({kind}))
        if not found:
            return "-"
        begin = time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(found[0].pid, signal.SIGKILL)
        pids = {victim.pid for victim in found}

        def is_back() -> bool:
            now = victims(self.pool.condor_config, frozenset({kind}))
            back = any(one.pid not in pids for one in now) or kind == region.stopped
            return back and not missing(self.pool, region.run)

        cell = f"{time.monotonic() - begin:.0f}" if region.wait(is_back) else FAILED
        self._say(f"{phase}: {kind}: {cell}")
        return cell


class _Region:
    """A run of one region that is kept in a phase."""

    def __init__(self, pool: Pool, run: Run, gate: Path, stopped: str | None) -> None:
        self.run = run
        self.stopped = stopped
        self._pool = pool
        self._gate = gate
        self._is_kept = True
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def reach(self, phase: str) -> bool:
        """Bring the region to the phase; return whether that succeeded."""
        self._keeper.start()
        self.run.submit()
        reached: dict[str, Callable[[], bool]] = {
            "asking": lambda: bool(self._alive("service")),
            "first trials": lambda: self._running() == set(TRIALS),
            "last trial": lambda: self._finished() == 1,
            "best": lambda: self._running() == {"A.best"},
            "publish": lambda: bool(self._alive("publish")),
            "report": lambda: bool(self._alive("report")),
        }
        keys: dict[str, tuple[str, ...]] = {"last trial": TRIALS[:1], "best": TRIALS}
        self._open(keys.get(phase, (*TRIALS, "A.best") if phase in {"publish", "report"} else ()))
        return self.wait(reached[phase], PHASE_SECONDS)

    def end(self) -> bool:
        """Let the region go on; return whether the run ended as it should, without help."""
        self._is_kept = False
        self._keeper.join()
        self._signal(signal.SIGCONT)
        self._open((*TRIALS, "A.best"))
        return self.wait(self._is_done, END_SECONDS)

    def wait(self, holds: Callable[[], bool], seconds: float = RECOVERY_SECONDS) -> bool:
        """Return whether something holds within `seconds`; a pool that is down is started."""
        return wait_in_pool(self._pool, holds, seconds)

    def _keep(self) -> None:
        """Suspend the phase's program whenever it runs, until the phase is over."""
        while self._is_kept:
            self._signal(signal.SIGSTOP)
            time.sleep(0.02)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._alive(self.stopped) if self.stopped else ():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _alive(self, kind: str) -> list[int]:
        return [one.pid for one in victims(self._pool.condor_config, frozenset({kind}))]

    def _open(self, nodes: tuple[str, ...]) -> None:
        for node in nodes:
            (self._gate / node).touch()

    def _running(self) -> set[str]:
        return set(job_queue.look_up(RunFolder(self.run.folder)).running)

    def _finished(self) -> int:
        return progress(self.run, Progress()).told

    def _is_done(self) -> bool:
        return self.run.report.exists() and self.run.status().state is RunState.DONE


def wait_in_pool(pool: Pool, holds: Callable[[], bool], seconds: float) -> bool:
    """Return whether something holds in time; start a pool that is down, as systemd would."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not pool.is_up():
            with suppress(PoolError):
                pool.up(seconds=START_SECONDS)
        with suppress(TrialfleetError):
            if holds():
                return True
        time.sleep(0.05)
    return False
