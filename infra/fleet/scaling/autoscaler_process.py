"""The autoscaler's process, which makes steps until it is stopped or its DAG is done.

It runs as a node of a DAG, or as a command on the manager. If a user runs several autoscalers of a
fleet on a machine, one scales the fleet, and the others wait. No failure ends the process.
Otherwise the nodes' leases would expire, and the run would wait for ever.
"""

from __future__ import annotations

import os
import threading
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from trialfleet.ctrl_c import handle_signals
from trialfleet.errors import PoolError, TrialfleetError
from trialfleet.files import lock_file, write_json
from trialfleet.infra.fleet.htcondor.provisioning import Graph
from trialfleet.infra.fleet.instances.launch import Progress
from trialfleet.infra.fleet.scaling import down_note
from trialfleet.infra.fleet.scaling.autoscaler import Autoscaler, Step, ignore_output_errors
from trialfleet.infra.fleet.scaling.last_report import default_report, note_current_report

PAUSE = 5.0  # seconds between steps; each step makes a few calls to AWS and one to the pool
LONGEST_PAUSE = 60.0  # seconds between steps after several failures
# `waiting` for another autoscaler's end; `failing` while steps fail, which are repeated.
State = Literal["waiting", "scaling", "failing", "ended"]


class Loop:
    """Repeats the steps of one autoscaler."""

    def __init__(
        self,
        autoscaler: Autoscaler,
        *,
        fleet: str,
        run: str = "",
        report: Path | None = None,
        graph: Graph | None = None,
        ends_with_run: bool = False,
        progress: Progress = lambda _: None,
        pause: float = PAUSE,
        longest_pause: float = LONGEST_PAUSE,
    ) -> None:
        """Prepare the loop, which the method `run` starts.

        After each step, the loop writes the autoscaler's state and the run's id to the file
        `report`, by default `last_report.default_report`. With `graph`, the autoscaler is this
        DAG's provisioner. With `ends_with_run`, the loop ends unneeded nodes when it ends.
        Between steps, the loop waits for `pause` seconds. Each failure in a row doubles this time,
        up to `longest_pause` seconds.
        """
        self._autoscaler, self._fleet, self._run = autoscaler, fleet, run
        self._report = report or default_report(fleet)
        self._lock = default_report(fleet).with_suffix(".lock")
        self._graph, self._progress = graph, progress
        self._ends_with_run = ends_with_run
        self._pause, self._longest_pause = pause, max(pause, longest_pause)
        self._stop = threading.Event()
        self._failures = 0
        self._provisioned = False
        self._last: Step | None = None
        self._unwritten = ""

    def stop(self) -> None:
        """End the loop after the present step."""
        self._stop.set()

    def run(self) -> None:
        """Make steps, despite errors, until SIGTERM, SIGINT, a call of `stop`, or the DAG's end."""
        with handle_signals(lambda *_: self.stop()):
            last = ""
            while not self._stop.is_set():
                try:
                    for file in (self._report, self._lock):
                        file.parent.mkdir(parents=True, exist_ok=True)
                    with lock_file(self._lock, wait=False) as ours:
                        if ours:
                            self._scale()
                            return
                    why = f"another autoscaler of the fleet {self._fleet!r} is running"
                except OSError as error:  # a full disk, perhaps
                    why = f"the autoscaler's files can't be made: {error}"
                else:
                    if why != last:
                        self._tell("waiting")
                if why != last:
                    self._say(why)
                last = why
                self._stop.wait(self._pause)

    def _scale(self) -> None:
        self._provisioned = self._was_provisioned()
        with suppress(OSError):  # a full disk; only `fleet status` reads it
            note_current_report(self._fleet, self._report)
        while not self._stop.is_set() and not self._step():
            self._stop.wait(self._until_next())
        self._tell("ended", self._release_nodes() if self._ends_with_run else "")

    def _release_nodes(self) -> str:
        try:
            self._last = self._autoscaler.release_nodes()
        except Exception as error:  # noqa: BLE001 - the run's end waits for this process
            self._say(f"nodes that are no longer needed may be left: {error}")
            return str(error)
        return ""

    def _step(self) -> bool:
        """Make a step, and return whether the DAG is over. An error of the step is not raised."""
        try:
            with down_note.hold_step_lock(self._fleet):
                # A provisioner keeps a node without trials until its DAG starts.
                waits = self._graph is not None and not self._provisioned
                self._last = self._autoscaler.step(least=int(waits))
            over = self._look_at_the_graph(self._last)
        except Exception as error:  # noqa: BLE001 - nodes and run need the next step in any case
            self._failures += 1
            ours = isinstance(error, TrialfleetError)
            message = str(error) if ours else "".join(traceback.format_exception(error)).rstrip()
            self._say(f"this step failed; the next step follows: {message}")
            self._tell("failing", message if ours else message.splitlines()[-1])
            return False
        self._failures = 0
        self._tell("scaling")
        return over

    def _was_provisioned(self) -> bool:
        """Return whether an earlier process of this autoscaler has already let the DAG start."""
        try:
            return self._graph is not None and self._graph.is_started()
        except PoolError as error:
            self._say(f"it is unknown whether the graph was started before: {error}")
            return False

    def _look_at_the_graph(self, step: Step) -> bool:
        """Start the DAG if a node has joined or the run must end. Return whether it is over."""
        if self._graph is None:
            return False
        if not self._provisioned and (step.joined_nodes or step.stopped):
            self._graph.start()
            self._provisioned = True
            self._say(f"the graph may start: {step.stopped or 'a node has joined'}")
        return self._provisioned and self._graph.is_over()

    def _until_next(self) -> float:
        return min(self._pause * 2.0 ** min(self._failures, 10), self._longest_pause)

    def _tell(self, state: State, error: str = "") -> None:
        report = {
            "schema": 1,
            "fleet": self._fleet,
            "run": self._run,
            "mode": "provisioner" if self._graph else "service",
            "state": state,
            "process": os.getpid(),
            "at": datetime.now(UTC),
            "error": error,  # why the last step failed
            "step": self._last,  # the last one that did not fail
        }
        try:
            write_json(self._report, report)
            self._unwritten = ""
        except (OSError, ValueError) as error:
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            if self._unwritten != why:
                self._unwritten = why
                self._say(f"the report can't be written: {self._report}: {why}")

    def _say(self, line: str) -> None:
        ignore_output_errors(self._progress)(line)
