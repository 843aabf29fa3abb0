"""Error messages about a study file, with file, line, key and value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trialfleet.errors import StudyError
from trialfleet.key_descriptions import find_meaning
from trialfleet.sections import FROM_FILE
from trialfleet.workflows.study.paths import Problem, UnusableStudyError, join_keys
from trialfleet.workflows.study.text import read_yaml

Model = TypeVar("Model", bound=BaseModel)

_ABSENT = object()
_WORDS = {  # instead of pydantic's texts about Python's types
    "dict_type": "must be a table",
    "list_type": "must be a list",
    "string_type": "must be text; put a number, true or a date in quotes",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "too_short": "must have at least one entry",
}
_MOST_PROBLEMS = 20  # problems of a file to show
_LONGEST, _LONGEST_VALUE = 500, 120  # characters of a line, and of a value in it

# Errors whose message does not show the value.
_UNSHOWN = {"missing", "empty", "unknown_key", "storage_url", "secret_url"}


@contextmanager
def errors_with_lines(path: str | PathLike[str]) -> Iterator[None]:
    """Convert an `UnusableStudyError` to a `StudyError` with line numbers of the file `path`."""
    try:
        yield
    except UnusableStudyError:
        file = Path(path)
        with problems_with_lines(file, read_table(file)):
            raise


def find_lines(path: str | PathLike[str], keys: Iterable[str]) -> dict[str, str]:
    """Return `FILE:LINE` for each key in `keys`, which are written like `resources.memory`.

    For a key that the file omits, only FILE is returned.
    """
    file = Path(path).absolute()
    tree, places = read_table(file), {}
    for key in keys:
        parts = key.split(".")
        there = _keys_in_file(tree, parts, missing=False)
        places[key] = f"{file}:{_find_line(tree, there)}" if len(there) == len(parts) else str(file)
    return places


def validate(model: type[Model], path: Path, tree: Any) -> Model:
    """Return `tree`, the content of a person's file `path`, as a validated `model`.

    StudyError, with a line per problem, if the content is invalid.
    """
    try:
        return model.model_validate(tree, context=FROM_FILE)
    except ValidationError as error:
        problems = error.errors()
    # outside of the except clause, so that pydantic's text, perhaps with a password, is not shown
    raise _combine_problems([_explain(path, tree, problem, model) for problem in problems])


def _combine_problems(problems: Sequence[str]) -> StudyError:
    lines = dict.fromkeys(problems[:_MOST_PROBLEMS])
    shown = [line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…" for line in lines]
    if (more := len(problems) - _MOST_PROBLEMS) > 0:
        shown.append(f"… and {more} more problems")
    return StudyError("\n".join(shown))


def read_table(path: Path, what: str = "study") -> Any:
    """Return a YAML file's table of keys, with line numbers.

    `what` names the kind of file in error messages.

    Raises:
        StudyError: the file is not YAML, or not a table of keys.
        InputError: the file can't be read.
    """
    tree = read_yaml(path)
    if not isinstance(tree, Mapping):
        kind = "not a list" if isinstance(tree, list) else "not a single value"
        found = "but the file is empty" if tree is None else kind
        raise StudyError(
            f"{path}: a {what} must be a table of keys and values, {found}; "
            "for an example: trialfleet init FOLDER"
        )
    return tree


def _explain(path: Path, tree: Any, detail: ErrorDetails, model: type[BaseModel]) -> str:
    """Return pydantic's error `detail` as one line: `file:line: key.key: problem (got value)`."""
    keys = _keys_in_file(tree, detail["loc"], missing=detail["type"] == "missing")
    context = detail.get("ctx", {})
    line = _find_line(tree, [*keys, context["at"]] if "at" in context else keys)
    message = _WORDS.get(detail["type"]) or str(context.get("error", detail["msg"]))
    if detail["type"] == "missing":
        message = " ".join(filter(None, ["is missing.", find_meaning(model, keys)]))
    message = re.sub(r"^Input should ", "must ", message)
    message = message[:1].lower() + message[1:]
    given = detail["input"]
    is_short = not isinstance(given, Mapping) and len(repr(given)) < _LONGEST_VALUE
    shows_value = is_short and detail["type"] not in _UNSHOWN and repr(given) not in message
    value = f" (got {_plain_value(given)!r})" if shows_value else ""
    words = f"{join_keys(keys) or 'study'}: {message}{value}"
    if not line:  # not from a file
        return words if words.startswith(f"{path}: ") else f"{path}: {words}"
    return f"{path}:{line}: {words}"


@contextmanager
def problems_with_lines(path: Path, tree: Any) -> Iterator[None]:
    """Convert an `UnusableStudyError` to a `StudyError` with line numbers from `tree`.

    `tree` is the content of the study file `path`.
    """
    try:
        yield
    except UnusableStudyError as error:
        raise _combine_problems([_place(path, tree, each) for each in error.problems]) from None


def _place(path: Path, tree: Any, problem: Problem) -> str:
    keys = _keys_in_file(tree, problem.keys, missing=False)
    number = _find_line(tree, keys) if keys else 0
    line = f":{number}" if number else ""
    return f"{path}{line}: {join_keys(keys or problem.keys)}: {problem.message}"


def _plain_value(value: Any) -> Any:
    """Return a value as plain Python types, because ruamel.yaml's own types print differently."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return [_plain_value(v) for v in value] if isinstance(value, list) else value


def _keys_in_file(tree: Any, location: Sequence[int | str], *, missing: bool) -> list[int | str]:
    """Return the parts of pydantic's `location` that are keys in `tree`.

    With `missing`, the last part is returned even if `tree` lacks it.
    """
    keys: list[int | str] = []
    for position, part in enumerate(location):
        key, child = _find_child(tree, part)
        if child is not _ABSENT:
            tree = child
            keys.append(key)
        elif missing and position == len(location) - 1:
            keys.append(part)
        # other parts: the name of a union's member, or the index of a value given without a list
    return keys


def _find_child(tree: Any, part: int | str) -> tuple[Any, Any]:
    """Return the key of `tree` that has the same text as `part`, and the key's value.

    Without such a key, return `part` and `_ABSENT`.
    """
    if isinstance(tree, Mapping):
        found = (key for key in tree if key == part or str(key) == str(part))
        key = next(found, _ABSENT)
        return (part, _ABSENT) if key is _ABSENT else (key, tree[key])
    if isinstance(tree, list) and isinstance(part, int) and part < len(tree):
        return part, tree[part]
    return part, _ABSENT


def _find_line(tree: Any, keys: Sequence[int | str]) -> int:
    """Return the line, from 1, of the entry that `keys` lead to; 0 if `tree` is not from a file."""
    if not hasattr(tree, "lc"):
        return 0
    line: int = tree.lc.line
    for key in keys:
        places = getattr(getattr(tree, "lc", None), "data", None) or {}
        if key in places:
            line = places[key][0]
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            break
    return line + 1
