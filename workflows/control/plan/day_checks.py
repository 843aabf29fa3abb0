"""Checks of a day's tables while the day's run is planned, before the run costs anything."""

from __future__ import annotations

from dataclasses import asdict
from datetime import date
from typing import Any

from trialfleet.files import write_json
from trialfleet.nodes.tabular.table import Table
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.past_tables import past_tables
from trialfleet.workflows.facts.run_folder.folder import RegionFolder
from trialfleet.workflows.rules.unusual_tables import MOST_DAYS, Finding, findings
from trialfleet.workflows.study.daily import Checks
from trialfleet.workflows.study.spec import Study
from trialfleet.workflows.tables.building import Description
from trialfleet.workflows.tables.day_profile import build_profile


class DayChecks:
    """Checks that compare the tables of one day with the tables of past days."""

    def __init__(self, study: Study, day: date) -> None:
        """Read past tables' profiles (statistics); TrialfleetError if the journal is unreadable."""
        self._checks = study.checks or Checks()
        self._seed = study.seed
        self._past = past_tables(DailyFolder.for_study(study.name), day, MOST_DAYS)

    def problems(
        self, region: str, files: RegionFolder, table: Table, found: Description
    ) -> list[str]:
        """Store the profile of a region's table and warnings about it; return the problems.

        Only the problems make the region fail on this day. OSError if a file can't be written.
        """
        labels = self._checks.labels != "off"
        profile = build_profile(table, found, seed=self._seed, labels=labels)
        write_json(files.profile, asdict(profile))
        past = self._past.get(region, [])
        unusual = findings(profile, past)
        warnings = [one for one in unusual if self._checks.reaction(one.check) == "warn"]
        write_json(files.checks, _note(warnings, len(past)))
        return [_refusal(one) for one in unusual if self._checks.reaction(one.check) == "fail"]


def _note(warnings: list[Finding], days: int) -> dict[str, Any]:
    words = "; ".join(map(str, warnings))
    reason = f"its new table is unusual: {words}" if warnings else None
    return {"schema": 1, "days": days, "reason": reason}


def _refusal(one: Finding) -> str:
    accept = f"set checks: {{{one.check}: warn}} to train on it as it is"
    return f"checks.{one.check}: {one.text}; correct the file, or {accept}"
