"""Shutdown of the machine, the dead man's switch of its boot, and readings for the probe."""

from __future__ import annotations

from trialfleet.nodes.bootstrap.host import Host, StepError
from trialfleet.nodes.probe.privileged_readings import FILE, PrivilegedReadings

SECONDS = 30  # for one of the system's programs


def tell_probe(readings: PrivilegedReadings) -> None:
    """Save readings that only root can take for the probe, which isn't root; OSError."""
    Host().write(FILE, readings.text())


def cancel_switch() -> None:
    """Cancel the shutdown that was scheduled for a node that doesn't join; StepError."""
    Host().run("shutdown", "-c", seconds=SECONDS)


def power_off(reason: str) -> None:
    """Shut the machine down now, which terminates the instance; StepError.

    systemd-logind refuses this even to root while packages are being installed. A machine that is
    about to be terminated doesn't need them, and systemd itself does not refuse.
    """
    host = Host()
    try:
        host.run("shutdown", "-P", "now", f"trialfleet: {reason}", seconds=SECONDS)
    except StepError as refusal:
        try:
            host.run("systemctl", "start", "--no-block", "poweroff.target", seconds=SECONDS)
        except StepError as error:
            raise StepError(f"{refusal}; {error}") from error
