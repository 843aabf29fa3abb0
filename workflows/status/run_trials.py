"""A run's trials as its storage has them, read again and again while it runs."""

from __future__ import annotations

from trialfleet.errors import OptimizerError
from trialfleet.optimizer.stored_trials import StoredTrial, is_repeat
from trialfleet.workflows.plan.folder import RunFolder
from trialfleet.workflows.status.storage import study_name, trials_reader
from trialfleet.workflows.study.frozen import FrozenStudy


class RunTrials:
    """Reads the trials of a run; finished ones are fetched from the storage once. Writes nothing.

    Args:
        folder: the run's.
        frozen: its study.
    """

    def __init__(self, folder: RunFolder, frozen: FrozenStudy) -> None:
        self._frozen = frozen
        self._read = trials_reader(folder, frozen.study)
        self._seen: dict[str, list[StoredTrial]] = {}

    def of(self, region: str) -> list[StoredTrial]:
        """Return a region's trials; none while its study has not begun.

        Raises:
            OptimizerError: the storage can't be read.
        """
        name = study_name(self._frozen.study, self._frozen.run, region)
        return [trial for trial in self._read(name) if not is_repeat(trial)]

    def all(self) -> tuple[dict[str, list[StoredTrial]], str | None]:
        """Return the trials by region, and why they are those last seen where they are."""
        names, notice = list(self._frozen.study.region_table), None
        try:
            self._seen = {name: self.of(name) for name in names}
        except OptimizerError as error:
            notice = f"the study can't be read: {error}"
        return {name: self._seen.get(name, []) for name in names}, notice
