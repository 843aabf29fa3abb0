"""The times at which a timer starts `daily run`, the days that are due, and missed days."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date, datetime, timedelta, tzinfo

from trialfleet.workflows.study.daily import Daily

DAY = timedelta(days=1)
LATE = timedelta(hours=2)  # a schedule's greatest delay: an hour, and another if clocks change
_COMING = 20 * 366  # number of days that an installed schedule covers


def next_start(daily: Daily, now: datetime) -> datetime:
    """Return when the next day begins, in UTC."""
    today = daily.today(now)
    return next(begins for n in (0, 1, 2) if (begins := daily.start_time(today + n * DAY)) > now)


def next_start_text(daily: Daily, now: datetime) -> str:
    """Return when the next day begins, as text in the study's time zone."""
    return f"{next_start(daily, now).astimezone(daily.tzinfo):%Y-%m-%d %H:%M %Z}"


def timer_hours_and_minutes(daily: Daily, now: datetime, zone: tzinfo | None) -> tuple[str, str]:
    """Return the hours and minutes, in cron syntax, at which a timer starts `daily run`.

    The timer knows only `zone` (None: this machine's), in which days may begin at another hour in
    summer than in winter. So it starts each hour, at the minute at which days begin, and `daily
    run` does nothing if nothing is due. With `missed: none`, the timer starts only at the hours at
    which days begin.
    """
    today = daily.today(now)
    starts = [daily.start_time(today + n * DAY).astimezone(zone) for n in range(_COMING)]
    hours, minutes = {start.hour for start in starts}, {start.minute for start in starts}
    return (
        ",".join(map(str, sorted(hours))) if daily.missed == "none" else "*",
        ",".join(map(str, sorted(minutes))),
    )


def days_to_do(daily: Daily, begun: Collection[date], now: datetime) -> list[date]:
    """Return the days to work on at `now`, oldest first.

    `begun` has the days that have begun. The result always has the latest due day. With
    `missed: all`, it also has the days between the latest day in `begun` and the due day.
    """
    due = daily.due_day(now)
    newest = max(begun, default=due)
    if daily.missed != "all" or newest >= due:
        return [due]
    return [newest + n * DAY for n in range(1, (due - newest).days + 1)]


def is_missed(daily: Daily, begun: Collection[date], now: datetime) -> bool:
    """Return whether the latest due day was missed and must not begin any more.

    The answer is True only with `missed: none`, and if three conditions hold: the day's date has
    passed, its start was over two hours ago, and it is not in `begun`, the days that have begun.
    """
    due = daily.due_day(now)
    is_late = now - daily.start_time(due) > LATE and due < daily.today(now)
    return daily.missed == "none" and is_late and due not in begun
