"""Attempts at a trial that failed by the fault of a machine, or of HTCondor: they cost no retry.

Three witnesses tell them from the user's own errors: HTCondor's hold code, the last words of what
failed, and the machine's own word in the pool, by its probe and its agent. A machine that is found
out late, after the third job that failed there, is to blame for what failed there before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from trialfleet.errors import PoolError
from trialfleet.infra.pool.collector import machine_named
from trialfleet.workflows.facts.dagman.pool_slots import machines
from trialfleet.workflows.rules.resource_limits import CODES
from trialfleet.workflows.study.spec import Study

MACHINE = "node"  # whose an attempt is, as it is noted
_BY_A_PERSON = frozenset({1, 15})  # UserRequest, SubmittedOnHold
_OUTPUT, _INPUT = 12, 13  # a transfer of files failed
_ERRNO = re.compile(r"\(?errno (\d+)\)?", re.IGNORECASE)
# Of a file that isn't there, or may not be read: that of the access point is the user's.
_ABSENT = frozenset({2, 13, 20, 21})

# What only a machine can be blamed for: its disk, its GPU or its driver. CUDA's own words, see
# "CUDA Runtime API, data types, cudaError".
_WORDS = re.compile(
    r"No space left on device"
    r"|Input/output error|\bErrno 5\b|Read-only file system|Stale file handle"
    r"|uncorrectable ECC error|cudaErrorECCUncorrectable"
    r"|no CUDA-capable device is detected|all CUDA-capable devices are busy or unavailable"
    r"|CUDA driver initialization failed|CUDA unknown error"
    r"|GPU (has fallen off the bus|is lost)|Unable to determine the device handle"
    r"|NVML.*(Driver/library version mismatch|Unknown Error)"
    r"|(uncorrectable|hardware) .*error.*(NVLink|GPU)|Unsupported display driver",
    re.IGNORECASE,
)
_EATS = "jobs failed here within"  # how a node's agent tells that job after job fails there


def in_hold(code: int, reason: str) -> bool:
    """Whether a hold is the machine's fault, or HTCondor's, by its code and its words.

    A file that isn't there is the user's.
    """
    if code in {*CODES, *_BY_A_PERSON}:
        return False
    if code in {_INPUT, _OUTPUT}:
        errno = _ERRNO.search(reason)
        return errno is None or int(errno[1]) not in _ABSENT
    return True


def in_words(message: str) -> bool:
    """Whether the last words of a trainer tell of a broken machine."""
    return _WORDS.search(message) is not None


def word_of(machine: str) -> bool:
    """Whether a machine says of itself that it is broken; a silent pool says nothing."""
    found = machine_named(machine)
    if found is None:
        return False
    return (found.is_sick() and found.healthy is False) or _EATS in found.drain_explanation


def own_errors(noted: Mapping[str, Mapping[str, str]]) -> int:
    """Return how many attempts failed by the user's own error, which is what `retries` counts."""
    others = [attempt for attempt in noted.values() if attempt.get("blame") != MACHINE]
    names = {attempt["machine"] for attempt in others if attempt.get("machine")}
    broken = {name for name in names if word_of(name)}
    return sum(attempt.get("machine") not in broken for attempt in others)


def to_avoid(study: Study, noted: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """Return the machines that another attempt should not go to, where others would do."""
    failed = {attempt["machine"] for attempt in noted.values() if attempt.get("machine")}
    return tuple(sorted(failed)) if failed and others_than(study, failed) else ()


def others_than(study: Study, used: Iterable[str]) -> bool:
    """Whether the pool has other machines than these that have what a study requires."""
    own = f"({study.resources.requirements or 'true'})"
    requirements = f"HAS_GPU && {own}" if study.accelerator == "gpu" else own
    try:
        return bool(machines(requirements) - set(used))
    except PoolError:
        return False
