"""The tables `daily:` and `checks:` of a study, and the times at which daily runs start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    Field,
)

from trialfleet.sections import Pattern, Refused, Section, refusal
from trialfleet.spelling import did_you_mean

DATE = "{date}"  # the placeholder in patterns of data
EARLY = timedelta(minutes=5)  # another scheduler's clock may be ahead
_TIME = r"([01]?[0-9]|2[0-3]):[0-5][0-9]"
_NAME = r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}"
_LASTS = r"(?=[0-9])([0-9]{1,3}h)?([0-9]{1,4}m)?"


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        guess = did_you_mean(value, available_timezones())
        raise refusal(
            f"unknown time zone {value!r}{guess}; name one such as Europe/Oslo or UTC"
        ) from error
    return value


def _check_duration(value: str) -> str:
    if not parse_duration(value):
        raise refusal("must be longer than 0 minutes")
    return value


def parse_duration(text: str) -> timedelta:
    """Return the duration that a text such as `6h`, `90m` or `1h30m` means."""
    found = re.fullmatch(_LASTS, text)
    assert found, text
    hours, minutes = (int((part or "0h")[:-1]) for part in found.groups())
    return timedelta(hours=hours, minutes=minutes)


TimeOfDay = Annotated[str, Pattern(_TIME, "a time of day from 0:00 to 23:59, such as 02:30")]
Lasting = Annotated[
    str,
    AfterValidator(_check_duration),
    Pattern(_LASTS, "hours and minutes, such as 6h, 90m or 1h30m"),
]


FileName = Annotated[str, Pattern(_NAME, "the name of a file, such as _SUCCESS")]


class Daily(Section):
    """The schedule of a study's daily runs, and what to do on days with missing or old data."""

    at: TimeOfDay = Field(description="Time of day when a day's run starts.")
    zone: Annotated[str, AfterValidator(_zone)] | None = Field(
        None, description="Time zone, such as Europe/Oslo (default: the machine's)."
    )
    deadline: Lasting | None = Field(
        None,
        description="Trials may begin until this long after a day's start, such as 6h. Then each "
        "region trains its best settings so far in full and publishes the model "
        "(default: no limit).",
    )
    wait_for_data: Lasting | None = Field(
        None,
        description="How long a region waits for data that is absent, such as 3h; the other "
        "regions start meanwhile (default: the region does not wait, and its day fails).",
    )
    ready_file: FileName | None = Field(
        None,
        description="Name of a file, such as _SUCCESS, that appears once a region's data is "
        "complete: beside a data file, or in a data folder (default: data is "
        "complete when nothing was written for a minute). Requires wait_for_data.",
    )
    missed: Literal["latest", "all", "none"] = Field(
        "latest",
        description="What to do with days that were missed because the machine was off. latest: "
        "run the last of them. all: run each of them, oldest first. none: run none of them.",
    )
    unchanged: Literal["skip", "train"] = Field(
        "skip",
        description="Whether to skip or train regions whose data and settings have not changed "
        "since their last model. Regions without data, or with data in S3, are always trained.",
    )
    takeover_after: Lasting | None = Field(
        None,
        description="For two managers: if the working manager is silent for this long, such as "
        "10m, the other continues the day's runs (default: one manager). Requires "
        "storage in PostgreSQL and models in S3; docs/daily.md.",
    )

    def problems(self) -> Iterator[Refused]:
        """Yield a problem if nothing would wait for the ready file."""
        if self.ready_file and not self.wait_for_data:
            yield ("ready_file",), "requires wait_for_data", self.ready_file

    @property
    def time(self) -> time:
        """The time of day at which each day's run starts."""
        hour, minute = map(int, self.at.split(":"))
        return time(hour, minute)

    def start_time(self, day: date) -> datetime:
        """Return when the run of `day` starts, in UTC."""
        return datetime.combine(day, self.time, self.tzinfo).astimezone(UTC)

    def data_deadline(self, day: date) -> datetime | None:
        """Return when the run of `day` stops waiting for data, in UTC; None if it never waits."""
        return (
            self.start_time(day) + parse_duration(self.wait_for_data)
            if self.wait_for_data
            else None
        )

    def today(self, now: datetime) -> date:
        """Return the date at the time `now` in the study's time zone."""
        return now.astimezone(self.tzinfo).date()

    def due_day(self, now: datetime) -> date:
        """Return the latest day whose run is due at the time `now`: today or yesterday.

        The run of a day is due from 5 minutes before its start time.
        """
        soon = now + EARLY
        today = self.today(soon)  # at 23:56 the next day, whose run may start at midnight
        return today if self.start_time(today) <= soon else today - timedelta(days=1)

    @property
    def tzinfo(self) -> tzinfo | None:
        """The study's time zone, as `astimezone` takes it. None means the machine's zone."""
        return ZoneInfo(self.zone) if self.zone else None

    def deadline_after(self, started: datetime) -> datetime | None:
        """Return the deadline of a run that began at `started`; None if the study sets none."""
        return started + parse_duration(self.deadline) if self.deadline else None


Reaction = Literal["warn", "fail", "off"]


class Checks(Section):
    """The reaction if a region's new table differs much from the region's tables of past days.

    warn: the region is trained, and the warning is stored with its model. fail: the region fails on
    this day, before anything is spent. off: there is no check.
    """

    rows: Reaction = Field("warn", description="The number of rows.")
    missing: Reaction = Field("warn", description="The share of missing cells, by column.")
    new_categories: Reaction = Field(
        "warn", description="The share of rows with a category that no past day has, by column."
    )
    target: Reaction = Field("warn", description="The target's classes, or its quantiles.")
    labels: Reaction = Field(
        "warn",
        description="Whether a cheap model predicts the labels better than shuffled labels.",
    )

    def reaction(self, check: str) -> Reaction:
        """Return what the study wants to happen if the check named `check` finds something."""
        found: Reaction = getattr(self, check)
        return found


class RunsDay(BaseModel):
    """The day that a run is for, as stored in the run's folder."""

    date: date  # replaces `{date}` in the study's paths of data
    deadline: AwareDatetime | None = None  # no trial starts after it
    settings: dict[str, str] = {}  # by region, a hash of settings and trainer's files, not of data

    @property
    def end(self) -> datetime:
        """Midnight in UTC at the end of `date`."""
        return datetime.combine(self.date + timedelta(days=1), time(), UTC)
