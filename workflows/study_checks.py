"""What one value of a study file may be, each said in words that a person can act on."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from trialfleet.workflows.names import check_region_name
from trialfleet.workflows.render import has_macro, needs_escape

URL_PREFIXES = ("s3://",)
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
S3_OBJECT = re.compile(r"s3://[^/]+/(.*[^/])")


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return ` (did you mean …?)` when a choice is near to `word`, else nothing."""
    near = difflib.get_close_matches(word, list(choices), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def wrong(text: str) -> PydanticCustomError:
    """An error whose message is `text` as it stands, braces and all."""
    return PydanticCustomError("study", "{text}", {"text": text})


def one_line(value: str) -> str:
    """Return `value` when it can't become a second line of a DAG or submit file.

    Raises:
        ValueError: it has a line break or a control character.
    """
    if any(ord(c) < 0x20 or ord(c) in {0x7F, 0x85, 0x2028, 0x2029} for c in value):
        raise ValueError(f"{value!r} has a line break or a control character; write it in one line")
    return value


def transferable(value: str) -> str:
    """Return `value` when HTCondor's list of files to transfer, which has no quoting, can hold it.

    Raises:
        ValueError: the list would be read differently.
    """
    if "," in value or value != value.strip() or needs_escape(value):
        raise ValueError(
            f"{value!r} can't be sent by HTCondor's file transfer: no comma, double quote, "
            "backslash, macro such as $(X) or $$, or blank at an end"
        )
    return one_line(value)


def _expression(value: str) -> str:
    """A ClassAd expression, checked by HTCondor's own parser."""
    import classad2

    one_line(value)
    if has_macro(value):
        raise ValueError(f"{value!r}: $(X), $X(…) and $$ would be expanded by the submit file")
    try:
        classad2.ExprTree(value)
    except Exception as error:
        raise ValueError(f"{value!r} is not a ClassAd expression") from error
    return value


def _local(value: str) -> str:
    if SCHEME.match(value):
        raise ValueError(f"{value!r} is a URL; name a file or folder of this machine")
    return value


def _data_place(value: str) -> str:
    scheme = SCHEME.match(value)
    if scheme and scheme[0] not in URL_PREFIXES:
        raise ValueError(f"{scheme[0]} is not supported; give a path or an s3://BUCKET/KEY URL")
    if scheme and not S3_OBJECT.fullmatch(value):
        raise ValueError(f"{value!r} names no object; write s3://BUCKET/KEY")
    return value


def _spelled(pattern: str, words: str) -> Callable[[Any], str]:
    """A check that tells in words what a pattern wants."""

    def check(value: Any) -> str:
        if isinstance(value, str) and re.fullmatch(pattern, value):
            return value
        quotes = not isinstance(value, str) and re.fullmatch(pattern, str(value))
        raise wrong("must be text; put it in quotes" if quotes else f"must be {words}")

    return check


def _schema_of(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^{pattern}$"})


def _in_quotes(value: Any) -> Any:
    if not isinstance(value, str):
        raise wrong("a region's name is text; put it in quotes")
    return value


def _not_empty(value: str) -> str:
    if not value:
        raise wrong("must not be empty")
    return value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _as_words(value: Any) -> Any:
    """A command given as one text is split into words as a shell would; nothing is expanded."""
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(one_line(value))
    except ValueError as error:
        raise ValueError(f"{value!r} can't be split into words: {error}") from error


def _at_least_a_word(value: list[str]) -> list[str]:
    if not value or not value[0]:
        raise wrong("must be a program and its arguments, such as [python3, train.py]")
    return value


def _at_least_a_second(value: float) -> float:
    if value < 1 / 60:
        raise wrong("must be a second (0.017) or more")
    return value


_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_METRIC = r"[A-Za-z_][A-Za-z0-9_.@/-]{0,63}"
_SIZE = r"(?!0+(\.0+)?[ KMGT])[0-9]+(\.[0-9]+)? ?(KB|MB|GB|TB)"
_OR_LIST = str | list[str]

OneLine = Annotated[str, AfterValidator(_not_empty), AfterValidator(one_line)]
FileName = Annotated[str, AfterValidator(_not_empty), AfterValidator(transferable)]
LocalFile = Annotated[FileName, AfterValidator(_local)]
DataPlace = Annotated[FileName, AfterValidator(_data_place)]
LocalFiles = Annotated[list[LocalFile], BeforeValidator(_as_list, json_schema_input_type=_OR_LIST)]
DataPlaces = Annotated[list[DataPlace], BeforeValidator(_as_list, json_schema_input_type=_OR_LIST)]
Command = Annotated[
    list[Annotated[str, AfterValidator(one_line)]],
    AfterValidator(_at_least_a_word),
    BeforeValidator(_as_words, json_schema_input_type=_OR_LIST),
]
Expression = Annotated[str, AfterValidator(_not_empty), AfterValidator(_expression)]
RegionName = Annotated[str, BeforeValidator(_in_quotes), AfterValidator(check_region_name)]
StudyName = Annotated[
    str,
    BeforeValidator(
        _spelled(_NAME, "letters, digits, '-' and '_', 64 at most, a letter or digit first")
    ),
    _schema_of(_NAME),
]
MetricName = Annotated[
    str,
    BeforeValidator(
        _spelled(
            _METRIC,
            "a name such as val_auc: a letter or '_' first, then letters, digits or _ . @ / -; "
            "64 at most",
        )
    ),
    _schema_of(_METRIC),
]
Size = Annotated[
    str,
    BeforeValidator(
        _spelled(_SIZE, "a number above 0 and a unit, such as 2GB; units: KB, MB, GB, TB")
    ),
    _schema_of(_SIZE),
]
Minutes = Annotated[
    float, AfterValidator(_at_least_a_second), Field(json_schema_extra={"minimum": 1 / 60})
]
