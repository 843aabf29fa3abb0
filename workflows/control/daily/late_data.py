"""Late data (`daily.wait_for_data`): the regions whose data for a day is not complete yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.errors import ExportError
from trialfleet.workflows.control.export.s3_client import list_objects, s3_client
from trialfleet.workflows.facts.journal.journal import Attempt, Journal, latest_outcomes
from trialfleet.workflows.study.checks import URL_PREFIXES
from trialfleet.workflows.study.daily import Daily
from trialfleet.workflows.study.loading import DaysStudy, load_day, load_whole
from trialfleet.workflows.study.paths import ABSENT

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

OpenS3 = Callable[[], "S3Client"]
Say = Callable[[str], object]
UNCHANGED_SECONDS = 60.0  # data that was not written for this time counts as complete


def _ignore(_: str) -> None:
    pass


def late_regions(
    found: DaysStudy, day: date, daily: Daily | None, say: Say = _ignore
) -> dict[str, str]:
    """Return the regions whose data for a day can't be used yet, each with the reason.

    If the study doesn't wait for data, every existing file and every URL counts as complete. So
    does data about which S3 gives no answer; `say` then takes a line.
    """
    late = {name: f"data of {day} {why}" for name, why in found.unusable.items()}
    if found.study is None or daily is None or daily.wait_for_data is None:
        return late
    s3 = cache(partial(s3_client, found.study.s3))  # made only for data in S3

    def incomplete_reason(data: str) -> str:
        try:
            return _incomplete_reason(data, daily, s3)
        except ExportError as error:
            say(f"{data}: used without waiting, because S3 doesn't say if it is complete: {error}")
            return ""

    for name in found.study.region_table:
        whys = map(incomplete_reason, found.study.data_paths(name))
        if why := next(filter(None, whys), None):
            late[name] = f"data of {day} {why}"
    return late


def unusable_regions(
    found: DaysStudy, day: date, daily: Daily | None, say: Say = _ignore
) -> dict[str, str]:
    """Return the regions whose data for a day is absent or unusable, each with the reason.

    `say` takes a line about data that may be incomplete.
    """
    late, absent = late_regions(found, day, daily, say), f"data of {day} {ABSENT}: "
    return {
        name: why
        for name, why in late.items()
        if name in found.unusable or why.startswith(absent)  # the latter in S3
    }


def awaited_now(file: Path, journal: Journal, now: datetime) -> dict[str, str]:
    """Return the regions whose data the newest day still awaits, each with the reason."""
    newest = journal.attempts()[-1:]
    late = awaited_regions(file, newest[0], now) if newest and not newest[0].ended else {}
    ended = {name for _, name in latest_outcomes(journal.outcomes(newest[0].date))} if late else {}
    return {name: why for name, why in late.items() if name not in ended}


def awaited_regions(file: Path, attempt: Attempt, now: datetime) -> dict[str, str]:
    """Return the regions for whose data an attempt's day still waits, each with the reason."""
    daily = load_whole(file).daily
    end = daily.data_deadline(attempt.date) if daily else None
    if end is None or now >= end or attempt.is_past_deadline(now):
        return {}
    return late_regions(load_day(file, attempt.date), attempt.date, daily)


def waits_until_text(daily: Daily | None, day: date) -> str:
    """Return when the wait for a day's data ends, in the study's time zone.

    Return "" if the study never waits for data.
    """
    until = daily.data_deadline(day) if daily else None
    return f"{until.astimezone(daily.tzinfo):%Y-%m-%d %H:%M %Z}" if until and daily else ""


def _incomplete_reason(data: str, daily: Daily, s3: OpenS3) -> str:
    if data.startswith(URL_PREFIXES):
        return _incomplete_in_s3_reason(data, daily, s3)
    place = Path(data)
    if daily.ready_file:
        mark = (place if place.is_dir() else place.parent) / daily.ready_file
        return "" if mark.exists() else f"is incomplete: there is no {mark}"
    return _too_new_reason(data, write_times(place))


def _incomplete_in_s3_reason(url: str, daily: Daily, s3: OpenS3) -> str:
    """Return why a region's data in S3 is incomplete, or "" if the data is complete.

    ExportError if S3 refuses or does not answer. The region then starts without waiting.
    """
    objects = _write_times_in_s3(url, s3)
    if not objects:
        return f"{ABSENT}: {url}"
    if daily.ready_file:
        folder = url.rpartition("/")[0] if url in objects else url.rstrip("/")
        mark = f"{folder}/{daily.ready_file}"
        return "" if _write_times_in_s3(mark, s3) else f"is incomplete: there is no {mark}"
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


def _write_times_in_s3(url: str, s3: OpenS3) -> dict[str, datetime]:
    """Return when each object was last written, by its URL. `url` names an object or a folder.

    ExportError if S3 is unreachable or refuses (this needs the permission s3:ListBucket), or if the
    keys can't be read.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, key = url.removeprefix("s3://").partition("/")
    try:
        objects = list_objects(s3(), bucket, key)
    except (BotoCoreError, ClientError) as error:
        raise ExportError(str(error)) from error
    folder = f"{key.rstrip('/')}/"
    return {
        f"s3://{bucket}/{one['Key']}": one["LastModified"]
        for one in objects
        if one["Key"] == key or one["Key"].startswith(folder)
    }
