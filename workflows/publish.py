"""Publishing a region's model: MODELS/REGION/RUN-ID, and MODELS/REGION/latest switched to it."""

from __future__ import annotations

import filecmp
import hashlib
import os
import platform
import secrets
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trialfleet.errors import InputError
from trialfleet.files import read_json, sync, write_json
from trialfleet.workflows.folder import TrialFolder
from trialfleet.workflows.outcome import Complete, Failed, judge
from trialfleet.workflows.report.reading import clean
from trialfleet.workflows.study import URL_PREFIXES, Study

LATEST = "latest"  # beside the runs' folders: a link to the one in force
METRICS = "metrics.json"
PROVENANCE = "provenance.json"


def publish(run: str, study: Study, slug: str, best: TrialFolder) -> Path:
    """Publish what the full training left; doing it twice is doing it once.

    A link in model/ to a file of model/ is published as that file.

    Args:
        run: the run's id.
        study: the resolved study.
        slug: the region's name in the publish folder.
        best: the folder of the full training, complete.

    Returns:
        The published folder: the trainer's model files, metrics.json and provenance.json.

    Raises:
        InputError: the place is another run's, or model/ holds what can't be published.
        OSError: the publish folder can't be written, or data can't be read.
    """
    _check_model(best.model)
    shelf = Path(study.publish) / slug
    shelf.mkdir(parents=True, exist_ok=True)
    published = shelf / run
    _put(published, run, study, best)
    _switch(shelf / LATEST, run)
    return published


def _put(published: Path, run: str, study: Study, best: TrialFolder) -> None:
    """Make `published` whole in one step; leave it where an attempt before this one put it."""
    beside = Path(tempfile.mkdtemp(prefix=".publish-", dir=published.parent))
    try:
        _fill(beside, run, study, best)
        if not published.exists():
            beside.replace(published)
        elif not _same(beside, published):
            raise InputError(
                f"{str(published)!r} exists already from another run of the same id; "
                "plan with another --run-id, or move that folder away and resume this run"
            )
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    sync(published.parent)


def _fill(folder: Path, run: str, study: Study, best: TrialFolder) -> None:
    result = _result(study, best)
    shutil.copytree(best.model, folder, dirs_exist_ok=True)
    folder.chmod(0o755)  # a temporary folder is its owner's alone
    write_json(folder / METRICS, result.metrics)
    write_json(folder / PROVENANCE, provenance(run, study, best))
    _sync_tree(folder)


def _check_model(model: Path) -> None:
    for path in [model, *sorted(model.rglob("*"))]:
        if path.is_symlink():
            _check_link(path, model)
        elif not (path.is_dir() or path.is_file()):
            raise InputError(f"{str(path)!r} is no file and no folder, so it can't be published")
    for name in (METRICS, PROVENANCE):
        if os.path.lexists(model / name):
            raise InputError(
                f"{str(model / name)!r} can't be published: that name is trialfleet's in the "
                "published folder; have the trainer name its file otherwise"
            )


def _check_link(link: Path, model: Path) -> None:
    """Elsewhere a link would be broken; followed, it could publish any file of this machine."""
    if not (link.is_file() and link.resolve().is_relative_to(model.resolve())):
        raise InputError(
            f"{str(link)!r} links to {str(link.readlink())!r}; "
            "model/ may have links to its own files only"
        )


def _same(new: Path, old: Path) -> bool:
    """Whether two published folders tell the same training; versions may differ between attempts.

    A seeded training of another run may be told by the same parameters and metrics: the model's
    own bytes decide.
    """
    files = _files(new)
    if _files(old) != files or _origin(new) != _origin(old):
        return False
    own = files - {Path(PROVENANCE)}
    return all(filecmp.cmp(new / name, old / name, shallow=False) for name in own)


def _files(root: Path) -> set[Path]:
    return {path.relative_to(root) for path in root.rglob("*") if path.is_file()}


def _origin(published: Path) -> dict[str, Any] | None:
    try:
        return {**read_json(published / PROVENANCE), "versions": None}
    except (OSError, ValueError, TypeError):
        return None


def _result(study: Study, best: TrialFolder) -> Complete:
    outcome = judge(best, 0, study.objective.metric)
    if isinstance(outcome, Failed):
        raise InputError(f"{best.result} can't be published: {outcome.error}")
    return outcome


def provenance(run: str, study: Study, best: TrialFolder) -> dict[str, Any]:
    """Return where a model comes from: enough to train it again.

    Raises:
        InputError: there is no complete result in `best`.
        OSError: the data can't be read.
    """
    trial, result = read_json(best.trial_json), _result(study, best)
    return {
        "schema": 1,
        "study": study.name,
        "run": run,
        "region": trial["region"],
        "trial": trial["trial"],
        "params": trial["params"],
        "seed": trial["seed"],
        "objective": trial["objective"],
        "data": _data_of(study, best, trial["region"]),
        "device": result.device,
        "seconds": result.seconds,
        "versions": {
            "trialfleet": version("trialfleet"),
            "python": platform.python_version(),
            **_trainer_versions(best),
        },
    }


def _data_of(study: Study, best: TrialFolder, region: str) -> list[dict[str, Any]]:
    """The data as it was when the full training was asked for, where that was stored."""
    if not best.data_checksums.exists():
        return data_checksums(study, region)
    stored: list[dict[str, Any]] = read_json(best.data_checksums)
    return stored


def _trainer_versions(best: TrialFolder) -> dict[str, str]:
    given = read_json(best.result).get("versions")
    if not isinstance(given, dict):
        return {}
    return {clean(name): clean(value) for name, value in given.items() if isinstance(value, str)}


def data_checksums(study: Study, region: str) -> list[dict[str, Any]]:
    """Return what identifies a region's data now, place by place.

    Returns:
        One `{"path", "sha256", "bytes"}` per file, folders walked; `{"url"}` of what is remote.

    Raises:
        OSError: a file is missing or can't be read.
    """
    return [entry for place in study.data_of(region) for entry in _data_entries(place)]


def _data_entries(place: str) -> list[dict[str, Any]]:
    if place.startswith(URL_PREFIXES):
        return [{"url": place}]
    path = Path(place)
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return [
        {"path": str(file), "sha256": _sha256(file), "bytes": file.stat().st_size} for file in files
    ]


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync_tree(root: Path) -> None:
    for path in [*root.rglob("*"), root]:
        sync(path)


def _switch(link: Path, target: str) -> None:
    """Point `link` at `target` so that a reader sees the old model or the new one, never none."""
    beside = link.with_name(f".latest-{secrets.token_hex(6)}")
    beside.symlink_to(target)
    beside.replace(link)
    sync(link.parent)
