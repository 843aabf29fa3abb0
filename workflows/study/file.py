"""Reading a study file, with errors that name file, line, key, value and choices."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML

from trialfleet.errors import InputError, StudyError
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.workflows.study.checks import Accelerator, StudyName
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.places import Problem, UnusableStudyError
from trialfleet.workflows.study.sections import Resources
from trialfleet.workflows.study.spec import Study, shares_of, studys_fleet
from trialfleet.workflows.study.text import LARGEST_STUDY, read_yaml

Model = TypeVar("Model", bound=BaseModel)
T = TypeVar("T")

_ABSENT = object()
_WORDS = {  # for what pydantic says in Python's words
    "dict_type": "must be a table",
    "list_type": "must be a list",
    "string_type": "must be text; put a number, true or a date in quotes",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
}
_MOST_PROBLEMS = 20  # that are told of one file
_LONGEST = 500  # characters

# The frozen study that was read or written last, by its file: a command asks for one run's often.
_known: dict[Path, tuple[tuple[int, ...], FrozenStudy]] = {}

_UNSHOWN = {"missing", "unknown_key", "storage_url"}  # errors told without the value given


class FrozenStudy(BaseModel):
    """What `RUN/study.yaml` holds.

    Attributes:
        run: the run's id.
        folder: where the run was planned.
        created: when it was planned: of two runs of a region, the later one's model is the newer.
        day: the day that it is of, where the study or whoever planned it names one.
        notes: what was chosen for the study when it was planned, and why.
        places: where the study's file sets what a person may want to change, `FILE:LINE` by key;
            the file alone where that leaves a key out.
        study: the resolved study.
    """

    model_config = ConfigDict(frozen=True)

    run: str
    folder: str
    created: AwareDatetime
    day: RunsDay | None = None
    notes: tuple[str, ...] = ()
    places: dict[str, str] = {}
    study: Study

    @property
    def as_of(self) -> datetime:
        """How new its models are: when it was planned, or the end of its day if that was before.

        A run that makes up for a former day is planned after those of later days.
        """
        return min(self.created, self.day.end) if self.day else self.created


class NoRunError(InputError):
    """What is there was never planned; the message says what it is."""


@dataclass(frozen=True)
class DaysStudy:
    """A study as it is on one day.

    Attributes:
        whole: the study as its file has it, of every day.
        study: its normal form with the regions whose data is there; None where none has any.
        absent: the other regions, each with the path that isn't there.
    """

    whole: Study
    study: Study | None
    absent: Mapping[str, str]


def load_day(path: Path, day: date) -> DaysStudy:
    """Read a study of which some regions' data of a day may not be there.

    Raises:
        StudyError: as `load_study`, but for data that isn't there.
        InputError: the file can't be read.
    """
    tree = _read_table(path)
    folder = path.absolute().parent
    with _problems_in_their_places(path, tree):
        whole = _validated(Study, path, tree)
        dated, _ = whole.dated(day)
        absent = dated.absent(folder)
        there = dated.without(absent)
        return DaysStudy(whole, there.resolve(folder) if there.regions else None, absent)


def load_whole(path: Path) -> Study:
    """Read and validate a study file, and leave data and files alone.

    Raises:
        StudyError: the file is not YAML, or not a study.
        InputError: the file can't be read.
    """
    return _validated(Study, path, _read_table(path))


def load_study(path: str | PathLike[str], day: date | None = None) -> Study:
    """Read, validate and resolve a study file; see `load_dated`."""
    return load_dated(path, day)[0]


def load_dated(path: str | PathLike[str], day: date | None = None) -> tuple[Study, date | None]:
    """Read, validate and resolve a study file; return it and the day that it is of, if any.

    Args:
        path: the file.
        day: what `{date}` stands for in its data; default: today in the study's zone.

    Raises:
        StudyError: the file is not YAML, or not a study, or names files that can't be used; every
            problem stands on a line of its own.
        InputError: the file can't be read.
    """
    file = Path(path)
    tree = _read_table(file)
    with _problems_in_their_places(file, tree):
        dated, day = _validated(Study, file, tree).dated(day)
        return dated.resolve(file.absolute().parent), day


@contextmanager
def told_with_lines(path: str | PathLike[str]) -> Iterator[None]:
    """Tell what is wrong with a study that was read from a file as `load_study` does: with lines.

    Raises:
        StudyError: instead of an `UnusableStudyError`.
    """
    try:
        yield
    except UnusableStudyError:
        file = Path(path)
        with _problems_in_their_places(file, _read_table(file)):
            raise


def places_of(path: str | PathLike[str], keys: Iterable[str]) -> dict[str, str]:
    """Return where a study's file sets keys such as `resources.memory`, as `FrozenStudy` has it."""
    file = Path(path).absolute()
    tree = _read_table(file)
    return {key: f"{file}{_line_told(tree, key.split('.'))}" for key in keys}


def _line_told(tree: Any, keys: Sequence[str]) -> str:
    there = _keys_in_file(tree, keys, missing=False)
    return f":{_line_of(tree, there)}" if len(there) == len(keys) else ""


class StudyWithFleet(BaseModel):
    """What `trialfleet fleet` reads of a study file."""

    model_config = ConfigDict(extra="ignore")
    name: StudyName
    fleet: Fleet
    resources: Resources = Resources()
    accelerator: Accelerator = "auto"


def load_fleet(path: Path) -> Fleet:
    """Read the fleet of a study file, or of a file that holds a fleet alone; it has a name then.

    Raises:
        StudyError: the file is not YAML, or not a fleet; a problem a line.
        InputError: the file can't be read.
    """
    tree = _read_table(path)
    if "fleet" in tree:
        study = _validated(StudyWithFleet, path, tree)
        shares = shares_of(study.accelerator, study.resources, study.fleet)
        with _problems_in_their_places(path, tree):
            return studys_fleet(study.fleet, study.name, shares)
    if "search_space" in tree:
        raise StudyError(f"{path}: the study has no fleet: table; begin with aws_regions")
    fleet = _validated(Fleet, path, tree)
    if fleet.name is None:
        raise StudyError(f"{path}: name: a fleet in a file of its own needs a name")
    return fleet


def load_frozen(path: Path) -> FrozenStudy:
    """Read the study that a run froze; once, while its file stays as it is.

    Raises:
        NoRunError: it is a study that was never planned.
        InputError: the file can't be read or was changed into something that is no study.
    """
    stamp = _stamp(path)
    if stamp and (known := _known.get(path)) and known[0] == stamp:
        return known[1]
    tree = _read_table(path, largest=None)  # absolute paths may have made it large
    if "study" not in tree and "search_space" in tree:
        raise NoRunError(f"{path} is a study, and no run of it")
    # releases up to 0.1 didn't note it
    tree.setdefault("created", datetime.fromtimestamp(path.stat().st_mtime, UTC))
    frozen = _validated(FrozenStudy, path, tree)
    _remember(path, stamp, frozen)
    return frozen


def remember_frozen(path: Path, frozen: FrozenStudy) -> None:
    """Note what was just written to `path`, so that this process needn't parse it."""
    _remember(path, _stamp(path), frozen)


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes when a file is written anew, or in place; empty where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _remember(path: Path, stamp: tuple[int, ...], frozen: FrozenStudy) -> None:
    _known.clear()
    _known[path] = stamp, frozen


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


def _validated(model: type[Model], path: Path, tree: Any) -> Model:
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        problems = error.errors()
    # outside of the except clause: pydantic's own text would repeat a password
    raise _all_of(problems, lambda problem: _explain(path, tree, problem))


def _all_of(problems: Sequence[T], tell: Callable[[T], str]) -> StudyError:
    """The error that tells a file's problems, a line each."""
    lines = dict.fromkeys(map(tell, problems[:_MOST_PROBLEMS]))
    told = [line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…" for line in lines]
    if (more := len(problems) - _MOST_PROBLEMS) > 0:
        told.append(f"… and {more} more problems")
    return StudyError("\n".join(told))


def _read_table(path: Path, *, largest: int | None = LARGEST_STUDY) -> Any:
    tree = read_yaml(path, largest=largest)
    if not isinstance(tree, Mapping):
        found = (
            "the file is empty"
            if tree is None
            else "not a list"
            if isinstance(tree, list)
            else "not a value"
        )
        raise StudyError(
            f"{path}: a study is a table of keys and values, {found}; "
            "begin with one that works: trialfleet init FOLDER"
        )
    return tree


def _explain(path: Path, tree: Any, detail: ErrorDetails) -> str:
    """One line: `file:line: key.key: what is wrong (got value)`."""
    keys = _keys_in_file(tree, detail["loc"], missing=detail["type"] == "missing")
    context = detail.get("ctx", {})
    line = _line_of(tree, [*keys, context["at"]] if "at" in context else keys)
    message = _WORDS.get(detail["type"]) or str(context.get("error", detail["msg"]))
    message = message[:1].lower() + message[1:]
    given = detail["input"]
    shows_value = detail["type"] not in _UNSHOWN and _is_short(given)
    value = f" (got {_plain(given)!r})" if shows_value and repr(given) not in message else ""
    return f"{path}:{line}: {'.'.join(map(str, keys)) or 'study'}: {message}{value}"


@contextmanager
def _problems_in_their_places(path: Path, tree: Any) -> Iterator[None]:
    """Tell the problems of a study that can't be used with their lines in its file."""
    try:
        yield
    except UnusableStudyError as error:
        raise _all_of(error.problems, lambda problem: _place(path, tree, problem)) from error


def _place(path: Path, tree: Any, problem: Problem) -> str:
    """`file:line: key.key: what is wrong`; a default stands on no line."""
    keys = _keys_in_file(tree, problem.keys, missing=False)
    line = f":{_line_of(tree, keys)}" if keys else ""
    return f"{path}{line}: {'.'.join(map(str, keys or problem.keys))}: {problem.message}"


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
        key, child = _child(tree, part)
        if child is not _ABSENT:
            tree = child
            keys.append(key)
        elif missing and position == len(location) - 1:
            keys.append(part)
        # any other part is the name of a union's member, or the place in a list of a bare value
    return keys


def _child(tree: Any, part: int | str) -> tuple[Any, Any]:
    """The key as the file has it (`1` where pydantic says `'1'`) and what stands there."""
    if isinstance(tree, Mapping):
        found = (key for key in tree if key == part or str(key) == str(part))
        key = next(found, _ABSENT)
        return (part, _ABSENT) if key is _ABSENT else (key, tree[key])
    if isinstance(tree, list) and isinstance(part, int) and part < len(tree):
        return part, tree[part]
    return part, _ABSENT


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
