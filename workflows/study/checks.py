"""Validators of single values in a study file: names, paths, commands, shares of a GPU, minutes."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    PositiveInt,
    WithJsonSchema,
)

from trialfleet.objective import is_number
from trialfleet.render import has_macro, is_transferable
from trialfleet.sections import (
    Pattern,
    check_not_empty,
    one_line,
    refusal,
)
from trialfleet.workflows.names import check_region_name

URL_PREFIXES = ("s3://",)
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
MAX_SHARES = 16
SHARE_ROUNDING = 0.02  # 0.33 means 1/3; 0.3 is invalid
GPUS = (
    "must be a whole number of GPUs, or a share 1/N for N trials on a GPU: "
    f"0.5, 0.25 or 1/3, down to 1/{MAX_SHARES}"
)
S3_OBJECT = re.compile(r"s3://[^/]+/(.*[^/])")


def check_transferable(value: str) -> str:
    """Return the path `value`. ValueError if HTCondor can't transfer a file of this name."""
    if not is_transferable(value):
        raise ValueError(
            f"{value!r} can't be sent by HTCondor's file transfer: remove commas, double quotes, "
            "backslashes, macros such as $(X) or $$, and blanks at its start and end"
        )
    return one_line(value)


def _check_expression(value: str) -> str:
    import classad2

    one_line(value)
    if has_macro(value):
        raise ValueError(
            f"{value!r} contains a macro, which HTCondor would replace; remove $(X), $X(…) and $$"
        )
    try:
        classad2.ExprTree(value)
    except Exception as error:
        raise ValueError(f"{value!r} is not a ClassAd expression") from error
    return value


def _check_local(value: str) -> str:
    if SCHEME.match(value):
        raise ValueError(f"{value!r} is a URL; name a file or folder on this machine")
    return value


def _data_place(value: str) -> str:
    scheme = SCHEME.match(value)
    if scheme and scheme[0] not in URL_PREFIXES:
        raise ValueError(f"{scheme[0]} is not supported; give a path or an s3://BUCKET/KEY URL")
    if scheme and not S3_OBJECT.fullmatch(value):
        raise ValueError(f"{value!r} has no object key; write s3://BUCKET/KEY")
    return value


def _in_quotes(value: Any) -> Any:
    if not isinstance(value, str):
        raise refusal("a region's name must be text; put it in quotes")
    return value


def wrap_in_list(value: Any) -> Any:
    """Return `value` in a list if it is a string, otherwise unchanged."""
    return [value] if isinstance(value, str) else value


def _split_words(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(one_line(value))
    except ValueError as error:
        raise ValueError(f"{value!r} can't be split into words: {error}") from error


def _check_program(value: list[str]) -> list[str]:
    if not value or not value[0]:
        raise refusal("must be a program and its arguments, such as [python3, train.py]")
    return value


MOST_CORES = 100_000  # of cores or GPUs of a machine; HTCondor reads a far larger number as 0
MOST_RANKS = 1_000  # ranks of a gang; each is a job
_TEN_YEARS = 10 * 365 * 24 * 60  # minutes


def _time_for_a_trial(value: float) -> float:
    if value < 1 / 60:
        raise refusal("must be at least 0.017 minutes (one second)")
    if value > _TEN_YEARS:  # HTCondor reads a far larger number as 0
        raise refusal(f"must be at most {_TEN_YEARS} minutes (ten years); use null for no limit")
    return value


def _gpus(value: Any) -> int | float:
    fraction = re.fullmatch(r"1 ?/ ?([1-9][0-9]?)", value) if isinstance(value, str) else None
    gpus = 1 / int(fraction[1]) if fraction else value
    if not is_number(gpus):
        raise refusal(GPUS)
    if gpus > MOST_CORES:  # before float(), which fails for a huge int
        raise refusal(f"must be at most {MOST_CORES:,}")
    if gpus >= 1 and float(gpus).is_integer():
        return int(gpus)
    if 1 / (MAX_SHARES + 0.5) < gpus < 1 / 1.5:
        shares = round(1 / gpus)
        if abs(gpus * shares - 1) <= SHARE_ROUNDING:
            return 1 / shares
    raise refusal(GPUS)


_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_METRIC = r"[A-Za-z_][A-Za-z0-9_.@/-]{0,63}"
_OR_LIST = str | list[str]

Accelerator = Literal["auto", "gpu", "cpu"]
FileName = Annotated[str, AfterValidator(check_not_empty), AfterValidator(check_transferable)]
LocalFile = Annotated[FileName, AfterValidator(_check_local)]
DataPlace = Annotated[FileName, AfterValidator(_data_place)]
LocalFiles = Annotated[
    list[LocalFile], BeforeValidator(wrap_in_list, json_schema_input_type=_OR_LIST)
]
DataPlaces = Annotated[
    list[DataPlace], BeforeValidator(wrap_in_list, json_schema_input_type=_OR_LIST)
]
Command = Annotated[
    list[Annotated[str, AfterValidator(one_line)]],
    AfterValidator(_check_program),
    BeforeValidator(_split_words, json_schema_input_type=_OR_LIST),
]


def _trials_per_job(value: Any) -> int | Literal["all"]:
    if value == "all":
        return "all"
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise refusal("must be `all`, or a whole number above 0")


TrialsPerJob = Annotated[
    Literal["all"] | PositiveInt,
    PlainValidator(_trials_per_job, json_schema_input_type=Literal["all"] | PositiveInt),
]
Gpus = Annotated[
    int | float,
    BeforeValidator(_gpus),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MOST_CORES},
                {"type": "number", "exclusiveMinimum": 0, "maximum": 0.51},
                {"type": "string", "pattern": "^1 ?/ ?[0-9]{1,2}$"},
            ]
        }
    ),
]
Expression = Annotated[str, AfterValidator(check_not_empty), AfterValidator(_check_expression)]
RegionName = Annotated[str, BeforeValidator(_in_quotes), AfterValidator(check_region_name)]
StudyName = Annotated[
    str,
    Pattern(_NAME, "letters, digits, '-' and '_', 64 at most, a letter or digit first"),
    Field(description="Letters, digits, - and _. It identifies runs, models and the fleet."),
]
TeamName = Annotated[str, Pattern(_NAME, "letters, digits, '-' and '_', 64 at most")]
MetricName = Annotated[
    str,
    Pattern(
        _METRIC,
        "a name such as val_auc: a letter or '_' first, then letters, digits or _ . @ / -; "
        "64 at most",
    ),
]
Minutes = Annotated[
    float,
    AfterValidator(_time_for_a_trial),
    Field(json_schema_extra={"minimum": 1 / 60, "maximum": _TEN_YEARS}),
]
