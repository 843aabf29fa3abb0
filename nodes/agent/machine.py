"""Switching the machine off, and the dead man's switch that the user data has set."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


class MachineError(Exception):
    """`shutdown` failed."""


def cancel_switch() -> None:
    """Cancel the shutdown that was scheduled for a node that doesn't join; MachineError."""
    shutdown(["-c"])


def power_off(reason: str) -> None:
    """Shut the machine down now; the instance is set to terminate when it does; MachineError."""
    shutdown(["-P", "now", f"trialfleet: {reason}"])


def shutdown(arguments: Sequence[str]) -> None:
    """Run the system's `shutdown`."""
    try:
        done = subprocess.run(
            ["shutdown", *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"shutdown: {error}") from error
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        raise MachineError(f"shutdown exits {done.returncode}: {said}")
