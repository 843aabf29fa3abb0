"""Shuts the machine down, cancels the shutdown scheduled at boot, and saves readings."""

from __future__ import annotations

import base64
import json

from trialfleet.nodes.bootstrap.configuration import TOKEN
from trialfleet.nodes.bootstrap.host import Host, StepError
from trialfleet.nodes.probe.privileged_readings import FILE, PrivilegedReadings

SECONDS = 30  # time limit for a program of the system, such as `shutdown`


def tell_probe(readings: PrivilegedReadings) -> None:
    """Save, for the GPU probe, readings that only root can take. Raise OSError on failure."""
    Host().write(FILE, readings.text())


def token_expiry(host: Host) -> float | None:
    """Return when the node's token expires, in UNIX seconds, or None if it can't be read."""
    try:
        _, payload, _ = host.read(TOKEN).split(".")
        return float(json.loads(base64.urlsafe_b64decode(f"{payload}=="))["exp"])
    except (ValueError, LookupError, TypeError):
        return None


def cancel_switch() -> None:
    """Cancel the shutdown that was scheduled at boot. Raise StepError on failure."""
    Host().run("shutdown", "-c", seconds=SECONDS)


def power_off(reason: str) -> None:
    """Shut the machine down, which terminates the EC2 instance. Raise StepError on failure."""
    host = Host()
    try:
        host.run("shutdown", "-P", "now", f"trialfleet: {reason}", seconds=SECONDS)
    except StepError as refusal:
        # While packages are being installed, systemd-logind refuses a shutdown even to root.
        # systemd itself doesn't refuse, and this machine needs no packages any more.
        try:
            host.run("systemctl", "start", "--no-block", "poweroff.target", seconds=SECONDS)
        except StepError as error:
            raise StepError(f"{refusal}; {error}") from error
