"""What a fleet's resources are called, and the tags by which they are found again.

AWS is the only record of what exists: everything made carries `FLEET_TAG`, and `up`, `status`,
`down` and `reap` go by what AWS lists under it.
"""

from __future__ import annotations

from datetime import UTC, datetime

FLEET_TAG = "trialfleet:fleet"  # the fleet's name, on everything
RUN_TAG = "trialfleet:run"  # the run that the instance was asked for; absent without one
EXPIRES_TAG = "trialfleet:expires"  # end of the instance's lease, UTC; the node reads it by IMDS
PRICE_TAG = "trialfleet:price"  # USD per hour when the instance was asked for
LAUNCH_TAG = "trialfleet:launch"  # the request that made the instance: asked again, it's the same
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def resource_name(fleet: str) -> str:
    """Return the name of the fleet's security group, role, profile and launch template."""
    return f"trialfleet-{fleet}"


def bucket_name(fleet: str, account: str) -> str:
    """Return the name of the fleet's bucket, where the study names none."""
    return f"trialfleet-{fleet}-{account}"


def prefix(fleet: str) -> str:
    """Return what the keys of the fleet's objects begin with."""
    return f"fleet/{fleet}/"


def log_prefix(fleet: str) -> str:
    """Return what the keys of the nodes' logs begin with."""
    return f"{prefix(fleet)}log/"


def log_key(fleet: str, instance: str) -> str:
    """Return the key of a node's bootstrap log."""
    return f"{log_prefix(fleet)}{instance}.log"


def token_parameter(fleet: str) -> str:
    """Return the name of the SSM parameter that holds the nodes' token."""
    return f"/trialfleet/{fleet}/node-token"


def at(moment: datetime) -> str:
    """Return a moment as `EXPIRES_TAG` has it."""
    return moment.astimezone(UTC).strftime(TIME_FORMAT)


def moment(text: str) -> datetime:
    """Return the moment that `at` wrote; ValueError where the text is none."""
    return datetime.strptime(text, TIME_FORMAT).replace(tzinfo=UTC)


def price(usd: float) -> str:
    """Return USD per hour as `PRICE_TAG` has it."""
    return f"{usd:.6f}".rstrip("0").rstrip(".")
