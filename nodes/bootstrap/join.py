"""Joining: HTCondor is started with what was written, and the node looks for itself in the pool."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable

from trialfleet.nodes.bootstrap import configuration, services
from trialfleet.nodes.bootstrap.host import Host, StepError

STARTED = "/run/trialfleet/condor-started-with"  # gone after a reboot, as the daemons are
PATIENCE = 30  # seconds after which the log says why it takes so long
UNPROVEN = "AUTHENTICATE:1003"  # HTCondor's number for a proof that the other side doesn't take
INTERVAL = 1


def was_started(host: Host) -> bool:
    """Say whether the bootstrap has started HTCondor since the machine booted."""
    return host.read(STARTED) != ""


def start(host: Host) -> str:
    """Start the agent and HTCondor; both go on as they are where nothing has changed.

    The agent first: no job runs where nobody watches for spot notices.
    """
    host.run("systemctl", "start", services.AGENT)
    digest = written(host)
    runs = host.ask("systemctl", "is-active", "--quiet", services.CONDOR) is not None
    same = runs and host.read(STARTED) == digest
    if not same:
        # A machine that boots anew is looked at before it takes jobs.
        host.succeeds("systemctl", "disable", services.CONDOR)
        host.run("systemctl", "restart", services.CONDOR)
        host.write(STARTED, digest, mode=0o600)
    return "HTCondor runs already" if same else "HTCondor is started"


def written(host: Host) -> str:
    """Return what tells this configuration and token from any other."""
    files = (configuration.SHARED, configuration.INSTANCE, configuration.TOKEN)
    return hashlib.sha256("\0".join(host.read(file) for file in files).encode()).hexdigest()


def wait(
    host: Host, instance: str, manager: str, seconds: float, tell: Callable[[str], None]
) -> str:
    """Wait until the pool's collector (HOST:PORT) has this instance's ad; return its slot's name.

    After PATIENCE seconds `tell` is given, once, why it takes so long; after `seconds` StepError is
    raised with why, as far as the node can see.
    """
    asked, explained = time.monotonic(), False
    while True:
        name, why = in_pool(host, instance)
        waited = time.monotonic() - asked
        if name:
            return name
        if waited >= seconds:
            raise StepError(f"not in the pool after {waited:.0f} s: {why or reachable(manager)}")
        if waited >= PATIENCE and not explained:
            explained = True
            tell(f"not in the pool yet: {why or reachable(manager)}")
        time.sleep(INTERVAL)


def in_pool(host: Host, instance: str) -> tuple[str, str]:
    """Return the name of the instance's slot in the collector, or why that isn't known."""
    condition = f'TrialfleetInstance == "{instance}"'
    try:
        names = host.run("condor_status", "-constraint", condition, "-af", "Name", seconds=30)
    except StepError as error:
        return "", explained(str(error))
    return (names.split() or [""])[0], ""


def explained(error: str) -> str:
    """Return the collector's refusal, in words where it is of the token."""
    if UNPROVEN not in error:
        return error
    return (
        "the manager refuses this node's token, which another key has signed or which has expired:"
        f" `trialfleet fleet up` there gives new nodes the present one ({error})"
    )


def reachable(manager: str) -> str:
    """Return what can be said of the way to the manager."""
    host, _, port = manager.partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        return f"{manager} can't be reached ({error}): is it up, its port open to the nodes?"
    return f"{manager} answers, but has no ad of this node: see /var/log/condor/StartLog"
