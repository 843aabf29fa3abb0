"""Late data (`daily.wait_for_data`): the regions whose data for a day is not complete yet."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.errors import ExportError
from trialfleet.workflows.control.export.s3_client import list_objects, s3_client
from trialfleet.workflows.facts.journal.journal import Journal, latest_outcomes
from trialfleet.workflows.study.checks import URL_PREFIXES
from trialfleet.workflows.study.daily import Daily
from trialfleet.workflows.study.loading import DaysStudy, load_day
from trialfleet.workflows.study.paths import ABSENT
from trialfleet.workflows.study.sections import S3Keys

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

UNCHANGED_SECONDS = 60.0  # data that was not written for this time counts as complete


def late_regions(found: DaysStudy, day: date, daily: Daily | None) -> dict[str, str]:
    """Return the regions whose data for a day can't be used yet, each with the reason.

    If the study doesn't wait for data, every existing file and every URL counts as complete.
    """
    late = {name: f"data of {day} {why}" for name, why in found.unusable.items()}
    if found.study is None or daily is None or daily.wait_for_data is None:
        return late
    in_s3 = _DataInS3(found.study.s3)
    for name in found.study.region_table:
        whys = (_incomplete_reason(each, daily, in_s3) for each in found.study.data_paths(name))
        if why := next(filter(None, whys), None):
            late[name] = f"data of {day} {why}"
    return late


def unusable_regions(found: DaysStudy, day: date, daily: Daily | None) -> dict[str, str]:
    """Return the regions whose data for a day is absent or unusable, each with the reason."""
    late, absent = late_regions(found, day, daily), f"data of {day} {ABSENT}: "
    return {
        name: why
        for name, why in late.items()
        if name in found.unusable or why.startswith(absent)  # the latter in S3
    }


def awaited_now(file: Path, journal: Journal, now: datetime) -> dict[str, str]:
    """Return the regions whose data the newest day still awaits, each with the reason."""
    newest = journal.attempts()[-1:]
    if not newest or newest[0].ended:
        return {}
    day = newest[0].date
    found = load_day(file, day)
    if not is_awaited(found.whole.daily, day, now):
        return {}
    ended = latest_outcomes(journal.outcomes(day, day))
    late = late_regions(found, day, found.whole.daily)
    return {name: why for name, why in late.items() if (day, name) not in ended}


def is_awaited(daily: Daily | None, day: date, now: datetime) -> bool:
    """Return whether `day` still waits for data at `now`."""
    end = daily.data_deadline(day) if daily else None
    return end is not None and now < end


def waits_until_text(daily: Daily | None, day: date) -> str:
    """Return when the wait for a day's data ends, in the study's time zone.

    Return "" if the study never waits for data.
    """
    until = daily.data_deadline(day) if daily else None
    return f"{until.astimezone(daily.tzinfo):%Y-%m-%d %H:%M %Z}" if until and daily else ""


def _incomplete_reason(data: str, daily: Daily, in_s3: _DataInS3) -> str:
    if data.startswith(URL_PREFIXES):
        return _incomplete_in_s3_reason(data, daily, in_s3)
    place = Path(data)
    if daily.ready_file:
        mark = (place if place.is_dir() else place.parent) / daily.ready_file
        return "" if mark.exists() else f"is incomplete: there is no {mark}"
    return _too_new_reason(data, write_times(place))


def _incomplete_in_s3_reason(url: str, daily: Daily, in_s3: _DataInS3) -> str:
    """Return why a region's data in S3 is incomplete, or "" if the data is complete.

    Also return "" if S3 refuses or does not answer. The region then starts without waiting.
    """
    objects = in_s3.write_times(url)
    if objects == {}:
        return f"{ABSENT}: {url}"
    if objects is None:
        return ""
    if daily.ready_file:
        folder = url.rpartition("/")[0] if url in objects else url.rstrip("/")
        mark = f"{folder}/{daily.ready_file}"
        return f"is incomplete: there is no {mark}" if in_s3.write_times(mark) == {} else ""
    return _too_new_reason(url, (moment.timestamp() for moment in objects.values()))


def _too_new_reason(data: str, written_at: Iterable[float]) -> str:
    ages = [abs(time.time() - moment) for moment in written_at]
    if not ages:
        return f"is an empty folder: {data}"
    return "" if min(ages) >= UNCHANGED_SECONDS else f"is being written: {data}"


def write_times(place: Path) -> Iterator[float]:
    """Yield when a file, or each file in a folder, was last written, in Unix seconds."""
    for path in place.rglob("*") if place.is_dir() else (place,):
        try:
            yield path.stat().st_mtime
        except OSError:  # it was just replaced
            yield time.time()


class _DataInS3:
    """Reads when S3 objects were written. This needs the permission s3:ListBucket.

    If `keys` is None, boto3 finds AWS keys itself.
    """

    def __init__(self, keys: S3Keys | None) -> None:
        self._keys = keys

    @cached_property
    def _client(self) -> S3Client | None:
        try:
            return s3_client(self._keys)
        except ExportError:
            return None

    def write_times(self, url: str) -> dict[str, datetime] | None:
        """Return when each object was last written, by the object's URL.

        `url` is the URL of one object or of a folder. The result is {} if there is no object. It is
        None if S3 is unreachable or refuses, or if the keys can't be read.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        if self._client is None:
            return None
        bucket, _, key = url.removeprefix("s3://").partition("/")
        try:
            objects = list_objects(self._client, bucket, key)
        except (BotoCoreError, ClientError):
            return None
        folder = f"{key.rstrip('/')}/"
        return {
            f"s3://{bucket}/{one['Key']}": one["LastModified"]
            for one in objects
            if one["Key"] == key or one["Key"].startswith(folder)
        }
