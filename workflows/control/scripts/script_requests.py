"""The requests that PRE and POST scripts of DAG nodes send to the optimiser's service.

The program `serve FOLDER [--wait]` is this service. With --wait, it first waits until another
service of the run has ended. Every request may be repeated, because DAGMan runs a script again
after a crash. RETURN is the exit code of the job (or DAGMan), and PRE that of the PRE script. RETRY
is the number of the DAG node's retries so far, and MAX is their maximum.

begin REGION                             prepare for a new DAGMan of the region
end REGION RETURN RETRY MAX              decide whether the region is over or needs another DAGMan
ask REGION NODE                          choose a trial's parameters and write its files
tell REGION NODE RETURN RETRY MAX PRE    record how the job ended, and decide whether to retry
ask-best, tell-best                      the same for the full training of the best settings
ask-gate, tell-gate                      the same for the job that measures both models
conclude REGION NODE                     end a region whose study publishes nothing
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trialfleet.errors import OptimizerError
from trialfleet.files import write_json
from trialfleet.optimizer.run_ownership import Owner
from trialfleet.optimizer.service import Reply, serve
from trialfleet.optimizer.service_client import FULL
from trialfleet.workflows.control.plan.input_provenance import note_changes
from trialfleet.workflows.control.scripts.full_training_scripts import FinalScripts
from trialfleet.workflows.control.scripts.gate_scripts import GateScripts
from trialfleet.workflows.control.scripts.region_scripts import RegionScripts
from trialfleet.workflows.control.scripts.region_studies import (
    JobRefused,
    RegionStudies,
    without_job,
)
from trialfleet.workflows.control.scripts.stop_orders import EarlyStopping
from trialfleet.workflows.control.scripts.trial_assignment import AgentMessageHandler
from trialfleet.workflows.control.scripts.trial_scripts import TrialScripts
from trialfleet.workflows.facts.dagman.failing_scripts import (
    Cause,
    note_failure,
    note_success,
    one_line_message,
)
from trialfleet.workflows.facts.jobs.trial_parts import note_log
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.run_folder.trial_names import is_lane
from trialfleet.workflows.facts.runs.run_storage import get_ownership, other_owner_error
from trialfleet.workflows.status.attempts.blame_and_retries import JobEnd
from trialfleet.workflows.status.status_reader import open_run
from trialfleet.workflows.study.frozen import load_frozen

# A service without a request for this long belongs to a run that is over.
IDLE_SECONDS = 900.0
# These operations wait while the disk is nearly full, because HTCondor must still be able to write
# the logs of the running jobs.
_ASKS = {"ask", "ask-best", "ask-gate"}
_BEGINNINGS = {"begin", *_ASKS}
_ENDS_OF_JOBS = {"tell", "tell-best", "tell-gate"}
_OVER = {EXITS["done"], EXITS["stop"]}  # no other job of the DAG node follows
_OF_REGION = {"begin", "end"}  # the node is the region's node in the run's graph

TRIES = 12  # of a failing script, 10 s apart, before its region fails

log = logging.getLogger(__name__)


class _Script:
    """One request of a PRE or POST script. Its errors are recorded in the region's folder."""

    def __init__(self, folder: RunFolder, slug: str, node: str, operation: str) -> None:
        self._files, self._node, self._operation = folder.region(slug), node, operation

    def note_reply(self, reply: Reply) -> None:
        if isinstance(reply, JobRefused):
            self._note(reply.message)
        elif reply.exit_code != EXITS["defer"]:
            note_success(self._files.failing, self._node)

    def wait(self, error: str, cause: Cause) -> Reply:
        """Record `error` and its `cause`; return the reply that makes DAGMan repeat the script."""
        self._note(error, cause)
        return Reply(EXITS["defer"], error)

    def reply_to_error(self, error: Exception) -> Reply:
        """Reply to an error: repeat the script or, after `TRIES` errors, fail the region."""
        log.error("%s of %s", self._operation, self._node, exc_info=error)
        words = one_line_message(error)
        if self._note(words) < TRIES:
            return Reply(EXITS["defer"], f"{self._node}: {words}; it will be retried")
        try:
            write_json(self._files.stopped, {"reason": words, "script": self._operation})
        except OSError as full:
            return Reply(EXITS["defer"], f"{self._node}: {words}; {one_line_message(full)}")
        code = EXITS["done" if self._operation == "end" else "stop"]
        return Reply(code, f"{self._node}: failed: {words}")

    def _note(self, error: str, cause: Cause = "error") -> int:
        return note_failure(self._files.failing, self._node, self._operation, error, cause)


class ScriptRequests:
    """Handles the script requests of one run, one request at a time. Not thread-safe.

    Only this object writes the run's Optuna studies. The lock of the optimiser's service keeps
    other processes on this machine from writing. But a manager on another machine may have taken
    over the run, so the run's owner is checked before each write.
    """

    def __init__(self, folder: RunFolder) -> None:
        frozen = load_frozen(folder.study)
        self._folder = folder
        self._frozen = frozen
        self._studies = RegionStudies(folder, frozen)
        self._ownership = get_ownership(frozen, folder, self._studies.storage)
        self._owner: Owner | None = None  # at the last check
        self._stopping = EarlyStopping(self._studies)
        trials, final = TrialScripts(self._studies), FinalScripts(self._studies)
        gate = GateScripts(self._studies)
        region = RegionScripts(folder, final)
        self._turns = AgentMessageHandler(self._studies, trials, final, gate)
        self._turns.watch_all()
        self._operations: dict[str, Callable[..., Reply]] = {
            "attend": lambda slug: Reply(EXITS["done"], f"{slug}: the service is running"),
            "begin": region.begin,
            "end": region.end,
            "ask": trials.ask,
            "tell": trials.tell,
            "ask-best": final.ask,
            "tell-best": final.tell,
            "ask-gate": gate.ask,
            "tell-gate": gate.tell,
            "conclude": final.conclude,
        }

    def handle(self, words: list[str]) -> Reply:
        """Execute the request `words`, an operation with its arguments, and return the reply."""
        operation, slug, *more = [*words, "", ""]
        arguments, node = words[1:], more[0] or slug
        if operation not in self._operations:
            known = ", ".join(self._operations)
            return Reply(EXITS["retry"], f"unknown operation {operation!r}; there are: {known}")
        if slug not in self._studies.regions:
            return Reply(EXITS["retry"], f"the run has no region {slug!r}")
        script = _Script(self._folder, slug, slug if operation in _OF_REGION else node, operation)
        try:
            reply = self._reply(operation, arguments)
        except OptimizerError as error:  # the storage is unreachable
            return script.wait(str(error), "storage")
        except OSError as error:
            if error.errno in FULL:
                return script.wait(f"waits for room on the disk: {error}", "space")
            return script.reply_to_error(error)
        except Exception as error:  # noqa: BLE001 - `reply_to_error` logs it
            return script.reply_to_error(error)
        script.note_reply(reply)
        return reply

    def _reply(self, operation: str, arguments: list[str]) -> Reply:
        if operation in _BEGINNINGS and (space := self._studies.space_problem()):
            return Reply(EXITS["defer"], f"{' '.join(arguments)}: {space}")
        if owner := self._other_owner():
            return self._studies.stop(
                arguments[0], other_owner_error(self._frozen, self._folder, owner)
            )
        if operation in _ENDS_OF_JOBS:
            slug, node, *numbers = arguments
            note_changes(self._folder, slug)
            self._turns.forget(slug, node)
            job = JobEnd(*map(int, numbers))
            if refused := without_job(node, job):
                return refused
            reply = self._operations[operation](slug, node, job)
            if is_lane(node) and reply.exit_code in _OVER:
                with suppress(OSError):  # the log has the same
                    note_log(self._folder.region(slug).trial(node).log)
            return reply
        reply = self._operations[operation](*arguments)
        if operation in _ASKS and reply.exit_code == EXITS["done"]:
            self._turns.watch(*arguments[:2])
        return reply

    def idle(self) -> bool:
        """Do some of the work between requests. Return whether work is left.

        This work answers jobs' agents, computes parameters in advance, or reads trials' reports.
        """
        if self._turns.is_due() and not self._other_owner():
            self._turns.catch_up()
        if self._studies.ask_ahead():
            return True
        return self._stopping.is_due() and not self._other_owner() and self._stopping.poll()

    def is_due(self) -> bool:
        """Return whether it is time to read reports of trials or messages of jobs' agents."""
        return self._stopping.is_due() or self._turns.is_due()

    @property
    def descriptor(self) -> int:
        """A file descriptor that becomes readable when a job's agent has sent a message."""
        return self._turns.descriptor

    def handle_events(self) -> None:
        """Answer the jobs' agents that have sent messages."""
        self._turns.note_messages()  # even without a database, or the descriptor stays readable
        if not self._other_owner():
            self._turns.catch_up()

    def is_watching(self) -> bool:
        """Return whether reports of trials or messages of jobs' agents may still come."""
        return self._turns.is_listening()

    def _other_owner(self) -> Owner | None:
        """Return the run's owner if it is another manager, else None.

        If the owner has changed, the Optuna studies are read again at the next use.
        """
        owner = self._ownership.owner()
        if owner != self._owner:
            self._studies.forget()
            self._owner = owner
        return None if self._ownership.is_ours(owner) else owner


def main() -> None:
    """Serve a run's scripts until a signal."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("--wait", action="store_true", help="wait until another service has ended")
    arguments = parser.parse_args()
    folder = open_run(arguments.run)
    serve(
        folder.root,
        lambda: ScriptRequests(folder),
        idle_timeout=None if arguments.wait else IDLE_SECONDS,
        wait_for_lock=arguments.wait,
    )
