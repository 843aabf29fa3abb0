"""Statistics (profiles) of a region's tables on the last 92 days."""

from __future__ import annotations

from collections import defaultdict
from datetime import date, timedelta
from pathlib import Path

from pydantic import TypeAdapter

from trialfleet.files import read_json, unless_damaged
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Ending, Journal
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.tables.day_profile import DayProfile

_BACK = timedelta(days=92)  # older tables no longer show what is usual
_PROFILE = TypeAdapter(DayProfile)


def past_tables(folder: DailyFolder, day: date, max_days: int) -> dict[str, list[DayProfile]]:
    """Return the profiles of each region's tables on the 92 days before `day`, oldest first.

    Only days on which a model was trained count. Each region gets its newest profiles, at most
    `max_days`. Raises TrialfleetError if the journal can't be read.
    """
    if not folder.journal.exists():
        return {}
    found: dict[str, list[DayProfile]] = defaultdict(list)
    outcomes = Journal(folder.journal).outcomes(day - _BACK, day - timedelta(days=1))
    for one in reversed(outcomes):
        with_model = one.ending in {Ending.PUBLISHED, Ending.KEPT}
        if with_model and one.run and len(found[one.region]) < max_days:
            run = RunFolder(folder.run(one.run))
            place = run.region(region_slug(one.region)).profile
            if profile := _read(place):
                found[one.region].append(profile)
    return {region: profiles[::-1] for region, profiles in found.items()}


def _read(place: Path) -> DayProfile | None:
    return unless_damaged(lambda: _PROFILE.validate_python(read_json(place)), None)
