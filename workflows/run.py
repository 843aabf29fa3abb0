"""A run: submit it, watch it, stop it, go on with it, read what it found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialfleet.errors import InputError, PoolError
from trialfleet.files import read_json
from trialfleet.workflows import job_queue
from trialfleet.workflows.folder import RunFolder
from trialfleet.workflows.plan import default_folder, new_run_id, write_plan
from trialfleet.workflows.status import RunState, RunStatus, StatusReader, open_run
from trialfleet.workflows.study import Study
from trialfleet.workflows.study_file import load_frozen, load_study

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_POLL_SECONDS = 2.0
_REMOVAL_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One trial of a region, as the study knows it.

    Attributes:
        state: "running", "complete" or "failed".
        value: the objective's metric, of a complete trial.
        params: what the trial was given, constants left out.
        metrics: all that it reported.
        seconds: the time that its training took.
        attempts: how often it was tried.
        error: why it failed.
    """

    region: str
    trial: int
    node: str
    state: str
    value: float | None
    params: dict[str, Any]
    metrics: dict[str, float]
    seconds: float | None
    attempts: int | None
    error: str | None


@dataclass(frozen=True, kw_only=True)
class BestSettings:
    """The best settings of a region.

    Attributes:
        value: the objective's metric of the trial that had them.
        final: the metrics of their full training; None until it is done.
        published: the folder of the published model; None until it is.
    """

    region: str
    trial: int
    value: float
    params: dict[str, Any]
    final: dict[str, float] | None
    published: str | None


class Run:
    """One execution of a study over all its regions, in a folder of its own.

    Args:
        folder: the run's folder, made by `plan`.

    Raises:
        InputError: the folder holds no run.
    """

    def __init__(self, folder: str | Path) -> None:
        self._files = open_run(Path(folder))
        self._reader = StatusReader(self._files)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._files.root

    @property
    def report(self) -> Path:
        """The report for people; it is there once the run has ended."""
        return self._files.report_page

    @property
    def run_id(self) -> str:
        """The run's id."""
        return load_frozen(self._files.study).run

    @property
    def study(self) -> Study:
        """The resolved study that the run froze."""
        return load_frozen(self._files.study).study

    def submit(self) -> str:
        """Hand the run to HTCondor and return DAGMan's job id.

        Raises:
            InputError: the run was submitted before.
            PoolError: HTCondor is out of reach or refuses.
        """
        state = self.status().state
        if state is not RunState.PLANNED:
            raise InputError(
                f"{str(self.folder)!r} was submitted before and is {state}; "
                "a run that stopped or failed goes on with: trialfleet resume"
            )
        return job_queue.submit(self._files)

    def resume(self) -> str:
        """Go on with a run that stopped or failed; finished trials stay finished.

        Raises:
            InputError: there is nothing to go on with.
            PoolError: HTCondor is out of reach or refuses.
        """
        job_queue.look_up(self._files)  # whether the run is over is the queue's word
        state = self.status().state
        if state not in {RunState.STOPPED, RunState.FAILED}:
            raise InputError(f"{str(self.folder)!r} is {state}: there is nothing to resume")
        return job_queue.submit(self._files)

    def stop(self) -> RunStatus:
        """Remove the run's jobs, DAGMan writing what a resume needs, and wait until they are gone.

        Raises:
            InputError: the run isn't under way.
            PoolError: HTCondor is out of reach, or jobs are still there after a minute.
        """
        queued = job_queue.look_up(self._files)
        if queued.root is None:
            raise InputError(f"{str(self.folder)!r} is {self.status().state}: nothing to stop")
        job_queue.remove(self._files)
        deadline = time.monotonic() + _REMOVAL_SECONDS
        while job_queue.look_up(self._files).root:
            if time.monotonic() > deadline:
                raise PoolError(f"job {queued.root} is still there after {_REMOVAL_SECONDS:.0f} s")
            time.sleep(0.2)
        return self.status()

    def status(self) -> RunStatus:
        """Return where the run stands.

        Raises:
            OptimizerError: the study's storage can't be read.
        """
        return self._reader.read()

    def watch(self, every: float = _POLL_SECONDS) -> Iterator[RunStatus]:
        """Yield the status again and again, every so many seconds, the last when the run ended."""
        while True:
            status = self.status()
            yield status
            if status.ended:
                return
            time.sleep(every)

    def wait(self, progress: Callable[[RunStatus], None] | None = None) -> RunStatus:
        """Wait until the run has ended and return how."""
        for status in self.watch():
            if progress:
                progress(status)
        return status

    def trials(self, region: str | None = None) -> list[TrialRecord]:
        """Return the trials of all regions, or of one.

        Raises:
            InputError: there is no such region.
        """
        names = list(self._reader.regions)
        if region is not None and region not in names:
            raise InputError(f"no region {region!r} in this run; regions: {', '.join(names)}")
        return [
            _record(name, trial)
            for name in (names if region is None else [region])
            for trial in self._reader.trials(name)
        ]

    def best(self) -> list[BestSettings]:
        """Return the best settings of each region that has a complete trial."""
        records = {(r.region, r.trial): r for r in self.trials()}
        return [
            _best(self._files, region.slug, records[region.name, region.best_trial])
            for region in self.status().regions
            if region.best_trial is not None
        ]


def _record(region: str, trial: FrozenTrial) -> TrialRecord:
    attributes = trial.user_attrs
    return TrialRecord(
        region=region,
        trial=trial.number,
        node=attributes["node"],
        state={"COMPLETE": "complete", "FAIL": "failed"}.get(trial.state.name, "running"),
        value=trial.value if trial.state.name == "COMPLETE" else None,
        params=attributes["params"],
        metrics=attributes.get("metrics", {}),
        seconds=attributes.get("seconds"),
        attempts=attributes.get("attempts"),
        error=attributes.get("error"),
    )


def _best(files: RunFolder, slug: str, record: TrialRecord) -> BestSettings:
    region = files.region(slug)
    published = region.published.exists()
    assert record.value is not None, "the best trial is complete"
    return BestSettings(
        region=record.region,
        trial=record.trial,
        value=record.value,
        params=record.params,
        final=read_json(region.best.result)["metrics"] if published else None,
        published=read_json(region.published)["path"] if published else None,
    )


def plan(
    study: Study | str | Path, *, run: str | None = None, out: str | Path | None = None
) -> Run:
    """Write a run's folder and return the run, not yet submitted.

    Args:
        study: a resolved study, or the path of a study file.
        run: the run's id; default: the time.
        out: the run's folder; default: runs/STUDY/RUN-ID in the working directory.

    Raises:
        InputError: the study, the id or the folder can't be used.
    """
    if not isinstance(study, Study):
        study = load_study(Path(study))
    run = run or new_run_id()
    place = Path(out) if out is not None else default_folder(study, run)
    return Run(write_plan(study, run=run, out=place).root)
