"""What a study is: regions, data, search space, objective, budget, trainer, resources.

`Study` is what a `study.yaml` holds, validated. `Study.resolve` turns it into its normal form, in
which every region stands by name with its own data and overrides and every path is absolute; the
normal form is itself a valid study, and is what a run freezes in `RUN/study.yaml`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.objective import Direction
from trialfleet.optimizer.sampling.names import OWN, Sampler
from trialfleet.optimizer.space import SearchSpace
from trialfleet.sections import OneLine, Refused, Section, refusal, refuse
from trialfleet.workflows.names import NO_MODELS
from trialfleet.workflows.study import resolution
from trialfleet.workflows.study.checks import (
    URL_PREFIXES,
    Accelerator,
    DataPlaces,
    MetricName,
    StudyName,
    TeamName,
)
from trialfleet.workflows.study.daily import DATE, Checks, Daily
from trialfleet.workflows.study.export import DEFAULT_FOLDER, Export, Keep, check_publish
from trialfleet.workflows.study.image import Image
from trialfleet.workflows.study.notify import Channel
from trialfleet.workflows.study.paths import (
    Keys,
    Problem,
    UnusableStudyError,
    absent_data,
    check_storage,
)
from trialfleet.workflows.study.regions import Regions, gangs_of
from trialfleet.workflows.study.sections import (
    Budget,
    EarlyStopping,
    Gang,
    Gate,
    Objective,
    Region,
    RegionGlob,
    Resources,
    S3Keys,
    Trainer,
)
from trialfleet.workflows.study.table_options import TableOptions

__all__ = ["URL_PREFIXES", "Budget", "Region", "RegionGlob", "Resources", "Study", "Trainer"]


def _trainer(value: Any, _handler: ValidatorFunctionWrapHandler) -> Any:
    """`tabular` or a table: a union would report errors of both."""
    if value == "tabular":
        return value
    if not isinstance(value, Mapping | Trainer):
        raise refusal("must be tabular, or a table {command: …, files: …}")
    return Trainer.model_validate(value)


def _storage(value: Any) -> str:
    """Errors of type `storage_url` are shown without the value: it may hold a password."""
    try:
        return check_storage(str(value))
    except ValueError as error:
        raise PydanticCustomError("storage_url", "{text}", {"text": str(error)}) from None


class Study(Section):
    """A study file."""

    name: StudyName
    regions: Regions
    data: DataPlaces = Field(
        [], description="Paths or s3:// URLs; {region} is the region's name, {date} the run's day."
    )
    s3: S3Keys | None = Field(None, description="Needed where data has s3:// URLs.")
    objective: Objective = Field(
        description="What is optimised: a metric of the trainer's result, and which way it is "
        "better, such as {metric: val_auc, direction: maximize}."
    )
    report_metric: MetricName | None = Field(
        None,
        description="Metric in which tuned and default settings are compared (default: the "
        "objective's; with trainer: tabular, of val_NAME it is test_NAME, by which no trial was "
        "chosen).",
    )
    report_direction: Direction | None = Field(
        None, description="Which way report_metric is better (default: as the objective)."
    )
    search_space: SearchSpace = Field(
        description="Parameters and constants by name, in the order of the study file, such as "
        "{dropout: {type: float, low: 0.0, high: 0.5}, epochs: 10}."
    )
    budget: Budget = Budget()
    parallel_regions: int | None = Field(
        None, ge=1, description="Regions that run at once (default: all)."
    )
    trainer: Annotated[Literal["tabular"] | Trainer, WrapValidator(_trainer)] = Field(
        description="Write tabular for trialfleet's own network for tables, or "
        "{command: [python3, train.py], files: [train.py]} for a program of your own."
    )
    target: OneLine | None = Field(
        None, description="With trainer: tabular: the column of the CSV or Parquet to predict."
    )
    table: TableOptions | None = Field(
        None, description="With trainer: tabular: how CSV and Parquet files are read."
    )
    resources: Resources = Resources()
    accelerator: Accelerator = Field(
        "auto", description="auto: gpu where the fleet or a slot of the pool has one, else cpu."
    )
    usd_per_hour: float | None = Field(
        None,
        gt=0,
        description="USD per hour of a whole node that doesn't say its price: of a machine of your "
        "own. Nodes of a fleet say theirs.",
    )
    team: TeamName | None = Field(
        None, description="Whom the study's costs are put to: trialfleet cost --by team."
    )
    python: OneLine | None = Field(
        None,
        description="What `python3` in a trial is: a path on the nodes, or a name on their PATH "
        "(default: with a pool on this machine alone, the Python that plans the run). With image, "
        "a path or a name in it (default: python3).",
    )
    image: Image | None = Field(
        None,
        description="The container image that trials run in: docker://REPOSITORY/NAME:TAG, or the "
        "path of a .sif file, which HTCondor sends; docs/trainers.md (default: none).",
    )
    retries: int = Field(2, ge=0, le=100, description="Further attempts at a trial that fails.")
    storage: Annotated[str, BeforeValidator(_storage)] | None = Field(
        None,
        repr=False,  # it may hold a password
        description="Optuna RDB URL: sqlite:///PATH, or "
        "postgresql+psycopg://USER:PASSWORD@HOST/DATABASE (default: RUN/study.db).",
    )
    publish: Annotated[OneLine, AfterValidator(check_publish)] = Field(
        DEFAULT_FOLDER,
        description="Folder that models are published in, as STUDY/REGION/RUN-ID. "
        "s3://BUCKET/PREFIX: the folder models, with a copy there. none: only the trials run; "
        "there is no full training and no model.",
    )
    keep: Keep | None = Field(
        None, description="Which of a region's published models stay (default: all)."
    )
    seed: int = Field(
        0, ge=0, lt=2**31, description="Seeds the sampler, the trials and the split of tables."
    )
    sampler: Sampler = Field(
        OWN,
        description="What proposes parameters once the start-up trials are asked: our own "
        "Gaussian process, or one of Optuna's samplers.",
    )
    learn_from: list[OneLine] | None = Field(
        None,
        max_length=10,
        description="Studies by name, or runs, whose results the sampler learns from; [] for none "
        "(default: the newest run of this study, where there is one).",
    )
    early_stopping: EarlyStopping | None = Field(
        None,
        description="Tells trials to stop whose reports say that they won't become their region's "
        "best; {} takes the defaults.",
    )
    gate: Gate | None = Field(
        None,
        description="Measures each new model against the one in force, on the same rows, before "
        "latest is switched to it; {} takes the defaults.",
    )
    export: Export | None = Field(
        None, description="Where published models go beside; docs/exports.md."
    )
    fleet: Fleet | None = Field(None, description="EC2 instances for the trials.")
    daily: Daily | None = Field(None, description="When it runs each day: trialfleet daily.")
    checks: Checks | None = Field(
        None,
        description="With trainer: tabular and daily: what becomes of a region whose new table is "
        "unlike those of its past days (default: each check warns); docs/daily.md.",
    )
    notify: list[Channel] = Field(
        [],
        description="Who hears of failures, of models kept out, of the day's end; docs/alerts.md.",
    )

    @model_validator(mode="after")
    def _keys_go_together(self) -> Self:
        if problems := [*self._of_metrics(), *self._of_absent_parts(), *self._of_pairs()]:
            refuse("Study", problems)
        return self

    def _of_metrics(self) -> Iterator[Refused]:
        """The directions that no metric goes with, or another direction of the same metric."""
        own, objective, gate = self.report_direction, self.objective, self.gate
        if own and self.report_metric is None:
            yield ("report_direction",), "names no metric: give report_metric too", own
        elif own and self.report_metric == objective.metric and own != objective.direction:
            text = f"{objective.metric!r} is the objective, which is to be {objective.direction}d"
            yield ("report_direction",), text, own
        if gate and gate.direction and gate.metric is None:
            yield ("gate", "direction"), "names no metric: give gate.metric too", gate.direction

    def _of_absent_parts(self) -> Iterator[Refused]:
        """The parts that are of the reference trainer, or of published models, without these."""
        if self.trainer != "tabular":
            text = "goes with trainer: tabular; leave it out, your trainer reads its own data"
            yield from (((name,), text, {}) for name in self._given("target", "table", "checks"))
        elif self.checks and not self.daily:
            yield ("checks",), "compares days, and there is no daily:; leave it out", {}
        if not self.publishes:
            text = "is for published models, and publish is none; leave one of them out"
            yield from (((name,), text, {}) for name in self._given("gate", "keep", "export"))
        if self.daily and not self.publishes:
            text = "none leaves a day without models, and daily: is for them; leave one of them out"
            yield ("publish",), text, self.publish

    def _of_pairs(self) -> Iterator[Refused]:
        """The values of which one excludes the other."""
        if self.export and self.export.s3 and self.publish.startswith(URL_PREFIXES):
            text = "is in publish already; leave one of them out"
            yield ("export", "s3"), text, self.export.s3
        if self.has_gangs and self.resources.trials_per_gpu > 1:
            text = "must be a whole number with nodes: a rank has its GPUs for itself"
            yield ("resources", "gpus"), text, self.resources.gpus
        if self.image and self.python and "/" in self.python and not self.python.startswith("/"):
            text = "is a path in the image, so it begins with /; or a name on its PATH"
            yield ("python",), text, self.python
        if self.learn_from and self.sampler != OWN:
            text = f"is for sampler: {OWN}; {self.sampler} begins anew in every run"
            yield ("learn_from",), text, self.learn_from

        if self.daily and self.daily.takeover_after:
            yield from self._of_two_managers(self.daily.takeover_after)

    def _of_two_managers(self, after: str) -> Iterator[Refused]:
        """What the second of two managers would lack of the first."""
        key = ("daily", "takeover_after")
        if not (self.storage or "").startswith("postgresql"):
            text = "needs storage: postgresql+psycopg://… that both managers reach"
            yield key, text, after
        in_s3 = self.publish.startswith(URL_PREFIXES) or (self.export and self.export.s3)
        if not in_s3:
            yield key, "needs the models in S3: publish: s3://BUCKET/PREFIX", after

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name) is not None]

    @property
    def publishes(self) -> bool:
        """Whether the best settings are trained in full and published."""
        return self.publish != NO_MODELS

    @property
    def has_gangs(self) -> bool:
        """Whether trainings of a region, or of all, are spread over several slots."""
        return bool(gangs_of(self.resources, self.regions))

    @property
    def gangs_use_s3(self) -> bool:
        """Whether checkpoints of gangs lie in S3."""
        return any(gang.checkpoints for gang in gangs_of(self.resources, self.regions))

    def nodes_of(self, region: str) -> Gang | None:
        """How many slots a training of a region is spread over; None: it has one."""
        return self.region(region).nodes or self.resources.nodes

    @property
    def shares(self) -> int | None:
        """The number of trials that share a GPU; None for trials that have none."""
        return shares_of(self.accelerator, self.resources, self.fleet)

    @property
    def listed_regions(self) -> dict[str, Region]:
        """The regions that the file names; none where it has a glob for them."""
        if isinstance(self.regions, RegionGlob):
            return {}
        return {name: region or Region() for name, region in self.regions.items()}

    # -- its day -------------------------------------------------------------------------------

    @property
    def is_dated(self) -> bool:
        """Whether its data is another each day."""
        given = [self.data, *(region.data or [] for region in self.listed_regions.values())]
        return any(DATE in pattern for patterns in given for pattern in patterns)

    def dated(self, day: date | None) -> tuple[Study, date | None]:
        """Return the study with a day in the place of `{date}`, and that day.

        Args:
            day: None: today in the study's zone, and none where no data names it.
        """
        if not self.is_dated:
            return self, day
        zone = self.daily.tzinfo if self.daily else None
        day = day or datetime.now(UTC).astimezone(zone).date()
        regions = {name: one.dated(str(day)) for name, one in self.listed_regions.items()}
        data = [pattern.replace(DATE, str(day)) for pattern in self.data]
        return self.model_copy(update={"data": data, "regions": regions or self.regions}), day

    def absent(self, folder: Path) -> dict[str, str]:
        """Return the regions whose data isn't there, and which path that is."""
        found = {
            name: absent_data(name, region.data_or(self.data), folder)
            for name, region in self.listed_regions.items()
        }
        return {name: path for name, path in found.items() if path}

    def without(self, names: Collection[str]) -> Study:
        """Return the study without some of its regions."""
        if isinstance(self.regions, RegionGlob):
            return self
        kept = {name: own for name, own in self.regions.items() if name not in names}
        return self.model_copy(update={"regions": kept})

    # -- the normal form ---------------------------------------------------------------------

    def resolve(self, folder: Path) -> Study:
        """Return the normal form: regions by name, paths absolute.

        Args:
            folder: what relative paths are relative to: the study file's folder.

        Raises:
            InputError: a file doesn't exist or can't be used, a glob matches none, or a region's
                overrides don't go with the study; names the key.
        """
        return resolution.resolved(self, folder)

    def channels(self, folder: Path) -> list[Channel]:
        """Return who is notified, with absolute paths.

        Raises:
            UnusableStudyError: a file can't be read, or a program can't be run.
        """
        return [each.resolve(folder, ("notify", i)) for i, each in enumerate(self.notify)]

    # -- a region of the normal form ---------------------------------------------------------

    @property
    def region_table(self) -> dict[str, Region]:
        """The regions of a resolved study, by name."""
        assert isinstance(self.regions, dict), "the study is not resolved"
        return self.listed_regions

    @property
    def compared_metric(self) -> str:
        """The metric in which tuned and default settings are compared.

        The best of many trials looks better than it is on the rows by which it was chosen; the
        reference trainer measures each trial on others, too.
        """
        metric = self.objective.metric
        if self.trainer == "tabular" and metric.startswith("val_"):
            metric = "test_" + metric.removeprefix("val_")
        return self.report_metric or metric

    @property
    def compared_direction(self) -> Direction:
        """Which way the compared metric is better."""
        return self.report_direction or self.objective.direction

    def region(self, name: str) -> Region:
        """One of `region_table`, which itself is made anew each time."""
        assert isinstance(self.regions, dict), "the study is not resolved"
        return self.regions[name] or Region()

    def data_of(self, region: str) -> list[str]:
        """Absolute paths and URLs of a region's data."""
        return self.region(region).data or []

    def space_of(self, region: str) -> SearchSpace:
        """The search space of a region: the study's, with the region's entries in their places.

        Raises:
            InputError: the region's entries make a space that can't be searched; names the keys.
        """
        own = self.region(region).search_space
        if not own:
            return self.search_space
        try:
            return SearchSpace.model_validate({**self.search_space.root, **own})
        except ValidationError as error:
            raise UnusableStudyError(*_space_problems(error, region, own)) from error

    def budget_of(self, region: str) -> Budget:
        """The budget of a region: the study's, with the region's own figures in their places."""
        own = self.region(region).budget
        return self.budget.model_copy(update=own.model_dump(exclude_none=True) if own else {})

    @property
    def has_budget_in_usd(self) -> bool:
        """Whether a region of a resolved study, or all of them, have a budget in USD."""
        return any(self.budget_of(name).in_usd for name in self.region_table)


def shares_of(accelerator: Accelerator, resources: Resources, fleet: Fleet | None) -> int | None:
    """Return how many of a study's trials share a GPU; None for trials that have none.

    Where the choice is left to the pool, the study's fleet brings the pool's GPUs.
    """
    if accelerator == "auto":
        accelerator = "gpu" if fleet and fleet.brings_gpus else "cpu"
    return resources.trials_per_gpu if accelerator == "gpu" else None


def _space_problems(error: ValidationError, region: str, own: Mapping[str, Any]) -> list[Problem]:
    """The problems of a region's space, each at the entry of the region's or the study's file."""
    problems = []
    for detail in error.errors(include_url=False):
        place = detail["loc"]
        at_region = not place or place[0] in own
        keys: Keys = ("regions", region, "search_space") if at_region else ("search_space",)
        problems.append(Problem((*keys, *place), f"region {region!r}: {detail['msg']}"))
    return problems
