"""The input files of a run's jobs: size, times and checksum before the run, and later changes.

HTCondor reads the input files again for each job, so a model may be trained on a changed file. The
optimiser's service therefore compares the files' sizes and times after each job.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trialfleet.errors import join_names
from trialfleet.files import json_text, read_record, write_atomic, write_json
from trialfleet.workflows.checksums import Checksums, Entries, FileState, list_files
from trialfleet.workflows.control.plan.fetching import UnreachableError, object_identity
from trialfleet.workflows.facts.record_shapes import Inputs, InputsChanged
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder
from trialfleet.workflows.facts.run_folder.table_findings import read_warnings, source_of_table
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.study.frozen import FrozenStudy
from trialfleet.workflows.study.image import is_sif
from trialfleet.workflows.study.paths import DataError, Problem
from trialfleet.workflows.study.spec import URL_PREFIXES, Study, Trainer

AT_ONCE = 1 << 30  # bytes to read before a run; other files are read when a model is published
_THREADS = 16  # for requests to S3
_NAMED = 3
_GIT_SECONDS = 10  # limit for git: a checkout may be on a slow disk
_IDENTITY = ("path", "url", "sha256", "bytes", "etag", "version", "modified")


def list_inputs(study: Study, folder: RunFolder, region: str) -> list[str]:
    """Return the paths and URLs that a region's jobs read: its data, or the table made from it."""
    table = folder.region(region_slug(region)).table
    return [str(table)] if table.exists() else study.data_paths(region)


def image_files(study: Study) -> list[Path]:
    """Return the .sif image that HTCondor sends to jobs, in a list; [] if the study has none."""
    return [Path(study.image)] if study.image and is_sif(study.image) else []


def freeze_code(folder: RunFolder, frozen: FrozenStudy) -> None:
    """Record sizes, times and checksums of a run's code and image, and the study's git commit.

    The caller must sync the run's folder to disk afterwards.
    """
    checksums = Checksums(folder.checksums, AT_ONCE)
    files = [folder.agent, *list_files(folder.code), *image_files(frozen.study)]
    entries = [checksums.entry(file) for file in files]
    _write(
        folder, folder.inputs, entries, [str(folder.code)], durable=False, source=_source(frozen)
    )


def freeze_data(folder: RunFolder, study: Study, *, durable: bool = True) -> None:
    """Record sizes, times and checksums of all regions' data. DataError if files can't be read.

    With `durable=False`, the caller must sync the run's folder to disk afterwards.
    """
    checksums = Checksums(folder.checksums, AT_ONCE)
    places = {region: list_inputs(study, folder, region) for region in study.region_table}
    objects = _objects(study, places.values())
    unread: dict[str, str] = {}
    for region, own in places.items():
        urls = [place for place in own if place.startswith(URL_PREFIXES)]
        entries: Entries = [{"url": url, **objects.get(url, {})} for url in urls]
        try:
            files = [file for place in own if place not in urls for file in list_files(Path(place))]
            entries += [checksums.entry(file) for file in files]
        except OSError as error:
            unread[region] = f"its data can't be read: {error}"
        else:
            _write(folder, folder.region(region_slug(region)).inputs, entries, own, durable=durable)
    if unread:
        raise data_error(unread)


def data_error(whys: Mapping[str, str]) -> DataError:
    """Return the error that regions' data can't be used. `whys` has the reason for each region."""
    problems = (Problem(("data",), f"region {name!r}: {why}") for name, why in whys.items())
    return DataError(*problems, by_region={name: [why] for name, why in whys.items()})


def note_changes(folder: RunFolder, slug: str) -> None:
    """Record which files of a region's data or of the run's code and image have changed.

    Changes that were recorded earlier stay recorded. Objects in S3 are not compared.
    """
    files = folder.region(slug)
    frozen = [read_record(file, shape=Inputs) for file in (folder.inputs, files.inputs)]
    _note(files, [name for each in frozen for name in _changed_files(folder, each)])


def training_provenance(folder: RunFolder, slug: str, study: Study) -> dict[str, Any]:
    """Return the data and the code with which a region's model was trained, and their changes.

    `freeze_code` and `freeze_data` leave out the checksums of large files. This function computes
    them for the files that have not changed. OSError if the run's folder can't be written.
    """
    files = folder.region(slug)
    of_run, of_region = (read_record(file, shape=Inputs) for file in (folder.inputs, files.inputs))
    code, data = of_run["files"], of_region["files"]
    _note(files, [*_read_rest(folder, [*code, *data]), *_replaced_objects(study, data)])
    noted = _read_changes(files)
    names = set(noted["files"])
    source = source_of_table(files)
    if source and not names.isdisjoint(entry["path"] for entry in data):
        names.update(entry.get("path") or entry["url"] for entry in source)
    return {
        "data": [_describe_entry(entry, names) for entry in source or data],
        "code": [_describe_entry(entry, names) for entry in code],
        **({"source": of_run["source"]} if of_run.get("source") else {}),
        **({"changed": noted["reason"]} if names else {}),
        **({"checks": warned} if (warned := read_warnings(files)) else {}),
    }


# -- files -------------------------------------------------------------------------------------


def _write(
    folder: RunFolder,
    file: Path,
    entries: Entries,
    places: Iterable[str],
    *,
    durable: bool,
    **more: object,
) -> None:
    """Write `entries` to `file`, with relative paths for files in the run's folder.

    Relative paths stay valid when planning renames the run's folder at its end. `file` also gets
    the `places` that are folders, and the items `more`.
    """
    own = [
        entry | {"path": _name(folder, Path(entry["path"]))} if "path" in entry else entry
        for entry in entries
    ]
    folders = [_name(folder, Path(place)) for place in places if Path(place).is_dir()]
    content = {"schema": 1, "folders": folders, "files": own, **more}
    if not file.exists() or read_record(file) != content:
        write_atomic(file, json_text(content), durable=durable)


def _name(folder: RunFolder, path: Path) -> str:
    return str(path.relative_to(folder.root) if path.is_relative_to(folder.root) else path)


def _changed_files(folder: RunFolder, frozen: Mapping[str, Any]) -> list[str]:
    then = {e["path"]: _stored_state(e) for e in frozen["files"] if "path" in e}
    places = [folder.root / place for place in frozen["folders"]]
    new = (_name(folder, file) for place in places for file in list_files(place))
    return [
        name
        for name in dict.fromkeys([*then, *new])
        if not _is_in_state(folder.root / name, then.get(name))
    ]


def _stored_state(entry: Mapping[str, Any]) -> FileState:
    return FileState(*(entry[field] for field in FileState._fields))


def _is_in_state(path: Path, then: FileState | None) -> bool:
    try:
        return FileState.from_file(path) == then
    except OSError:
        return False


def _read_rest(folder: RunFolder, entries: Entries) -> list[str]:
    """Add the missing checksums of unchanged files to `entries`. Return the changed files."""
    checksums = Checksums(folder.checksums)
    missing = [entry for entry in entries if "path" in entry and not entry["sha256"]]
    for entry in missing:
        with suppress(OSError):
            entry["sha256"] = checksums.checksum(folder.root / entry["path"], _stored_state(entry))
    return [entry["path"] for entry in missing if not entry["sha256"]]


# -- S3 ----------------------------------------------------------------------------------------


def _objects(study: Study, places: Iterable[Iterable[str]]) -> dict[str, dict[str, Any]]:
    urls = sorted({place for own in places for place in own if place.startswith(URL_PREFIXES)})
    first = {url: found for url in urls[:1] if (found := _object(url, study))}
    if not first:  # S3 may be unreachable: skip the other objects
        return {}
    with ThreadPoolExecutor(_THREADS) as threads:
        others = threads.map(lambda url: _object(url, study), urls[1:])
        return first | dict(zip(urls[1:], others, strict=True))


def _object(url: str, study: Study) -> dict[str, Any]:
    try:
        return object_identity(url, study.s3)
    except (UnreachableError, OSError):
        return {}


def _replaced_objects(study: Study, entries: Entries) -> list[str]:
    """Return the URLs of S3 objects that have changed since their entries were made.

    Remove all but the URL from the entry of an object that has changed or can't be read any more.
    """
    replaced = []
    for entry in entries:
        then = {key: value for key, value in entry.items() if key != "url"}
        if "url" not in entry or not then or (now := _object(entry["url"], study)) == then:
            continue
        if now:
            replaced.append(entry["url"])
        for key in then:
            del entry[key]
    return replaced


# -- the study -------------------------------------------------------------------------------


def _source(frozen: FrozenStudy) -> dict[str, Any]:
    """Return the study's `file`, its git `commit`, and `dirty`. Unknown items are left out.

    `dirty` is true if tracked files have uncommitted changes. For a study made in Python, which has
    no file, `commit` and `dirty` are about the trainer's folder.
    """
    trainer = frozen.study.trainer
    files = trainer.files if isinstance(trainer, Trainer) else []
    file = frozen.study_path
    found: dict[str, Any] = {"file": file} if file else {}
    folders = [Path(each).parent for each in (file, *files) if each]
    commit = folders and _run_git(folders[0], "rev-parse", "--verify", "HEAD")
    if not commit:
        return found
    found["commit"] = commit.strip()
    changed = _run_git(folders[0], "status", "--porcelain", "--untracked-files=no")
    return found if changed is None else {**found, "dirty": changed != ""}


def _run_git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=_GIT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout


# -- words -------------------------------------------------------------------------------------


def _read_changes(files: RegionFolder) -> dict[str, Any]:
    if not files.changed.exists():
        return {"files": [], "reason": ""}
    return read_record(files.changed, shape=InputsChanged)


def _note(files: RegionFolder, changed: list[str]) -> None:
    before = _read_changes(files)["files"]
    names = list(dict.fromkeys([*before, *changed]))
    if names == before:
        return
    now = datetime.now(UTC)
    reason = (
        f"changed since the run was submitted: {join_names(names, _NAMED)} "
        f"(noticed {now:%Y-%m-%d %H:%M} UTC); trainings may have read the old or the new content"
    )
    write_json(files.changed, {"schema": 1, "reason": reason, "files": names})


def _describe_entry(entry: Mapping[str, Any], changed: set[str]) -> dict[str, Any]:
    if entry.get("path") in changed:
        return {"path": entry["path"], "sha256": None}
    if entry.get("url") in changed:
        return {"url": entry["url"]}
    return {key: entry[key] for key in _IDENTITY if key in entry}
