"""Numbers as people write them: 1.200,50 and 1,200.50, (3.50), € 4, 12%, 5K.

A column's cells are read as such numbers only if `table.columns` says whether a point or a comma
precedes the decimals.
"""

from __future__ import annotations

import polars as pl

from trialfleet.workflows.study.table_options import column_line
from trialfleet.workflows.tables.dates_and_times import FEW_TEXTS, MANY_TEXTS, different_texts

DECIMAL_SIGNS = {"decimal_point": ".", "decimal_comma": ","}
_MONEY = (
    r"[\p{Sc}%‰\s'\x{2019}\x{202f}]|\b(?:EUR|USD|GBP|CHF|JPY|CNY|INR|NOK|SEK|DKK|PLN|CZK|HUF|AUD|CAD"
    r"|NZD|BRL|MXN|ZAR|kr|zł|Rs)\b\.?"
)
_FACTORS = {"k": 1e3, "m": 1e6, "mn": 1e6, "mio": 1e6, "b": 1e9, "bn": 1e9, "mrd": 1e9}
_FACTOR = rf"(?i)^(.*[0-9])({'|'.join(sorted(_FACTORS, key=len, reverse=True))})$"
# Numbers with a unit, durations and bounds: 12 kg, 3 days 04:05:06, 27:15:00, PT1H30M, <5.
_MEASURE = (
    r"^[<>≤≥~+-]?\s?[0-9]+(?:[.,][0-9]{3})*(?:[.,][0-9]+)?"
    r"(?:[:/][0-9][0-9]\S*|\s?[^\W\d]{1,8}\b.*|\s?[°µ\x22'].*)?$"
    r"|^-?P[0-9.]*[0-9YMWDT][0-9.YMWDTHS]*[YMWDHS]$"
)
# Numbers with signs around them, or a flag after them: 4.5*, ="4.5", [4.5], 4.5 p.
_MARKED = r"^[^\w#]*[0-9]+(?:[.,][0-9]+)?[^\w\-.,/:]+[^\W\d]{0,2}[^\w\-.,/:]*$"


def parse_amounts(values: pl.Series, kind: str) -> pl.Series:
    """Return a text column's numbers as Float64; null for other cells.

    `kind` is a key of `DECIMAL_SIGNS`: "decimal_point" or "decimal_comma".
    """
    decimal = DECIMAL_SIGNS[kind]
    thousands = "," if decimal == "." else "."
    bare = values.str.replace_all("\u2212", "-").str.replace_all(_MONEY, "")
    bare = bare.str.replace(r"^\((.*)\)$", "-$1").str.replace(r"^([^-].*)-$", "-$1")
    parts = bare.str.extract_groups(_FACTOR).struct
    factor = parts.field("2").str.to_lowercase().replace_strict(_FACTORS, default=1.0)
    number = parts.field("1").zip_with(parts.field("1").is_not_null(), bare)
    grouped = rf"[0-9]{{1,3}}(?:[{thousands}][0-9]{{2,3}})*[{thousands}][0-9]{{3}}"
    written = rf"^[-+]?(?:[0-9]*|{grouped})(?:[{decimal}][0-9]+)?(?:[eE][-+]?[0-9]+)?$"
    number = number.set(~number.str.contains(written).fill_null(value=False), None)
    plain = number.str.replace_all(thousands, "", literal=True).str.replace(
        decimal, ".", literal=True
    )
    found = (plain.cast(pl.Float64, strict=False) * factor).alias(values.name)
    if decimal == ",":
        return found
    exact = values.str.strip_chars().cast(pl.Float64, strict=False)  # 1e3
    return exact.zip_with(exact.is_not_null(), found)


def number_format_advice(values: pl.Series) -> str:
    """Return advice if a text column has numbers as people write them, such as 1.200,50; else "".

    The result is also "" if more than a fifth of the different texts can't be read as numbers.
    """
    present = different_texts(values)
    other = present.filter(present.cast(pl.Float64, strict=False).is_null() & (present != ""))
    read = {kind: parse_amounts(other, kind).is_not_null() for kind in DECIMAL_SIGNS}
    either = read["decimal_point"] | read["decimal_comma"]
    if not either.any() or (~either).sum() > FEW_TEXTS * len(present):
        return ""
    whole = [kind for kind in DECIMAL_SIGNS if (read[kind] | ~either).all()]
    if parse_amounts(other, "decimal_point").equals(parse_amounts(other, "decimal_comma")):
        whole = ["decimal_point"]
    way = f"; or add {column_line(values.name, whole)}" if whole else ""
    return (
        f"text such as {other.filter(either)[0]!r}: write a point before decimals, and neither "
        f"separators nor units{way}"
    )


def unit_advice(values: pl.Series) -> str:
    """Return advice if nearly all texts of a column have a unit (12 kg) or a mark (4.5*); else "".

    At least `MANY_TEXTS` different texts must have a unit or mark. A column with marks may also
    have plain numbers.
    """
    present = different_texts(values)
    is_plain = present.cast(pl.Float64, strict=False).is_not_null()
    is_marked = present.str.contains(_MARKED) & ~is_plain
    is_measure = present.str.contains(_MEASURE) & ~is_plain | is_marked
    most = (1 - FEW_TEXTS) * len(present)
    for found, counted in [(is_measure, is_measure), (is_marked, is_marked | is_plain)]:
        if len(found.arg_true()) >= MANY_TEXTS and len(counted.arg_true()) >= most:
            return f"text such as {present.filter(found)[0]!r}: write the number alone"
    return ""
