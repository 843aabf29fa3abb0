"""The base of the tables in trialfleet's own files (studies, fleets): a frozen pydantic model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, ClassVar, NoReturn, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from trialfleet.spelling import did_you_mean

T = TypeVar("T", bound=Sized)
Refused = tuple[tuple[str | int, ...], str, object]  # place below a model, message, given value


# Pydantic's contexts of a validation: a person wrote the keys, or a plan that had checked them.
FROM_FILE, FROM_PLAN = {"is": "a file"}, {"is": "a plan"}


class Section(BaseModel):
    """A table of a study or fleet file. The error for an unknown key lists the known keys.

    In a file (context FROM_FILE), an optional part without a value (`part:`) is an error. Pydantic
    alone would take the part as left out. What a plan wrote (context FROM_PLAN) is not checked for
    `problems` again: a rule of a later version must not make a run unreadable.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    other_words: ClassVar[Mapping[str, str]] = {}  # the key, by another name that people use

    @model_validator(mode="wrap")
    @classmethod
    def _check(
        cls, given: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        if isinstance(given, cls):  # it was checked when it was made
            return given
        if not isinstance(given, Mapping):
            raise refusal(f"must be a table; its keys: {', '.join(cls.model_fields)}")
        unknown = [key for key in given if key not in cls.model_fields]
        parts = cls._optional_parts() if info.context == FROM_FILE else ()
        empty = {name: part for name, part in parts if given.get(name, 0) is None}
        if not unknown and not empty:
            made = handler(given)
            if info.context != FROM_PLAN and (found := list(made.problems())):
                refuse(cls.__name__, found)
            return made
        problems = [
            InitErrorDetails(type=cls._unknown_key_error(key), loc=(), input=given)
            for key in unknown
        ]
        problems += [
            InitErrorDetails(type=_empty(name, part), loc=(name,), input=None)
            for name, part in empty.items()
        ]
        try:
            handler({key: given[key] for key in given if key not in {*unknown, *empty}})
        except ValidationError as error:
            problems += _value_errors(error, with_missing=not unknown)
        raise ValidationError.from_exception_data(cls.__name__, problems)

    def problems(self) -> Iterator[Refused]:
        """Yield what is wrong with valid values together: the place, a message, the value."""
        yield from ()

    @classmethod
    def _optional_parts(cls) -> Iterator[tuple[str, type[Section]]]:
        for name, field in cls.model_fields.items():
            parts = get_args(field.annotation) if not field.is_required() else ()
            for part in parts if NoneType in parts else ():
                if isinstance(part, type) and issubclass(part, Section):
                    yield name, part

    @classmethod
    def _unknown_key_error(cls, key: Any) -> PydanticCustomError:
        return PydanticCustomError(
            "unknown_key",
            "unknown key {key}{guess}; valid keys: {valid}",
            {
                "key": repr(key),
                "guess": did_you_mean(str(key), cls.model_fields, cls.other_words),
                "valid": ", ".join(cls.model_fields),
                "at": key,
            },
        )


def _empty(name: str, part: type[Section]) -> PydanticCustomError:
    """Return the error for a part without a value. The error says whether `part: {}` is valid."""
    try:
        part.model_validate({})
    except ValidationError:
        text = f"{name} is empty: give it keys ({', '.join(part.model_fields)}), or leave it out"
    else:
        text = f"{name} is empty: write {name}: {{}} for its defaults, or leave it out"
    return PydanticCustomError("empty", "{text}", {"text": text})


def _value_errors(error: ValidationError, *, with_missing: bool) -> list[InitErrorDetails]:
    """Return the errors about values. With `with_missing`, also return those about missing keys."""
    return [
        InitErrorDetails(
            type=PydanticCustomError(
                detail["type"],
                "{message}",
                {**detail.get("ctx", {}), "message": detail["msg"]},
            ),
            loc=detail["loc"],
            input=detail["input"],
        )
        for detail in error.errors()
        if detail["loc"] and (with_missing or detail["type"] != "missing")
    ]


def refuse(title: str, problems: list[Refused]) -> NoReturn:
    """Raise a ValidationError of the model `title`, with an error per problem."""
    details = [
        InitErrorDetails(type=refusal(message), loc=place, input=value)
        for place, message, value in problems
    ]
    raise ValidationError.from_exception_data(title, details)


def refusal(text: str) -> PydanticCustomError:
    """Return an error with the message `text`, in which braces are literal."""
    return PydanticCustomError("study", "{text}", {"text": text})


def one_line(value: str) -> str:
    """Return `value`. ValueError if it has a line break or a control character.

    A line break could add a line to a DAG or submit file.
    """
    if any(ord(c) < 0x20 or ord(c) in {0x7F, 0x85, 0x2028, 0x2029} for c in value):
        raise ValueError(f"{value!r} has a line break or a control character; write it in one line")
    return value


@dataclass(frozen=True)
class Pattern:
    """The annotation of a text that must match `pattern`. The error says `must be {words}`."""

    pattern: str
    words: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, *_: object) -> dict[str, str]:
        return {"type": "string", "pattern": f"^{self.pattern}$"}

    def _check(self, value: Any) -> str:
        if isinstance(value, str) and re.fullmatch(self.pattern, value):
            return value
        quotes = not isinstance(value, str) and re.fullmatch(self.pattern, str(value))
        raise refusal("must be text; put it in quotes" if quotes else f"must be {self.words}")


def pattern_schema(pattern: str) -> WithJsonSchema:
    """Return the JSON Schema of a value that matches `pattern`."""
    return WithJsonSchema({"type": "string", "pattern": f"^{pattern}$"})


def check_not_empty(value: T) -> T:
    """Return `value`, or raise a validation error if it is empty."""
    if not value:
        raise refusal("must not be empty")
    return value


_UNITS = ("KB", "MB", "GB", "TB")
_LARGEST = 1 << 60  # bytes; HTCondor reads 2**63, 8 times as many, as a negative number


def parse_bytes(size: str, kilo: float = 1024.0) -> float:
    """Return the number of bytes of a size such as 2GB, where a KB has `kilo` bytes."""
    return float(size[:-2]) * kilo ** (1 + _UNITS.index(size[-2:]))


def _check_countable(value: str) -> str:
    if parse_bytes(value) >= _LARGEST:
        raise refusal(f"must be less than {_LARGEST >> 40}TB")
    return value


_SIZE = r"(?!0+(\.0+)?[ KMGT])[0-9]+(\.[0-9]+)? ?(KB|MB|GB|TB)"

OneLine = Annotated[str, AfterValidator(check_not_empty), AfterValidator(one_line)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Size = Annotated[
    str,
    Pattern(_SIZE, "a number above 0 and a unit, such as 2GB; units: KB, MB, GB, TB"),
    AfterValidator(_check_countable),
]
