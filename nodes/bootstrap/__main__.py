"""`python3 -m trialfleet.nodes.bootstrap`, run by root, makes this instance a node of its pool.

Before that, the instance's user data must write trialfleet's code and `settings.json` to this
machine, and schedule a shutdown, in case the node doesn't join in time. Until that shutdown,
systemd repeats a failed bootstrap. Each failure is logged on this machine. Once the settings and
the instance's facts are read, failures are also logged in the fleet's S3 bucket.
"""

from __future__ import annotations

import sys
import time
import traceback

from trialfleet.instance_aws import WAITS, Aws, AwsError, Imds
from trialfleet.nodes.bootstrap import driver, settings, steps
from trialfleet.nodes.bootstrap.host import Host, StepError
from trialfleet.nodes.bootstrap.instance import identify
from trialfleet.nodes.bootstrap.log import FILE, Log

UPLOAD_WAITS, UPLOAD_SECONDS = (1,), 5  # short, because the log must not delay the bootstrap
AGAIN, OVER = 1, 3  # exit codes: after AGAIN systemd retries, after OVER it doesn't


def main() -> int:
    """Run the bootstrap and return the exit code.

    The code is 0 if the bootstrap succeeds or reboots the machine. After a failure, it is AGAIN if
    systemd should run the bootstrap again, else OVER.
    """
    log = Log(Host().place(FILE))
    host = Host(say=log.write)
    try:
        node_settings = settings.read(host)
        instance = identify(Imds(waits=WAITS))
    except (StepError, AwsError) as error:
        log.write(f"failed: {error}")
        return AGAIN
    python = f"Python {sys.version_info.major}.{sys.version_info.minor} at {sys.executable}"
    log.write(f"{instance.id} ({instance.type}, {instance.zone}), {python}")
    briefly = Aws(
        Imds(), node_settings.home, node_settings.endpoint_url, UPLOAD_WAITS, UPLOAD_SECONDS
    )
    tell = log.uploading_writer(
        briefly, node_settings.bucket, f"{node_settings.log_prefix}{instance.id}.log"
    )
    aws = Aws(Imds(), node_settings.home, node_settings.endpoint_url)
    return take_steps(steps.Node(host, node_settings, instance, aws, tell))


def take_steps(node: steps.Node) -> int:
    """Take the bootstrap's steps, log how they ended, and return the exit code."""
    try:
        steps.run(node)
    except driver.RebootError:
        return reboot(node)
    except (StepError, AwsError) as error:
        return handle_failure(node, str(error))
    except Exception:  # noqa: BLE001  our own bugs are reported like other errors
        return handle_failure(node, traceback.format_exc())
    else:
        node.tell(f"done ({time.monotonic() - node.began:.1f} s)")
    return 0


def reboot(node: steps.Node) -> int:
    """Reboot this machine, so that the new option of NVIDIA's driver takes effect.

    Return this program's exit code.
    """
    node.tell(f"driver: {driver.OPTION} is still 1; rebooting once")
    try:
        node.host.run("systemctl", "reboot")
    except StepError as error:
        return handle_failure(node, str(error))
    return 0


def handle_failure(node: steps.Node, why: str) -> int:
    """Log why this attempt failed, and return the exit code.

    The code is OVER if no time is left for another attempt. Otherwise it is AGAIN, and the reason
    is saved for the next attempt's log.
    """
    node.tell(f"failed: {why}")
    if steps.time_left(node) <= 0:
        return OVER
    node.host.write(steps.FAILED, " ".join(why.split()))
    return AGAIN


if __name__ == "__main__":
    sys.exit(main())
