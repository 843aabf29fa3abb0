"""A trainer started once before its run: a trial of the first region, as a real job of the pool.

What HTCondor makes of the trial's own submit file is the only sandbox like a trial's. The study
isn't told: nothing of the budget is spent, and the trial leaves nothing but what its failure needs.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from trialfleet.errors import InputError, PoolError
from trialfleet.infra.pool.connection import connect, use
from trialfleet.optimizer.sampling.seeds import stable_seed
from trialfleet.spelling import did_you_mean
from trialfleet.workflows.attempts.outcome import Complete, Failed, outcome_of
from trialfleet.workflows.ctrl_c import postponed
from trialfleet.workflows.dagman import job_queue
from trialfleet.workflows.plan.folder import RunFolder, TrialFolder
from trialfleet.workflows.plan.graph import RegionGraph, graph_of
from trialfleet.workflows.plan.trial_files import TrialOrder, write_trial
from trialfleet.workflows.run.check_progress import waits_for
from trialfleet.workflows.run.last_words import last_words, missing_module
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.study.spec import Study

SECONDS = 60.0  # that a check lasts: what trains for so long has started well
_POLL = 0.2  # seconds
_LOOK_EVERY = 1.0  # seconds, at what the job waits for
_REMOVED = -1002  # as DAGMan has it


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What became of the trainer's dry start.

    Attributes:
        region: the region whose default settings it trained.
        metrics: its result; None if it had none when the check was over.
        waited: it waited for a slot all the time.
        warning: what is doubtful of the study by that result; empty: nothing.
    """

    region: str
    metrics: dict[str, float] | None
    waited: bool = False
    warning: str = ""

    def __str__(self) -> str:
        """In a line."""
        if self.metrics is not None:
            values = ", ".join(f"{name} {value:.5g}" for name, value in self.metrics.items())
            warning = f"\nbut {self.warning}" if self.warning else ""
            return f"{self.region} with its default settings: {values}{warning}"
        if self.waited:
            return f"no slot came free for it within {SECONDS:.0f} s: the trainer was not started"
        return f"the trainer runs; it was not waited for after {SECONDS:.0f} s"


class TrainerFailsError(InputError):
    """The trainer fails at its dry start.

    Attributes:
        place: what the trial received and left.
    """

    def __init__(self, study: Study, region: str, error: str, place: TrialFolder) -> None:
        super().__init__(failure_text(study, region, error, place))
        self.place = place
        self._study, self._region, self._error = study, region, error

    def moved(self, place: TrialFolder) -> TrainerFailsError:
        """Return the same of a trial that lies elsewhere now."""
        return TrainerFailsError(self._study, self._region, self._error, place)


def check(
    folder: RunFolder, seconds: float = SECONDS, progress: Callable[[str], None] | None = None
) -> Checked:
    """Run a planned run's first trial as a job by itself, and return what became of it.

    It has the seed of the trial that the run begins with, which so has the same result where the
    trainer is repeatable.

    Args:
        folder: the run's; it isn't submitted.
        seconds: how long to wait for its result.
        progress: takes a line, again and again: what the job waits for, or where it runs.

    Raises:
        TrainerFailsError: with the trainer's last words.
        InputError: the trainer tells no report_metric.
        PoolError: HTCondor is out of reach or refuses the job.
    """
    frozen = load_frozen(folder.study)
    region = graph_of(frozen.study).regions[0]
    order = first_order(frozen.study, region)
    place = folder.check
    use(connect())
    shutil.rmtree(place.root, ignore_errors=True)  # what a check before this one left
    write_trial(frozen.run, frozen.study, folder, place, order)
    with _submitted(place, order.node):
        code, waited = _wait(folder, place, order.node, seconds, progress or (lambda _: None))
    metrics = None
    if code is not None:
        outcome = outcome_of(place, code, frozen.study.objective.metric, frozen.places)
        if isinstance(outcome, Failed):
            raise TrainerFailsError(frozen.study, region.name, outcome.error, place)
        metrics = outcome.metrics if isinstance(outcome, Complete) else None
    shutil.rmtree(place.root, ignore_errors=True)
    warning = check_metrics(frozen.study, metrics) if metrics else ""
    return Checked(region=region.name, metrics=metrics, waited=waited, warning=warning)


def first_order(study: Study, region: RegionGraph) -> TrialOrder:
    """Return a region's first trial, as the run asks for it, under a node of the check's own."""
    space = study.space_of(region.name)
    return TrialOrder(
        region=region.name,
        node=f"{region.slug}.check",
        trial=0,
        mode="tune",
        seed=stable_seed(study.seed, region.name, 0),
        params=space.complete(space.active(space.defaults())),
        alone=True,
    )


def check_metrics(study: Study, metrics: Mapping[str, float]) -> str:
    """Return what is doubtful of the study's metrics by what a trial reported; empty: nothing.

    Raises:
        InputError: regions are to be compared by a metric that trials don't tell.
    """
    reported = f"the trainer tells: {', '.join(sorted(metrics))}"
    compared = study.compared_metric
    if compared not in metrics:
        near = did_you_mean(compared, metrics)
        raise InputError(f"report_metric: a trial doesn't tell {compared!r}{near}; {reported}")
    deciding = study.gate and study.gate.metric
    if deciding and deciding not in metrics:
        near = did_you_mean(deciding, metrics)
        words = f"gate.metric: a trial doesn't tell {deciding!r}{near}; {reported}"
        if near:
            raise InputError(words)
        return f"{words}. Without it in mode evaluate, the gate keeps every new model out"
    return ""


@contextmanager
def _submitted(place: TrialFolder, node: str) -> Iterator[None]:
    """Have the trial in the queue for as long as it is waited for."""
    folder = RunFolder(place.root.parent)
    own = f'{job_queue.of_run(folder)} && TrialfleetNode == "{node}"'
    over = "trialfleet's check is over"
    job_queue.act("Remove", own, over)  # of a check that was killed
    try:
        _submit(place)
        yield
    finally:
        with suppress(PoolError):
            job_queue.act("Remove", own, over)


def _submit(place: TrialFolder) -> None:
    command = ["condor_submit", "-terse", place.submit.name]
    try:
        done = subprocess.run(command, cwd=place.root, capture_output=True, text=True, check=False)
    except OSError as error:
        raise PoolError(f"condor_submit can't be run: {error}") from error
    if done.returncode != 0:
        raise PoolError(f"HTCondor refused the trial of the check: {done.stderr.strip()}")


def _wait(
    folder: RunFolder,
    place: TrialFolder,
    node: str,
    seconds: float,
    progress: Callable[[str], None],
) -> tuple[int | None, bool]:
    """Return the job's exit, as DAGMan would have it, and whether it was never started.

    None for the exit: it hadn't ended when the time was up.
    """
    import htcondor2

    kind = htcondor2.JobEventType
    now = time.monotonic()
    deadline, look = now + seconds, now
    waited, slot = True, ""
    log = htcondor2.JobEventLog(str(place.log))
    while time.monotonic() < deadline:
        with postponed():
            events = list(log.events(stop_after=0))
        for event in events:
            if event.type == kind.EXECUTE:
                waited, slot = False, str(event.get("SlotName") or event.get("ExecuteHost"))
                progress(f"runs on {slot}")
            elif event.type == kind.JOB_TERMINATED:
                normally = event["TerminatedNormally"]
                return (
                    event["ReturnValue"] if normally else -int(event["TerminatedBySignal"])
                ), False
            elif event.type == kind.JOB_ABORTED:
                return _REMOVED, False
            elif event.type in {kind.JOB_EVICTED, kind.SHADOW_EXCEPTION}:
                slot = ""
        if time.monotonic() >= look:
            if words := f"runs on {slot}" if slot else waits_for(folder, node):
                progress(words)
            look = time.monotonic() + _LOOK_EVERY
        time.sleep(_POLL)
    return None, waited


def failure_text(study: Study, region: str, error: str, place: TrialFolder) -> str:
    """Return what to tell of a trainer that failed in `place`: why, its last words, a cure."""
    said, mending = last_words(place.err), missing_module(place.err, study)
    words = f"; its last words, from {str(place.err)!r}:\n{said}" if said else ""
    return (
        f"the trainer fails with the default settings of region {region!r}: {error}{words}\n"
        + (f"{mending}\n" if mending else "")
        + f"what the trial received and left is in {str(place.root)!r}"
    )
