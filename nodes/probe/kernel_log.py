"""The NVIDIA driver's errors (Xid) in the kernel's log."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

XID = re.compile(r"NVRM: Xid \((?:PCI:)?([^)]*)\): (\d+)")
RECORD = 8192  # bytes, the longest record: the kernel refuses to read it into a smaller buffer


class Xid(NamedTuple):
    """One error of the driver."""

    pci: str  # the GPU's address on the PCI bus, such as `0000:00:1e`
    code: int  # see https://docs.nvidia.com/deploy/xid-errors/


def address(text: str) -> str:
    """Return the PCI address in `text` in the form `0000:00:1e`, or "" if there is none.

    The driver and nvidia-smi write PCI addresses in different forms.
    """
    found = re.fullmatch(r"([0-9a-f]+:)?([0-9a-f]{2}:[0-9a-f]{2})(\.[0-7])?", text.strip().lower())
    domain = int((found[1] or "0:")[:-1], 16) if found else 0
    return f"{domain:04x}:{found[2]}" if found else ""


def parse_xids(log: str) -> tuple[Xid, ...]:
    """Return the errors in a kernel's log, in order."""
    return tuple(Xid(address(pci), int(code)) for pci, code in XID.findall(log))


def read_xids(device: Path = Path("/dev/kmsg")) -> tuple[Xid, ...] | None:
    """Return the driver's errors since boot, or None if this process may not read the log."""
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return parse_xids("".join(records(descriptor)))
    finally:
        os.close(descriptor)


def records(descriptor: int) -> list[str]:
    """Return all records of the kernel's log."""
    found: list[str] = []
    while True:
        try:
            record = os.read(descriptor, RECORD)
        except BrokenPipeError:
            continue  # the record was overwritten before this read: the next record follows
        except OSError:
            return found  # no more (EAGAIN), or not allowed after all
        if not record:
            return found
        found.append(record.decode(errors="replace"))
