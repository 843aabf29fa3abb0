"""Kills at each moment of the messages between a job's agent and the optimiser's service.

The region has one lane (one sequence of trials), so all killed processes are of that lane's job. To
hit a moment of a few milliseconds, the receiver of the message is suspended before the kill, and
continued after it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.pool_settings import configured_pool
from tests.storm.audit import Audit
from tests.storm.embedded import CPUS, START_SECONDS, TRAINER
from tests.storm.matrix import END_SECONDS, FAILED, RECOVERY_SECONDS, Row, wait_in_pool
from tests.storm.storm import Say
from tests.storm.victims import victims
from tests.storm.words import Moment, Word, Words
from trialfleet import Run, RunState, Study, plan
from trialfleet.infra.pool.connection import use
from trialfleet.infra.pool.embedded import Pool

AT = {
    "all": ("asked", "arrived", "told", "answered", "no service"),
    "1": ("arrived", "told", "no service"),  # without questions or answers
}
VICTIMS = ("agent", "staying trainer", "starter", "shadow", "schedd", "startd", "service")
TRIES = 8  # trials until a moment is hit that can be missed
MOMENT_SECONDS = 120.0  # until it comes
AWAY_SECONDS = 3.0  # for which no service comes back


class MissedError(Exception):
    """The moment did not come, or was over too soon."""


class Moments:
    """Kills by moment, in a new pool; `rows` is like that of `Matrix`."""

    def __init__(self, folder: Path, say: Say) -> None:
        self.pool = configured_pool(folder / "pool", cpus=CPUS)
        self.audit = Audit()
        self._runs, self._say = folder / "runs", say

    def rows(self) -> dict[str, Row]:
        """Return for each moment and kind the seconds until the next trial ended, or FAILED."""
        self._runs.mkdir()
        self.pool.up(seconds=START_SECONDS)
        use(self.pool.environment())
        rows: dict[str, Row] = {}
        for per_job, moments in AT.items():
            lane = _Lane(self.pool, self._plan(per_job, len(moments)))
            for moment in moments:
                rows[f"{moment}, {per_job} a job"] = {
                    kind: self._cell(lane, moment, per_job, kind) for kind in VICTIMS
                }
            if not lane.wait(lane.is_done, END_SECONDS):
                rows["the end"] = dict.fromkeys(VICTIMS, FAILED)
            lane.words.close()
            self.audit.add(lane.run, lane.words.all, self._ledger(per_job))
        return rows

    def _ledger(self, per_job: str) -> Path:
        return self._runs / f"ledger-{per_job}"

    def _plan(self, per_job: str, moments: int) -> Run:
        study: dict[str, Any] = {
            "name": "moments",
            "regions": ["A"],
            "objective": {"metric": "loss", "direction": "minimize"},
            "search_space": {
                "x": {"type": "float", "low": 0.0, "high": 1.0},
                "steps": 3,
                "seconds": 0.4,
                "stays": 1,
                "ledger": str(self._ledger(per_job)),
            },
            "budget": {
                "trials": moments * len(VICTIMS) * 5,  # each moment takes two or three
                "lanes": 1,
                "trials_per_job": int(per_job) if per_job.isdecimal() else per_job,
            },
            "trainer": {"command": ["python3", TRAINER.name], "files": [str(TRAINER)]},
            "resources": {"memory": "100MB", "disk": "20MB"},
            "accelerator": "cpu",
            "sampler": "RandomSampler",
            "retries": 5,
        }
        name = f"m-{per_job}"
        return plan(
            Study.model_validate(study).resolve(self._runs), run=name, out=self._runs / name
        )

    def _cell(self, lane: _Lane, moment: str, per_job: str, kind: str) -> str:
        for _ in range(TRIES):
            try:
                with lane.at(moment, is_last=per_job == "1") as trial:
                    killed, begin = lane.kill(kind), time.monotonic()
                break
            except MissedError:
                continue
        else:
            return "-"
        if not killed:
            return "-"
        is_on = lane.wait(lambda: lane.has_recorded_since(begin, trial), RECOVERY_SECONDS)
        cell = f"{time.monotonic() - begin:.0f}" if is_on else FAILED
        self._say(f"{moment}, {per_job} a job: {trial}: {kind}: {cell}")
        return cell


class _Lane:
    """A run of one region with one lane (a sequence of trials)."""

    def __init__(self, pool: Pool, run: Run) -> None:
        self.run, self._pool = run, pool
        self.words = Words(run.folder)
        run.submit()

    @contextmanager
    def at(self, moment: str, *, is_last: bool) -> Iterator[str]:
        """Hold the messages at a moment during the block; yield the trial's name.

        Raises:
            MissedError: the moment was not hit.
        """
        self._until_one_trains(is_last=is_last)
        if moment == "no service":
            with self._without("service"):
                yield self._next("told").trial
                time.sleep(AWAY_SECONDS)
        elif moment == "arrived" or is_last:
            with self._stopping("shadow", on=moment) as word:
                yield word.trial
        else:
            with self._stopped("service") as service:
                if moment == "asked":
                    self.kill("starter")
                    self._next("asked")
                    yield ""
                elif moment == "told":
                    yield self._next("told").trial
                else:
                    trial = self._next("told").trial
                    with self._stopped("agent"):
                        _signal(service, signal.SIGCONT)
                        self._next("answered")
                        yield trial

    def _until_one_trains(self, *, is_last: bool) -> None:
        if not is_last:
            self._next("answered")
            return
        self._next("told")
        before = set(self._alive("staying trainer"))
        if not self.wait(lambda: bool({*self._alive("staying trainer")} - before), MOMENT_SECONDS):
            raise MissedError

    def kill(self, kind: str) -> bool:
        """Kill a process of a kind; return whether there was one."""
        pids = self._alive(kind)
        _signal(pids[:1], signal.SIGKILL)
        return bool(pids)

    def has_recorded_since(self, begin: float, trial: str) -> bool:
        """Return whether another trial has been recorded since, or none is left."""
        recorded = (word for word in self.words.all if word.moment == "told" and word.time > begin)
        return any(word.trial != trial for word in recorded) or self.is_done()

    def is_done(self) -> bool:
        """Return whether the run is done."""
        return self.run.report.exists() and self.run.status().state is RunState.DONE

    def wait(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Return whether something holds within `seconds`; a pool that is down is started."""
        return wait_in_pool(self._pool, holds, seconds)

    def _next(self, moment: Moment) -> Word:
        word = self.words.next({moment}, MOMENT_SECONDS)
        if word is None:
            raise MissedError
        return word

    def _alive(self, kind: str) -> list[int]:
        return [one.pid for one in victims(self._pool.condor_config, frozenset({kind}))]

    @contextmanager
    def _stopped(self, kind: str) -> Iterator[list[int]]:
        pids = self._alive(kind)
        _signal(pids, signal.SIGSTOP)
        try:
            yield pids
        finally:
            _signal(pids, signal.SIGCONT)

    @contextmanager
    def _stopping(self, kind: str, *, on: str) -> Iterator[Word]:
        """Suspend the processes of a kind as soon as the message `on` is written."""
        pids = self._alive(kind)
        word = self._next("told" if on == "told" else "arrived")
        _signal(pids, signal.SIGSTOP)
        try:
            time.sleep(0.1)  # until words said meanwhile are noticed
            if on == "arrived" and any(
                one.moment == "told" and one.time > word.time for one in self.words.all
            ):
                raise MissedError
            yield word
        finally:
            _signal(pids, signal.SIGCONT)

    @contextmanager
    def _without(self, kind: str) -> Iterator[None]:
        """Kill each process of a kind as soon as it exists, during the block."""
        is_over = threading.Event()

        def keep() -> None:
            while not is_over.wait(0.05):
                _signal(self._alive(kind), signal.SIGKILL)

        keeper = threading.Thread(target=keep, daemon=True)
        keeper.start()
        try:
            yield
        finally:
            is_over.set()
            keeper.join()


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
