"""The fence between jobs and the instance's metadata, which hand out the keys of the node's role.

Those keys read the pool's token. The metadata's hop limit keeps containers from them, not jobs. The
fence is a routing rule by account rather than by unit: not everywhere do HTCondor's jobs run in
the unit's cgroup. Whether it stands is asked of the kernel, as a packet of theirs would ask.

`python3 -m trialfleet.nodes.bootstrap.metadata_fence` raises it: HTCondor starts only where that
went well.
"""

from __future__ import annotations

import sys

from trialfleet.nodes.bootstrap.accounts import FIRST_ID, NOBODY_ID
from trialfleet.nodes.bootstrap.host import Host, StepError

METADATA = "169.254.169.254"
# All accounts of jobs; between them are systemd's dynamic ones, which have no use for the metadata.
JOBS = (FIRST_ID, NOBODY_ID)
# systemd-networkd removes the routing rules of others when it starts, but for the kernel's.
RULE = (
    *("pref", "169", "uidrange", f"{FIRST_ID}-{NOBODY_ID}"),
    *("to", METADATA, "prohibit", "protocol", "kernel"),
)
REFUSED = "answers: Permission denied"  # the kernel's word for what a rule prohibits
SECONDS = 5  # for `ip`, which takes some milliseconds


def raise_fence(host: Host) -> bool:
    """Make the fence stand; True if it didn't before, StepError if it can't."""
    if stands(host):
        return False
    try:
        host.run("ip", "rule", "add", *RULE, seconds=SECONDS)
        why = "the rule is there, and has no effect"
    except StepError as error:
        why = str(error)
    if not stands(host):
        raise StepError(f"jobs can't be kept from the instance's metadata: {why}")
    return True


def stands(host: Host) -> bool:
    """Say whether the kernel refuses the jobs' accounts the way to the metadata."""
    return all(_is_refused(host, account) for account in JOBS)


def _is_refused(host: Host, account: int) -> bool:
    try:
        host.run("ip", "route", "get", METADATA, "uid", str(account), seconds=SECONDS)
    except StepError as error:
        return str(error).endswith(REFUSED)
    return False


def main() -> int:
    """Raise the fence; 0 when it stands."""
    try:
        raise_fence(Host())
    except StepError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
