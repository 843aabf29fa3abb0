"""Failed attempts for which a machine or HTCondor is to blame; they cost no retry.

Three sources identify such attempts: HTCondor's hold code, the trainer's error or last line of
output, and the machine's own ClassAd in the pool. A broken machine may be recognised only after the
third failed job. Its earlier failures then count as its fault, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from trialfleet.errors import PoolError
from trialfleet.infra.pool.collector import machine_named
from trialfleet.workflows.facts.dagman.pool_slots import machines
from trialfleet.workflows.rules.resource_limits import CODES
from trialfleet.workflows.study.spec import Study

MACHINE = "node"  # the recorded blame of an attempt
_BY_A_PERSON = frozenset({1, 15})  # UserRequest, SubmittedOnHold
_OUTPUT, _INPUT = 12, 13  # a transfer of files failed
_ERRNO = re.compile(r"\(?errno (\d+)\)?", re.IGNORECASE)
# Errors of a missing or unreadable file: one on the access point is the user's.
_ABSENT = frozenset({2, 13, 20, 21})

# Errors that only a machine causes: its disk, its GPU or its driver. For CUDA's texts see "CUDA
# Runtime API, data types, cudaError".
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
_FAILING_JOBS = "jobs failed here within"  # a node agent's text for repeatedly failing jobs


def in_hold(code: int, reason: str) -> bool:
    """Return whether a machine or HTCondor caused a hold; a missing file is the user's error."""
    if code in {*CODES, *_BY_A_PERSON}:
        return False
    if code in {_INPUT, _OUTPUT}:
        errno = _ERRNO.search(reason)
        return errno is None or int(errno[1]) not in _ABSENT
    return True


def in_words(message: str) -> bool:
    """Return whether a trainer's last line of output indicates a broken machine."""
    return _WORDS.search(message) is not None


def is_reported_broken(machine: str) -> bool:
    """Return whether a machine's ClassAd reports it as broken; False if the pool is unreachable."""
    found = machine_named(machine)
    if found is None:
        return False
    return (found.is_sick() and found.healthy is False) or _FAILING_JOBS in found.drain_explanation


def own_errors(noted: Mapping[str, Mapping[str, str]]) -> int:
    """Return how many attempts failed by the user's error, not by a machine's fault."""
    others = [attempt for attempt in noted.values() if attempt.get("blame") != MACHINE]
    names = {attempt["machine"] for attempt in others if attempt.get("machine")}
    broken = {name for name in names if is_reported_broken(name)}
    return sum(attempt.get("machine") not in broken for attempt in others)


def machines_to_avoid(study: Study, noted: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """Return the machines that the next attempt should avoid; empty if the pool has no others."""
    failed = {attempt["machine"] for attempt in noted.values() if attempt.get("machine")}
    return tuple(sorted(failed)) if failed and others_than(study, failed) else ()


def others_than(study: Study, used: Iterable[str]) -> bool:
    """Return whether the pool has machines outside `used` that meet a study's requirements.

    The result is False if HTCondor is unreachable.
    """
    own = f"({study.resources.requirements or 'true'})"
    requirements = f"HAS_GPU && {own}" if study.accelerator == "gpu" else own
    try:
        return bool(machines(requirements) - set(used))
    except PoolError:
        return False
