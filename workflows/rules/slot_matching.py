"""The match of a job with the pool's slots, and why other slots can't run the job.

A slot counts as if no job ran on it, because a job can run later on a slot that is busy now. The
clauses of the job's requirements are evaluated from its ClassAd, as HTCondor's matchmaking does. A
slot's START (which jobs it accepts) may change during the day and is reported separately.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trialfleet.workflows.facts.dagman.pool_slots import RESOURCES, is_true, number_attribute

if TYPE_CHECKING:
    from classad2 import ClassAd

NO_NEGOTIATOR = "HTCondor's negotiator, which assigns jobs to slots, does not run"
# The reason may be a limit on the user's slots, or an overloaded schedd.
NOT_STARTED = "a job has waited for 10 min, but HTCondor doesn't start it although a slot is free"
_MEMORY_STEP = 128  # MB: by default HTCondor rounds a job's memory up to a multiple
# Clauses that condor_submit adds for a resource; these have separate texts.
_OF_RESOURCE = re.compile(r"TARGET\.\w+ >= Request\w+|versionGE\(.*RequestDisk\)")
_SHARES = re.compile(r"\(TrialfleetTrialsPerGpu \?: 1\) == (\d+)")


@dataclass(frozen=True, kw_only=True)
class Prospects:
    """The slots of a pool that can run a job.

    Attributes:
        slots: the number of the pool's slots. Dynamic slots, which are parts of other slots, don't
            count.
        fit: the number of slots that meet all of the job's requirements.
        willing: the number of fitting slots whose START accepts the job now.
        concurrency: how many such jobs the willing slots can run at a time if they run no others.
        lacking: a text for each requirement that some slots don't meet, the rarest first.
        has_fleet: whether the pool has EC2 nodes of a fleet, so that more nodes may join.
    """

    slots: int
    fit: int
    willing: int
    concurrency: int
    lacking: tuple[str, ...]
    has_fleet: bool

    @property
    def hopeless(self) -> bool:
        """True if the job would wait forever in the present pool.

        False if the pool has no slots or has a fleet, because suitable slots may come.
        """
        return self.slots > 0 and not self.fit and not self.has_fleet

    @property
    def has_only_unwilling_slots(self) -> bool:
        """True if slots meet the job's requirements but none accepts the job now."""
        return self.fit > 0 and not self.willing

    def __str__(self) -> str:
        if not self.slots:
            return "the pool has no slots now"
        why = f": {'; '.join(self.lacking)}" if self.lacking else ""
        if not self.fit:
            return f"no slot of the pool can run them{why}"
        if self.has_only_unwilling_slots:
            return (
                f"{self.fit} of {self.slots} slot(s) have what they need, but none accepts them "
                f"now because of its START expression{why}"
            )
        fit = f"{self.fit} of {self.slots} slot(s) of the pool can run them"
        if self.concurrency > self.fit:
            are = "it is" if self.fit == 1 else "they are"
            fit += f"; {are} divided among them: {self.concurrency} run at a time"
        return f"{fit}{why}"


def prospects(job: ClassAd, slots: Sequence[ClassAd]) -> Prospects:
    """Return how many slots can run a job, and why the others can't."""
    demands = [*_resources(job, slots), *_clause_demands(job, slots)]
    fit = [all(demand.met[i] for demand in demands) for i in range(len(slots))]
    lacking = sorted((d for d in demands if not all(d.met)), key=lambda demand: sum(demand.met))
    willing = [slot for ok, slot in zip(fit, slots, strict=True) if ok and _accepts(slot, job)]
    return Prospects(
        slots=len(slots),
        fit=sum(fit),
        willing=len(willing),
        concurrency=sum(_job_capacity(job, slot) for slot in willing),
        lacking=tuple(str(demand) for demand in lacking),
        has_fleet=any("TrialfleetFleet" in slot for slot in slots),
    )


@dataclass(frozen=True)
class _Demand:
    what: str
    met: tuple[bool, ...]
    none: str = "no slot has that"  # the text if no slot has it

    def __str__(self) -> str:
        has = f"{sum(self.met)} of {len(self.met)} slots have that" if any(self.met) else self.none
        return f"{self.what}, {has}"


def _resources(job: ClassAd, slots: Sequence[ClassAd]) -> Iterable[_Demand]:
    for name in RESOURCES:
        asked = number_attribute(job, f"Request{name}")
        has = [number_attribute(slot, name) for slot in slots]
        if asked and slots:
            yield _Demand(
                f"{name.lower()}: needs {_amount(name, asked)}",
                tuple(amount >= asked for amount in has),
                f"the most is {_amount(name, max(has))}",
            )


_PER_GB = {"Memory": 1024, "Disk": 1024 * 1024}


def _amount(name: str, number: float) -> str:
    if name not in _PER_GB:
        return f"{number:g}"
    gigabytes = number / _PER_GB[name]
    return f"{gigabytes:.0f} GB" if gigabytes >= 10 else f"{gigabytes * 1024:.0f} MB"


def _clause_demands(job: ClassAd, slots: Sequence[ClassAd]) -> Iterable[_Demand]:
    for clause in split_clauses(str(job.lookup("Requirements"))):
        if not _OF_RESOURCE.fullmatch(clause):
            yield _Demand(_in_words(clause), tuple(is_true(clause, job, slot) for slot in slots))


def _in_words(clause: str) -> str:
    if clause == "HAS_GPU":
        return "accelerator: gpu needs HAS_GPU"
    if shares := _SHARES.fullmatch(clause):
        return f"gpus: needs GPUs that {shares[1]} trial(s) share (TrialfleetTrialsPerGpu)"
    return f"requirements: {clause}"


def split_clauses(expression: str) -> list[str]:
    """Return the clauses that `&&` joins in an expression.

    A clause in brackets is split, too: `a && (b && c)` has the clauses a, b and c.
    """
    text = expression.strip()
    while text.startswith("(") and not any(True for _ in _outside_brackets(text)):
        text = text[1:-1].strip()
    outside = list(_outside_brackets(text))
    cuts = [i for i in outside if text.startswith("&&", i)]
    if not cuts or any(_binds_less(text, i) for i in outside):
        return [text]
    starts, ends = [0, *(cut + 2 for cut in cuts)], [*cuts, len(text)]
    return [part for i, j in zip(starts, ends, strict=True) for part in split_clauses(text[i:j])]


def _binds_less(text: str, i: int) -> bool:
    """Return whether an operator that binds less than `&&` (`||` or `?:`) begins at `i`."""
    return text.startswith("||", i) or (text[i] == "?" and text[i - 1 : i + 2] != "=?=")


def _outside_brackets(text: str) -> Iterable[int]:
    depth, quote, i = 0, "", 0
    while i < len(text):
        char = text[i]
        if quote:
            i += char == "\\"
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif not depth:
            yield i
        i += 1


def _accepts(slot: ClassAd, job: ClassAd) -> bool:
    return "Requirements" not in slot or slot.lookup("Requirements").eval(slot, job) is True


def _job_capacity(job: ClassAd, slot: ClassAd) -> int:
    """Return how many such jobs a slot runs at a time."""
    if slot.get("PartitionableSlot") is not True:
        return 1
    asked = {name: number_attribute(job, f"Request{name}") for name in RESOURCES}
    asked["Memory"] = math.ceil(asked["Memory"] / _MEMORY_STEP) * _MEMORY_STEP
    return min(
        int(number_attribute(slot, name) // asked[name]) for name in RESOURCES if asked[name]
    )
