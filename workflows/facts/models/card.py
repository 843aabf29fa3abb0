"""Facts about a published model in its card, MODELS/STUDY/REGION/RUN-ID/card.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trialfleet.files import object_or_empty, read_json, unless_damaged
from trialfleet.workflows.facts.models.verdict import Verdict

CARD = "card.json"
_IDENTITIES = ("sha256", "version", "etag")


def data_identity(entry: dict[str, Any]) -> str:
    """Return the checksum, version or ETag of a data file, or "unknown"; `entry` is from a card."""
    return next((str(entry[key]) for key in _IDENTITIES if entry.get(key)), "unknown")


def read_card(model: Path) -> dict[str, Any]:
    """Return a published model's card; empty if it can't be read."""
    return object_or_empty(lambda: read_json(model / CARD))


def read_model_verdict(model: Path) -> Verdict | None:
    """Return the gate's verdict on a published model; None if no verdict can be read."""
    gate = read_card(model).get("gate")
    return unless_damaged(lambda: Verdict.from_json(gate), None) if gate else None
