"""What the agent of one job of a gang says of itself: a line in a file on the access point.

An attribute of the job's ad would do as well, but each of its changes, every 3 s and for days, is
an event in the job's log.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

# What an agent does.
WAITING = "waiting"  # for a generation that takes it in
READY = "ready"  # for the generation that is being formed
RUNNING = "running"  # its workers train
SAVED = "saved"  # its worker left with 85: a checkpoint is saved, to be called again
FINISHED = "finished"  # its workers left with 0; of rank 0, the result is delivered
FAILED = "failed"  # a worker left otherwise
LEAVING = "leaving"  # its machine is wanted back


@dataclass(frozen=True)
class Member:
    """An agent, as it was when it spoke last."""

    token: str  # names this process among all that the job had; of one that dies, it says nothing
    began: int  # the job's JobCurrentStartDate: what a job said before it was lost has another one
    host: str  # the address at which the others reach it
    port: int  # one that was free when it got ready; of rank 0, that of the rendezvous
    phase: str  # what it does
    generation: int  # in which one it does so
    busy: int = 0  # 1 while a worker lives, or what it left is on its way to the access point
    code: int = 0  # exit code of the worker that failed; minus the signal's number
    ended: float = 0.0  # when that was, in Unix seconds
    over: str = ""  # the limit for which this agent ended the trial: memory, time or disk
    changed: int = 0  # 1 where a trial has changed a file that came with the job
    door: int = 0  # the port at which the others see whether they reach this machine
    lost: str = ""  # tokens of the lower ranks that it can't reach, with commas between
    cpu: float = 0.0  # processor seconds that the present trial took here so far
    memory: float = 0.0  # the most that its processes had together, in MB
    beat: int = 0  # goes up while nothing else changes

    def as_text(self) -> str:
        """Return the line."""
        return " ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


def name_of(proc: int) -> str:
    """Return the name of a job's file in the folder `gang`."""
    return f"agent.{proc}"


def parsed(text: object) -> Member | None:
    """Return the member of a line; None where it is none."""
    words = dict(word.partition("=")[::2] for word in str(text).split())
    kinds: dict[str, Any] = {"str": str, "int": int, "float": float}
    try:
        told = {each.name: kinds[str(each.type)](words[each.name]) for each in fields(Member)}
        return Member(**told)
    except (KeyError, ValueError):
        return None
