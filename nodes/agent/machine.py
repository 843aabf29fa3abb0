"""Switching the machine off, the dead man's switch of its boot, and what the probe is told."""

from __future__ import annotations

from trialfleet.nodes.bootstrap.host import Host, StepError
from trialfleet.nodes.probe.privileged_readings import FILE, PrivilegedReadings

SECONDS = 30  # for one of the system's programs


def tell_probe(readings: PrivilegedReadings) -> None:
    """Leave for the probe, which isn't root, what only root learns; OSError."""
    Host().write(FILE, readings.text())


def cancel_switch() -> None:
    """Cancel the shutdown that was scheduled for a node that doesn't join; StepError."""
    Host().run("shutdown", "-c", seconds=SECONDS)


def power_off(reason: str) -> None:
    """Shut the machine down now; the instance is set to terminate when it does; StepError.

    systemd-logind refuses it even to root while packages are being installed, however long that
    takes. Nobody needs them on a machine that goes for ever, and systemd itself doesn't refuse.
    """
    host = Host()
    try:
        host.run("shutdown", "-P", "now", f"trialfleet: {reason}", seconds=SECONDS)
    except StepError as refusal:
        try:
            host.run("systemctl", "start", "--no-block", "poweroff.target", seconds=SECONDS)
        except StepError as error:
            raise StepError(f"{refusal}; {error}") from error
