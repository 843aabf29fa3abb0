"""Messages between a gang and the optimiser's service, sent by the keeper for the gang's agents.

The keeper is the process that assigns ranks to the gang's jobs. To the service, a gang looks like a
job with one agent (docs/trial-jobs.md has the protocol). The messages are in the files `agent.json`
and `order.json`, so the next keeper continues after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from trialfleet import nodes, untrusted_files
from trialfleet.nodes.job.agent import EXIT_UNANSWERED
from trialfleet.nodes.job.messages import PATIENCE, REPEAT_SECONDS, Order, build_message
from trialfleet.workflows.facts.jobs.agent_messages import (
    AgentMessage,
    is_answered,
    read_last_message,
    read_order,
)
from trialfleet.workflows.facts.jobs.gang_roster import (
    DONE,
    FORM,
    RUN,
    Job,
    Roster,
    agents_by_proc,
    finished_roster,
    next_trial_roster,
)
from trialfleet.workflows.facts.run_folder.folder import TrialFolder


class ServiceMessages:
    """Sends messages to the optimiser's service for the gang whose jobs have the id `cluster`."""

    def __init__(self, place: TrialFolder, cluster: int) -> None:
        self._place, self._cluster = place, cluster
        self._said: AgentMessage | None = read_last_message(place)
        self.order: Order | None = read_order(place)

    def advance(self, roster: Roster, now: float) -> Roster:
        """Return the roster that follows from the service's last order.

        The order starts the next trial or ends the gang. The gang also ends if the service has not
        answered a message for `PATIENCE` seconds.
        """
        said, order = self._said, self.order
        if order is None or roster.state == DONE:
            return roster
        if said is None or said.say == "begun":
            is_first = order.trial is not None and not roster.trial
            return next_trial_roster(roster, order.name, 0, now) if is_first else roster
        # a keeper reported this end and was killed before it wrote the roster
        if said.say == "ended" and said.turn.number > roster.turn:
            roster = replace(roster, code=said.ended.code)
            if order.last:
                return finished_roster(roster, said.ended.code, now)
        if not is_answered(said, order):
            self._repeat()
            return (
                finished_roster(roster, EXIT_UNANSWERED, now)
                if now > said.time + PATIENCE
                else roster
            )
        if order.trial is None:
            return finished_roster(roster, order.code, now)
        return (
            next_trial_roster(roster, order.name, order.turn, now)
            if order.turn > roster.turn
            else roster
        )

    def report(self, before: Roster, after: Roster, jobs: Collection[Job], *, wants: bool) -> None:
        """Send the service the message that the keeper's last step calls for, if there is one.

        The message says that the gang's first trial has begun, or that a trial has ended, or it
        asks for the first trial. `before` and `after` are the roster before and after the step.
        `wants` is True if the gang has time for another trial.
        """
        if after.code is not None and before.code is None:
            self._tell(after, jobs, wants=wants)
        elif self._said is None and after.state == RUN and not after.turn:
            self._send(jobs, "begun", 0, trial=after.trial)
        elif self._said is None and after.state == FORM and not (after.trial or after.short):
            self._send(jobs, "ask", 1)

    def _tell(self, roster: Roster, jobs: Collection[Job], *, wants: bool) -> None:
        """Report a trial's end. First put the trial's result where the service looks for it."""
        if roster.result:
            left = self._place.words / nodes.RESULT_PACKAGE.format(roster.trial)
            untrusted_files.remove(left)
            with suppress(FileNotFoundError):
                untrusted_files.share(self._place.gang / roster.result, left)
        agents = agents_by_proc(jobs).values()
        self._send(
            jobs,
            "ended",
            roster.turn + 1,
            trial=roster.trial,
            code=roster.code,
            cpu_seconds=sum(agent.cpu for agent in agents),
            memory_mb=max((agent.memory for agent in agents), default=0.0),
            over=roster.over,
            wants=wants and not any(agent.changed for agent in agents),
        )

    def _send(self, jobs: Collection[Job], what: str, turn: int, **more: object) -> None:
        proc = min(agents_by_proc(jobs), default=0)
        who = {"job": f"{self._cluster}.{proc}", "starts": 1, "token": f"{self._cluster:08x}"}
        words = build_message(**who, turn=turn, say=what, **more)
        untrusted_files.write(self._place.said, words, root=self._place.node_root)

    def _repeat(self) -> None:
        """Write the last message again if it has had no answer for `REPEAT_SECONDS`."""
        size, written = untrusted_files.file_stamp(self._place.said)
        if size and time.time() - written / 1e9 > REPEAT_SECONDS:
            words = untrusted_files.read_bytes(
                self._place.said, untrusted_files.MOST_ORDER, self._place.node_root
            )
            untrusted_files.write(self._place.said, words, root=self._place.node_root)
