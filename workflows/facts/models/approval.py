"""A region's model that passed the gate and waits for a person's approval.

The model is noted in MODELS/STUDY/REGION/.awaiting.json if the study has `gate: {approve: true}`.
The model waits until it or a newer model becomes current. The file is not removed then: the link
`latest` and the list of its changes, .history.json, show whether the model still waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialfleet.files import object_or_empty, read_json, shell_quoted_anywhere, write_json
from trialfleet.workflows.facts.models.folders import (
    LATEST,
    current_model,
    model_time,
    read_provenance,
    read_region_name,
    reason_kept_out,
)
from trialfleet.workflows.facts.models.history import last_move
from trialfleet.workflows.formatting import local_time

if TYPE_CHECKING:
    from trialfleet.workflows.study.spec import Study

AWAITING = ".awaiting.json"
TO_CHANGE = "; to change that: "  # before the command, at the end of a reason


@dataclass(frozen=True, kw_only=True)
class UnapprovedModel:
    """A published model that waits for a person's approval; `since` is when the wait began."""

    run: str
    path: Path
    since: datetime


def note_awaiting(published: Path) -> None:
    """Record that a model waits for approval from now on, unless this is already recorded.

    The caller must hold the lock of the region's folder of models.
    """
    file = published.parent / AWAITING
    if object_or_empty(lambda: read_json(file)).get("run") != published.name:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(file, {"schema": 1, "run": published.name, "since": now})


def read_awaiting(models_folder: Path) -> UnapprovedModel | None:
    """Return the region's model that waits for approval; None if none waits."""
    noted = object_or_empty(lambda: read_json(models_folder / AWAITING))
    if not noted:
        return None
    run, model = str(noted["run"]), models_folder / str(noted["run"])
    current = current_model(model)
    own, rival = model_time(model), current and model_time(current)
    # A current model does not count as newer if its time is in the future: a clock was wrong then.
    is_older = own and rival and own < rival <= datetime.now(UTC)
    is_gone = read_provenance(model).get("run") != run
    if is_gone or is_older or last_move(models_folder / LATEST, run):
        return None
    return UnapprovedModel(run=run, path=model, since=datetime.fromisoformat(noted["since"]))


def awaiting_by_region(study: Study) -> dict[str, UnapprovedModel]:
    """Return the study's models that wait for approval, by region."""
    root = Path(study.publish) / study.name
    places = sorted(root.iterdir()) if study.publishes and root.is_dir() else ()
    return {read_region_name(place): found for place in places if (found := read_awaiting(place))}


def awaits_approval(published: Mapping[str, Any]) -> UnapprovedModel | None:
    """Return the model that `published` names if it waits for approval; else None.

    `published` is the content of a published.json.
    """
    if "awaits_approval" not in published:
        return None
    path = Path(published["path"])
    found = read_awaiting(path.parent)
    return found if found and found.run == path.name else None


def reason_kept_out_now(published: Mapping[str, Any]) -> str | None:
    """Return why a model was not made current when it was published.

    Return None if it was made current then, or if it is current now. `published` is the content of
    the model's published.json. If the study requires approval, the text also says whether the model
    still waits for approval. Then the text ends with the command that makes the model current.
    """
    why = reason_kept_out(published)
    if why is None or "awaits_approval" not in published:
        return why
    found = awaits_approval(published)
    path = Path(published["path"])
    if found:
        stands = f"waits for approval since {local_time(found.since)}"
    elif last_move(path.parent / LATEST, path.name):
        stands = "another model replaced it as the current model; it had passed the gate"
    else:
        stands = "it passed the gate and was not approved"
    return with_promote_command(f"{stands}: {published['awaits_approval']}", path)


def with_promote_command(why: str, published: Path) -> str:
    """Return `why`, a reason why a model isn't current, with the command to make it current."""
    return f"{why}{TO_CHANGE}{promote_command(published)}"


def without_command(why: str) -> str:
    """Return a text without the command that `with_promote_command` added."""
    return why.partition(TO_CHANGE)[0]


def passed_words(published: Path, why: str) -> str:
    """Return a text: why a model passed the gate (`why`), and the command that promotes it."""
    return (
        f"it passed the gate: {why}; with gate.approve a person promotes it: "
        f"{promote_command(published)}"
    )


def promote_command(published: Path) -> str:
    """Return the command that makes a model current; it works in any working directory."""
    return f"trialfleet promote {shell_quoted_anywhere(published)}"
