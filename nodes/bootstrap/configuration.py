"""HTCondor's configuration on this node, and the kernel's settings that go with it."""

from __future__ import annotations

import re
import sys

from trialfleet.nodes.bootstrap import accounts
from trialfleet.nodes.bootstrap.host import HOME, Host, StepError
from trialfleet.nodes.bootstrap.instance import Instance

FOLDER = "/etc/condor/config.d"
SHARED = f"{FOLDER}/50-trialfleet-node.conf"  # as the bundle has it
INSTANCE = f"{FOLDER}/40-trialfleet-instance.conf"
PROBED = f"{FOLDER}/45-trialfleet-probe.conf"
# The agent's: GPUs that the probe called sick. A reconfiguration brings back one that was taken
# offline while the startd ran, but none that was offline when it started: a boot begins with none.
OFFLINE = f"{FOLDER}/46-trialfleet-offline-gpus.conf"
TOKENS = "/etc/condor/tokens.d"
TOKEN = f"{TOKENS}/trialfleet"
SYSCTL = "/etc/sysctl.d/60-trialfleet.conf"
# After TCP_KEEPALIVE_INTERVAL, a silent peer is asked three times, every 5 s.
KERNEL = "net.ipv4.tcp_keepalive_intvl = 5\nnet.ipv4.tcp_keepalive_probes = 3\n"
# AWS's deep-learning images have torch in the first, conda's in the second.
JOB_PATH = ("/opt/pytorch/bin", "/opt/conda/bin", "/usr/local/bin", "/usr/bin", "/bin")
_HAS_TORCH = (
    "import sys, importlib.util; "
    "sys.exit(sys.version_info < (3, 10) or not importlib.util.find_spec('torch'))"
)


def write_token(host: Host, token: str) -> None:
    """Put the pool's token where only root reads it."""
    folder = host.place(TOKENS)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    host.write(TOKEN, token.strip() + "\n", mode=0o600)


def write(host: Host, instance: Instance, driver: str, execute: str) -> None:
    """Write all but the probe's verdict; StepError when the bundle lacks the shared part."""
    shared = host.read(f"{HOME}/node.conf")
    if not shared:
        raise StepError(f"there is no {HOME}/node.conf: the bundle is broken")
    host.write(SHARED, shared)
    accounts.make(host)
    own = text(instance, driver, execute, jobs_python(host)) + accounts.settings()
    host.write(INSTANCE, own)
    host.write(SYSCTL, KERNEL)
    host.succeeds("sysctl", "-q", "-p", str(host.place(SYSCTL)))


def text(instance: Instance, driver: str, execute: str, python: str) -> str:
    """Return the configuration that this instance alone has."""
    price = "undefined" if instance.price is None else repr(instance.price)
    return f"""\
# What this instance is; its bootstrap writes this file at each boot.
EXECUTE = {execute}
TRIALFLEET_PYTHON = {python}
TRIALFLEET_JOB_PATH = {":".join(JOB_PATH)}
TrialfleetInstance = "{instance.id}"
TrialfleetInstanceType = "{instance.type}"
TrialfleetZone = "{instance.zone}"
TrialfleetLifecycle = "{instance.lifecycle}"
TrialfleetPricePerHour = {price}
TrialfleetDriverOption = "{driver}"
"""


def jobs_python(host: Host) -> str:
    """Return the Python that jobs find with torch in it; this one where none has it."""
    for folder in JOB_PATH:
        python = str(host.place(f"{folder}/python3"))
        if host.ask(python, "-c", _HAS_TORCH) is not None:
            return python
    return sys.executable


def probe_options(host: Host) -> list[str]:
    """Return the probe's options that the fleet has set, as the shared configuration says."""
    found = re.search(r"^TRIALFLEET_PROBE_OPTIONS *= *(.*)$", host.read(SHARED), re.MULTILINE)
    return found[1].split() if found else []


def write_verdict(host: Host, ad: str) -> None:
    """Advertise what the probe said from the first ad on, until the startd has run it itself."""
    found = re.findall(r"^(Trialfleet\w+) *= *(.*)$", ad, re.MULTILINE)
    lines = [f"{name} = {value.replace('$', '$(DOLLAR)')}" for name, value in found]
    names = " ".join(name for name, _ in found)
    lines.append(f"STARTD_ATTRS = $(STARTD_ATTRS) {names}")
    host.write(PROBED, "\n".join(lines) + "\n")
    host.place(OFFLINE).unlink(missing_ok=True)
