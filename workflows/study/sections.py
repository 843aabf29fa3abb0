"""The tables budget, gate, early_stopping, trainer, resources of a study: keys and defaults."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from trialfleet.objective import Direction
from trialfleet.optimizer.space import Entry
from trialfleet.sections import Count, Positive, Refused, Section, Size, parse_bytes
from trialfleet.workflows.study.checks import (
    MOST_CORES,
    MOST_RANKS,
    Command,
    DataPlaces,
    Expression,
    FileName,
    Gpus,
    LocalFile,
    LocalFiles,
    MetricName,
    Minutes,
    TrialsPerJob,
)
from trialfleet.workflows.study.daily import DATE
from trialfleet.workflows.study.export import S3Folder


class Objective(Section):
    """The objective: a metric of the trainer's result, and its direction."""

    metric: MetricName = Field(description="One of the numbers that the trainer reports.")
    direction: Direction = Field(description="Whether smaller or larger values are better.")


class Budget(Section):
    """A region's limits on trials, time and money, and its parallelism."""

    trials: int = Field(
        20, ge=1, le=10_000, description="Number of a region's trials, including failed ones."
    )
    lanes: int = Field(4, ge=1, le=1_000, description="Number of a region's trials in parallel.")
    startup_trials: Count | None = Field(
        None,
        description="Number of trials before the optimiser's model chooses parameters: the first "
        "has the defaults, the others are spread over the search space. Default: two for each "
        "parameter, but at least 5 and at most 10. If this default is more than a third of the "
        "trials, it is a third of them, but at least 2. A run that learns from previous runs has "
        "half as many, with settings that were good there.",
    )
    trials_per_job: TrialsPerJob = Field(
        "all",
        description="Number of trials that one HTCondor job trains, one after another; all: "
        "every trial of the job's lane; 1: each trial has its own job.",
    )
    job_minutes: float = Field(
        20.0,
        gt=0,
        description="After this many minutes, a job starts no other trial and frees its slot. "
        "Its lane continues in a new job at the end of the queue.",
    )
    hours: Positive | None = Field(
        None,
        description="A region starts no more trials this many hours after its first trial began.",
    )
    usd: Positive | None = Field(
        None,
        description="A region starts no more trials once its jobs have cost this much, in USD. "
        "Running trials and the full training count with their estimated cost.",
    )
    usd_per_run: Positive | None = Field(
        None, description="Like usd, for all regions of a run together."
    )
    usd_per_day: Positive | None = Field(
        None, description="Like usd, for all runs of the study that belong to one day."
    )
    failures: int | None = Field(
        None,
        ge=0,
        description="A region stops when more than this many of its trials have failed "
        "permanently (default: a quarter of its trials, at least 3).",
    )

    def problems(self) -> Iterator[Refused]:
        """Yield a problem if there are more start-up trials than trials."""
        if problem := startup_problem(self.startup_trials, self.trials):
            yield ("startup_trials",), problem, self.startup_trials

    @property
    def in_usd(self) -> bool:
        """True if any of the limits is an amount of money."""
        return any((self.usd, self.usd_per_run, self.usd_per_day))

    @property
    def per_job(self) -> int | None:
        """The number of trials per job; None if a single job runs all trials of its lane."""
        return None if self.trials_per_job == "all" else self.trials_per_job

    @property
    def startup_count(self) -> int:
        """The number of start-up trials, whose parameters are spread over the search space.

        It is 10 if the study does not set `startup_trials`, but never more than `trials`. The study
        in a run's folder always sets `startup_trials`.
        """
        return min(self.startup_trials or 10, self.trials)

    @property
    def failures_allowed(self) -> int:
        """The number of trials that may fail permanently before the region stops."""
        return max(3, self.trials // 4) if self.failures is None else self.failures


def startup_problem(startup: int | None, trials: int) -> str | None:
    """Return an error text if `startup` exceeds `trials`, else None."""
    if startup is None or startup <= trials:
        return None
    return f"must be at most trials, which is {trials}"


class BudgetOverride(Section):
    """A region's overrides of the study's budget; a key that is null keeps the study's value."""

    trials: int | None = Field(None, ge=1, le=10_000, description="As in budget.")
    lanes: int | None = Field(None, ge=1, le=1_000, description="As in budget.")
    trials_per_job: TrialsPerJob | None = Field(None, description="As in budget.")
    job_minutes: Positive | None = Field(None, description="As in budget.")
    startup_trials: Count | None = Field(None, description="As in budget.")
    hours: Positive | None = Field(None, description="As in budget.")
    usd: Positive | None = Field(None, description="As in budget.")
    failures: int | None = Field(None, ge=0, description="As in budget.")


class Gang(Section):
    """The number of slots that train one model together, one rank in each; see docs/gangs.md."""

    min: int = Field(
        ge=1,
        le=MOST_RANKS,
        description="Minimum number of slots with which a training starts and continues.",
    )
    max: int = Field(ge=1, le=MOST_RANKS, description="Number of slots requested.")
    checkpoints: S3Folder | None = Field(
        None,
        description="Where checkpoints are stored, for large checkpoints: s3://BUCKET/PREFIX "
        "(default: on the access point).",
    )

    def problems(self) -> Iterator[Refused]:
        """Yield a problem if the minimum exceeds the maximum."""
        if self.min > self.max:
            yield ("min",), f"must be at most max, which is {self.max}", self.min


class Region(Section):
    """A region's own data, and its overrides of the study's settings."""

    data: DataPlaces | None = Field(
        None, description="Paths or s3:// URLs (default: the study's data)."
    )
    search_space: dict[str, Entry] | None = Field(
        None,
        description="Parameters and constants in addition to the study's; one with the name of the "
        "study's replaces it.",
    )
    budget: BudgetOverride | None = None
    nodes: Gang | None = Field(None, description="As in resources.")
    priority: int = Field(
        0, ge=-100_000, le=100_000, description="Regions with a higher number run first."
    )

    def data_or(self, study_data: list[str]) -> list[str]:
        """Return the region's own data paths, or `study_data` if it has none."""
        return study_data if self.data is None else self.data

    def fill_date(self, day: str) -> Region:
        """Return the region with `day` in place of `{date}` in its data paths."""
        places = self.data and [pattern.replace(DATE, day) for pattern in self.data]
        return self.model_copy(update={"data": places})


class RegionGlob(Section):
    """Regions from data files: one for each matching file, named by the text that `*` matches."""

    glob: LocalFile = Field(description="A path with one *, such as data/*.csv.")


class Gate(Section):
    """The conditions for a new model to replace the current one; docs/gate.md has the rule."""

    metric: MetricName | None = Field(
        None,
        description="Metric that decides (default: the metric that compares tuned with default "
        "settings).",
    )
    direction: Direction | None = Field(
        None,
        description="Direction of the metric (default: the objective's if it is the objective's "
        "metric, otherwise that of report_metric).",
    )
    tolerance: float = Field(
        0.0,
        ge=0,
        description="The most by which a new model may be worse, in the metric's unit.",
    )
    confidence: float = Field(
        0.95,
        ge=0.5,
        lt=1,
        description="Required confidence in a difference between the models, if the trainer "
        "reports losses per row. A less certain difference counts as chance.",
    )
    baseline: bool = Field(
        default=True,
        description="A new model must be better than a constant prediction, if the trainer also "
        "measures a constant prediction.",
    )
    approve: bool = Field(
        default=False,
        description="A model that passes the gate is used only after a person approves it with "
        "trialfleet promote.",
    )


class EarlyStopping(Section):
    """The rule that stops unpromising trials early; see docs/early-stopping.md."""

    min_steps: Count | None = Field(
        None,
        description="Minimum number of steps, as the trainer reports them, before a trial may be "
        "stopped (default: a twentieth of max_steps).",
    )
    max_steps: int | None = Field(
        None,
        ge=2,
        description="The step at which a training ends (default: the last step that a complete "
        "trial of the region reported).",
    )
    startup_trials: int = Field(
        4, ge=2, description="Trials of a region that must complete before any is stopped."
    )
    confidence: float = Field(
        0.95,
        ge=0.5,
        lt=1,
        description="Required confidence that a trial ends worse than the region's best.",
    )
    max_stopped: float = Field(
        0.9, gt=0, le=1, description="Maximum fraction of a region's trials that is stopped."
    )
    grace_seconds: int = Field(
        120,
        ge=1,
        le=86_400,
        description="Seconds that a trainer has to exit after a stop request. Then it gets "
        "SIGTERM, except in a gang.",
    )

    def problems(self) -> Iterator[Refused]:
        """Yield a problem if no trial could ever be stopped."""
        if self.min_steps and self.max_steps and self.min_steps >= self.max_steps:
            text = f"must be less than max_steps, which is {self.max_steps}"
            yield ("min_steps",), f"{text}, or no trial is ever stopped", self.min_steps


class Trainer(Section):
    """The program of a trial: any command that reads trial.json and writes result.json."""

    command: Command = Field(description="The program and its arguments, as a list or in one line.")
    files: LocalFiles = Field([], description="Files and folders to send along.")
    minutes: Minutes | None = Field(
        None,
        description="A trial or full training that runs longer fails. It is not retried, because "
        "the same settings would take as long.",
    )


class Resources(Section):
    """The resources that one trial requests."""

    cpus: int = Field(1, ge=1, le=MOST_CORES, description="Processor cores.")
    memory: Size = Field(
        "2GB", description="Main memory. A trial that uses more fails and is not retried."
    )
    disk: Size = Field(
        "2GB",
        description="Disk space for a trial's files; also the limit for the files that the trial "
        "leaves. A trial that uses more fails and is not retried.",
    )
    gpus: Gpus = Field(
        1,
        description="GPUs of a trial, if the accelerator is gpu. With 0.5 or 1/2, two trials "
        "share a GPU. The smallest share is 1/16.",
    )
    nodes: Gang | None = Field(
        None,
        description="Train each model by a gang, which is several jobs; each gets these "
        "resources (default: by one job).",
    )
    requirements: Expression | None = Field(
        None,
        description="A ClassAd expression that must be true for a slot, such as OpSysAndVer == "
        '"Debian13" && Memory >= 64000.',
    )
    rank: Expression | None = Field(
        None,
        description="A ClassAd expression; a trial prefers slots for which its value is higher.",
    )

    @property
    def memory_bytes(self) -> float:
        """The requested main memory in bytes. As in HTCondor, 1 KB is 1024 bytes."""
        return parse_bytes(self.memory)

    @property
    def trials_per_gpu(self) -> int:
        """The number of trials that share a GPU; 1 if each trial has its own GPUs."""
        return max(1, round(1 / self.gpus))

    @property
    def whole_gpus(self) -> int:
        """The number of GPUs that a trial sees. It is 1 if the trial has a share of a GPU."""
        return max(1, int(self.gpus))


class S3Keys(Section):
    """Files on the access point with an S3 key. HTCondor uses it to sign s3:// URLs for nodes."""

    access_key_id_file: FileName = Field(description="Path of a file with the key's id.")
    secret_access_key_file: FileName = Field(description="Path of a file with the secret key.")
