"""Unchanged regions: their data and settings would give the same model again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trialfleet.workflows.checksums import Checksums, files_of, sha256_of
from trialfleet.workflows.facts.journal.journal import Outcome
from trialfleet.workflows.study.spec import URL_PREFIXES, Study, Trainer

# Sections on when and where a study runs, which don't affect the training.
_ELSEWHERE = {
    "regions", "daily", "fleet", "parallel_regions", "storage", "publish", "retries", "team",
    "usd_per_hour", "keep", "export", "notify", "checks",
}  # fmt: skip


def unchanged_regions(
    data: Mapping[str, str | None], settings: Mapping[str, str], last: Mapping[str, Outcome]
) -> list[str]:
    """Return the regions whose models would be the same as their last ones.

    Args:
        data: the fingerprint of each region's data, None if unknown.
        settings: that of all else.
        last: the last day of each region on which a model was trained.
    """
    return [
        name
        for name, known in data.items()
        if known is not None and name in last
        if (last[name].fingerprint, last[name].settings) == (known, settings[name])
    ]


def data_fingerprint(study: Study, region: str, checksums: Checksums) -> str | None:
    """Return the fingerprint of a region's data, wherever it is stored.

    Reads each file once per change.

    Returns:
        None if unknown: for URLs, without data, for a file that changes all the time.

    Raises:
        OSError: a file can't be read.
    """
    places = study.data_of(region)
    if any(place.startswith(URL_PREFIXES) for place in places):
        return None
    files = [file for place in places for file in files_of(Path(place))]
    return fingerprint_of(places, [checksums.entry(file) for file in files])


def fingerprint_of(places: list[str], entries: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the fingerprint of data, by its paths, which may contain a date.

    `entries` are its files with their checksums, as a model's provenance has them.

    Returns:
        None if a checksum isn't known.
    """
    found = [(_name(str(entry.get("path")), places), entry.get("sha256")) for entry in entries]
    return _digest(found) if found and all(checksum for _, checksum in found) else None


def _name(path: str, places: list[str]) -> str:
    """Return the name of a file: the number of its place, and its path below that."""
    for number, place in enumerate(places):
        if Path(path).is_relative_to(place):
            return f"{number}/{Path(path).relative_to(place)}"
    return path


def settings_fingerprint(study: Study, region: str) -> str:
    """Return the fingerprint of everything but the data that affects a training.

    Raises:
        OSError: a file of the trainer can't be read.
    """
    own = study.region(region).model_dump(mode="json", exclude={"data", "priority"})
    files = study.trainer.files if isinstance(study.trainer, Trainer) else []
    whole = study.model_dump(mode="json", exclude=_ELSEWHERE)
    (whole["gate"] or {}).pop("approve", None)
    return _digest([whole, own, [_content(Path(file)) for file in files]])


def _content(path: Path) -> list[tuple[str, str]]:
    kept = [file for file in files_of(path) if "__pycache__" not in file.parts]
    return [(str(file.relative_to(path.parent)), sha256_of(file)) for file in kept]


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
