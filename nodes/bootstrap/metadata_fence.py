"""The fence, a routing rule that keeps jobs from the EC2 instance's metadata.

The metadata contain the keys of the node's AWS role. With these keys, a job could read the pool's
token. EC2's hop limit for metadata does not suffice, because it only stops containers. The rule
applies to the jobs' Unix accounts. A rule for the cgroup of HTCondor's systemd unit would miss jobs
that run outside of this cgroup. HTCondor only starts if this module's `main` succeeds.
"""

from __future__ import annotations

import sys

from trialfleet.nodes.bootstrap.accounts import FIRST_ID, NOBODY_ID
from trialfleet.nodes.bootstrap.host import Host, StepError

METADATA = "169.254.169.254"
# The first and the last user id of the jobs' accounts. systemd's dynamic accounts between them
# don't need the metadata.
JOBS = (FIRST_ID, NOBODY_ID)
# `protocol kernel`: systemd-networkd removes other programs' routing rules when it starts, but not
# the kernel's.
RULE = (
    *("pref", "169", "uidrange", f"{FIRST_ID}-{NOBODY_ID}"),
    *("to", METADATA, "prohibit", "protocol", "kernel"),
)
REFUSED = "answers: Permission denied"  # the kernel's answer for a prohibited route
SECONDS = 5  # time limit of `ip`, which takes some milliseconds


def raise_fence(host: Host) -> bool:
    """Add the routing rule if it is missing. Return whether it was. Raise StepError on failure."""
    if is_active(host):
        return False
    try:
        host.run("ip", "rule", "add", *RULE, seconds=SECONDS)
        why = "the routing rule against this exists, but has no effect"
    except StepError as error:
        why = f"the routing rule against this can't be added: {error}"
    if not is_active(host):
        raise StepError(f"jobs could reach the instance's metadata: {why}")
    return True


def is_active(host: Host) -> bool:
    """Return whether the kernel blocks the instance's metadata for the accounts of jobs."""
    return all(_is_refused(host, account) for account in JOBS)


def _is_refused(host: Host, account: int) -> bool:
    try:
        host.run("ip", "route", "get", METADATA, "uid", str(account), seconds=SECONDS)
    except StepError as error:
        return str(error).endswith(REFUSED)
    return False


def main() -> int:
    """Add the routing rule if it is missing. Return 0 on success, else 1."""
    try:
        raise_fence(Host())
    except StepError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
