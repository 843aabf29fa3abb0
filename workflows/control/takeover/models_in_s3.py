"""A study's models in S3, from which one manager copies the models of the other manager."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trialfleet.workflows.control.export.s3_client import s3_client
from trialfleet.workflows.control.export.s3_mirror import Pointer, S3Mirror
from trialfleet.workflows.control.models.latest import models_lock, switch
from trialfleet.workflows.facts.journal.journal import Attempt, Ending, Outcome
from trialfleet.workflows.facts.models import history
from trialfleet.workflows.facts.models.approval import note_awaiting, passed_words
from trialfleet.workflows.facts.models.card import read_model_verdict
from trialfleet.workflows.facts.models.folders import BESIDE, LATEST, region_models_folder
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.study.spec import Study


class ModelsInS3:
    """The copy of a study's publish folder in S3.

    Methods raise ExportError if S3 refuses a request or is unreachable.
    """

    def __init__(self, study: Study) -> None:
        """Prepare the access without a request. `study` was read by `load_published`."""
        assert study.export
        assert study.export.s3
        self._study = study
        self._mirror = S3Mirror(s3_client(study.s3), study.export.s3)
        self._whole: set[tuple[str, str]] = set()

    def has(self, region: str, run: str) -> bool:
        """Return whether S3 has a region's complete model from `run`."""
        if (region, run) not in self._whole and self._mirror.has(self._root(region), run):
            self._whole.add((region, run))
        return (region, run) in self._whole

    def restore(self, regions: Iterable[str], say: Callable[[str], None]) -> None:
        """Make the models that are current in S3 current on this machine.

        A region's current model stays if this machine chose it after the choice in S3.
        """
        for region in regions:
            pointer = self._mirror.read_pointer(self._root(region))
            if pointer.get("run") and self._restore(region, pointer):
                run, place = pointer["run"], self._mirror.title
                say(f"{region}: {run}'s model is now current, as in {place}")

    def _restore(self, region: str, pointer: Pointer) -> bool:
        """Make S3's choice current here. Return False if this machine's own choice stays."""
        with self._locked_folder(region) as models:  # so that nobody chooses or removes meanwhile
            if not _is_news(pointer, history.changes(models / LATEST)):
                return False
            self._fetch(region, pointer["run"], models)
            switch(models / LATEST, pointer["run"], "restore")
        return True

    def outcomes(self, attempt: Attempt, regions: Iterable[str]) -> list[Outcome]:
        """Return the outcomes of those `regions` whose models from the attempt's run are in S3.

        The models are copied to this machine. Incomplete models are removed from S3, because the
        run will publish them again.
        """
        found = []
        for region in regions:
            if self.has(region, attempt.run):
                found.append(self._outcome(attempt, region))
            else:
                self._mirror.remove_part(self._root(region), attempt.run)
        return found

    def _outcome(self, attempt: Attempt, region: str) -> Outcome:
        with self._locked_folder(region) as models:
            model = self._fetch(region, attempt.run, models)
        current = self._mirror.read_pointer(self._root(region)).get("run")
        verdict, gate = read_model_verdict(model), self._study.gate
        if verdict and not verdict.promoted:
            ending, why = Ending.KEPT, verdict.why
        elif current != attempt.run and verdict and gate and gate.approve:
            with models_lock(model.parent):
                note_awaiting(model)
            ending, why = Ending.KEPT, passed_words(model, verdict.why)
        elif current != attempt.run:
            ending, why = Ending.KEPT, f"{LATEST} stays with {current}"
        else:
            ending, why = Ending.PUBLISHED, ""
        return attempt.outcome(region, ending, why, run=attempt.run)

    @contextmanager
    def _locked_folder(self, region: str) -> Iterator[Path]:
        """Yield a region's folder of models, which is locked during the block."""
        models = region_models_folder(self._study, region_slug(region))
        models.mkdir(parents=True, exist_ok=True)
        with models_lock(models):
            yield models

    def _fetch(self, region: str, run: str, models: Path) -> Path:
        """Return a complete model's folder; copy it from S3 if this machine has no such folder.

        The caller has locked `models`, the region's folder.
        """
        place, beside = models / run, models / f"{BESIDE}{run}"
        if not place.exists():
            shutil.rmtree(beside, ignore_errors=True)
            self._mirror.fetch(self._root(region), run, beside)
            beside.replace(place)
        return place

    def _root(self, region: str) -> str:
        return f"{self._study.name}/{region_slug(region)}"


def _is_news(pointer: Pointer, here: list[history.Change]) -> bool:
    """Return whether S3's choice of a current model, `pointer`, must replace this machine's choice.

    `here` lists the changes of the current model on this machine. The last change is replaced if it
    is older and names another model. A change by `restore` counts as older, because it only copied
    an earlier choice in S3.
    """
    if not here:
        return True
    last = here[-1]
    is_our_own = last.by != "restore" and (last.time or "") >= (pointer.get("switched") or "")
    return pointer["run"] != last.run and not is_our_own
