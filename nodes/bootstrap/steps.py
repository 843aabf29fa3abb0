"""The steps that turn a bare instance into a node of the pool.

A step can be repeated. It returns a text for the node's log that says what it did.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trialfleet.classads import from_json
from trialfleet.instance_aws import Aws
from trialfleet.nodes.bootstrap import (
    configuration,
    cuda_kernels,
    driver,
    htcondor_installation,
    join,
    log,
    metadata_fence,
    scratch,
    services,
    settings,
)
from trialfleet.nodes.bootstrap.host import Host, StepError
from trialfleet.nodes.bootstrap.instance import Instance
from trialfleet.nodes.bootstrap.settings import Settings
from trialfleet.nodes.probe import kernel_log, privileged_readings
from trialfleet.nodes.probe.classad import literal

PROBE_SECONDS = 300
POOL_SECONDS = 5  # time limit for the collector's answer on other nodes' measurements
ENDS = "/run/trialfleet/ends"  # when the machine shuts itself down; written by the user data
FAILED = "/run/trialfleet/failed"  # why the last attempt in this boot failed
LAST_WORDS = 15  # seconds before the shutdown; a node that hasn't joined uses them to log why


@dataclass
class Node:
    """An EC2 node during its bootstrap."""

    host: Host
    settings: Settings
    instance: Instance
    aws: Aws
    # Writes a line to the log on this machine and in the bucket, to show the node's progress.
    tell: Callable[[str], None]
    began: float = field(default_factory=time.monotonic)  # when it began, by the monotonic clock
    driver: str = driver.NONE  # state of the driver's option
    execute: str = scratch.DEFAULT  # the folder for jobs


def time_left(node: Node) -> float:
    """Return the seconds that are left until LAST_WORDS seconds before the scheduled shutdown."""
    recorded = node.host.read(ENDS)
    ends = float(recorded) if recorded else node.began + 60 * node.settings.boot_minutes
    return ends - time.monotonic() - LAST_WORDS


def prepare_driver(node: Node) -> str:
    """Install NVIDIA's driver and set its option.

    Raise RebootError if this machine must reboot for the option. With the setting `image`, this
    machine needs no reboot, because the machines that boot from the image use the option.
    """
    try:
        node.driver = driver.prepare(node.host)
    except driver.RebootError:
        if not node.settings.image:
            raise
        node.driver = driver.STILL  # machines that boot from the image will use the option
    return f"{driver.OPTION}: {node.driver}"


def prepare_htcondor(node: Node) -> str:
    """Install HTCondor in the manager's version."""
    came_from = htcondor_installation.prepare(node.host, node.settings.condor_version)
    return f"{node.settings.condor_version}: {came_from}"


def prepare_scratch(node: Node) -> str:
    """Prepare the disk and the folder for jobs."""
    node.execute = scratch.prepare(node.host)
    scratch.make_folder(node.host, node.execute)
    return node.execute


def fetch_token(node: Node) -> str:
    """Fetch the pool's token from AWS SSM into a file, without logging the token."""
    configuration.write_token(node.host, node.aws.parameter(node.settings.token_parameter))
    return f"from {node.settings.token_parameter}"


def probe(node: Node) -> str:
    """Run the GPU probe, and write its verdict, which HTCondor then advertises.

    If the probe fails, the verdict is that the GPUs are not healthy. If HTCondor was started since
    boot, the probe is skipped, because a job may use the GPUs.
    """
    if node.host.read(join.STARTED):
        return "skipped: HTCondor runs, so a job may use the GPUs"
    python = configuration.jobs_python(node.host)
    options = configuration.probe_options(node.host)
    tell_probe(node)
    try:
        command = (python, "-m", "trialfleet.nodes.probe", *options)
        ad = node.host.run(*command, seconds=PROBE_SECONDS)
    except StepError as error:
        ad = f"TrialfleetGpuHealthy = false\nTrialfleetGpuReason = {literal(str(error))}\n"
    configuration.write_verdict(node.host, ad)
    return "; ".join(line for line in ad.splitlines() if "=" in line and "undefined" not in line)


def tell_probe(node: Node) -> None:
    """Write a file for the GPU probe, with the readings that only root can take.

    The readings include other nodes' memory bandwidths, unless the pool's manager is unreachable.
    Without an NVIDIA driver, nothing is written.
    """
    if node.driver == driver.NONE:
        return
    try:
        ads = from_json(node.host.run(*privileged_readings.QUERY, seconds=POOL_SECONDS))
    except (StepError, ValueError):
        ads = []
    pool = privileged_readings.bandwidths(ads, besides=node.instance.id)
    node.host.write(
        privileged_readings.FILE,
        privileged_readings.PrivilegedReadings(kernel_log.read_xids(), pool).text(),
    )


def build_kernels(node: Node) -> str:
    """Compile the CUDA kernels in the background.

    If an AMI will be made from this machine, wait until the kernels are compiled.
    """
    python = None if node.driver == driver.NONE else cuda_kernels.python(node.host)
    if python is None:
        return "nothing to compile, because there is no GPU driver, or no torch with CUDA"
    if not node.settings.image:
        cuda_kernels.build_in_background(node.host, python)
        return f"compiling in the background; see `journalctl -u {cuda_kernels.UNIT}`"
    into = str(node.host.place(cuda_kernels.PLACE))
    command = (python, "-m", "trialfleet.nodes.kernels", "build", "--into", into)
    succeeded = node.host.try_run(*command)
    return "compiled" if succeeded else "the compilation failed; trials will compile the kernels"


def join_pool(node: Node) -> str:
    """Wait until the pool lists this node. Raise StepError if no time is left."""
    instance, manager = node.instance.id, node.settings.manager
    return f"joined as {join.wait(node.host, instance, manager, time_left(node), node.tell)}"


def clean_image(node: Node) -> str:
    """Remove this machine's own settings and logs, because an AMI will be made from the machine."""
    host = node.host
    host.try_run("systemctl", "disable", "--now", services.CONDOR)
    host.try_run("shutdown", "-c")
    for file in (settings.FILE, log.FILE):
        host.place(file).unlink(missing_ok=True)
    host.run("cloud-init", "clean", "--logs")
    forget_machine_id(host)
    host.run("sync")  # an image can be made without a shutdown
    return "ready: make an image of this instance"


def forget_machine_id(host: Host) -> None:
    """Empty the file with the machine's id, so that each machine from the AMI gets its own id.

    If the file were missing, as after `cloud-init clean --machine-id`, systemd would enable preset
    units. HTCondor would then start before its configuration is written.
    """
    host.write("/etc/machine-id", "", mode=0o444)
    copy = host.place("/var/lib/dbus/machine-id")
    if not copy.is_symlink():
        copy.unlink(missing_ok=True)  # D-Bus then uses /etc/machine-id


Steps = tuple[tuple[str, Callable[[Node], str]], ...]
IMAGE_STEPS: Steps = (
    ("driver", prepare_driver),
    ("htcondor", prepare_htcondor),
    ("kernels", build_kernels),
    ("image", clean_image),
)
STEPS: Steps = (
    ("services", lambda node: services.write(node.host)),
    ("driver", prepare_driver),
    ("htcondor", prepare_htcondor),
    ("scratch", prepare_scratch),
    ("token", fetch_token),
    (
        "configuration",
        lambda node: configuration.write(node.host, node.instance, node.driver, node.execute),
    ),
    ("probe", probe),
    (
        "fence",
        lambda node: "raised" if metadata_fence.raise_fence(node.host) else "already raised",
    ),
    ("start", lambda node: join.start(node.host)),
    ("kernels", build_kernels),
    ("join", join_pool),
)


def run(node: Node) -> None:
    """Take all steps, and log the time that each takes.

    Raise StepError or AwsError if a step fails, and RebootError if the machine must reboot.
    """
    before = node.host.read(FAILED)
    # for people who see only the last line
    again = f" (again; the last attempt failed: {before})" if before else ""
    for name, step in IMAGE_STEPS if node.settings.image else STEPS:
        began = time.monotonic()
        node.tell(f"{name} ...{again}")
        outcome = step(node)
        node.host.say(f"{name}: {outcome} ({time.monotonic() - began:.1f} s)")
