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
    """An agent, as it was when it spoke last.

    Attributes:
        token: names this process among all that the job had; of one that dies, it says nothing.
        began: the job's JobCurrentStartDate: what a job said before it was lost has another one.
        host: the address at which the others reach it.
        port: one that was free when it got ready; of rank 0, that of the rendezvous.
        phase: what it does.
        generation: in which one it does so.
        busy: 1 while a worker lives, or what it left is on its way to the access point.
        code: exit code of the worker that failed; minus the signal's number.
        ended: when that was, in Unix seconds.
        over: the limit for which this agent ended the trial: memory, time or disk.
        changed: 1 where a trial has changed a file that came with the job.
        door: the port at which the others see whether they reach this machine.
        lost: tokens of the lower ranks that it can't reach, with commas between.
        cpu: processor seconds that the present trial took here so far.
        memory: the most that its processes had together, in MB.
        beat: goes up while nothing else changes.
    """

    token: str
    began: int
    host: str
    port: int
    phase: str
    generation: int
    busy: int = 0
    code: int = 0
    ended: float = 0.0
    over: str = ""
    changed: int = 0
    door: int = 0
    lost: str = ""
    cpu: float = 0.0
    memory: float = 0.0
    beat: int = 0

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
