"""Messages of jobs' agents to the access point, and its answers (docs/trial-jobs.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from trialfleet import untrusted_files
from trialfleet.nodes.job.messages import Order
from trialfleet.workflows.cleaning import amount
from trialfleet.workflows.facts.run_folder.folder import TrialFolder

Say = Literal["begun", "ask", "saved", "ended"]
Over = Literal["memory", "time", "disk", "files"]
# Errors that mean that there is no valid message.
_NONE = (OSError, LookupError, ValueError, TypeError, OverflowError, AttributeError)


@dataclass(frozen=True)
class MessageId:
    """The id of an agent's message; `token` identifies the agent's process."""

    token: str
    number: int


@dataclass(frozen=True, kw_only=True)
class ReportedEnd:
    """The end of a trial, as its job's agent reports it.

    `code` is the trainer's exit code, or minus the number of the signal that killed it. `over` is
    the limit that the trial exceeded, if any.
    """

    code: int
    cpu_seconds: float | None
    memory_mb: float | None
    over: Over | None

    @staticmethod
    def from_json(plain: dict[str, Any]) -> ReportedEnd:
        """Return how a trial ended; `plain` is the content of the agent's message.

        Raises AttributeError, OverflowError, TypeError or ValueError if the content is invalid.
        """
        return ReportedEnd(
            code=int(plain.get("code") or 0),
            cpu_seconds=amount(plain.get("cpu_seconds")),
            memory_mb=amount(plain.get("memory_mb")),
            over=_check_choice(Over, plain["over"]) if plain.get("over") else None,
        )


@dataclass(frozen=True, kw_only=True)
class AgentMessage:
    """The last message of a job's agent: a trial begun, saved or ended, or the ask for a trial."""

    job: str
    turn: MessageId
    say: Say
    trial: str  # empty if `say` is "ask"
    ended: ReportedEnd  # meaningless unless `say` is "ended"
    wants: bool  # the agent can train another trial
    time: float  # of its first sending, in Unix seconds by the clock of the agent's machine

    def reports_end_of_trial(self, name: str) -> bool:
        """Return whether the message reports the end of the trial `name`."""
        return self.say == "ended" and self.trial == name


def read_last_message(place: TrialFolder) -> AgentMessage | None:
    """Return the last message of a trial's agent; None if there is no valid message."""
    try:
        plain = untrusted_files.read_json(place.said, untrusted_files.MOST_ORDER, place.node_root)
        return AgentMessage(
            job=_check_job(plain["job"]),
            turn=MessageId(str(plain["token"]), int(plain["turn"])),
            say=_check_choice(Say, plain["say"]),
            trial=str(plain.get("trial") or ""),
            ended=ReportedEnd.from_json(plain),
            wants=plain.get("wants") is not False,
            time=amount(plain.get("time")) or 0.0,
        )
    except _NONE:
        return None


def read_ended(place: TrialFolder) -> ReportedEnd | None:
    """Return how a trial ended; None if its agent has not reported this yet.

    Call `unpacking.unpack_result` first, because it moves the agent's report to the trial's folder.
    """
    try:
        return ReportedEnd.from_json(
            untrusted_files.read_json(place.ended, untrusted_files.MOST_AGENT, place.root)
        )
    except _NONE:
        said = read_last_message(place)
        return said.ended if said and said.reports_end_of_trial(place.root.name) else None


def read_order(place: TrialFolder) -> Order | None:
    """Return the last order for a job's agent, or None if it has no valid order.

    An order tells the agent to train a trial or to leave its slot.
    """
    stamp = untrusted_files.file_stamp(place.order)
    return _order(place, stamp) if stamp[0] else None


@lru_cache(maxsize=1 << 13)  # all running jobs: a snapshot of a run reads each several times
def _order(place: TrialFolder, _changed: tuple[int, int]) -> Order | None:
    try:
        return Order.from_json(
            untrusted_files.read_bytes(place.order, untrusted_files.MOST_NOTES, place.node_root)
        )
    except OSError:
        return None


def is_answered(message: AgentMessage, order: Order) -> bool:
    """Return whether `order` answers the agent's message."""
    return message.turn == MessageId(order.token, order.turn)


def question_time(place: TrialFolder) -> float | None:
    """Return when a job's agent began to wait, in Unix seconds; None if it doesn't wait."""
    if untrusted_files.file_stamp(place.said)[1] <= untrusted_files.file_stamp(place.order)[1]:
        return None
    said, order = read_last_message(place), read_order(place)
    if said is None or order is None or is_answered(said, order) or order.last:
        return None
    return said.time if said.say in {"ask", "ended"} else None


def _check_job(value: Any) -> str:
    if not re.fullmatch(r"[0-9]+\.[0-9]+", str(value)):
        raise ValueError(value)
    return str(value)


def _check_choice(kind: Any, value: Any) -> Any:
    if value not in get_args(kind):
        raise ValueError(value)
    return value
