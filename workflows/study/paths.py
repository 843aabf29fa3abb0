"""Checks of a study's files, data, folders and storage URL, and their absolute paths.

`folder` is the study file's folder. `keys` are the keys that lead to a path in the study. Functions
with an argument `keys` raise UnusableStudyError, with these keys, if the path can't be used.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from trialfleet.errors import InputError
from trialfleet.sections import Section
from trialfleet.spelling import did_you_mean
from trialfleet.workflows.study.checks import URL_PREFIXES, check_transferable
from trialfleet.workflows.study.daily import DATE

Keys = tuple[str | int, ...]
Part = TypeVar("Part", bound=Section)
PLACEHOLDER = "{region}"
ABSENT = "isn't there"  # of a region's data, in the record of a day
_DRIVER = "psycopg"  # the Python driver for PostgreSQL
_URL_MARKS = "%/:?#[]@!&'()*+;=~"


def join_keys(keys: Iterable[int | str]) -> str:
    """Return `keys` joined by dots. A key with unprintable characters is quoted."""
    texts = map(str, keys)
    return ".".join(text if text.isprintable() else repr(text) for text in texts)


class Problem(NamedTuple):
    """A problem in a study file: the keys that lead to the wrong entry, and a message."""

    keys: Keys
    message: str

    def __str__(self) -> str:
        return f"{join_keys(self.keys)}: {self.message}"


class UnusableStudyError(InputError):
    """A study is valid, but can't be run. Each of `problems` names the wrong entry's keys."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class AbsentError(UnusableStudyError):
    """A file that a study names doesn't exist. `path` is the path of the first such file."""

    def __init__(self, *problems: Problem, path: str) -> None:
        super().__init__(*problems)
        self.path = path


class DataError(UnusableStudyError):
    """Some regions' data can't be used. `by_region` has each region's problems."""

    def __init__(self, *problems: Problem, by_region: Mapping[str, list[str]]) -> None:
        super().__init__(*problems)
        self.by_region = by_region


def find_path(name: str, folder: Path, keys: Keys) -> str:
    """Return the absolute path of the file or folder `name`.

    An error message begins with `whose`, for example the region.

    Raises:
        AbsentError: the path doesn't exist.
        UnusableStudyError: the path can't be read, HTCondor can't transfer it, or it is a folder
            that contains the study.
    """
    path = (folder / name).absolute()
    try:
        check_transferable(str(path))
        is_there = path.exists()
        fault = _fault(path, folder) if is_there else ""
    except (OSError, ValueError) as error:
        raise UnusableStudyError(Problem(keys, str(error))) from error
    if not is_there:
        text = f"{str(path)!r} does not exist{placeholder_hint(name)}"
        raise AbsentError(Problem(keys, text), path=str(path))
    if fault:
        raise UnusableStudyError(Problem(keys, f"{str(path)!r} {fault}"))
    return str(path)


def make_files_absolute(part: Part, names: Iterable[str], folder: Path, keys: Keys) -> Part:
    """Return the table `part`, to which `keys` lead, with absolute paths in its fields `names`.

    UnusableStudyError if a file can't be read.
    """
    given = [(name, getattr(part, name)) for name in names]
    files = {name: str((folder / file).absolute()) for name, file in given if file}
    problems = [
        Problem((*keys, name), f"{path!r} does not exist or can't be read")
        for name, path in files.items()
        if not os.access(path, os.R_OK)
    ]
    if problems:
        raise UnusableStudyError(*problems)
    return part.model_copy(update=files)


def sandbox_name(place: str) -> str:
    """Return the name that a data file or URL gets in a trial's working folder."""
    return Path(place).name  # also for a URL: HTCondor doesn't decode its %20


def named_program(name: str, folder: Path) -> str:
    """Return the program `name` as an absolute path if it contains a slash, otherwise unchanged.

    Symbolic links are not resolved, because Python finds its virtual environment by the link's
    path.
    """
    return str((folder / name).absolute()) if "/" in name else name


def _fault(path: Path, folder: Path) -> str:
    if path.name in {"", ".."} or folder.resolve().is_relative_to(path.resolve()):
        return "contains the study itself; name only the files that a trial needs"
    return _kind_fault(path, path.stat().st_mode)


def region_data(region: str, patterns: Sequence[str], folder: Path, keys: Keys) -> list[str]:
    """Return the paths and URLs of a region's data. AbsentError if a path doesn't exist.

    The region's name replaces `{region}` in the patterns. In a URL it is percent-encoded.
    """
    return [
        _object_url(pattern.replace(PLACEHOLDER, quote(region, safe="")), (*keys, index))
        if pattern.startswith(URL_PREFIXES)
        else find_path(pattern.replace(PLACEHOLDER, region), folder, (*keys, index))
        for index, pattern in enumerate(patterns)
    ]


def check_content(data: Sequence[str], keys: Keys, known_faults: dict[str, str]) -> None:
    """Raise UnusableStudyError if a path of `data` is or contains something that no job can get.

    `known_faults` has the faults of the paths that were already checked, and gets the others'.
    """
    for index, place in enumerate(data):
        if place not in known_faults:
            known_faults[place] = "" if place.startswith(URL_PREFIXES) else _first_fault(place)
        if fault := known_faults[place]:
            raise UnusableStudyError(Problem((*keys, index), fault))


def _first_fault(place: str) -> str:
    """Return what in a file or folder no job can get, and why; "" if a job can get all of it."""
    inside = (
        os.path.join(folder, name)  # noqa: PTH118 - fast
        for folder, *names in os.walk(place)
        for name in chain(*names)
    )
    for path in chain([place], inside):
        # A writer may have removed or renamed the file meanwhile.
        if (fault := _content_fault(path)) and os.path.lexists(path):
            return f"{path!r} {fault}"
    return ""


def _content_fault(path: str) -> str:
    """Return why no job can get a file or folder, or "" if it can.

    HTCondor silently skips a link without a target, and would wait forever for a pipe's content. A
    name that is not UTF-8 has no place in the run's records.
    """
    if path.encode(errors="ignore").decode() != path:
        return "has a name that is not UTF-8; rename it"
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - it takes half the time
    except FileNotFoundError:
        return "is a link to a file that does not exist; remove it"
    except OSError as error:
        return f"can't be read: {error.strerror}"
    if stat.S_ISDIR(mode) and os.path.islink(path):  # noqa: PTH114
        advice = "name the folder itself, or put a copy in the link's place"
        return f"is a link to a folder, which HTCondor does not transfer; {advice}"
    is_open = stat.S_ISREG(mode) and mode & 0o444 == 0o444  # everyone may read it: ask no more
    return "" if is_open else _kind_fault(path, mode)


def _kind_fault(path: str | Path, mode: int) -> str:
    """Return why a path of the kind `mode` can't be read as a file or a folder, or ""."""
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return "is neither a file nor a folder"
    needed = os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.R_OK
    return "" if os.access(path, needed) else "can't be read"


def regions_with_data(pattern: str, folder: Path) -> list[str]:
    """Return all region names for which a file exists.

    `pattern` is the file's path, with `{region}` in place of the name. The result is empty for a
    URL and for a pattern without `{region}`.
    """
    if PLACEHOLDER not in pattern or pattern.startswith(URL_PREFIXES):
        return []
    whole = str((folder / pattern).absolute())
    before, *after = whole.split(PLACEHOLDER)
    files = glob.iglob("*".join(map(glob.escape, [before, *after])))  # noqa: PTH207
    name = re.compile(re.escape(before) + "([^/]+)" + r"\1".join(map(re.escape, after)))
    return sorted(found[1] for file in files if (found := name.fullmatch(file)))


def _object_url(url: str, keys: Keys) -> str:
    if hint := placeholder_hint(url):
        raise UnusableStudyError(Problem(keys, f"{url!r}{hint}"))
    return quote(url, safe=_URL_MARKS)


def placeholder_hint(name: str) -> str:
    """Return a hint if `name` has braces that are no placeholder, else ""."""
    found = re.search(r"\{[^{}]*\}", name)
    if not found or found[0] == PLACEHOLDER:
        return ""
    if found[0] == DATE:
        return f"; {DATE} is allowed only in `data`"
    guess = did_you_mean(found[0], [PLACEHOLDER, DATE])
    return f"; {found[0]} is not a placeholder{guess}; placeholders are {PLACEHOLDER} and {DATE}"


def writable_folder(name: str, folder: Path, keys: Keys) -> str:
    """Return the absolute path of the folder `name`, if it is writable or can be created."""
    path = (folder / name).absolute()
    try:
        near = next(p for p in (path, *path.parents) if _exists(p))
        usable = near.is_dir() and os.access(near, os.W_OK | os.X_OK)
    except OSError as error:
        raise UnusableStudyError(Problem(keys, str(error))) from error
    if not usable:
        why = "is not writable for you" if near.is_dir() else "is not a folder"
        what = "it" if near == path else repr(str(near))
        text = f"{str(path)!r} can't be used, because {what} {why}; name another folder"
        raise UnusableStudyError(Problem(keys, f"{text} with `{join_keys(keys)}: …`"))
    return str(path)


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_storage(url: str) -> str:
    """Return the URL of the trial database. ValueError if trialfleet doesn't support it.

    The message omits the URL, because it may contain a password.
    """
    from trialfleet.optimizer.storage_url import STORAGE_FORMS, parse_storage

    parsed = parse_storage(url if url.isprintable() else "")
    is_sqlite, database = parsed.get_backend_name() == "sqlite", parsed.database or ""
    forms = "sqlite:///PATH" if is_sqlite else STORAGE_FORMS
    if parsed.drivername not in {"sqlite", "sqlite+pysqlite", "postgresql+psycopg"}:
        raise ValueError(f"{parsed.drivername}:// is not supported; write {forms}")
    if is_sqlite and parsed.host:
        raise ValueError(f"needs three slashes before a SQLite file's path; write {forms}")
    if is_sqlite and (not database or database.startswith((":memory:", "file:"))):
        raise ValueError(f"needs a SQLite file on disk; write {forms}")
    if not database:
        raise ValueError(f"has no database name; write {forms}")
    return url


def absolute_storage(url: str, folder: Path, keys: Keys) -> str:
    """Return the URL of the trial database. The path of an SQLite file becomes absolute."""
    from trialfleet.optimizer.storage_url import parse_storage

    parsed = parse_storage(url)
    if parsed.get_backend_name() == "postgresql" and importlib.util.find_spec(_DRIVER) is None:
        install = f"python3 -m pip install '{_DRIVER}[binary]'"
        raise UnusableStudyError(
            Problem(keys, f"needs the package {_DRIVER} on the manager: {install}")
        )
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return url
    path = (folder / parsed.database).absolute()
    if not path.parent.is_dir() or path.is_dir():
        raise UnusableStudyError(
            Problem(keys, f"{str(path)!r} must be a file in an existing folder")
        )
    writable_folder(str(path.parent), folder, keys)
    return parsed.set(database=str(path)).render_as_string(hide_password=False)
