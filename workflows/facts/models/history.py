"""The changes of a region's current model, in MODELS/STUDY/REGION/.history.json.

Only the link `latest` decides which model is current. A change is written to the file before the
link changes. If the process is killed in between, the change doesn't count. Callers of `note` must
hold the lock of the region's folder.
"""

from __future__ import annotations

import errno
import json
import os
import pwd
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from trialfleet.files import DAMAGED, parse_json, read_regular, sync
from trialfleet.workflows.formatting import local_time

HISTORY = ".history.json"
BY_A_PERSON = {"promote", "rollback", "hand"}  # see `Change.by`
_KEPT = 1000  # changes


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of a region's current model.

    Attributes:
        run: the run of the model that became current.
        previous: the run of the model that was current before; None if none was.
        time: in ISO 8601; None if the change is not in the history.
        by: what made the change: publish, promote, rollback, restore or hand. A restore repeats a
            change that another manager made. "hand" means anything else.
        who: the account that promoted a model or rolled it back; empty if unknown.
        why: the reason that this person gave; empty if there is none.
    """

    run: str
    previous: str | None
    time: str | None
    by: str
    who: str = ""
    why: str = ""

    @property
    def since(self) -> str:
        """The word `since` and the time of the change, in this machine's time zone."""
        time = datetime.fromisoformat(self.time) if self.time else None
        return f"since {local_time(time) or 'an unknown time'}"

    @property
    def description(self) -> str:
        """The command, the person and the reason of the change: `rollback by anna: bad labels`."""
        return (
            self.by + (f" by {self.who}" if self.who else "") + (f": {self.why}" * bool(self.why))
        )


def changes(link: Path) -> list[Change]:
    """Return the changes of a region's current model, oldest first.

    `link` is the region's link `latest`. An unreadable history counts as empty, so that models
    are still published. If the link was changed without a call of `note`, the last change is by
    `hand`.
    """
    try:
        return readable_changes(link)
    except OSError:
        return _with_present([], link)


def readable_changes(link: Path) -> list[Change]:
    """Return what `changes` returns, but raise OSError if the history can't be read."""
    history = link.parent / HISTORY
    try:
        found = list(_parse(read_regular(history)))
    except FileNotFoundError:
        found = []
    except DAMAGED as error:
        why = "it can't be read, so the earlier current models are unknown"
        raise OSError(errno.EIO, why, str(history)) from error
    return _with_present(found, link)


def _with_present(found: list[Change], link: Path) -> list[Change]:
    current = current_run(link)
    if found and current == found[-1].previous != found[-1].run:
        found.pop()  # the process was killed before the change
    if current is not None and (not found or found[-1].run != current):
        previous = found[-1].run if found else None
        found.append(Change(run=current, previous=previous, time=None, by="hand"))
    return found


@lru_cache(maxsize=1 << 9)  # a list of runs needs the history of a region for each of its models
def _parse(content: bytes) -> tuple[Change, ...]:
    return tuple(Change(**each) for each in parse_json(content.decode())["changes"])


def last_move(link: Path, run: str) -> Change | None:
    """Return the last change that made a run's model current or replaced it; None if unknown."""
    return next((each for each in changes(link)[::-1] if run in {each.run, each.previous}), None)


def note(link: Path, run: str, by: str, *, why: str = "") -> None:
    """Record that `link` will now change to the model of `run`; `by` is a value of `Change.by`."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    who = _account() if by in BY_A_PERSON else ""
    new = Change(run=run, previous=current_run(link), time=now, by=by, who=who, why=why)
    try:
        known = readable_changes(link)
    except OSError:  # kept aside
        (link.parent / HISTORY).replace(link.parent / f"{HISTORY}.unreadable")
        known = changes(link)
    kept = [*known, new][-_KEPT:]
    _write(link.parent, {"schema": 1, "changes": [asdict(change) for change in kept]})


def current_run(link: Path) -> str | None:
    """Return the run of the model to which a region's `latest` points.

    Return None if the link is missing or points outside of its folder.
    """
    if not link.is_symlink():
        return None
    target = link.parent / link.readlink()
    is_inside = target.parent == link.parent or target.parent.resolve() == link.parent.resolve()
    return target.name if is_inside else None


def _account() -> str:
    if asks := os.environ.get("SUDO_USER"):
        return asks
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


def _write(models_folder: Path, content: object) -> None:
    beside = models_folder / f"{HISTORY}.new"  # one name, so that kills leave at most one file
    beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    sync(beside)
    beside.replace(models_folder / HISTORY)
    sync(models_folder)
