"""The driver's errors (Xid) in the kernel's log, and its options in /proc."""

from __future__ import annotations

import os
import re
from pathlib import Path

KMSG = Path("/dev/kmsg")
PARAMS = Path("/proc/driver/nvidia/params")
XID = re.compile(r"NVRM: Xid \([^)]*\): (\d+)")
RECORD = 8192  # bytes: the kernel refuses to give a record to a smaller buffer


def xids(log: str) -> tuple[int, ...]:
    """Return the codes in a kernel's log, in order."""
    return tuple(int(code) for code in XID.findall(log))


def read_xids(device: Path = KMSG) -> tuple[int, ...] | None:
    """Return the codes since boot; None if the log can't be read (it takes root, mostly)."""
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return xids("".join(records(descriptor)))
    finally:
        os.close(descriptor)


def records(descriptor: int) -> list[str]:
    """Return every record that the kernel's log holds."""
    found: list[str] = []
    while True:
        try:
            record = os.read(descriptor, RECORD)
        except BrokenPipeError:
            continue  # it was overwritten before it could be read: the next one follows
        except OSError:
            return found  # no more (EAGAIN), or not allowed after all
        if not record:
            return found
        found.append(record.decode(errors="replace"))


def option(params: str, name: str) -> str | None:
    """Return an option's value in the text of /proc/driver/nvidia/params; None if it has none."""
    found = re.search(rf"^{re.escape(name)}: *(.*?) *$", params, flags=re.MULTILINE)
    return found[1] if found else None


def read_option(name: str, params: Path = PARAMS) -> str | None:
    """Return an option of the loaded driver; None if it knows none, or isn't loaded."""
    try:
        return option(params.read_text(encoding="utf-8", errors="replace"), name)
    except OSError:
        return None
