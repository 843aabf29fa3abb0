"""Starts HTCondor, and waits until the pool's manager lists this machine."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable

from trialfleet.nodes.bootstrap import configuration, services
from trialfleet.nodes.bootstrap.host import Host, StepError

# Exists once the bootstrap has started HTCondor; in /run, because a reboot must delete it.
STARTED = "/run/trialfleet/condor-started-with"
PATIENCE = 30  # seconds after which the log says what the node waits for
UNPROVEN = "AUTHENTICATE:1003"  # HTCondor's number for rejected credentials
INTERVAL = 1


def start(host: Host) -> str:
    """Start the node's agent and HTCondor, and return a text for the log.

    A running HTCondor is restarted only if its configuration or token has changed.
    """
    host.run("systemctl", "start", services.AGENT)  # before HTCondor, so that it watches all jobs
    digest = configuration_hash(host)
    runs = host.ask("systemctl", "is-active", "--quiet", services.CONDOR) is not None
    same = runs and host.read(STARTED) == digest
    if not same:
        # After a reboot the bootstrap checks the machine before HTCondor starts.
        host.try_run("systemctl", "disable", services.CONDOR)
        host.run("systemctl", "restart", services.CONDOR)
        host.write(STARTED, digest, mode=0o600)
    return "HTCondor is already running" if same else "HTCondor is started"


def configuration_hash(host: Host) -> str:
    """Return a hash of the configuration and the token that the bootstrap has written."""
    files = (configuration.SHARED, configuration.INSTANCE, configuration.TOKEN)
    return hashlib.sha256("\0".join(host.read(file) for file in files).encode()).hexdigest()


def wait(
    host: Host, instance: str, manager: str, seconds: float, tell: Callable[[str], None]
) -> str:
    """Wait until the pool's manager lists this instance, and return the name of its slot.

    `manager` is the manager's address, HOST:PORT. After PATIENCE seconds, call `tell` once with the
    likely reason for the delay. After `seconds`, raise StepError with the likely reason.
    """
    asked, explained = time.monotonic(), False
    while True:
        name, why = in_pool(host, instance)
        waited = time.monotonic() - asked
        if name:
            return name
        if waited >= seconds:
            raise StepError(
                f"not in the pool after {waited:.0f} s: {why or reachability_text(manager)}"
            )
        if waited >= PATIENCE and not explained:
            explained = True
            tell(f"not in the pool yet: {why or reachability_text(manager)}")
        time.sleep(INTERVAL)


def in_pool(host: Host, instance: str) -> tuple[str, str]:
    """Ask the pool's manager for the name of the instance's slot. Return the name and an error.

    The name is "" if the manager doesn't list the instance. The error is "" if the manager
    answers.
    """
    condition = f'TrialfleetInstance == "{instance}"'
    try:
        names = host.run("condor_status", "-constraint", condition, "-af", "Name", seconds=30)
    except StepError as error:
        return "", explain_error(str(error))
    return (names.split() or [""])[0], ""


def explain_error(error: str) -> str:
    """Return the error's text, with an explanation if the manager rejected the node's token."""
    if UNPROVEN not in error:
        return error
    return (
        "the manager rejects this node's token, which has expired or was signed with another key;"
        f" `trialfleet fleet up` on the manager gives new nodes the current token ({error})"
    )


def reachability_text(manager: str) -> str:
    """Return a text that says whether `manager`, HOST:PORT, answers, and what to check."""
    host, _, port = manager.partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        return (
            f"{manager} can't be reached ({error}): is the manager running, and is its port open"
            " to the nodes?"
        )
    return f"{manager} answers, but does not list this node: see /var/log/condor/StartLog"
