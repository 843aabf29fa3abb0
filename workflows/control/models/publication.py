"""Publication of a region's model, and the decision whether it becomes the current model."""

from __future__ import annotations

import filecmp
import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trialfleet import untrusted_files
from trialfleet.errors import InputError
from trialfleet.files import read_json, sync, sync_tree, unless_damaged, write_json
from trialfleet.optimizer.region_types import Complete
from trialfleet.workflows.control.models.latest import (
    models_lock,
    reason_not_newest,
    switch_to_newest,
)
from trialfleet.workflows.control.models.retention import remove_superfluous
from trialfleet.workflows.facts.models import history
from trialfleet.workflows.facts.models.approval import (
    note_awaiting,
    passed_words,
    with_promote_command,
)
from trialfleet.workflows.facts.models.card import CARD
from trialfleet.workflows.facts.models.folders import (
    BESIDE,
    LATEST,
    PROVENANCE,
    find_champion,
    region_models_folder,
)
from trialfleet.workflows.facts.models.verdict import Verdict
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.rules.gate_decision import kept_words
from trialfleet.workflows.status.attempts.outcome import load_result, one_line, read_outcome
from trialfleet.workflows.study.export import Keep
from trialfleet.workflows.study.frozen import FrozenStudy
from trialfleet.workflows.study.spec import Study

METRICS = "metrics.json"
_MOST_VERSIONS = 100  # packages whose version a result may name


@dataclass(frozen=True)
class Publication:
    """A published model.

    Attributes:
        path: the folder with the model's files, metrics.json, provenance.json and card.json.
        not_latest: the reason why this model is not the current one; None if it is.
        awaits_approval: why the model passed the gate, if it waits for a person's approval;
            otherwise None.
        removed: a line about old models that were beyond the limits of the study's `keep`, or None.
            They were removed, or the line says why this is impossible.
    """

    path: Path
    not_latest: str | None
    awaits_approval: str | None = None
    removed: str | None = None

    @property
    def record(self) -> dict[str, Any]:
        """The entries about the model in the region's `published.json`."""
        awaits = {"awaits_approval": self.awaits_approval} if self.awaits_approval else {}
        return {"path": str(self.path), "not_latest": self.not_latest, **awaits}


def publish(
    frozen: FrozenStudy, slug: str, best: TrialFolder, verdict: Verdict | None = None
) -> Publication:
    """Publish the model of the full training in `best`; this can be repeated after a crash.

    The model becomes current unless a later run has published a model, the gate keeps the current
    model, or a person has to approve the new one. `verdict` is the gate's decision; None if the
    study has no gate.

    Raises:
        InputError: another run with the same id has published a model of this region, the trainer's
            folder model/ has a file that can't be published, or the training's result is damaged.
        OSError: the publish folder can't be written.
    """
    check_model(best.model)
    models_folder = region_models_folder(frozen.study, slug)
    models_folder.mkdir(parents=True, exist_ok=True)
    published = models_folder / frozen.run
    with models_lock(models_folder):
        for left in models_folder.glob(f"{BESIDE}*"):  # left by a killed publication
            shutil.rmtree(left, ignore_errors=True)
        _put(published, frozen, best, verdict)
        why = verdict and _rejection_reason(published, frozen.study, verdict)
        passed = _await_approval(published, frozen, verdict) if verdict and not why else None
        if passed:
            why = passed_words(published, passed)
        else:
            why = why or switch_to_newest(published, frozen.as_of)
        return Publication(published, why, passed, _remove_old_models(published, frozen.study.keep))


def _await_approval(published: Path, frozen: FrozenStudy, verdict: Verdict) -> str | None:
    """Record that the model waits for approval, and return why it passed the gate.

    Return None if no approval is needed, or if the model can't become current anyway.
    """
    gate, link = frozen.study.gate, published.parent / LATEST
    if not (gate and gate.approve) or reason_not_newest(published, frozen.as_of):
        return None
    if history.last_move(link, published.name) is None:  # else a person has already decided
        note_awaiting(published)
    return verdict.why


def _remove_old_models(published: Path, keep: Keep | None) -> str | None:
    """Remove models beyond the limits of `keep`. Return the value of `Publication.removed`."""
    if keep is None:
        return None
    try:
        going = remove_superfluous(published.parent, keep, datetime.now(UTC), {published.name})
    except OSError as error:
        return f"models beyond the limits of `keep` can't be removed: {error}"
    return f"removed, by keep: {', '.join(going)}" if going else None


def _rejection_reason(published: Path, study: Study, verdict: Verdict) -> str | None:
    if history.current_run(published.parent / LATEST) == published.name:  # a person's choice
        return None
    kept, why = verdict.champion_run, verdict.why
    if verdict.promoted:
        champion = find_champion(published.parent, study.name)
        if champion is None or champion.name == verdict.champion_run:
            return None
        kept = champion.name
        why = (
            "it became the current model after the gate had compared the new model with "
            f"{verdict.champion_run or 'no other model'}"
        )
    return with_promote_command(f"{kept_words(kept)}: {why}", published)


def _put(published: Path, frozen: FrozenStudy, best: TrialFolder, verdict: Verdict | None) -> None:
    """Create the folder `published` with all files in one step, unless it exists already.

    InputError if it exists and has the model of another training.
    """
    beside = Path(tempfile.mkdtemp(prefix=BESIDE, dir=published.parent))
    try:
        _fill(beside, frozen, best, verdict)
        if not published.exists():
            beside.replace(published)
        elif not _is_same_training(beside, published):
            raise InputError(
                f"{str(published)!r} exists already and has the model of another training; "
                "plan with another --run-id, or move that folder away and resume this run"
            )
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    sync(published.parent)


def _fill(folder: Path, frozen: FrozenStudy, best: TrialFolder, verdict: Verdict | None) -> None:
    result = read_outcome(best, 0, frozen.study.objective.metric, {})
    if not isinstance(result, Complete):
        raise InputError(f"the training in {best.root} has no usable result: {result.error}")
    untrusted_files.copy_tree(best.model, folder)
    folder.chmod(0o755)  # a temporary folder is closed to others
    write_json(folder / METRICS, result.metrics)
    origin = _provenance(frozen, best, result)
    write_json(folder / PROVENANCE, origin)
    compared = frozen.study.compared_metric
    measured = {"metrics": result.metrics, "report_metric": compared}
    write_json(folder / CARD, {**origin, **measured, "gate": verdict and verdict.to_json()})
    sync_tree(folder)


def check_model(model: Path) -> None:
    """Raise InputError if a trainer's model folder can't be published.

    The folder may contain only plain files, and no file with a name that trialfleet itself uses in
    the published folder.
    """
    try:
        for _ in untrusted_files.list_tree(model):
            pass
    except OSError as error:
        raise InputError(f"a model may only contain plain files, but {error}") from error
    for name in (METRICS, PROVENANCE, CARD):
        if os.path.lexists(model / name):
            raise InputError(
                f"{str(model / name)!r} has a name that trialfleet itself uses in the published "
                "folder; have the trainer choose another file name"
            )


def _is_same_training(new: Path, old: Path) -> bool:
    """Return whether two folders have a model of the same training.

    Different package versions in provenance.json are ignored. The bytes of all model files are
    compared, too, because different trainings may have equal parameters and metrics.
    """
    files = _files(new)
    if _files(old) != files or _read_origin(new) != _read_origin(old):
        return False
    own = files - {Path(PROVENANCE), Path(CARD)}  # the card repeats what the other files contain
    return all(filecmp.cmp(new / name, old / name, shallow=False) for name in own)


def _files(root: Path) -> set[Path]:
    return {path.relative_to(root) for path in root.rglob("*") if path.is_file()}


def _read_origin(published: Path) -> dict[str, Any] | None:
    return unless_damaged(lambda: {**read_json(published / PROVENANCE), "versions": None}, None)


def _provenance(frozen: FrozenStudy, best: TrialFolder, result: Complete) -> dict[str, Any]:
    """Return the origin of a model: what is needed to train it again.

    InputError if a file in `best` is damaged. OSError if a file can't be read.
    """
    trial = untrusted_files.read_record(
        best.trial_json, "region", "trial", "params", "seed", "objective"
    )
    return {
        "schema": 1,
        "study": frozen.study.name,
        "run": frozen.run,
        "folder": frozen.folder,
        "created": frozen.created.isoformat(),
        **({"date": str(frozen.day.date), "as_of": frozen.as_of.isoformat()} if frozen.day else {}),
        "region": trial["region"],
        "trial": trial["trial"],
        "params": trial["params"],
        "seed": trial["seed"],
        "objective": trial["objective"],
        **untrusted_files.read_record(best.trained_on, "data", "code"),
        "device": result.device,
        "seconds": result.seconds,
        "versions": {
            "trialfleet": version("trialfleet"),
            "python": platform.python_version(),
            **_trainer_versions(best),
        },
    }


def _trainer_versions(best: TrialFolder) -> dict[str, str]:
    given = load_result(best.result).get("versions")
    if not isinstance(given, dict):
        return {}
    named = [(name, value) for name, value in given.items() if isinstance(value, str)]
    return {one_line(name): one_line(value) for name, value in named[:_MOST_VERSIONS]}
