"""Switching the machine off, the dead man's switch of its boot, and the fence around its jobs."""

from __future__ import annotations

import subprocess

from trialfleet.nodes.bootstrap import metadata_fence
from trialfleet.nodes.bootstrap.host import Host, StepError


class MachineError(Exception):
    """The system's programs failed, or the fence can't be raised."""


def raise_fence() -> bool:
    """Keep jobs from the instance's metadata; True if the fence was gone; MachineError."""
    try:
        return metadata_fence.raise_fence(Host())
    except StepError as error:
        raise MachineError(str(error)) from error


def cancel_switch() -> None:
    """Cancel the shutdown that was scheduled for a node that doesn't join; MachineError."""
    run("shutdown", "-c")


def power_off(reason: str) -> None:
    """Shut the machine down now; the instance is set to terminate when it does; MachineError.

    systemd-logind refuses it even to root while packages are being installed, however long that
    takes. Nobody needs them on a machine that goes for ever, and systemd itself doesn't refuse.
    """
    try:
        run("shutdown", "-P", "now", f"trialfleet: {reason}")
    except MachineError as refusal:
        try:
            run("systemctl", "start", "--no-block", "poweroff.target")
        except MachineError as error:
            raise MachineError(f"{refusal}; {error}") from error


def run(*command: str) -> None:
    """Run one of the system's programs."""
    name = command[0]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"{name}: {error}") from error
    if done.returncode != 0:
        output = " ".join((done.stderr or done.stdout).split())
        raise MachineError(f"{name} exits {done.returncode}: {output}")
