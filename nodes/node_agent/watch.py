"""The loop in which an EC2 node's agent observes, decides and acts each second."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

from trialfleet.instance_aws import Imds
from trialfleet.nodes.bootstrap import metadata_fence
from trialfleet.nodes.bootstrap.host import Host, StepError
from trialfleet.nodes.node_agent import machine, notices
from trialfleet.nodes.node_agent.decisions import (
    Decision,
    Departure,
    Memory,
    Observations,
    Startd,
    changes,
    decide,
)
from trialfleet.nodes.node_agent.htcondor_tools import Condor
from trialfleet.nodes.node_agent.notices import Notices
from trialfleet.nodes.probe import kernel_log
from trialfleet.nodes.probe.privileged_readings import PrivilegedReadings
from trialfleet.wall_clock import WallClock, real_time

STEP = 1.0  # seconds; AWS recommends 5 or less, because an interruption comes after 120
FENCE = 10.0  # seconds between checks of the fence, which keeps jobs from the metadata
TELL = 300.0  # seconds between saves of root's readings for the probe, which runs every 900

log = logging.getLogger(__name__)


def read_memory(path: Path) -> Memory:
    """Return the agent's saved memory, or an empty memory if the file is missing or damaged."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        leaving, offline = saved.pop("leaving"), tuple(saved.pop("offline"))
        return Memory(**saved, leaving=Departure(**leaving) if leaving else None, offline=offline)
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return Memory()


def write_memory(path: Path, memory: Memory) -> None:
    """Write the agent's memory to `path` atomically. Raise OSError if that fails."""
    Host(Path("/")).write(str(path), json.dumps(asdict(memory)) + "\n")


class Agent:
    """The agent that watches one EC2 node."""

    def __init__(
        self,
        metadata: Imds,
        condor: Condor,
        idle_minutes: float,
        state: Path,
        *,
        clock: Callable[[], datetime] = real_time,
        uptime: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        cancel_switch: Callable[[], None] = machine.cancel_switch,
        power_off: Callable[[str], None] = machine.power_off,
        raise_fence: Callable[[Host], bool] = metadata_fence.raise_fence,
        tell_probe: Callable[[PrivilegedReadings], None] = machine.tell_probe,
        token_expiry: Callable[[], float | None] = lambda: machine.token_expiry(Host()),
    ) -> None:
        """Load the agent's memory from the file `state`.

        If `idle_minutes` is 0, an idle node stays in the pool. `uptime` returns the seconds since
        boot. Unlike `clock`, it never jumps. Only tests pass functions other than the defaults.
        """
        self._metadata, self._condor, self._state = metadata, condor, state
        self._idle_minutes = idle_minutes
        self._uptime = uptime
        self._clock = WallClock(clock, uptime)  # if the clock jumps ahead, the lease doesn't end
        self._cancel_switch, self._power_off = cancel_switch, power_off
        self._tell_probe, self._last_tell = tell_probe, float("-inf")
        self._token_expiry = token_expiry
        self._raise_fence, self._fenced, self._unfenced = raise_fence, float("-inf"), ""
        self._memory = read_memory(state)
        self._answers, self._problem, self._offline_problem = True, "", ""

    def run(self) -> None:
        """Call `step` each second until the machine has been asked to shut down."""
        log.info("watching; remembered: %s", self._memory)
        while not self.step():
            time.sleep(STEP)

    def step(self) -> bool:
        """Observe, decide and act once. Return whether the machine was asked to shut down."""
        decision = decide(self._memory, self._read_state(), self._idle_minutes)
        decision = self._take_offline(self._cancel_shutdown(decision))
        for line in changes(self._memory, decision.memory):
            log.info("%s", line)
        self._save_memory(decision)
        self._drain(decision)
        self._tell()
        return self._shut_down(decision)

    def _read_state(self) -> Observations:
        current = notices.read(self._metadata)
        startd = self._condor.read_startd()
        self._log_silence(current, startd)
        return Observations(
            now=self._clock.now().timestamp(),
            uptime=self._uptime(),
            startd=startd,
            busy=self._condor.starter_lives() if startd is None else startd.held > 0,
            in_collector=self._memory.joined
            or (startd is not None and self._condor.in_collector()),
            expires=current.expires,
            interruption=current.interruption,
            rebalance=current.rebalance,
            token_expires=self._token_expiry(),
            failures=self._condor.failures(),
            unfenced=self._look_at_fence() or None,
        )

    def _look_at_fence(self) -> str:
        """Keep jobs from the instance's metadata. Return "", or the reason for a failure.

        If the last check was less than FENCE seconds ago, only return its result.
        """
        if self._uptime() - self._fenced < FENCE:
            return self._unfenced
        self._fenced = self._uptime()
        try:
            if self._raise_fence(Host()):
                log.warning(
                    "jobs could reach the instance's metadata, so the routing rule against this "
                    "was added again"
                )
            self._unfenced = ""
        except StepError as error:
            self._unfenced = str(error)
        return self._unfenced

    def _log_silence(self, current: Notices, startd: Startd | None) -> None:
        if (current.problem or "") != self._problem:
            self._problem = current.problem or ""
            log.info("%s", self._problem or "the instance's metadata is readable again")
        if (startd is not None) != self._answers:
            self._answers = startd is not None
            log.info("the startd %s", "answers" if self._answers else "does not answer")

    def _cancel_shutdown(self, decision: Decision) -> Decision:
        """Cancel the shutdown scheduled at boot if `decision` says so, and return the decision.

        After a failure, the memory in the returned decision says that the node has not joined. So
        the next step tries again.
        """
        if not decision.cancel_switch:
            return decision
        try:
            self._cancel_switch()
        except StepError as error:
            log.warning("the shutdown scheduled at boot can't be cancelled: %s", error)
            return replace(decision, memory=replace(decision.memory, joined=False))
        log.info("the shutdown scheduled at boot is cancelled")
        return decision

    def _take_offline(self, decision: Decision) -> Decision:
        if decision.offline is None:
            return decision
        try:
            self._condor.take_offline(decision.offline)
        except StepError as error:
            if str(error) != self._offline_problem:  # it is retried each second
                log.warning("sick GPUs can't be taken offline: %s", error)
            self._offline_problem = str(error)
            before = replace(decision.memory, offline=self._memory.offline)
            return replace(decision, memory=before)
        self._offline_problem = ""
        return decision

    def _tell(self) -> None:
        if not self._memory.joined or self._uptime() - self._last_tell < TELL:
            return
        self._last_tell = self._uptime()
        try:
            self._tell_probe(PrivilegedReadings(kernel_log.read_xids(), self._condor.bandwidths()))
        except OSError as error:
            log.warning("the readings for the GPU probe can't be written: %s", error)

    def _save_memory(self, decision: Decision) -> None:
        if decision.memory == self._memory:
            return
        self._memory = decision.memory
        try:
            write_memory(self._state, self._memory)
        except OSError as error:  # a full disk must not keep the node from draining
            log.warning("%s can't be written: %s", self._state, error)

    def _drain(self, decision: Decision) -> None:
        if decision.drain is None:
            return
        try:
            self._condor.drain(decision.drain, only_idle=decision.only_idle)
        except StepError as error:
            log.warning("the node can't be drained: %s", error)
        else:
            log.info("draining: %s", decision.drain)

    def _shut_down(self, decision: Decision) -> bool:
        if decision.power_off is None:
            return False
        log.info("shutting down: %s", decision.power_off)
        try:
            self._power_off(decision.power_off)
        except StepError as error:
            log.warning("%s", error)
            return False
        return True
