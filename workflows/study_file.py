"""Reading a study file, with errors that name file, line, key, value and choices.

YAML 1.2 (ruamel.yaml), so that the region `NO` is Norway and not `false`, and `1e-4` is a number.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from trialfleet.errors import InputError, StudyError
from trialfleet.workflows.study import Study

Model = TypeVar("Model", bound=BaseModel)


class FrozenStudy(BaseModel):
    """What `RUN/study.yaml` holds: the run's id and the resolved study."""

    run: str
    study: Study


def load_study(path: Path) -> Study:
    """Read, validate and resolve a study file.

    Raises:
        StudyError: the file is not YAML, or not a study; every problem stands on a line of its own.
        InputError: the file can't be read, or names files that don't exist.
    """
    try:
        return _parse(Study, path).resolve(path.absolute().parent)
    except StudyError:
        raise
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def load_frozen(path: Path) -> FrozenStudy:
    """Read the study that a run froze.

    Raises:
        InputError: the file can't be read or was changed into something that is no study.
    """
    return _parse(FrozenStudy, path)


def dump_frozen(frozen: FrozenStudy) -> str:
    """Return the text of `RUN/study.yaml`; the same study gives the same text."""
    writer: Any = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False
    writer.width = 100
    writer.allow_unicode = True
    text = io.StringIO()
    writer.dump(frozen.model_dump(mode="json", exclude_unset=False, exclude_none=True), text)
    return text.getvalue()


def _parse(model: type[Model], path: Path) -> Model:
    tree = _read_yaml(path)
    if not isinstance(tree, Mapping):
        raise StudyError(f"{path}: a study is a table of keys and values, not {tree!r:.80}")
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        details = [detail for detail in error.errors() if not _is_other_form(detail)]
        lines = dict.fromkeys(_explain(path, tree, detail) for detail in details)
        raise StudyError("\n".join(lines)) from error


def _read_yaml(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise InputError(f"{path}: can't be read: {error}") from error
    try:
        return YAML(typ="rt", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise StudyError(f"{path}{line}: not YAML: {error.problem or error.context}") from error
    except (YAMLError, ValueError) as error:
        raise StudyError(f"{path}: not YAML: {error}") from error


def _explain(path: Path, tree: Any, detail: ErrorDetails) -> str:
    """One line: `file:line: key.key: what is wrong (got value)`."""
    keys = _keys_in_file(tree, detail["loc"], missing=detail["type"] == "missing")
    context = detail.get("ctx", {})
    line = _line_of(tree, [*keys, context["at"]] if "at" in context else keys)
    message = str(context["error"]) if "error" in context else detail["msg"]
    message = message[:1].lower() + message[1:]
    given = detail["input"]
    shows_value = detail["type"] not in {"missing", "unknown_key"} and _is_short(given)
    value = f" (got {_plain(given)!r})" if shows_value and repr(given) not in message else ""
    return f"{path}:{line}: {'.'.join(map(str, keys)) or 'study'}: {message}{value}"


def _is_other_form(detail: ErrorDetails) -> bool:
    """Whether an error only says that a table is not the word that could stand in its place."""
    return detail["type"] == "literal_error" and isinstance(detail["input"], Mapping)


def _is_short(value: Any) -> bool:
    return not isinstance(value, Mapping) and len(repr(value)) < 120


def _plain(value: Any) -> Any:
    """The value as Python's own type: ruamel's keep the file's formatting in their repr."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return [_plain(v) for v in value] if isinstance(value, list) else value


def _keys_in_file(tree: Any, location: Sequence[int | str], *, missing: bool) -> list[int | str]:
    """The parts of a pydantic location that are keys of the file, without its names of types."""
    keys: list[int | str] = []
    for position, part in enumerate(location):
        child = _child(tree, part)
        if child is not None:
            tree = child
            keys.append(part)
        elif missing and position == len(location) - 1:
            keys.append(part)
        # any other part is the name of a union's member
    return keys


def _child(tree: Any, part: int | str) -> Any:
    if isinstance(tree, Mapping):
        return tree.get(part)
    if isinstance(tree, Sequence) and isinstance(part, int) and part < len(tree):
        return tree[part]
    return None


def _line_of(tree: Any, keys: Sequence[int | str]) -> int:
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
