"""The regions with the same data and settings as their last model (`daily.unchanged`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trialfleet.workflows.checksums import Checksums, compute_sha256, list_files
from trialfleet.workflows.study.spec import URL_PREFIXES, Study, Trainer

# Keys of study.yaml that don't affect a training.
_ELSEWHERE = {
    "regions", "daily", "fleet", "parallel_regions", "storage", "publish", "retries", "team",
    "usd_per_hour", "keep", "export", "notify", "checks",
}  # fmt: skip


def data_fingerprint(study: Study, region: str, checksums: Checksums) -> str | None:
    """Return a fingerprint of the content of a region's data.

    Return None if the data is at a URL, if there are no files, or if a file keeps changing or can't
    be read. A file that has not changed since its entry in `checksums` is not read again.
    """
    places = study.data_paths(region)
    if any(place.startswith(URL_PREFIXES) for place in places):
        return None
    try:
        files = [file for place in places for file in list_files(Path(place))]
        entries = [checksums.entry(file) for file in files]
    except OSError:  # the plan of the region's run names the file
        return None
    return compute_fingerprint(places, entries)


def compute_fingerprint(places: list[str], entries: Iterable[Mapping[str, Any]]) -> str | None:
    """Return a fingerprint of files' checksums and of their paths relative to `places`.

    `entries` has a path and a checksum for each file, as the provenance.json of a model lists them.
    Return None if there are no files, or if a checksum is unknown.
    """
    found = [(_name(str(entry.get("path")), places), entry.get("sha256")) for entry in entries]
    return _digest(found) if found and all(checksum for _, checksum in found) else None


def _name(path: str, places: list[str]) -> str:
    """Return "N/REST" if `path` is the file REST in `places[N]`. Otherwise return `path`."""
    for number, place in enumerate(places):
        if Path(path).is_relative_to(place):
            return f"{number}/{Path(path).relative_to(place)}"
    return path


def settings_fingerprint(study: Study, region: str) -> str:
    """Return a fingerprint of a region's settings and trainer. OSError if a file can't be read."""
    own = study.region(region).model_dump(mode="json", exclude={"data", "priority"})
    files = study.trainer.files if isinstance(study.trainer, Trainer) else []
    whole = study.model_dump(mode="json", exclude=_ELSEWHERE)
    (whole["gate"] or {}).pop("approve", None)
    return _digest([whole, own, [_content_checksums(Path(file)) for file in files]])


def _content_checksums(path: Path) -> list[tuple[str, str]]:
    kept = [file for file in list_files(path) if "__pycache__" not in file.parts]
    return [(str(file.relative_to(path.parent)), compute_sha256(file)) for file in kept]


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
