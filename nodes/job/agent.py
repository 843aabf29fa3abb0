"""The agent, a job's first process, which asks for trials until the job's time is up.

The job's time is `job_minutes` in the study's budget. `training.py` trains a trial.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from trialfleet.nodes.job.checkpoints import EXIT_CHECKPOINTED
from trialfleet.nodes.job.chirp_access import Channel
from trialfleet.nodes.job.events import Events, WantedBackError, until_done
from trialfleet.nodes.job.messages import Messages, UnansweredError
from trialfleet.nodes.job.process_tree import ProcessTree
from trialfleet.nodes.job.training import Trials

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from trialfleet.nodes.job.messages import Order

EXIT_UNANSWERED = 75
EXIT_MACHINE_FAULT = 87
JOB_SECONDS = "TRIALFLEET_JOB_SECONDS"  # in the environment: seconds for taking trials


class Agent:
    """The agent of one job."""

    def __init__(self, command: Sequence[str], channel: Channel) -> None:
        self._events = Events()
        chirp = channel.chirp()
        self._words = Messages(chirp, self._events)
        self._trials = Trials(command, chirp, self._events, self._words)
        self._asks_until = time.monotonic() + float(os.environ.get(JOB_SECONDS) or "inf")

    def run(self) -> int:
        """Train trial after trial, and return the wait status with which this process must end."""
        try:
            order = self._first()
            if isinstance(order, int):
                return order
            while order.trial is not None and not self._events.is_wanted_back:
                ended = self._trials.train(order)
                over = f", because it exceeded its limit of {ended.over}" if ended.over else ""
                how = f"exit code {ended.code}" if ended.code >= 0 else f"signal {-ended.code}"
                words = f"{order.name}: ended with {how} after {ended.seconds:.1f} s{over}"
                print(words, flush=True)
                wants = self._has_time_for_next(order)
                report = {"trial": order.name, **ended.to_json(), "wants": wants}
                if order.last:
                    self._words.say_last(**report)
                    until_done(self._words.deliver, self._events, self._events.has_time)
                    return ended.status
                order = self._words.ask("ended", self._events.has_time, **report)
                if order.trial is not None and not wants:
                    break
        except WantedBackError:
            return EXIT_CHECKPOINTED << 8
        except UnansweredError:
            print("the agent leaves its slot: the access point did not answer", flush=True)
            return EXIT_UNANSWERED << 8
        if order.trial is not None or self._events.is_wanted_back:
            return EXIT_CHECKPOINTED << 8
        print(f"the agent leaves its slot: {order.why}", flush=True)
        return (order.code & 0xFF) << 8

    def _first(self) -> Order | int:
        """Return the first order, or its trial's wait status if an earlier agent trained it."""
        order = until_done(self._words.first_order, self._events, self._events.is_free)
        if order is None:
            return self._words.ask("ask", self._events.is_free)
        read_end = partial(self._words.earlier_exit_code, order)
        code = until_done(read_end, self._events, self._events.is_free)
        if code is not None:
            return code << 8 if code >= 0 else -code
        self._words.send("begun", trial=order.name)
        return order

    def _has_time_for_next(self, order: Order) -> bool:
        if changed := self._trials.folders.find_changed_input():
            print(f"{order.name} has changed {changed}, so the next trial begins in another job")
            return False
        return self._events.is_free() and time.monotonic() < self._asks_until


def main(command: Sequence[str]) -> NoReturn:
    """Run the agent of this job, and exit with its status."""
    run(lambda channel: Agent(command, channel).run())


def run(live: Callable[[Channel], int]) -> NoReturn:
    """Call `live` with the job's channel to the access point, then end this process.

    The process kills all its descendants, and ends with the wait status that `live` returned. If
    `live` raised OSError, for example on a full disk, the exit code is EXIT_MACHINE_FAULT. Outside
    of an HTCondor job, this function exits with code 1 and does not call `live`.

    After exit code 85 HTCondor restarts the job. The restarted job needs the channel's files, so
    this function restores them before the process exits with code 85.
    """
    try:
        channel = Channel.take()
    except OSError as error:
        sys.exit(f"trialfleet: the agent can't use chirp: {error}")
    try:
        status = live(channel)
    except OSError as error:  # this machine's fault, such as a full disk
        with suppress(OSError):  # the file of stderr is on the same disk
            print(f"trialfleet: {error}", file=sys.stderr)
        status = EXIT_MACHINE_FAULT << 8
    ProcessTree().end()
    if os.waitstatus_to_exitcode(status) == EXIT_CHECKPOINTED:
        with suppress(OSError):
            channel.give_back()
    exit_with_status(status)


def exit_with_status(status: int) -> NoReturn:
    """End this process, with an exit code or by a signal, so that its wait status is `status`."""
    code = os.waitstatus_to_exitcode(status)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a full disk
            stream.flush()
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
