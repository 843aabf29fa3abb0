"""Dates and times (moments) in the forms that databases, programs and people write.

A form is read if month and day can't be confused. For other forms, functions return advice. If
possible, the advice names the strftime format to write in `table.columns`.
"""

from __future__ import annotations

import itertools
import re

import polars as pl

from trialfleet.workflows.study.table_options import column_line

_SAMPLE = 64  # texts; enough to decide for most columns
_MONTH = "(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
_MONTH += "(?:uary|ruary|ch|il|e|y|ust|t|tember|ober|ember)?[.]?"
_DAY = "([0-9]{1,2})(?:st|nd|rd|th)?"
_YEAR = "((?:19|20)[0-9][0-9])"
_CLOCKS = ["", " %H:%M", " %H:%M:%S%.f", " %I:%M %p", " %I:%M:%S%.f %p"]
_READ = [day + clock for day in ("%Y-%m-%d", "%Y-%B-%d") for clock in _CLOCKS]
_REWRITTEN = [  # patterns of other forms, each with its replacement
    (r"\s+", " "),
    (r"^(?:\[|ISODate\(\x22)(.*?)(?:\]|\x22\))$", "$1"),  # web servers' logs, MongoDB
    (r",? at ", " "),
    (r"(:[0-9]{2}:[0-9]{2}):([0-9]{3})", "$1.$2"),  # SQL Server's styles 9 and 13
    (r"^(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,? ", ""),  # RFC 2822, asctime
    (rf"^{_DAY}[-/. ]?{_MONTH}[-/., ]*([0-9]{{4}})[ :T]?", "$3-$2-$1 "),  # also SAS, Apache
    (rf"^{_DAY}[-/. ]{_MONTH}[-/. ]([0-6][0-9])\b", "20$3-$2-$1"),  # Oracle: 02-JAN-26
    (rf"^{_DAY}[-/. ]{_MONTH}[-/. ]([7-9][0-9])\b", "19$3-$2-$1"),
    (rf"^{_MONTH} ?{_DAY},? ([0-9]{{4}})", "$3-$1-$2"),  # also SQL Server
    (rf"^{_MONTH} ([0-9]{{1,2}}) ([0-9:]{{8}})(?: UTC| GMT)? ([0-9]{{4}})$", "$4-$1-$2 $3"),
    (
        r"^([0-9]{4})([0-9]{2})([0-9]{2})[T _-]([0-9]{2}):?([0-9]{2}):?([0-9]{2})",
        "$1-$2-$3 $4:$5:$6",
    ),
    (r"^([0-9]{4})[/._]([0-9]{1,2})[/._]([0-9]{1,2})\b", "$1-$2-$3"),
    (r"^([0-9]{4}-[0-9a-z]+-[0-9]{1,2})(?:[-T:,_]+ ?| )([0-9])", "$1 $2"),
    (r" ([0-9]{1,2})[.]([0-9]{2})[.]([0-9]{2})", " $1:$2:$3"),  # Oracle, DB2
    (r"([0-9]),([0-9]+)", "$1.$2"),  # 03:04:05,123
    (rf"^{_MONTH}[-/., ]*{_YEAR}$", "$2-$1-1"),
    (rf"^{_YEAR}[-/ ]{_MONTH}$", "$1-$2-1"),
    (rf"^{_YEAR}(?:[-/M](0[1-9]|1[0-2])|M([1-9]))$", "$1-$2$3-1"),
    (rf"^(0[1-9]|1[0-2])[.]{_YEAR}$", "$2-$1-1"),
    (rf"^(0?[1-9]|1[0-2])[-/]{_YEAR}$", "$2-$1-1"),
    *((rf"^{_YEAR}[- ]?Q{n}$", f"$1-{3 * n - 2}-1") for n in (1, 2, 3, 4)),
    *((rf"^(?:Q{n}|{n}Q)[-/ ]?{_YEAR}$", f"$1-{3 * n - 2}-1") for n in (1, 2, 3, 4)),
    (r" ?([ap])[.]?m[.]?( |$)", " ${1}m$2"),
    (r" ?(?:\[.*\]|\(.*\))$", ""),  # a zone's name after its offset
    (r"^ +| +$", ""),
]
_ZONED = (  # without a zone a moment is in UTC
    r"(?i)^(?<moment>.*:.*?) ?(?:Z|UTC|GMT|"
    "(?:UTC|GMT)?(?<hours>[-+](?:0[0-9]|1[0-4])):?(?<minutes>[0-5][0-9])?(?: UTC)?)$"
)
_MINUTE = 60_000_000  # µs
_HOURS, _MINUTES = re.compile("%[-_0]?[HIkl]"), re.compile("%[-_0]?[MTRXcrs+]")

# Texts that people may mean as dates, and the possible formats.
_MONTHS_ABROAD = "jan|feb|fév|mar|mär|mrz|apr|avr|abr|may|mai|maj|jun|juin|jul|juil|aug|aoû|ago"
_MONTHS_ABROAD += "|sep|set|oct|okt|out|nov|dec|dez|déc|des|dic|ene|gen|mag|giu|lug|ott"
_WORD = rf"(?:{_MONTHS_ABROAD})[^\W\d]*\.?"
_LIKE_A_DAY = [
    r"\d{1,2}[./-]\d{1,2}[./-](?:\d{4}|\d{2})",
    r"\d{4}[./-]\d{1,2}[./-]\d{1,2}",
    rf"{_YEAR}-?W\d\d(?:-?\d)?",
    rf"{_DAY}[-/. ]*{_WORD}[-/., ]*{_YEAR}",
    rf"{_DAY}[. ]+[^\W\d]{{3,}}[. ]+{_YEAR}",
    rf"{_WORD}[-/. ]*(?:{_DAY},? )?{_YEAR}",
    rf"{_DAY}[-/. ]{_MONTH}",
    rf"{_MONTH}[-/. ]{_DAY}",
]
_LIKE_A_TIME = r"[T ,:]{0,2}(?:[^\W\d]{1,4}\.? )?\d{1,2}[:.h]\d\d.*"
_LIKE_DATES = rf"(?i)^(?:[a-z]{{2,9}}\.?,? )?(?:{'|'.join(_LIKE_A_DAY)})(?:{_LIKE_A_TIME})?$"
_ORDERS = [
    day.replace("/", mark)
    for mark in "/.-"
    for day in ("%d/%m/%Y", "%m/%d/%Y", "%d/%m/%y", "%m/%d/%y", "%y/%m/%d", "%b/%y")
]
_TO_OFFER = [
    day + clock
    for day, clock in itertools.product([*_ORDERS, "%Y-%m-%d"], [*_CLOCKS, " %H:%M:%S%.f %Z"])
]
FEW_TEXTS = 0.2  # share of a column's different texts that may be something else
MANY_TEXTS = 20
_PERHAPS = (  # a time of day; .NET's forms; a year and other numbers without Latin letters
    r"(?:^|\D)\d{1,2}:\d\d(?:\D|$)|\d\.\d\d\.\d\d\.\d{3}|^/Date\("
    r"|^(?:19|20)\d\d(?:[^A-Za-z\d]+\d{1,3}){1,5}[^A-Za-z\d]*$"
)


def moments(values: pl.Series) -> pl.Series:
    """Return a text column's cells as dates with times in UTC; null for a cell that is no date."""
    found = _in_utc(values.str.strip_chars().str.replace("T", " ", literal=True))
    left = (found.is_null() & values.str.contains("[0-9]")).arg_true()
    sample = values.gather(left.head(_SAMPLE))
    if len(left) and _in_utc(_rewrite_dates(sample)).is_not_null().any():
        found = found.scatter(left, _in_utc(_rewrite_dates(values.gather(left))))
    return found.alias(values.name)


def parse_moments(values: pl.Series, form: str) -> pl.Series:
    """Return texts or numbers as dates with times in UTC, read with the strftime format `form`.

    Raises polars' ComputeError if polars can't read dates with `form`.
    """
    whole = values.cast(pl.Int64, strict=False) if values.dtype.is_float() else values
    plain = whole.cast(pl.String).str.strip_chars()
    if "%Y" in form:  # so that a year of two digits is not read as one before 100
        plain = plain.set(~plain.str.contains("[0-9]{4}").fill_null(value=False), None)
    if _HOURS.search(form) and not _MINUTES.search(form):  # polars needs both
        plain, form = plain + ":00", f"{form}:%M"
    if "z" not in form:
        return plain.str.to_datetime(form, time_unit="us", strict=False)
    found = plain.str.to_datetime(form, time_unit="us", time_zone="UTC", strict=False)
    return found.dt.replace_time_zone(None)


def date_format_advice(values: pl.Series) -> str:
    """Return advice if most texts of a column are dates, but some have an unknown form; else ""."""
    present = different_texts(values)
    like_dates = present.filter(present.str.contains(_LIKE_DATES))
    is_read = moments(like_dates).is_not_null()
    dates = like_dates.filter(~is_read)
    if not len(dates) or len(like_dates) < (1 - FEW_TEXTS) * len(present):
        return ""
    if is_read.any():
        if not any(_can_parse(form, dates.head(1)) for form in _TO_OFFER):
            return ""  # no date, such as 0000-00-00
        both = f"{dates[0]!r} and {like_dates.filter(is_read)[0]!r}"
        return f"dates in several forms, such as {both}: write YYYY-MM-DD in all"
    forms = [form for form in _TO_OFFER if _can_parse(form, dates.head(_SAMPLE))]
    forms = [form for form in forms if _can_parse(form, dates)]
    plain = [form for form in forms if "%Z" not in form] or forms
    order = ", whose order of day and month is unclear" if len(plain) > 1 else ""
    text = f"dates such as {dates[0]!r}{order}: write YYYY-MM-DD"
    if not plain:
        return text
    offered = column_line(values.name, (f'"{form}"' for form in plain))
    zone = ", which leaves out the zone" if "%Z" in plain[0] else ""
    return f"{text}, or say their form: {offered}{zone}"


def moments_advice(values: pl.Series) -> str:
    """Return advice if a column has many texts that may be dates with times, else ""."""
    present = different_texts(values)
    alike = present.filter(present.str.contains(_PERHAPS))
    if len(alike) < max(MANY_TEXTS, (1 - FEW_TEXTS) * len(present)):
        return ""
    return f"text such as {alike[0]!r}: if it is a moment, write YYYY-MM-DD HH:MM:SS"


def different_texts(values: pl.Series) -> pl.Series:
    """Return the different texts without surrounding blanks; none for a column of another type."""
    present = values.drop_nulls() if values.dtype == pl.String else pl.Series(dtype=pl.String)
    return present.str.strip_chars().unique(maintain_order=True)


def _can_parse(form: str, dates: pl.Series) -> bool:
    return not parse_moments(dates, form).null_count()


def _rewrite_dates(values: pl.Series) -> pl.Series:
    texts = values.str.strip_chars()
    for pattern, form in _REWRITTEN:
        texts = texts.str.replace_all(f"(?i){pattern}", form)
    return texts


def _in_utc(texts: pl.Series) -> pl.Series:
    zoned = texts.str.extract_groups(_ZONED).struct
    found = _parse_leading_date(
        zoned.field("moment").zip_with(zoned.field("moment").is_not_null(), texts)
    )
    hours, minutes = (zoned.field(name).cast(pl.Int64) for name in ("hours", "minutes"))
    sign = zoned.field("hours").str.starts_with("-").cast(pl.Int64) * -2 + 1
    offset = (hours * 60 + sign * minutes.fill_null(0)).fill_null(0)
    return found - (offset * _MINUTE).cast(pl.Duration("us"))


def _parse_leading_date(texts: pl.Series) -> pl.Series:
    found = pl.Series([None], dtype=pl.Datetime("us")).new_from_index(0, len(texts))
    left = texts.str.contains(r"^[0-9]{4}-").fill_null(value=False).arg_true()
    for form in _READ:
        if not len(left):
            break
        read = texts.gather(left).str.to_datetime(form, time_unit="us", strict=False)
        found = found.scatter(left.filter(read.is_not_null()), read.drop_nulls())
        left = left.filter(read.is_null())
    return found
