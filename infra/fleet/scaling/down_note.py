"""The note that a person has taken a fleet down: no autoscaler here starts nodes meanwhile.

While the note exists, no autoscaler on this machine starts a node of the fleet or renews a lease.
Otherwise a run in progress would launch a new node within seconds. The note is removed by `fleet
up` and `fleet autoscale`, by `fleet scale` unless it reduces the number of nodes, and when a run
with this fleet is submitted or resumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from trialfleet.errors import FleetError
from trialfleet.files import lock_file, object_or_empty, read_json, write_json
from trialfleet.infra.fleet.scaling.last_report import default_report
from trialfleet.infra.pool.processes import wait_until

STEP_SECONDS = 120.0  # longest duration of a step that has begun


def note_down(fleet: str, seconds: float = STEP_SECONDS) -> None:
    """Write the note, and wait until this machine's autoscalers have ended their present steps.

    FleetError if the note can't be written, or a step does not end within `seconds`.
    """
    file, lock = _file(fleet), _step_lock(fleet)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"at": datetime.now(UTC).isoformat(timespec="seconds")})
        if not wait_until(lambda: _is_free(lock), seconds=seconds, poll=0.2):
            raise FleetError(
                f"the fleet's autoscaler did not finish its current step within {seconds:.0f} "
                "s; repeat the command later"
            )
    except OSError as error:
        raise FleetError(
            f"can't write {str(file)!r}, which records that the fleet is down: {error}"
        ) from error


def lift(fleet: str) -> None:
    """Remove the note, if there is one."""
    _file(fleet).unlink(missing_ok=True)


def reason_no_nodes(fleet: str) -> str:
    """Return why no node may start, if a person has taken the fleet down; else an empty text."""
    noted = object_or_empty(lambda: read_json(_file(fleet)))
    if not noted:
        return ""
    return f"the fleet was taken down at {noted.get('at')}; `trialfleet fleet up` starts it again"


@contextmanager
def hold_step_lock(fleet: str) -> Iterator[None]:
    """Hold the lock for which `note_down` waits; run the block even if the lock can't be made."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(lock_file(_step_lock(fleet), wait=True))
        yield


def _step_lock(fleet: str) -> Path:
    return default_report(fleet).with_suffix(".step")


def _is_free(lock: Path) -> bool:
    with lock_file(lock, wait=False) as ours:
        return ours


def _file(fleet: str) -> Path:
    return default_report(fleet).with_suffix(".down")
