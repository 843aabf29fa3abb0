"""The record of a fleet's costs. AWS itself forgets ended instances after an hour.

It is a file in the fleet's bucket, which `fleet down` copies to this machine and then deletes.
`load` combines the copy with the record in the fleet's next bucket, and with that in the bucket
that trialfleet created before the user named one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial, reduce
from pathlib import Path
from typing import Any

from trialfleet.errors import FleetError
from trialfleet.files import json_text, write_json
from trialfleet.infra.fleet.aws import bucket
from trialfleet.infra.fleet.aws.clients import Aws, asking, or_none
from trialfleet.infra.fleet.choice.interruption_history import History
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.instances.inventory import Listing
from trialfleet.infra.fleet.scaling.instance_costs import Ledger, parse
from trialfleet.infra.fleet.scaling.last_report import kept_ledger
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet


def load(aws: Aws, fleet: Fleet) -> Ledger:
    """Return the record of all buckets that the fleet may have used, with this machine's copy.

    The result is empty if none exists. FleetError if one is invalid, or if AWS refuses.
    """
    account = aws.account(fleet.home)
    present, *earlier = bucket.known_buckets(fleet, account)
    # AWS denies access to a bucket of another account, which may have the name of an earlier one.
    records = [_load(aws, fleet, account, present)]
    records += [_load(aws, fleet, account, name, "AccessDenied") for name in earlier]
    return reduce(Ledger.combine, [*records, _read_copy(kept_ledger(fleet.full_name, account))])


def _load(aws: Aws, fleet: Fleet, account: str, name: str, *absent: str) -> Ledger:
    """Return the record in the bucket `name`, which is empty if either is missing.

    It is also empty if AWS refuses with one of the error codes `absent`.
    """
    key = _key(fleet)
    url = f"s3://{name}/{key}"
    read = partial(aws.s3(fleet.home).get_object, ExpectedBucketOwner=account)
    with asking(f"the record of costs {url}"):
        found = or_none(lambda: read(Bucket=name, Key=key), "NoSuchKey", "NoSuchBucket", *absent)
        stored = found and found["Body"].read()
    return _parse(stored, url)


def known_history(aws: Aws, fleet: Fleet, tell: Callable[[str], object]) -> History:
    """Return the history of all capacity pools.

    If the record can't be read, `tell` gets the error, and the history is empty.
    """
    try:
        return load(aws, fleet).history(datetime.now(UTC))
    except FleetError as error:
        tell(f"past interruptions are unknown, so they don't count in the choice of nodes: {error}")
        return History()


def load_or_tell(aws: Aws, fleet: Fleet) -> tuple[Ledger | None, str]:
    """Return the record and an empty text, or None and the reason why it can't be read."""
    try:
        return load(aws, fleet), ""
    except FleetError as error:
        return None, f"the cost only covers instances that AWS still lists: {error}"


def save(aws: Aws, fleet: Fleet, ledger: Ledger) -> None:
    """Replace the record of costs in the fleet's bucket."""
    name, key = bucket.fleet_bucket(fleet, aws.account(fleet.home)), _key(fleet)
    text = json_text(_data(ledger)).encode()
    with asking(f"the record of costs s3://{name}/{key}"):
        aws.s3(fleet.home).put_object(Bucket=name, Key=key, Body=text)


def keep(aws: Aws, fleet: Fleet, ledger: Ledger) -> None:
    """Copy the record to this machine. FleetError if the file can't be written."""
    file = kept_ledger(fleet.full_name, aws.account(fleet.home))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, _data(ledger))
    except OSError as error:
        raise FleetError(
            f"the record of the fleet's costs can't be copied to {file}: {error}"
        ) from error


def keep_record(aws: Aws, fleet: Fleet, listing: Listing, began: datetime) -> float:
    """Copy the fleet's record of costs to this machine. Return the USD spent.

    `fleet down` calls this with its start `began` and AWS's last `listing`. If an instance ended
    after `began` without a recorded reason, the reason is set to `fleet down`. FleetError if the
    record can't be read or written.
    """
    now = datetime.now(UTC)
    record = load(aws, fleet).add_listing(listing.instances, now, listing.silent)
    ended = [name for name, life in record.alive_since(began).items() if not life.why]
    record = record.add_reasons(dict.fromkeys(ended, "`fleet down`"))
    keep(aws, fleet, record)
    return record.cost(now)


def current_record(aws: Aws, fleet: Fleet, now: datetime | None = None) -> tuple[Ledger, list[str]]:
    """Return the fleet's record of costs, updated with AWS's present list of nodes, and notices.

    The notices tell what the record lacks: AWS regions without an answer, and a stored record that
    can't be read, which counts as empty. FleetError if no AWS region lists its nodes.
    """
    fleet, unknown = inventory.with_earlier_regions(aws, fleet)
    listing = inventory.list_by_region(aws, fleet)
    if len(listing.silent) == len(fleet.aws_regions):
        raise listing.silent[fleet.home]
    record, problem = updated_record(aws, fleet, listing, now or datetime.now(UTC))
    return record, [*filter(None, (unknown, problem)), *map(str, listing.silent.values())]


def updated_record(aws: Aws, fleet: Fleet, listing: Listing, now: datetime) -> tuple[Ledger, str]:
    """Return the record, updated with AWS's `listing`, and an error or an empty text.

    If the stored record can't be read, the result has only the instances of `listing`.
    """
    record, notice = load_or_tell(aws, fleet)
    return (record or Ledger()).add_listing(listing.instances, now, listing.silent), notice


def _read_copy(file: Path) -> Ledger:
    try:
        return _parse(file.read_bytes(), str(file))
    except FileNotFoundError:
        return Ledger()
    except OSError as error:
        raise FleetError(
            f"the copy of the record of costs {file} can't be read: {error}"
        ) from error


def _parse(stored: bytes | None, place: str) -> Ledger:
    try:
        return parse(json.loads(stored)) if stored is not None else Ledger()
    except ValueError as error:
        raise FleetError(
            f"the record of costs {place} can't be read ({error}): "
            "delete it to begin a new one, which will lack the previous costs"
        ) from error


def _data(ledger: Ledger) -> dict[str, Any]:
    return {"schema": 1, "runs": ledger.runs, "instances": ledger.lifetimes}


def _key(fleet: Fleet) -> str:
    return f"{names.prefix(fleet.full_name)}ledger.json"
