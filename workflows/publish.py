"""Publishing a region's model: MODELS/REGION/RUN-ID, and MODELS/REGION/latest switched to it."""

from __future__ import annotations

import hashlib
import platform
import secrets
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trialfleet.files import read_json, sync, write_json
from trialfleet.workflows.folder import TrialFolder
from trialfleet.workflows.study import URL_PREFIXES, Study


def publish(run: str, study: Study, slug: str, best: TrialFolder) -> Path:
    """Publish what the full training left; doing it twice is doing it once.

    Args:
        run: the run's id.
        study: the resolved study.
        slug: the region's name in the publish folder.
        best: the folder of the full training, complete.

    Returns:
        The published folder: the trainer's model files, metrics.json and provenance.json.

    Raises:
        OSError: the publish folder can't be written.
    """
    shelf = Path(study.publish) / slug
    shelf.mkdir(parents=True, exist_ok=True)
    published = shelf / run
    if not published.exists():
        _copy_beside(published, run, study, best)
    _switch(shelf / "latest", run)
    return published


def _copy_beside(published: Path, run: str, study: Study, best: TrialFolder) -> None:
    beside = Path(tempfile.mkdtemp(prefix=".publish-", dir=published.parent))
    try:
        beside.chmod(0o755)
        shutil.copytree(best.model, beside, dirs_exist_ok=True)
        write_json(beside / "metrics.json", read_json(best.result)["metrics"])
        write_json(beside / "provenance.json", provenance(run, study, best))
        _sync_tree(beside)
        beside.replace(published)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    sync(published.parent)


def provenance(run: str, study: Study, best: TrialFolder) -> dict[str, Any]:
    """Return where a model comes from: enough to train it again."""
    trial, result = read_json(best.trial_json), read_json(best.result)
    return {
        "schema": 1,
        "study": study.name,
        "run": run,
        "region": trial["region"],
        "trial": trial["trial"],
        "params": trial["params"],
        "seed": trial["seed"],
        "objective": trial["objective"],
        "data": [
            entry for place in study.data_of(trial["region"]) for entry in _data_entries(place)
        ],
        "device": result.get("device"),
        "seconds": result.get("seconds"),
        "versions": {
            "trialfleet": version("trialfleet"),
            "python": platform.python_version(),
            **(result.get("versions") or {}),
        },
    }


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
