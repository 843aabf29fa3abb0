"""A file that says that a person has taken a fleet down.

While this file exists, no autoscaler on this machine starts a node of the fleet or renews a lease.
Otherwise a run in progress would launch a new node within seconds. `fleet up` and `fleet autoscale`
remove the file. So does `fleet scale`, unless it reduces the number of nodes. The file is also
removed when a run with this fleet is submitted or resumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from trialfleet.errors import FleetError, InputError
from trialfleet.files import lock_file, read_record, write_json
from trialfleet.infra.fleet.scaling.last_report import default_report
from trialfleet.infra.pool.processes import wait_until

STEP_SECONDS = 120.0  # longest duration of a step that has begun


def note_down(fleet: str, seconds: float = STEP_SECONDS) -> None:
    """Record that the fleet is down, and wait until no autoscaler's step is in progress.

    FleetError if the file can't be written, or if a step does not end within `seconds`.
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
    """Remove the record that the fleet is down, if there is one."""
    _file(fleet).unlink(missing_ok=True)


def reason_no_nodes(fleet: str) -> str:
    """Return a text that says when a person took the fleet down, or an empty text.

    A record that can't be read counts, too: nodes would cost money against a person's order.
    """
    try:
        if not (record := read_record(_file(fleet), "at", if_missing={})):
            return ""
        noted = f"was taken down at {record['at']}"
    except InputError as error:
        noted = f"counts as taken down, because {error}"
    return f"the fleet {noted}; `trialfleet fleet up` starts it again"


@contextmanager
def hold_step_lock(fleet: str) -> Iterator[None]:
    """Make `note_down` wait until the `with` block has ended.

    The block runs even if the lock can't be used. Otherwise no lease would be renewed.
    """
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
