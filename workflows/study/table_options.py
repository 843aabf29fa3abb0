"""The study's `table:` section: task, columns, split and null values, with their defaults."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, TypeGuard

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from trialfleet.objective import is_number
from trialfleet.sections import Refused, Section, check_not_empty, refusal

DEFAULT_SHARES = [0.7, 0.15, 0.15]
NULL_VALUES = ["NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None"]
_ROUNDING = 1e-6

_PLAIN = re.compile(r"[^\W\d][\w ()/%€.-]*(?<! )")  # a YAML key without quotes
_NO_TEXTS = {"true", "false", "null", "yes", "no", "on", "off"}

ColumnName = Annotated[str, AfterValidator(check_not_empty)]
_ROLES = ["numeric", "categorical", "ignore", "decimal_point", "decimal_comma"]


def is_form(role: str | None) -> TypeGuard[str]:
    """Return whether `role` is a format of numbers (decimal_…) or of dates (strftime)."""
    return role is not None and (role.startswith("decimal_") or "%" in role)


def column_line(name: str, roles: Iterable[str]) -> str:
    """Return a line for a study file that gives the column `name` one of `roles` to choose from."""
    is_plain = _PLAIN.fullmatch(name) and name.lower() not in _NO_TEXTS
    key = name if is_plain else json.dumps(name, ensure_ascii=False)
    return f"table: {{columns: {{{key}: {' or '.join(roles)}}}}}"


def _role(value: str) -> str:
    if value in _ROLES or any(year in value for year in ("%Y", "%y", "%F", "%D")):
        return value
    raise refusal(
        f"must be {', '.join(map(repr, _ROLES))}, or a strftime format of its dates, such as "
        "'%d.%m.%Y %H:%M'"
    )


_ROLE_OR_FORM = WithJsonSchema(
    {"anyOf": [{"enum": _ROLES}, {"type": "string", "pattern": "%[YyFD]"}]}
)
Role = Annotated[str, AfterValidator(_role), _ROLE_OR_FORM]


def _shares(value: list[float]) -> list[float]:
    bad_shares = len(value) != 3 or min(value) <= 0
    if bad_shares or not math.isclose(sum(value), 1, abs_tol=_ROUNDING):
        raise refusal(
            "must be three shares above 0 that add up to 1 (train, validation, test), such as "
            f"{DEFAULT_SHARES}"
        )
    return value


def _number_to_text(value: object) -> object:
    return str(value) if is_number(value) else value


_TEXT_OR_NUMBER = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}]})
NullValue = Annotated[str, BeforeValidator(_number_to_text), _TEXT_OR_NUMBER]
Shares = Annotated[list[float], AfterValidator(_shares)]


class Split(Section):
    """The split of the rows into train, validation and test: random, by time, or by a column."""

    random: Shares | None = Field(
        None, description="Shares of train, validation and test rows; drawn with the study's seed."
    )
    time: ColumnName | None = Field(
        None,
        description="A column of dates or numbers: the oldest rows are for training, the latest "
        "for testing.",
    )
    shares: Shares | None = Field(
        None,
        description=f"With time: shares of train, validation and test rows (default: "
        f"{DEFAULT_SHARES}).",
    )
    column: ColumnName | None = Field(
        None, description="A column with train, validation or test in each row."
    )

    def problems(self) -> Iterator[Refused]:
        """Yield a problem unless the split has one way, and shares only with `time`."""
        methods = [name for name in ("random", "time", "column") if getattr(self, name) is not None]
        if len(methods) != 1:
            given = " and ".join(methods) or "none of them"
            yield (), f"must have exactly one of random, time and column; it has {given}", None
        if self.shares is not None and self.time is None:
            text = "requires time; with random, write the shares there: random: [0.7, 0.15, 0.15]"
            yield ("shares",), text, self.shares

    @property
    def own_columns(self) -> list[str]:
        """A list with the column by which the rows are split; empty for a random split."""
        return [name for name in (self.time, self.column) if name is not None]


class TableOptions(Section):
    """Options for reading the regions' CSV and Parquet files."""

    task: Literal["auto", "classification", "regression"] = Field(
        "auto",
        description="auto: classification if the target is text or boolean, or has few different "
        "whole numbers.",
    )
    columns: dict[ColumnName, Role] = Field(
        {},
        description="For a column that is read wrongly: its role, or the format of its numbers "
        "(decimal_comma) or dates (%d.%m.%Y).",
    )
    split: Split = Split(random=DEFAULT_SHARES)
    null_values: list[NullValue] = Field(
        NULL_VALUES,
        description="Texts and numbers that mean a missing value, like an empty cell.",
    )
