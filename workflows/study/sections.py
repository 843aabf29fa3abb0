"""The tables of a study file, each a frozen pydantic model."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from trialfleet.objective import Direction
from trialfleet.optimizer.space import Entry
from trialfleet.sections import Section, Size, bytes_of, refuse
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
    """What is optimised: a metric of the trainer's result, and whether more of it is better."""

    metric: MetricName = Field(description="One of the numbers that the trainer reports.")
    direction: Direction = Field(description="Which way it is better.")


class Budget(Section):
    """How much a region may spend, and how its trials are spread."""

    trials: int = Field(20, ge=1, le=10_000, description="Trials of a region, failed ones too.")
    lanes: int = Field(4, ge=1, le=1_000, description="Trials of a region in parallel.")
    startup_trials: int | None = Field(
        None,
        ge=1,
        description="Trials spread over the space before the model leads (default: two for each "
        "parameter, 5 to 10 of them, but never more than a third of the trials, or 2).",
    )
    trials_per_job: TrialsPerJob = Field(
        "all",
        description="Trials that one HTCondor job trains, one after another: all that its lane "
        "gets, or a number; 1 is a job for each trial.",
    )
    job_minutes: float = Field(
        20.0,
        gt=0,
        description="After so many minutes a job begins no other trial: it frees its slot, and its "
        "lane continues in a new job, behind the others in the queue.",
    )
    hours: float | None = Field(
        None,
        gt=0,
        description="So many hours after its first trial a region begins no more trials.",
    )
    usd: float | None = Field(
        None,
        gt=0,
        description="A region begins no more trials once its jobs have cost so much, in USD; those "
        "under way and its full training count with what they will probably cost.",
    )
    usd_per_run: float | None = Field(
        None, gt=0, description="Likewise, of all regions of a run together."
    )
    usd_per_day: float | None = Field(
        None, gt=0, description="Likewise, of all runs of the study that are of one day."
    )
    failures: int | None = Field(
        None,
        ge=0,
        description="A region stops when more of its trials than this have failed for good "
        "(default: a quarter of its trials, at least 3).",
    )

    @model_validator(mode="after")
    def _startup_is_a_part(self) -> Self:
        if problem := startup_problem(self.startup_trials, self.trials):
            refuse("Budget", [(("startup_trials",), problem, self.startup_trials)])
        return self

    @property
    def in_usd(self) -> bool:
        """Whether any of it is money."""
        return any((self.usd, self.usd_per_run, self.usd_per_day))

    @property
    def per_job(self) -> int | None:
        """Trials of a job; None: all that its lane gets."""
        return None if self.trials_per_job == "all" else self.trials_per_job

    @property
    def startup(self) -> int:
        """Trials before the Gaussian process leads; a study that is resolved says how many.

        One that an earlier release froze doesn't, and goes on as it began.
        """
        return min(self.startup_trials or 10, self.trials)

    @property
    def failures_allowed(self) -> int:
        """Trials that may fail for good before the region stops."""
        return max(3, self.trials // 4) if self.failures is None else self.failures


def startup_problem(startup: int | None, trials: int) -> str | None:
    """What is wrong with so many start-up trials."""
    if startup is None or startup <= trials:
        return None
    return f"must be at most trials, which is {trials}"


class BudgetOverride(Section):
    """A region's own budget where it differs from the study's; null: as the study's."""

    trials: int | None = Field(None, ge=1, le=10_000, description="As in budget.")
    lanes: int | None = Field(None, ge=1, le=1_000, description="As in budget.")
    trials_per_job: TrialsPerJob | None = Field(None, description="As in budget.")
    job_minutes: float | None = Field(None, gt=0, description="As in budget.")
    startup_trials: int | None = Field(None, ge=1, description="As in budget.")
    hours: float | None = Field(None, gt=0, description="As in budget.")
    usd: float | None = Field(None, gt=0, description="As in budget.")
    failures: int | None = Field(None, ge=0, description="As in budget.")


class Gang(Section):
    """How many slots train one model together, a rank in each; docs/gangs.md."""

    min: int = Field(ge=1, le=MOST_RANKS, description="It begins, and goes on, with so many.")
    max: int = Field(ge=1, le=MOST_RANKS, description="So many it asks for.")
    checkpoints: S3Folder | None = Field(
        None,
        description="s3://BUCKET/PREFIX: checkpoints lie there instead of on the access point, "
        "for large ones.",
    )

    @model_validator(mode="after")
    def _min_is_not_above_max(self) -> Self:
        if self.min > self.max:
            refuse("Gang", [(("min",), f"must be at most max, which is {self.max}", self.min)])
        return self


class Region(Section):
    """A region's own data, and where it differs from the study."""

    data: DataPlaces | None = Field(
        None, description="Paths or s3:// URLs (default: the study's data)."
    )
    search_space: dict[str, Entry] | None = Field(
        None, description="Parameters and constants that replace the study's of the same name."
    )
    budget: BudgetOverride | None = None
    nodes: Gang | None = Field(None, description="As in resources.")
    priority: int = Field(
        0, ge=-100_000, le=100_000, description="Regions with a higher one run first."
    )

    def data_or(self, studys: list[str]) -> list[str]:
        """Return the patterns of its data: its own, or else the study's."""
        return studys if self.data is None else self.data

    def dated(self, day: str) -> Region:
        """Return the region with a day in the place of `{date}`."""
        places = self.data and [pattern.replace(DATE, day) for pattern in self.data]
        return self.model_copy(update={"data": places})


class RegionGlob(Section):
    """Regions from data files: each file that matches is a region named after what `*` matched."""

    glob: LocalFile = Field(description="A path with one *, such as data/*.csv.")


class Gate(Section):
    """When a new model takes the place of the one in force; docs/gate.md has the rule."""

    metric: MetricName | None = Field(
        None, description="What decides (default: the metric of tuned against default settings)."
    )
    direction: Direction | None = Field(
        None, description="Which way metric is better (default: as that comparison)."
    )
    tolerance: float = Field(
        0.0, ge=0, description="So much worse, in the metric's unit, a new model may be."
    )
    confidence: float = Field(
        0.95,
        ge=0.5,
        lt=1,
        description="With losses per row: what is less sure than this counts as chance.",
    )
    baseline: bool = Field(
        default=True,
        description="Where the trainer measures one: a new model must be better than a constant "
        "prediction.",
    )
    approve: bool = Field(
        default=False,
        description="A model that passes waits until a person puts it in force: trialfleet "
        "promote.",
    )


class EarlyStopping(Section):
    """When a trial that won't become its region's best is told to stop; docs/early-stopping.md."""

    min_steps: int | None = Field(
        None,
        ge=1,
        description="Steps, as the trainer reports them, before a trial may be told (default: a "
        "twentieth of max_steps).",
    )
    max_steps: int | None = Field(
        None,
        ge=2,
        description="The step at which a training ends (default: the last that a complete trial "
        "of the region reported).",
    )
    startup_trials: int = Field(
        4, ge=2, description="Trials of a region that complete before any is told."
    )
    confidence: float = Field(
        0.95,
        ge=0.5,
        lt=1,
        description="How sure it has to be that a trial ends behind the region's best.",
    )
    max_stopped: float = Field(
        0.9, gt=0, le=1, description="Of a region's trials no greater part than this is told."
    )
    grace_seconds: int = Field(
        120,
        ge=1,
        le=86_400,
        description="A trainer that goes on for so long after it was told gets SIGTERM.",
    )


class Trainer(Section):
    """The program of a trial: any command that keeps the trial's contract."""

    command: Command = Field(description="The program and its arguments, as a list or in one line.")
    files: LocalFiles = Field([], description="Files and folders to send along.")
    minutes: Minutes | None = Field(
        None,
        description="A trial that runs longer has failed. It is not tried again, because the same "
        "settings would take as long.",
    )


class Resources(Section):
    """What one trial asks of a slot."""

    cpus: int = Field(1, ge=1, le=MOST_CORES, description="Processor cores.")
    memory: Size = Field(
        "2GB", description="Main memory. A trial that uses more has failed, and is not tried again."
    )
    disk: Size = Field(
        "2GB",
        description="Disk space for its files, and the most that it may leave. "
        "A trial that uses or leaves more has failed likewise.",
    )
    gpus: Gpus = Field(1, description="With accelerator: gpu. 0.5 or 1/2: two trials share a GPU.")
    nodes: Gang | None = Field(
        None,
        description="Train each model over several slots, all of this size: a gang of jobs "
        "(default: in one slot).",
    )
    requirements: Expression | None = Field(
        None,
        description='A ClassAd expression, such as OpSysAndVer == "Debian13" && Memory >= 64000.',
    )
    rank: Expression | None = Field(None, description="A ClassAd expression: higher is preferred.")

    @property
    def memory_bytes(self) -> float:
        """The main memory, as HTCondor counts its units."""
        return bytes_of(self.memory)

    @property
    def trials_per_gpu(self) -> int:
        """How many trials share a GPU; 1 where each has one or several of its own."""
        return max(1, round(1 / self.gpus))

    @property
    def whole_gpus(self) -> int:
        """How many GPUs a trial sees: one also where it has a share of it."""
        return max(1, int(self.gpus))


class S3Keys(Section):
    """Files on the access point with which HTCondor signs s3:// URLs for the nodes."""

    access_key_id_file: FileName = Field(description="Path of a file with the key's id.")
    secret_access_key_file: FileName = Field(description="Path of a file with the secret key.")
