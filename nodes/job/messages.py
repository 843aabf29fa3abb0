"""Messages between a job's agent and its access point, repeated until the answer comes.

The messages are files in `words/`, in the job's folder on the access point. The agent writes
`agent.json`, and the access point writes `order.json`. A message has a token, which identifies the
agent, and a number, the turn. The order that answers the message has the same token and turn. An
agent that gets no answer leaves its slot. docs/trial-jobs.md describes the messages.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trialfleet.nodes import ENDED, RESULT_PACKAGE, WORDS
from trialfleet.nodes.job import job_ad, pack_and_unpack
from trialfleet.nodes.job.chirp import MISSING, ChirpError
from trialfleet.nodes.job.events import WantedBackError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trialfleet.nodes.job.chirp import Chirp
    from trialfleet.nodes.job.events import Events

SCHEMA = 1
ORDER, AGENT = f"{WORDS}/order.json", f"{WORDS}/agent.json"
FIRST_LOOK, LAST_LOOK, SLOW_LOOK = 0.002, 0.5, 2.0  # seconds between polls for an answer
SLOW_AFTER = 60.0  # seconds of waiting after which polls are slow
REPEAT_SECONDS = 30.0  # between repetitions of an unanswered message
PATIENCE = 300.0  # seconds without an answer after which the job leaves its slot


@dataclass(frozen=True)
class Order:
    """An order of the access point to an agent, to train a trial or to leave the slot."""

    token: str  # the token of the message that this order answers; empty for a job's first order
    turn: int  # the turn of that message
    trial: dict[str, Any] | None  # content of `trial.json`; None: leave
    name: str = ""  # the trial's name on the access point
    left: tuple[str, ...] = ()  # folders that the result has besides the files of every result
    # A package in `words/` with input files that did not come with the job.
    given: bool = False
    last: bool = False  # after this trial the agent leaves
    memory_mb: float | None = None  # limit of the total memory of the trial's processes
    seconds: float | None = None  # limit of its training time
    # Seconds in which the trial may end itself after an order to stop; None: it can't be stopped.
    grace_seconds: float | None = None
    code: int = 0  # exit code with which the agent leaves
    why: str = ""  # the reason to leave, for people

    @property
    def package(self) -> str:
        """The name of the package with the trial's result, in `words/`."""
        return RESULT_PACKAGE.format(self.name)

    @staticmethod
    def from_json(text: bytes | None) -> Order | None:
        """Return the order in a file's text, or None if it is invalid."""
        plain = parse_object(text)
        try:
            names = ("memory_mb", "seconds", "grace_seconds")
            limits = {name: float(plain[name]) for name in names if plain.get(name) is not None}
            return Order(
                token=str(plain["token"]),
                turn=int(plain["turn"]),
                trial=plain["trial"] if plain["do"] == "train" else None,
                name=str(plain.get("name", "")),
                left=tuple(map(str, plain.get("left", ()))),
                given=bool(plain.get("given")),
                last=bool(plain.get("last")),
                code=int(plain.get("code", 0)),
                why=str(plain.get("why", "")),
                **limits,
            )
        except (ValueError, LookupError, TypeError, OverflowError):
            return None


def parse_object(text: bytes | None) -> dict[str, Any]:
    """Return the JSON object in `text`, or {} if `text` is missing or anything else."""
    with suppress(ValueError, RecursionError):
        found = json.loads(text or b"{}")
        return found if isinstance(found, dict) else {}
    return {}


def build_message(**words: object) -> bytes:
    """Return a message of the agent as JSON text, with the fields `words` and the present time."""
    return json.dumps({"schema": SCHEMA, **words, "time": time.time()}).encode()


class UnansweredError(Exception):
    """The access point has not answered the agent's message in time.

    The message stays on the access point, where a script reads it after the job's end.
    """


class Messages:
    """Writes the agent's messages and reads the access point's orders.

    `first_order`, `earlier_exit_code` and `deliver` raise OSError if the access point is
    unreachable. The other methods do not.
    """

    def __init__(self, chirp: Chirp, events: Events) -> None:
        self._chirp, self._events = chirp, events
        cluster, proc, starts = job_ad.numbers("ClusterId", "ProcId", "NumShadowStarts")
        self._who = {"job": f"{cluster}.{proc}", "starts": starts, "token": os.urandom(4).hex()}
        self._turn = 0
        self._unsaid: bytes | None = None

    def first_order(self) -> Order | None:
        """Return the order that came with the job.

        Return None if the job came without an order, or if a later order has replaced that order.
        """
        order = Order.from_json(self._chirp.read(ORDER))
        return order if order and not order.token and order.trial else None

    def earlier_exit_code(self, order: Order) -> int | None:
        """Return the trial's exit code if an earlier agent of this job trained it, else None."""
        said = parse_object(self._chirp.read(AGENT))
        if (said.get("say"), said.get("trial")) != ("ended", order.name):
            said = parse_object(self._read_end(order.package))
        with suppress(ValueError, LookupError, TypeError, OverflowError):
            return int(said["code"])
        return None

    def _read_end(self, package: str) -> bytes:
        try:
            with closing(self._chirp.blocks(f"{WORDS}/{package}")) as blocks:
                return pack_and_unpack.read_first(blocks, ENDED) or b""
        except ChirpError as error:
            if error.code == MISSING:
                return b""
            raise

    def send(self, say: str, **more: object) -> bytes:
        """Write the message `say`, such as "saved", and return the message's JSON text.

        `more` has further fields of the message. If the access point can't be reached, the message
        is kept for `say_again`.
        """
        self._unsaid = words = build_message(**self._who, turn=self._turn, say=say, **more)
        self.say_again()
        return words

    def say_again(self) -> None:
        """Write the message that `send` has kept, if there is one. A failure is ignored."""
        with suppress(OSError):
            self.deliver()

    def deliver(self) -> None:
        """Write the message that `send` has kept, if there is one. Raise OSError on failure."""
        if self._unsaid is not None:
            self._chirp.write(AGENT, self._unsaid)
            self._unsaid = None

    def say_last(self, **more: object) -> None:
        """Report the end of the job's last trial. `deliver` can retry a failed report."""
        self._turn += 1
        self.send("ended", **more)

    def ask(self, say: str, can_wait: Callable[[], bool], **more: object) -> Order:
        """Write the message `say`, "ask" or "ended", and return the order that answers it.

        Raise UnansweredError after PATIENCE seconds without an answer. Raise WantedBackError once
        `can_wait` returns False.
        """
        self._turn += 1
        words = self.send(say, **more)
        began = said = time.monotonic()
        pause = FIRST_LOOK
        while can_wait():
            if order := self._answer():
                return order
            now = time.monotonic()
            if now - began > PATIENCE:
                raise UnansweredError
            self._events.wait(pause)
            pause = min(pause * 1.5, LAST_LOOK if now - began < SLOW_AFTER else SLOW_LOOK)
            if self._unsaid is not None:
                self.say_again()
            elif now - said > REPEAT_SECONDS:
                said, self._unsaid = now, words
                self.say_again()
        raise WantedBackError

    def _answer(self) -> Order | None:
        try:
            order = Order.from_json(self._chirp.read(ORDER))
        except OSError:
            return None
        is_ours = order and (order.token, order.turn) == (self._who["token"], self._turn)
        return order if is_ours else None
