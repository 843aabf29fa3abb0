"""The training of one trial: until its end, a limit, or an order to stop, which is enforced."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from trialfleet.nodes.job.events import Events
from trialfleet.nodes.job.process_tree import ProcessTree
from trialfleet.nodes.job.trainer_process import Trainer
from trialfleet.nodes.job.trial_limits import Bounds

KILL_SECONDS = 15.0  # between SIGTERM and SIGKILL
FIRST_CARRY = 0.02  # seconds after a trial's begin: shorter trials end without a turn


class Training:
    """The training of one trial, which `trainer` has begun.

    `grace_seconds` is the time from the order to stop until the trial is ended; None: it is never
    ended for that. `carry` transfers reports. It returns whether the trial is to stop, and when to
    call `carry` again.
    """

    def __init__(
        self,
        trainer: Trainer,
        processes: ProcessTree,
        bounds: Bounds,
        grace_seconds: float | None,
        carry: Callable[[], tuple[bool, float]],
    ) -> None:
        self._trainer, self._processes, self._bounds = trainer, processes, bounds
        self._grace_seconds, self._carry = grace_seconds, carry
        self._is_to_stop = False
        self._ends: list[tuple[float, int]] = []  # times and signals after an order to stop

    def run(self, events: Events) -> int:
        """Wait for the trial's end, enforce its limits, and return its wait status.

        WantedBackError if the job must end first.
        """
        carry_at = time.monotonic() + FIRST_CARRY
        while (status := self._trainer.status()) is None:
            events.check()
            now = time.monotonic()
            self._bounds.check(now)
            if self._bounds.over:
                self._processes.end()
                continue
            self._send_due_signals(now)
            if now >= carry_at:
                is_to_stop, carry_at = self._carry()
                self._note_stop(now, is_to_stop=is_to_stop)
            times = [carry_at, self._bounds.next_check, *(at for at, _ in self._ends[:1])]
            events.wait(min(times) - time.monotonic(), self._trainer.socket)
        if status == 0:
            self._bounds.over = None  # it had ended already
        return status

    def _note_stop(self, now: float, *, is_to_stop: bool) -> None:
        if is_to_stop and not self._is_to_stop and self._grace_seconds is not None:
            self._is_to_stop = True
            at = now + self._grace_seconds
            self._ends = [(at, signal.SIGTERM), (at + KILL_SECONDS, signal.SIGKILL)]

    def _send_due_signals(self, now: float) -> None:
        while self._ends and now >= self._ends[0][0]:
            self._trainer.send(self._ends.pop(0)[1])
