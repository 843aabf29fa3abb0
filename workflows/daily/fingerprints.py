"""What decides whether a region's model would come out as it did: its data, and all else."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from trialfleet.workflows.plan.checksums import DataChecksums, sha256_of
from trialfleet.workflows.study.spec import Study, Trainer

_POLL_SECONDS = 0.2
# What says when and where a study runs, and not what it trains.
_ELSEWHERE = {
    "regions", "daily", "fleet", "parallel_regions", "storage", "publish", "retries", "team",
    "usd_per_hour", "keep", "export", "notify",
}  # fmt: skip


def data_fingerprint(study: Study, region: str, checksums: DataChecksums) -> str | None:
    """Return what identifies the content of a region's data, wherever it lies.

    Reads each file once per change.

    Returns:
        None where that isn't known: of URLs, without data, of a file that changes all the time.

    Raises:
        OSError: a file can't be read.
    """
    places = study.data_of(region)
    found = []
    for place in places:
        while (entries := checksums.of([place])) is None:
            time.sleep(_POLL_SECONDS)
        found.append([(_name(entry, place), entry.get("sha256")) for entry in entries])
    known = all(checksum for entries in found for _, checksum in entries)
    return _digest(found) if places and known else None


def _name(entry: dict[str, Any], place: str) -> str:
    """The name of a file below its place; none where it is the place, which may have a date."""
    path = entry.get("path", place)
    return "" if path == place else str(Path(path).relative_to(place))


def settings_fingerprint(study: Study, region: str) -> str:
    """Return what identifies all but the data that decides what a region trains.

    Raises:
        OSError: a file of the trainer can't be read.
    """
    own = study.region(region).model_dump(mode="json", exclude={"data", "priority"})
    files = study.trainer.files if isinstance(study.trainer, Trainer) else []
    whole = study.model_dump(mode="json", exclude=_ELSEWHERE)
    return _digest([whole, own, [_content(Path(file)) for file in files]])


def _content(path: Path) -> list[tuple[str, str]]:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    kept = [file for file in files if "__pycache__" not in file.parts]
    return [(str(file.relative_to(path.parent)), sha256_of(file)) for file in kept]


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
