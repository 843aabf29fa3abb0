"""The assignment of trials to running jobs, in answers to the messages of the jobs' agents.

The optimiser's service learns of new messages by inotify, so jobs that only train cause no work. An
answer is a file with the id of the answered message. After a crash, the restarted service answers
the messages that have no answer yet. docs/trial-jobs.md has the protocol.
"""

from __future__ import annotations

import logging
import time
import weakref
from contextlib import suppress

from inotify_simple import INotify, flags

from trialfleet import nodes, untrusted_files
from trialfleet.errors import OptimizerError, TrialfleetError
from trialfleet.optimizer.service import Reply
from trialfleet.workflows.control.plan.trial_json_and_submit_file import dismiss
from trialfleet.workflows.control.scripts.full_training_scripts import FinalScripts
from trialfleet.workflows.control.scripts.gate_scripts import GateScripts
from trialfleet.workflows.control.scripts.region_studies import RegionStudies, note_ended
from trialfleet.workflows.control.scripts.trial_scripts import TrialScripts
from trialfleet.workflows.facts.jobs.agent_messages import (
    AgentMessage,
    is_answered,
    read_last_message,
    read_order,
)
from trialfleet.workflows.facts.jobs.ordered_trial import (
    find_trained_trial,
    has_checkpoint,
    in_lane,
)
from trialfleet.workflows.facts.jobs.trial_marks import MarkKind, note
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.facts.run_folder.trial_names import is_lane, is_trial
from trialfleet.workflows.status.attempts.outcome import one_line

AGAIN_SECONDS = 2.0  # between two tries to answer a message
_EVENTS = flags.MOVED_TO | flags.ONLYDIR | flags.DONT_FOLLOW
_FAILED = 1  # an agent's exit code: another job retries its trial

_End = FinalScripts | GateScripts

log = logging.getLogger(__name__)


class AgentMessageHandler:
    """Reads the messages of the agents that run jobs' trials, and answers them. Not thread-safe."""

    def __init__(
        self,
        studies: RegionStudies,
        trials: TrialScripts,
        final: FinalScripts,
        gate: GateScripts,
    ) -> None:
        self._studies, self._trials, self._final, self._gate = studies, trials, final, gate
        self._inotify = INotify()
        weakref.finalize(self, self._inotify.close)
        self._watched: dict[int, tuple[str, str]] = {}  # region and DAG node, by the watch's number
        self._unwatched: set[tuple[str, str]] = set()
        self._later: dict[tuple[str, str], float] = {}  # the time to read their messages again

    @property
    def descriptor(self) -> int:
        """A file descriptor that becomes readable when there are new messages."""
        return int(self._inotify.fileno())

    def watch_all(self) -> None:
        """Watch the messages of all jobs that may run now. `catch_up` answers earlier messages."""
        for slug, region in self._studies.regions.items():
            if self._studies.folder.region(slug).is_done:
                continue
            for node in (*region.trial_nodes, *region.end_nodes):
                if not is_trial(node) or self._trials.find_unfinished(slug, node):
                    self.watch(slug, node)
        self._later = dict.fromkeys((*self._watched.values(), *self._unwatched), 0.0)

    def watch(self, slug: str, node: str) -> None:
        """Watch the messages of a DAG node's job, if the job's message folder exists."""
        words = self._place(slug, node).words
        if not untrusted_files.is_folder(words):
            return
        try:
            number = self._inotify.add_watch(words, _EVENTS)
        except OSError as error:  # the kernel's limit of watches
            log.warning("%s: its messages are polled, as they can't be watched: %s", node, error)
            self._unwatched.add((slug, node))
            self._later[slug, node] = 0.0
        else:
            self._watched[number] = (slug, node)

    def forget(self, slug: str, node: str) -> None:
        """Stop watching the job of a DAG node, because the job has ended."""
        for number in [n for n, known in self._watched.items() if known == (slug, node)]:
            del self._watched[number]
            with suppress(OSError):  # the folder was removed, or there was no watch
                self._inotify.rm_watch(number)
        self._later.pop((slug, node), None)
        self._unwatched.discard((slug, node))

    def is_listening(self) -> bool:
        """Return whether a DAG of a watched region is running, so that jobs may send messages."""
        folder = self._studies.folder
        slugs = {slug for slug, _ in (*self._watched.values(), *self._unwatched)}
        return any(folder.region(slug).dag_files.lock.exists() for slug in slugs)

    def note_messages(self) -> None:
        """Note which jobs have sent messages, for `catch_up`. This needs no trial database."""
        for event in self._inotify.read(timeout=0):
            if event.mask & flags.Q_OVERFLOW:
                self._later |= dict.fromkeys(self._watched.values(), 0.0)
            elif event.mask & flags.IGNORED:
                self._watched.pop(event.wd, None)
            elif event.wd in self._watched and event.name == nodes.SAID:
                self._later[self._watched[event.wd]] = 0.0

    def is_due(self) -> bool:
        """Return whether `catch_up` has messages to read."""
        return any(when <= time.monotonic() for when in self._later.values())

    def catch_up(self) -> None:
        """Answer the messages that have not been read yet, or whose answer failed before.

        An answer that fails delays no other job's answer. OptimizerError if the trial database
        can't be used, because then no message can be answered.
        """
        now = time.monotonic()
        for (slug, node), when in [*self._later.items()]:
            if when > now:
                continue
            self._later[slug, node] = now + AGAIN_SECONDS
            if self._try_to_answer(slug, node) and (slug, node) not in self._unwatched:
                del self._later[slug, node]

    def _try_to_answer(self, slug: str, node: str) -> bool:
        try:
            self.answer(slug, node)
        except OptimizerError:
            raise
        except (OSError, TrialfleetError) as error:
            log.warning("%s: can't answer its job now: %s", node, error)
            return False
        except Exception:
            log.exception("%s: can't answer its job now", node)
            return False
        return True

    def answer(self, slug: str, node: str) -> None:
        """Answer the last message of the agent of a DAG node's job. A second call changes nothing.

        OptimizerError if the trial database can't be used. OSError if a file can't be written.
        """
        place = self._place(slug, node)
        said, order = read_last_message(place), read_order(place)
        if said is None or order is None:
            return
        trial = self._find_trial(slug, node, said.trial)
        if trial is None:  # for safety: the name becomes a path
            dismiss(
                place, said.turn, _FAILED, f"{one_line(said.trial)} does not belong to this job"
            )
        elif said.say == "begun":
            note(trial, said.job, place.said.stat().st_mtime, MarkKind.BEGINS)
        elif said.say == "saved":
            if has_checkpoint(trial):  # a trial that was interrupted early may have none
                note(trial, said.job, trial.saved.stat().st_mtime, MarkKind.SAVED)
        elif is_answered(said, order):
            return
        elif said.say == "ended":
            self._record_end(slug, node, trial, said, is_last=order.last)
        else:
            self._answer_question(slug, node, said)

    def _record_end(
        self, slug: str, node: str, trial: TrialFolder, message: AgentMessage, *, is_last: bool
    ) -> None:
        """Record the end of `trial`, which `message` reports; tell the agent what comes next.

        `trial` may also be a full training or a measurement. With `is_last`, the agent needs no
        answer, and the job's POST script records the end.
        """
        running = self._trials.find_unfinished(slug, node)
        note_ended(trial, message.job, message.ended)
        if is_last:  # the POST script records it
            return
        files = self._studies.folder.region(slug)
        if trial.root == files.best.root:
            why = self._final.tell_in_lane(slug, node, message.ended.code)
            self._end(slug, node, message, why, self._behind_best(slug, node))
            return
        if trial.root == files.gate.root:
            why = self._gate.tell_in_lane(slug, node, message.ended.code)
            self._end(slug, node, message, why, None)
            return
        if running != message.trial:
            study = self._studies.get_study(slug)
            if message.trial in study.nodes().difference(study.running_nodes()):
                self._next(slug, node, message)
            else:
                dismiss(
                    trial, message.turn, _FAILED, f"{message.trial} does not belong to this job"
                )
            return
        # With several lanes, the next trial is chosen before this one is recorded: the choice was
        # computed while this one ran. A single lane first records the result and learns from it.
        code, has_others = message.ended.code, len(self._studies.regions[slug].lanes) > 1
        is_ahead = message.wants and code == 0 and has_others
        if is_ahead and not self._studies.space_problem():
            self._trials.choose(slug, node, ended=message.trial)
        reply = self._trials.record_attempt(slug, message.trial, code, message.job)
        if not self._end_job(slug, node, message, reply):
            self._next(slug, node, message)

    def _end_job(self, slug: str, node: str, message: AgentMessage, reply: Reply) -> bool:
        """Let an agent exit if `reply` ends its job or the region. Return whether it exits."""
        log.info("%s", reply.message)
        if reply.exit_code == EXITS["done"]:
            return False
        is_again = reply.exit_code == EXITS["retry"]
        code = _FAILED if is_again else 0
        dismiss(self._place(slug, node), message.turn, code, reply.message)
        return True

    def _next(self, slug: str, node: str, message: AgentMessage) -> None:
        place = self._place(slug, node)
        if not message.wants:
            dismiss(place, message.turn, 0, "another job continues")
        else:
            self._hand_out(slug, node, message)

    def _answer_question(self, slug: str, node: str, message: AgentMessage) -> None:
        """Assign a trial to a job whose agent asks for one.

        If the DAG node's previous job was lost after its trial's result had arrived, record this
        result first.
        """
        told = self._trials.settle(slug, node)
        if told is None or not self._end_job(slug, node, message, told):
            self._hand_out(slug, node, message)

    def _hand_out(self, slug: str, node: str, message: AgentMessage) -> None:
        if why := self._studies.space_problem():
            log.info("%s waits: %s", node, why)
            raise OSError(why)
        chosen = self._trials.choose(slug, node)
        if isinstance(chosen, Reply):
            log.info("%s", chosen.message)  # `trialfleet why` reads this line
            self._asked_behind_trials(slug, node, message, chosen.message)
            return
        name, answer = chosen
        trial = self._place(slug, name)
        # before the answer, since answered messages are skipped
        note(trial, message.job, time.time(), MarkKind.BEGINS)
        self._studies.files(slug, name, answer).hand_out(message.turn)

    def _asked_behind_trials(self, slug: str, node: str, message: AgentMessage, why: str) -> None:
        """Answer an agent that asked for a trial although its region needs no further trial.

        First record a full training or a measurement that the job of a lost agent did. Then order
        what comes next, a full training or a measurement, or let the agent exit.
        """
        behind: _End | None = None
        if told := self._gate.settle_in_lane(slug, node):
            why = told
        elif told := self._final.settle_in_lane(slug, node):
            why, behind = told, self._behind_best(slug, node)
        else:
            behind = self._behind_best(slug, node) or self._final
        self._end(slug, node, message, why, behind)

    def _behind_best(self, slug: str, node: str) -> _End | None:
        return self._gate if self._final.has_trained(slug, node) else None

    def _end(
        self, slug: str, node: str, message: AgentMessage, why: str, behind: _End | None
    ) -> None:
        """Order what is left, the full training or the measurement, or let the agent exit.

        `behind` is None if neither is left to do. `why` is the reason for the exit.
        """
        files = self._studies.folder.region(slug)
        end = files.best if behind is self._final else files.gate
        is_wanted = behind and message.wants and not self._studies.space_problem()
        if behind and is_wanted and behind.ask_in_lane(slug, node, message.turn):
            note(in_lane(files, end, node), message.job, time.time(), MarkKind.BEGINS)
        else:
            dismiss(self._place(slug, node), message.turn, 0, why)

    def _find_trial(self, slug: str, node: str, name: str) -> TrialFolder | None:
        """Return the folder of the trial that a message names; None if another job runs it."""
        own = self._place(slug, node)
        if name in {"", own.root.name}:
            return own
        return (
            find_trained_trial(self._studies.folder.region(slug), node, name)
            if is_lane(node)
            else None
        )

    def _place(self, slug: str, name: str) -> TrialFolder:
        return self._studies.folder.region(slug).node_folder(name)
