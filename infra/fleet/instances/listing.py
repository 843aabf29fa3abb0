"""A fleet's instances, region by region: one that does not answer hides none of the others'."""

from __future__ import annotations

from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws import tags
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Instance


class Listing:
    """What each AWS region last said of a fleet's instances."""

    def __init__(self, aws: Aws, fleet: Fleet) -> None:
        """Begin with nothing known; nothing is asked yet."""
        self._aws, self._fleet = aws, fleet
        self._last: dict[str, list[Instance]] = {}

    def look(self) -> tuple[list[Instance], list[FleetError]]:
        """Ask every region.

        Returns:
            The instances, those shutting down and terminated among them; where a region does not
            answer, those that it listed last. And why it didn't.
        """
        errors = []
        for aws_region in self._fleet.aws_regions:
            try:
                found = inventory.tagged(self._aws, [aws_region], [tags.of(self._fleet)])
            except FleetError as error:
                errors.append(error)
            else:
                self._last[aws_region] = found
        return [one for listed in self._last.values() for one in listed], errors
