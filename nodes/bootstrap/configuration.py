"""Writes a node's HTCondor configuration, the GPU probe's verdict and the pool's token."""

from __future__ import annotations

import re
import sys

from trialfleet.nodes.bootstrap import accounts
from trialfleet.nodes.bootstrap.host import HOME, Host, StepError
from trialfleet.nodes.bootstrap.instance import Instance

FOLDER = "/etc/condor/config.d"
SHARED = f"{FOLDER}/50-trialfleet-node.conf"  # comes with trialfleet's code for nodes
INSTANCE = f"{FOLDER}/40-trialfleet-instance.conf"
PROBED = f"{FOLDER}/45-trialfleet-probe.conf"
# The agent writes the sick GPUs into this file. If a GPU is in it when the startd starts, a later
# reconfiguration can't bring the GPU online. So `write_verdict` deletes the file at each boot.
OFFLINE = f"{FOLDER}/46-trialfleet-offline-gpus.conf"
TOKENS = "/etc/condor/tokens.d"
TOKEN = f"{TOKENS}/trialfleet"
SYSCTL = "/etc/sysctl.d/60-trialfleet.conf"
# If a connection is silent for HTCondor's TCP_KEEPALIVE_INTERVAL, the kernel asks the other end
# three times, every 5 s.
KERNEL = "net.ipv4.tcp_keepalive_intvl = 5\nnet.ipv4.tcp_keepalive_probes = 3\n"
# On AWS's deep-learning images torch is in the first folder; on images with conda, in the second.
JOB_PATH = ("/opt/pytorch/bin", "/opt/conda/bin", "/usr/local/bin", "/usr/bin", "/bin")
_HAS_TORCH = (
    "import sys, importlib.util; "
    "sys.exit(sys.version_info < (3, 10) or not importlib.util.find_spec('torch'))"
)


def write_token(host: Host, token: str) -> None:
    """Write `token`, with which the node joins the pool, to a file that only root can read."""
    folder = host.place(TOKENS)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    host.write(TOKEN, token.strip() + "\n", mode=0o600)


def write(host: Host, instance: Instance, driver: str, execute: str) -> str:
    """Write HTCondor's configuration and the kernel's network settings, and make jobs' accounts.

    Return the path of the configuration that all nodes share. The node advertises `driver`, the
    state of the NVIDIA driver's option (see driver.py). Jobs run in the folder `execute`. Raise
    StepError on failure.
    """
    shared = host.read(f"{HOME}/node.conf")
    if not shared:
        raise StepError(
            f"the fleet's code for nodes lacks {HOME}/node.conf: run `trialfleet fleet up` again"
        )
    host.write(SHARED, shared)
    accounts.make(host)
    own = text(instance, driver, execute, jobs_python(host)) + accounts.settings()
    host.write(INSTANCE, own)
    host.write(SYSCTL, KERNEL)
    host.try_run("sysctl", "-q", "-p", str(host.place(SYSCTL)))
    return SHARED


def text(instance: Instance, driver: str, execute: str, python: str) -> str:
    """Return the part of HTCondor's configuration that differs between instances.

    `driver` and `execute` are as in `write`. `python` is the path of the Python that jobs use.
    """
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
    """Return the path of the Python that jobs use.

    This is the first Python 3.10 or newer in JOB_PATH that has torch, else the Python that runs
    this program.
    """
    for folder in JOB_PATH:
        python = str(host.place(f"{folder}/python3"))
        if host.ask(python, "-c", _HAS_TORCH) is not None:
            return python
    return sys.executable


def probe_options(host: Host) -> list[str]:
    """Return the GPU probe's options from the configuration that all nodes of the fleet share."""
    found = re.search(r"^TRIALFLEET_PROBE_OPTIONS *= *(.*)$", host.read(SHARED), re.MULTILINE)
    return found[1].split() if found else []


def write_verdict(host: Host, ad: str) -> None:
    """Write `ad`, a ClassAd with the GPU probe's verdict, into HTCondor's configuration.

    HTCondor advertises this verdict until it has run the probe itself. This function also deletes
    the list of offline GPUs: if HTCondor finds a GPU there at its start, the GPU can't come online
    later.
    """
    found = re.findall(r"^(Trialfleet\w+) *= *(.*)$", ad, re.MULTILINE)
    lines = [f"{name} = {value.replace('$', '$(DOLLAR)')}" for name, value in found]
    names = " ".join(name for name, _ in found)
    lines.append(f"STARTD_ATTRS = $(STARTD_ATTRS) {names}")
    host.write(PROBED, "\n".join(lines) + "\n")
    host.place(OFFLINE).unlink(missing_ok=True)
