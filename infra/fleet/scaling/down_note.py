"""The note on this machine that a person has taken a fleet down.

While it is there no autoscaler here starts a node of the fleet or renews a lease: a run that goes
on would else have the first new node within seconds. It goes when a person asks for the fleet
again: by `fleet up`, `scale` or `autoscale`, or by submitting or resuming a run of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from trialfleet.errors import FleetError
from trialfleet.files import locked, object_or_empty, read_json, write_json
from trialfleet.infra.fleet.scaling.last_report import default_report

STEP_SECONDS = 120.0  # so long a step that has begun may take


def note_down(fleet: str, seconds: float = STEP_SECONDS) -> None:
    """Note that a fleet is down, and wait until no autoscaler here is in a step without knowing it.

    Raises:
        FleetError: the note can't be written, or the step doesn't end.
    """
    file, lock = _file(fleet), step_lock(default_report(fleet))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"at": datetime.now(UTC).isoformat(timespec="seconds")})
        deadline = time.monotonic() + seconds
        while not _is_free(lock):
            if time.monotonic() > deadline:
                raise FleetError(f"the fleet's autoscaler is in a step for {seconds:.0f} s already")
            time.sleep(0.2)
    except OSError as error:
        raise FleetError(f"that the fleet is down can't be noted in {file}: {error}") from error


def lift(fleet: str) -> None:
    """Remove the note: somebody asks for the fleet again."""
    _file(fleet).unlink(missing_ok=True)


def why_no_nodes(fleet: str) -> str:
    """Return that the fleet was taken down, in words; empty if it wasn't."""
    noted = object_or_empty(lambda: read_json(_file(fleet)))
    if not noted:
        return ""
    return f"the fleet was taken down at {noted.get('at')}; trialfleet fleet up brings it back"


@contextmanager
def step_of(lock: Path) -> Iterator[None]:
    """Hold the lock that `note_down` waits for; without a disk for it the block still runs."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(locked(lock, wait=True))
        yield


def step_lock(report: Path) -> Path:
    """Return the lock that an autoscaler which reports there by default holds in each step."""
    return report.with_suffix(".step")


def _is_free(lock: Path) -> bool:
    with locked(lock, wait=False) as ours:
        return ours


def _file(fleet: str) -> Path:
    return default_report(fleet).with_suffix(".down")
