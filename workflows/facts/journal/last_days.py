"""Each region's last day with an outcome, and on how many days in a row it failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path

from trialfleet.errors import InputError, TrialfleetError
from trialfleet.files import unless_damaged
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Ending, Journal, Outcome, latest_outcomes
from trialfleet.workflows.facts.models.approval import awaiting_by_region
from trialfleet.workflows.facts.models.folders import find_champion, model_time, read_region_name
from trialfleet.workflows.study.daily import Daily
from trialfleet.workflows.study.loading import load_published
from trialfleet.workflows.study.spec import Study

_BACK = timedelta(days=31)  # a region without an outcome for longer has left the study


@dataclass(frozen=True)
class RegionDays:
    """A region's last day with an outcome.

    `failed` is the number of failed days in a row up to this day; 0 if the region did not fail.
    """

    date: date
    ending: Ending
    failed: int


@dataclass(frozen=True, kw_only=True)
class StudyDays:
    """The state of a study's daily runs. Mappings are by region."""

    study: str
    begun: date  # the newest day that has begun
    ended: datetime | None  # when an attempt last ended
    regions: Mapping[str, RegionDays]  # without those that had no outcome for a month
    daily: Daily | None  # None if the study can't be read, or has no `daily:` now
    models: Mapping[str, datetime] = field(default_factory=dict)  # `model_time` of current models
    awaiting: Mapping[str, datetime] = field(default_factory=dict)  # since when models wait
    lacks_study: bool = False  # the study can't be read; the three fields above are empty
    lacks_models: bool = False  # some current models can't be read; `models` lacks these


def study_days(folder: DailyFolder) -> StudyDays | None:
    """Return the state of a study's daily runs, or None if no day has begun.

    TrialfleetError if the journal can't be read.
    """
    if not folder.journal.exists():
        return None
    journal = Journal(folder.journal)
    if not (attempts := journal.attempts()):
        return None
    begun = attempts[-1].date
    found = latest_outcomes(journal.outcomes(begun - _BACK))
    study = _read_study(folder)
    models = _read_models(study) if study else {}
    return StudyDays(
        study=folder.root.name,
        begun=begun,
        ended=max((one.ended for one in attempts if one.ended), default=None),
        regions=_endings_by_region(found.values()),
        daily=study.daily if study else None,
        models={region: as_of for region, as_of in models.items() if as_of},
        awaiting={region: one.since for region, one in awaiting_by_region(study).items()}
        if study
        else {},
        lacks_study=study is None,
        lacks_models=None in models.values(),
    )


def _endings_by_region(outcomes: Iterable[Outcome]) -> dict[str, RegionDays]:
    found: dict[str, RegionDays] = {}
    for one in sorted(outcomes, key=lambda one: one.date):
        before = found[one.region].failed if one.region in found else 0
        failed = before + 1 if one.ending is Ending.FAILED else 0
        found[one.region] = RegionDays(one.date, one.ending, failed)
    return found


def _read_study(folder: DailyFolder) -> Study | None:
    text = unless_damaged(lambda: folder.study.read_text(encoding="utf-8"), "")
    try:
        return load_published(Path(text.removesuffix("\n"))) if text else None
    except (TrialfleetError, OSError):
        return None


def _read_models(study: Study) -> dict[str, datetime | None]:
    """Return the `model_time` of each region's current model, or None if it can't be read."""
    root = Path(study.publish) / study.name
    found: dict[str, datetime | None] = {}
    for place in root.iterdir() if study.publishes and root.is_dir() else ():
        try:
            model = find_champion(place, study.name) if place.is_dir() else None
        except InputError:
            found[read_region_name(place)] = None
        else:
            if model:
                found[read_region_name(place)] = model_time(model)
    return found
