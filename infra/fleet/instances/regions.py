"""Parallel calls to a fleet's AWS regions, so that a slow region does not delay the others.

EC2 limits an account's calls in a region by token buckets. "Request throttling for the Amazon EC2
API" (docs.aws.amazon.com/ec2/latest/devguide) has the buckets' sizes and refills per second:

    DescribeInstances, with a filter     100, 20
    CreateTags                           100, 10
    TerminateInstances                   100,  5; and 1000, 20 for the instances that it names
    CreateFleet, RunInstances              5,  2; and 1000,  2 for the instances that they start
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timedelta

from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws import tags
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.instances.inventory import Listing
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Instance

AT_ONCE = 64  # threads; more than AWS has regions
PATIENCE = 30.0  # seconds for a region's answer; the next poll uses a later answer
REREAD = timedelta(minutes=10)  # period after which the list of earlier regions is read again
# Renews due leases of a region's instances, and returns the instances.
Renew = Callable[[Sequence[Instance]], list[Instance]]


# A region's instances, or None if it never answered; why it did not answer now; other errors.
_Answer = tuple[list[Instance] | None, FleetError | None, list[str]]


@dataclass(frozen=True, kw_only=True)
class RegionListings(Listing):
    """The fleet's instances in all AWS regions, as each region listed them last.

    `silent` has only regions in the fleet's file, and `unknown` all that never answered. `troubles`
    are errors in renewing leases and in earlier regions.
    """

    troubles: list[str]
    unknown: list[str]


class Regions:
    """A fleet's instances by AWS region, as each region listed them last.

    The fleet may still have nodes in earlier regions, which its file no longer names. These nodes
    count as the fleet's until their leases end. An earlier region that does not answer prevents no
    launches, because the user may have disabled this region.
    """

    def __init__(self, aws: Aws, fleet: Fleet) -> None:
        self._aws, self._fleet = aws, fleet
        self._earlier: list[str] = []  # regions that the file does not name
        self._earlier_read: datetime | None = None
        self._last: dict[str, list[Instance]] = {}
        self._threads = ThreadPoolExecutor(AT_ONCE)
        self._asked: dict[str, Future[_Answer]] = {}

    def list_instances(
        self, launched: Sequence[Instance], renew: Renew | None, now: datetime
    ) -> RegionListings:
        """List the instances of each AWS region, and renew their leases with the function `renew`.

        If a region has not answered after PATIENCE seconds, the result has the instances of its
        last answer. `renew` gets the instances that a region lists or, if the region refuses to
        list them, those that it listed last. It also gets the `launched` instances, because AWS may
        not list them yet. Leases in earlier regions are not renewed. If `renew` is None, no lease
        is renewed.
        """
        silent = self._ask_all(self._fleet.aws_regions, launched, renew)
        unknown, earlier = self._read_earlier(now), self._earlier
        silent |= self._ask_all(earlier, (), None)
        troubles = [unknown] if unknown else []
        for aws_region in (*self._fleet.aws_regions, *earlier):
            if (asked := self._asked.get(aws_region)) is None:
                continue  # it can't be asked, and is in `silent`
            if not asked.done():
                why = f"AWS has not answered within {PATIENCE:g} s"
                silent[aws_region] = FleetError(f"the instances in {aws_region}: {why}")
                continue
            del self._asked[aws_region]
            known, silence, errors = asked.result()
            if known is not None:
                self._last[aws_region] = known
            if silence:
                silent[aws_region] = silence
            troubles += errors
        troubles += [str(silent.pop(one)) for one in earlier if one in silent]
        return RegionListings(
            instances=[instance for region in self._last.values() for instance in region],
            silent=silent,
            troubles=troubles,
            unknown=[one for one in (*self._fleet.aws_regions, *earlier) if one not in self._last],
        )

    def _read_earlier(self, now: datetime) -> str:
        """Find AWS regions that the fleet used before. Return an error, or an empty text.

        The regions are looked up again every ten minutes, because another run may add regions. No
        region is dropped, because it may still have nodes.
        """
        if self._earlier_read and abs(now - self._earlier_read) < REREAD:
            return ""
        everywhere, unknown = inventory.with_earlier_regions(self._aws, self._fleet)
        known = {*self._fleet.aws_regions, *self._earlier}
        self._earlier += [one for one in everywhere.aws_regions if one not in known]
        self._earlier_read = None if unknown else now
        return unknown

    def _ask_all(
        self, aws_regions: Sequence[str], launched: Sequence[Instance], renew: Renew | None
    ) -> dict[str, FleetError]:
        """Ask AWS regions for instances, and wait. Return an error for each that can't be asked."""
        silent = {}
        for aws_region in aws_regions:
            try:
                self._aws.ec2(aws_region)  # boto3 can't make clients in threads
            except FleetError as error:
                silent[aws_region] = error
            else:
                if aws_region not in self._asked:
                    own = [one for one in launched if one.aws_region == aws_region]
                    self._asked[aws_region] = self._threads.submit(
                        self._ask, aws_region, own, renew
                    )
        wait([self._asked[one] for one in aws_regions if one in self._asked], PATIENCE)
        return silent

    def _ask(self, aws_region: str, launched: Sequence[Instance], renew: Renew | None) -> _Answer:
        known, silence = self._last.get(aws_region), None
        try:
            filters = [tags.fleet_filter(self._fleet)]
            known = inventory.list_instances(self._aws, aws_region, filters)
        except FleetError as error:
            silence = error
        ids = {instance.id for instance in known or ()}
        unlisted = [one for one in launched if one.id not in ids]
        try:
            renewed = {one.id: one for one in renew([*(known or ()), *unlisted])} if renew else {}
        except FleetError as error:
            return known, silence, [str(error)]
        return known and [renewed.get(one.id, one) for one in known], silence, []
