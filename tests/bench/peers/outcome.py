"""The outcome of one system, and the tables of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """One system's results.

    Attributes:
        seconds: from the start of the system's daemons to the results.
        overhead_cpu: processor seconds besides those of the trainings.
        overhead_mb: the largest memory of processes that never trained (PSS).
        trainers_mb: the same of those that did.
        best_halfway: mean over the regions of the best objective after half of their trials.
        best: the same at the end.
        lost: results that the system lacks at the end.
        surplus: results beyond the number asked for.
        retrained: trainings that ended for a trial whose training had already ended.
        wasted: trainings that began and didn't end.
        by_hand: how often the program had to be started again.
        still_seconds: the longest time in which no training began or ended.
    """

    system: str
    kill: str
    trials: int
    seconds: float
    overhead_cpu: float
    overhead_mb: float
    trainers_mb: float
    best_halfway: float
    best: float
    lost: int
    surplus: int
    retrained: int
    wasted: int
    by_hand: int
    still_seconds: float


def in_a_line(one: Outcome) -> str:
    """Return an outcome as one line."""
    return (
        f"{one.system}, {one.kill} killed: {one.seconds:.0f} s, best {one.best:.4f}, "
        f"lost {one.lost}, surplus {one.surplus}, retrained {one.retrained}, "
        f"started again {one.by_hand}"
    )


def costs(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the costs of the undisturbed runs as lines of Markdown."""
    rows = [
        f"| {o.system} | {o.seconds:.0f} | {_cpu(o)} | {o.overhead_mb:.0f} | "
        f"{o.trainers_mb:.0f} | {o.best_halfway:.4f} | {o.best:.4f} |"
        for o in outcomes
        if o.kill == "none"
    ]
    names = ("system", "wall, s", "CPU beside training, s", "memory beside it, MB", "trainers, MB")
    return [*head(*names, "best at half", "best"), *rows]


def _cpu(one: Outcome) -> str:
    """Return the overhead: below 0 if a system's daemon kills workers and doesn't wait for them."""
    return f"{one.overhead_cpu:.0f}" if one.overhead_cpu >= 0 else "not measured"


def losses(outcomes: Sequence[Outcome]) -> list[str]:
    """Return what was lost through kills as lines of Markdown."""
    rows = [
        f"| {o.system} | {o.kill} | {o.lost} | {o.surplus} | {o.retrained} | {o.wasted} | "
        f"{o.by_hand} | {o.still_seconds:.0f} |"
        for o in outcomes
        if o.kill != "none"
    ]
    names = ("system", "killed", "lost", "surplus", "trained twice", "begun, not needed")
    return [*head(*names, "started by hand", "longest still, s"), *rows]


def head(*names: str) -> list[str]:
    """Return the first two lines of a table."""
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
