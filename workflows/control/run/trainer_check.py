"""`--check`: before a run, the trainer runs once in each mode (tune, final, evaluate).

The check submits real jobs, because only HTCondor creates the working folder of a trial (the
sandbox). The study gets no results, and no budget is spent. The jobs' files are kept only after a
failure.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trialfleet import untrusted_files
from trialfleet.errors import InputError, join_names
from trialfleet.infra.pool.connection import connect, use
from trialfleet.optimizer.region_types import Complete, Failed
from trialfleet.optimizer.sampling.seeds import stable_seed
from trialfleet.sections import parse_bytes
from trialfleet.spelling import did_you_mean
from trialfleet.workflows.control.plan.pool_check import check_pool, check_regions
from trialfleet.workflows.control.plan.trial_json_and_submit_file import (
    Mode,
    TrialFiles,
    TrialOrder,
)
from trialfleet.workflows.control.run.trainer_check_job import CheckJobEnd, run_job
from trialfleet.workflows.facts.models.verdict import CHALLENGER, CHAMPION
from trialfleet.workflows.facts.run_folder.dag_structure import RegionGraph, build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.formatting import result_text
from trialfleet.workflows.rules.gate_decision import gate_rule
from trialfleet.workflows.rules.useless_resume import NO_MODEL
from trialfleet.workflows.status.attempts.outcome import read_outcome, settle_attempt
from trialfleet.workflows.status.missing_modules import installation_advice
from trialfleet.workflows.study.frozen import FrozenStudy, load_frozen
from trialfleet.workflows.study.spec import Study

_SHOWN = 5  # number of regions to name in a message
_LINES = 12  # of standard error, in an error message
_LAST_BYTES = 1 << 20  # of standard error to search
_FRAME = re.compile(r'  File "(?P<file>.+)", line \d+')
_OF_OTHERS = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3[^/]*/|^<")
SECONDS = 60.0  # limit for a mode: a training that lasts longer has started well
_WITH = {
    "tune": "",
    "final": "in mode final (its full training) ",
    "evaluate": "in mode evaluate (the gate's job, docs/gate.md) ",
}


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of `--check`.

    Attributes:
        region: the only region that was tried, with its default settings.
        metrics: the trial's metrics; None if the trial had not ended at the time limit.
        waited: True if the job never got a slot.
        modes: the modes that ended in time, in the order in which they were tried.
        unseen: the mode that did not end in time, if not "tune"; later modes were not tried.
    """

    region: str
    metrics: dict[str, float] | None
    waited: bool = False
    modes: tuple[Mode, ...] = ()
    unseen: Mode | None = None
    warning: str = ""
    regions: int = 1

    def __str__(self) -> str:
        if self.regions == 1:
            return self._finding_text()
        alone = f"only {self.region} of {self.regions} regions was tried"
        return f"{self._finding_text()}\n{alone}; to try another: --check-region REGION"

    def _finding_text(self) -> str:
        if self.metrics is None:
            if self.waited:
                return f"no slot became free within {SECONDS:.0f} s: the trainer was not started"
            return f"the trainer still runs; the check stopped waiting after {SECONDS:.0f} s"
        values = ", ".join(map(result_text, self.metrics, self.metrics.values()))
        lines = [f"{self.region} with its default settings: {values}"]
        if "final" in self.modes:
            lines.append("mode final works: it writes a model")
        if "evaluate" in self.modes:
            lines.append("mode evaluate works: it measures the model")
        if self.unseen:
            lines.append(
                f"mode {self.unseen} did not end: the check stopped waiting after {SECONDS:.0f} s"
            )
        if self.warning:
            lines.append(f"but {self.warning}")
        return "\n".join(lines)


class TrainerFailsError(InputError):
    """The trainer failed in `--check`. `place` has the trial's input and output files."""

    def __init__(
        self, study: Study, region: str, error: str, place: TrialFolder, mode: Mode = "tune"
    ) -> None:
        super().__init__(failure_text(study, region, error, place, mode))
        self.place = place
        self._moved = (study, region, error), mode

    def after_move(self, place: TrialFolder) -> TrainerFailsError:
        """Return a copy of this error for a trial's folder that was moved to `place`."""
        arguments, mode = self._moved
        return TrainerFailsError(*arguments, place, mode)


def check(
    folder: RunFolder,
    seconds: float = SECONDS,
    progress: Callable[[str], None] | None = None,
    region: str | None = None,
) -> CheckResult:
    """Run a region's first trial as a separate job, before the run is submitted; return the result.

    If the study publishes models, a full training is tried next. If the study has a gate, the
    gate's job is tried last. If a job doesn't end within `seconds`, the check ends.

    `progress` is called repeatedly with a line that says what a job waits for, or where it runs.
    `region` is by default the first region.

    Raises:
        TrainerFailsError: the trainer failed. The message has its last output.
        InputError: the region does not exist, or the trainer lacks a metric of the study.
        PoolError: HTCondor is unreachable or refuses a job.
    """
    frozen = load_frozen(folder.study)
    graph = find_regions(frozen.study, region)[0]
    use(connect())
    shutil.rmtree(folder.check.root, ignore_errors=True)  # files of a previous check
    order = first_order(frozen.study, graph)
    tried = _Check(frozen, folder, order, seconds, progress or (lambda _: None))
    checked = tried.all_modes()
    shutil.rmtree(folder.check.root, ignore_errors=True)
    return checked


def find_regions(study: Study, name: str | None) -> tuple[RegionGraph, ...]:
    """Return the region `name`, or all regions if `name` is None.

    Raises:
        InputError: the study has no region `name`.
    """
    regions = build_graph(study).regions
    if name is None:
        return regions
    found = {region.name: region for region in regions}
    if name not in found:
        known = join_names([*map(repr, found)], _SHOWN)
        raise InputError(f"no region {name!r}{did_you_mean(name, found)}; regions: {known}")
    return (found[name],)


def choose_region(folder: RunFolder, name: str | None) -> str:
    """Return `name`; if it is None, the name of the first region whose trials a slot can run.

    If no slot can run any, but slots may join the pool, return the first region's name.

    Raises:
        InputError: the region does not exist, or its trials would wait in this pool forever.
        PoolError: HTCondor is unreachable.
    """
    regions = find_regions(load_frozen(folder.study).study, name)
    for region, found in zip(regions, check_regions(folder, regions), strict=True):
        if found.fit:
            return region.name
    pool = check_pool(folder, regions)
    if not pool.can_begin:
        raise InputError(f"the trainer can't be started in this pool: {pool.hopeless}")
    return regions[0].name


@dataclass(frozen=True)
class _Check:
    frozen: FrozenStudy
    folder: RunFolder
    order: TrialOrder
    seconds: float
    progress: Callable[[str], None]

    def all_modes(self) -> CheckResult:
        regions = len(self.frozen.study.region_table)
        ended = self._run(self.order)
        found = CheckResult(
            region=self.order.region, metrics=None, waited=ended.waited, regions=regions
        )
        if ended.code is None:
            return found
        metrics = self._metrics(ended.code, "tune")
        warning = check_metrics(self.frozen.study, metrics) if metrics else ""
        found = replace(found, metrics=metrics, modes=("tune",), warning=warning)
        if not self.frozen.study.publishes:
            return found
        if not self._trains_in_full():
            return replace(found, unseen="final")
        found = replace(found, modes=("tune", "final"))
        if not self.frozen.study.gate:
            return found
        if not self._evaluate():
            return replace(found, unseen="evaluate")
        # the gate's metric was reported
        return replace(found, modes=("tune", "final", "evaluate"), warning="")

    def _trains_in_full(self) -> bool:
        from trialfleet.workflows.control.models.publication import check_model

        ended = self._run(replace(self.order, mode="final"))
        if ended.code is None:
            return False
        self._metrics(ended.code, "final")
        if not untrusted_files.has_files(self.folder.check.model):
            raise self._failure(NO_MODEL, "final")
        try:
            check_model(self.folder.check.model)
        except InputError as error:
            raise self._failure(str(error), "final") from error
        return True

    def _evaluate(self) -> bool:
        """Try the gate's job, which measures two models; return whether the job ended in time.

        There is only one model yet. It is used both as the current and as the new model.
        """
        from trialfleet.workflows.control.scripts.gate_job import (
            outcome_of_measurement,
            read_measurements,
        )

        place = self.folder.check
        untrusted_files.copy_tree(place.model, place.champion)
        place.model.rename(place.challenger)
        models = {CHAMPION: place.champion.name, CHALLENGER: place.challenger.name}
        ended = self._run(replace(self.order, mode="evaluate", models=models))
        if ended.code is None:
            return False
        if outcome := outcome_of_measurement(self.frozen, place, ended.code):
            raise self._failure(outcome.error, "evaluate")
        try:
            found = read_measurements(place)[CHALLENGER].metrics
        except ValueError as error:  # from the losses per row
            raise self._failure(str(error), "evaluate") from error
        deciding = gate_rule(self.frozen.study).metric
        if deciding not in found:
            known = f"{did_you_mean(deciding, found)}; it reports: {', '.join(sorted(found))}"
            raise self._failure(
                f"it doesn't report the gate's metric {deciding!r}{known}", "evaluate"
            )
        return True

    def _run(self, order: TrialOrder) -> CheckJobEnd:
        TrialFiles(
            self.frozen.run, self.frozen.study, self.folder, self.folder.check, order
        ).write()

        def progress(line: str) -> None:
            self.progress(f"{order.mode}: {line}")

        ended = run_job(self.folder, self.folder.check, order.node, self.seconds, progress)
        if ended.code is None:
            return ended
        most = parse_bytes(self.frozen.study.resources.disk)
        return replace(ended, code=settle_attempt(self.folder.check, ended.code, most))

    def _metrics(self, code: int, mode: Mode) -> dict[str, float]:
        metric = self.frozen.study.objective.metric
        outcome = read_outcome(self.folder.check, code, metric, self.frozen.places)
        if isinstance(outcome, Failed):
            raise self._failure(outcome.error, mode)
        return outcome.metrics if isinstance(outcome, Complete) else {}

    def _failure(self, error: str, mode: Mode) -> TrainerFailsError:
        return TrainerFailsError(
            self.frozen.study, self.order.region, error, self.folder.check, mode
        )


def first_order(study: Study, region: RegionGraph) -> TrialOrder:
    """Return the order to train a region's default settings in a job of `--check`."""
    space = study.region_space(region.name)
    return TrialOrder(
        region=region.name,
        node=f"{region.slug}.check",
        trial=0,
        mode="tune",
        seed=stable_seed(study.seed, region.name, 0),
        params=space.trial_params(space.active(space.defaults())),
        alone=True,
    )


def check_metrics(study: Study, metrics: Mapping[str, float]) -> str:
    """Check that a trial's `metrics` include those that the study names; return a warning or "".

    InputError if the metric that compares tuned with default settings is missing, or if the gate's
    metric seems misspelt. Otherwise, a missing gate's metric only leads to the warning.
    """
    reported = f"the trainer reports: {', '.join(sorted(metrics))}"
    compared = study.compared_metric
    if compared not in metrics:
        near = did_you_mean(compared, metrics)
        raise InputError(
            f"report_metric: the trial of --check reports no {compared!r}{near}; {reported}"
        )
    deciding = study.gate and study.gate.metric
    if deciding and deciding not in metrics:
        near = did_you_mean(deciding, metrics)
        words = f"gate.metric: the trial of --check reports no {deciding!r}{near}; {reported}"
        if near:
            raise InputError(words)
        return f"{words}. If mode evaluate does not report it, the gate rejects every new model"
    return ""


def failure_text(
    study: Study, region: str, error: str, place: TrialFolder, mode: Mode = "tune"
) -> str:
    """Return a message with the trainer's `error`, its last output and, if known, a fix."""
    said = last_words(place.err)
    fix = installation_advice(said, study)
    words = f"; its last output, from {str(place.err)!r}:\n{said}" if said else ""
    return (
        f"the trainer fails {_WITH[mode]}with the default settings of region {region!r}: "
        f"{error}{words}\n"
        + (f"{fix}\n" if fix else "")
        + f"the trial's input and output files are in {str(place.root)!r}"
    )


def last_words(error_file: Path) -> str:
    """Return the last lines of a trainer's standard error; "" if it is empty.

    If the last frame in the trainer's own code is above these lines, it is put before them.
    """
    lines = _lines(error_file)
    shown = lines[-_LINES:]
    frames = [(at, found["file"]) for at, line in enumerate(lines) if (found := _FRAME.match(line))]
    own = [at for at, file in frames if not _OF_OTHERS.search(file)]
    if own and own[-1] < len(lines) - _LINES:
        begin = own[-1]
        end = next((at for at, _ in frames if at > begin), begin)
        shown = [*lines[begin : min(end, begin + 2)], "  …", *lines[3 - _LINES :]]
    return "\n".join(f"  {line}" for line in shown)


def _lines(file: Path) -> list[str]:
    return untrusted_files.tail(file, _LAST_BYTES)[0].decode(errors="replace").splitlines()
