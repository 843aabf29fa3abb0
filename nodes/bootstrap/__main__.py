"""`python3 -m trialfleet.nodes.bootstrap`: makes this instance a node of its pool, as root.

Needs the bundle and `settings.json` that the user data has left. A node that fails says why in its
log and in the fleet's bucket, and shuts itself down when its time to boot is over.
"""

from __future__ import annotations

import sys
import time
import traceback

from trialfleet.nodes.bootstrap import driver, settings, steps
from trialfleet.nodes.bootstrap.aws import Aws, AwsError, Imds
from trialfleet.nodes.bootstrap.instance import identify
from trialfleet.nodes.bootstrap.log import FILE, Log
from trialfleet.nodes.bootstrap.machine import Machine, StepError

UPLOAD_WAITS = (1,)  # the log is no reason to be late


def main() -> int:
    """Take the steps; 0 when the node has joined, or reboots for its driver."""
    log = Log(Machine().place(FILE))
    machine = Machine(say=log.say)
    try:
        told = settings.read(machine)
        imds = Imds()
        instance = identify(imds)
    except (StepError, AwsError) as error:
        log.say(f"failed: {error}")
        return 1
    log.say(f"{instance.id} ({instance.type}, {instance.zone}), {steps.version()}")
    briefly = Aws(imds, told.home, told.endpoint_url, waits=UPLOAD_WAITS)
    tell = log.telling(briefly, told.bucket, f"{told.log_prefix}{instance.id}.log")
    aws = Aws(imds, told.home, told.endpoint_url)
    return take_steps(steps.Node(machine, told, instance, aws, tell))


def take_steps(node: steps.Node) -> int:
    """Take the steps, and tell how it ended."""
    try:
        steps.run(node)
    except driver.RebootError:
        node.tell(f"driver: {driver.STILL}; reboots, this once")
        node.machine.run("systemctl", "reboot")
    except (StepError, AwsError) as error:
        node.tell(f"failed: {error}")
        return 1
    except Exception:
        node.tell(f"failed: {traceback.format_exc()}")
        raise
    else:
        node.tell(f"done ({time.monotonic() - node.began:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
