"""A run's trials as its storage has them, read again and again while it runs."""

from __future__ import annotations

from trialfleet.errors import OptimizerError
from trialfleet.optimizer.stored_trials import StoredTrial, is_own
from trialfleet.workflows.plan.folder import RunFolder
from trialfleet.workflows.status.storage import study_name, trials_reader
from trialfleet.workflows.study.frozen import FrozenStudy


class RunTrials:
    """Reads the trials of a run; finished ones are fetched from the storage once. Writes nothing.

    Args:
        folder: the run's.
        frozen: its study.
        brief: whether `all` leaves out their curves, and what neither status nor costs need.
    """

    def __init__(self, folder: RunFolder, frozen: FrozenStudy, *, brief: bool = False) -> None:
        self._names = {
            region: study_name(frozen.study, frozen.run, region)
            for region in frozen.study.region_table
        }
        self._whole = trials_reader(folder, frozen.study)
        self._all = trials_reader(folder, frozen.study, brief=True) if brief else self._whole
        self._seen: dict[str, list[StoredTrial]] = {}

    def of(self, region: str) -> list[StoredTrial]:
        """Return a region's trials; none while its study has not begun.

        Raises:
            OptimizerError: the storage can't be read.
        """
        return _without_repeats(self._whole(self._names[region]))

    def all(self) -> tuple[dict[str, list[StoredTrial]], str | None]:
        """Return the trials by region, and why they are those last seen where they are."""
        notice = None
        try:
            found = self._all.all(list(self._names.values()))
            self._seen = {
                region: _without_repeats(found[name]) for region, name in self._names.items()
            }
        except OptimizerError as error:
            notice = f"the study can't be read: {error}"
        return {region: self._seen.get(region, []) for region in self._names}, notice


def _without_repeats(trials: list[StoredTrial]) -> list[StoredTrial]:
    return [trial for trial in trials if is_own(trial)]
