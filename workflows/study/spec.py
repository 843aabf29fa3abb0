"""`Study`, the validated content of a `study.yaml`: its top keys, and which keys go together.

`Study.resolve` returns a study's normal form: each region is listed by name with its own data and
overrides, and every path is absolute. The normal form is itself a valid study. Planning a run
writes it into `RUN/study.json`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.objective import Direction
from trialfleet.optimizer.sampling.names import OWN, Sampler
from trialfleet.optimizer.space import SearchSpace
from trialfleet.sections import Count, OneLine, Positive, Refused, Section, refusal
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
    check_storage,
)
from trialfleet.workflows.study.regions import Regions, list_gangs
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
    """Validate `tabular` or a table. A union in pydantic would report the errors of both."""
    if value == "tabular":
        return value
    if not isinstance(value, Mapping | Trainer):
        raise refusal("must be `tabular`, or a table {command: …, files: …}")
    return Trainer.model_validate(value)


def _storage(value: Any) -> str:
    """Validate the trial database's URL. Errors omit it, because it may contain a password."""
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
    s3: S3Keys | None = Field(None, description="Required for data with s3:// URLs.")
    objective: Objective = Field(
        description="A metric of the trainer's result and its direction, such as "
        "{metric: val_auc, direction: maximize}."
    )
    report_metric: MetricName | None = Field(
        None,
        description="Metric that compares tuned with default settings. Default: the objective's "
        "metric; with trainer: tabular, test_NAME instead of val_NAME, because no "
        "trial is chosen by a test metric.",
    )
    report_direction: Direction | None = Field(
        None, description="Direction of report_metric (default: the objective's)."
    )
    search_space: SearchSpace = Field(
        description="Parameters and constants by name, in the order of the study file, such as "
        "{dropout: {type: float, low: 0.0, high: 0.5}, epochs: 10}."
    )
    budget: Budget = Budget()
    parallel_regions: Count | None = Field(
        None, description="Maximum number of regions that run at once (default: all)."
    )
    trainer: Annotated[Literal["tabular"] | Trainer, WrapValidator(_trainer)] = Field(
        description="Write tabular for the built-in network for tables, or "
        "{command: [python3, train.py], files: [train.py]} for your own program."
    )
    target: OneLine | None = Field(
        None, description="With trainer: tabular: the column of the CSV or Parquet to predict."
    )
    table: TableOptions | None = Field(
        None, description="With trainer: tabular: how CSV and Parquet files are read."
    )
    resources: Resources = Resources()
    accelerator: Accelerator = Field(
        "auto", description="auto: gpu if the fleet or a slot of the pool has one, otherwise cpu."
    )
    usd_per_hour: Positive | None = Field(
        None,
        description="Price of a whole node in USD per hour, for nodes that do not advertise one, "
        "such as your own machines. Nodes of a fleet advertise theirs.",
    )
    team: TeamName | None = Field(
        None, description="Team that the study's costs are charged to: trialfleet cost --by team."
    )
    python: OneLine | None = Field(
        None,
        description="The interpreter that `python3` in a trial means: a path on the nodes, or a "
        "name on their PATH; with image, a path or a name in the image (default with "
        "image: python3; in a pool on this machine only: the Python that plans the "
        "run).",
    )
    image: Image | None = Field(
        None,
        description="Container image of the trials: docker://REPOSITORY/NAME:TAG, or the path of "
        "a .sif file, which HTCondor transfers; docs/trainers.md (default: none).",
    )
    retries: int = Field(2, ge=0, le=100, description="Further attempts after a trial fails.")
    storage: Annotated[str, BeforeValidator(_storage)] | None = Field(
        None,
        repr=False,  # it may hold a password
        description="Optuna RDB URL: sqlite:///PATH, or "
        "postgresql+psycopg://USER:PASSWORD@HOST/DATABASE, which needs the package "
        "psycopg[binary] on the manager (default: RUN/study.db).",
    )
    publish: Annotated[OneLine, AfterValidator(check_publish)] = Field(
        DEFAULT_FOLDER,
        description="Folder for published models; a model's path in it is STUDY/REGION/RUN-ID. "
        "With s3://BUCKET/PREFIX, the models are in the folder models, and each is also "
        "copied to S3. With none, the study only tunes: it has no full training and "
        "no model.",
    )
    keep: Keep | None = Field(
        None, description="Which of a region's published models are kept (default: all)."
    )
    seed: int = Field(
        0, ge=0, lt=2**31, description="Seeds the sampler, the trials and the split of tables."
    )
    sampler: Sampler = Field(
        OWN,
        description="Sampler that proposes parameters after the start-up trials: the built-in "
        "Gaussian process (RegionSampler), or one of Optuna's samplers.",
    )
    learn_from: list[OneLine] | None = Field(
        None,
        max_length=10,
        description="Up to ten names of studies or runs from whose results RegionSampler learns; "
        "[]: none (default: a recent run of this study, if there is one).",
    )
    early_stopping: EarlyStopping | None = Field(
        None,
        description="Stops trials early if their reports predict that they won't become their "
        "region's best; {}: the defaults.",
    )
    gate: Gate | None = Field(
        None,
        description="Compares each new model with the current model on the same rows, before the "
        "link latest moves to the new model; {}: the defaults.",
    )
    export: Export | None = Field(
        None, description="Additional destinations of published models; docs/exports.md."
    )
    fleet: Fleet | None = Field(None, description="EC2 instances for the trials.")
    daily: Daily | None = Field(None, description="Schedule of daily runs: trialfleet daily.")
    checks: Checks | None = Field(
        None,
        description="With trainer: tabular and daily: the reactions if a region's new table "
        "differs from the region's tables of past days (default: each check warns); "
        "docs/daily.md.",
    )
    notify: list[Channel] = Field(
        [],
        description="Receivers of alerts on failures, rejected models and the end of a day; "
        "docs/alerts.md.",
    )

    def problems(self) -> Iterator[Refused]:
        """Yield each key that contradicts another, or lacks a key that it requires."""
        yield from self._metric_problems()
        yield from self._absent_part_problems()
        yield from self._pair_problems()

    def _metric_problems(self) -> Iterator[Refused]:
        objective, gate = self.objective, self.gate or Gate()
        known = {self.report_metric: ("report_metric", self.compared_direction)}
        known[objective.metric] = "the objective", objective.direction
        given = (
            (("report_direction",), self.report_direction, "report_metric", self.report_metric),
            (("gate", "direction"), gate.direction, "gate.metric", gate.metric),
        )
        for keys, own, key, metric in given:
            whose, right = known.get(metric, ("", own))
            if own and metric is None:
                yield keys, f"requires {key}", own
            elif own and own != right:
                yield keys, f"contradicts {whose} {metric!r}, which is {right}d", own

    def _absent_part_problems(self) -> Iterator[Refused]:
        if self.trainer != "tabular":
            text = (
                "requires `trainer: tabular`; leave it out, because your trainer reads its own data"
            )
            yield from (
                ((name,), text, {}) for name in self._given_names("target", "table", "checks")
            )
        elif self.checks and not self.daily:
            yield ("checks",), "requires a `daily:` table; add one, or leave `checks` out", {}
        if not self.publishes:
            text = "requires published models, but `publish` is `none`; leave one of them out"
            yield from (((name,), text, {}) for name in self._given_names("gate", "keep", "export"))
        for i, channel in enumerate(self.notify):
            if channel.events == ["day-done"] and not self.daily:
                text = "day-done requires a `daily:` table; name other events, such as run-done"
                yield ("notify", i, "events"), text, channel.events
        if self.daily and not self.publishes:
            text = "`daily` requires published models; leave `publish: none` or `daily` out"
            yield ("publish",), text, self.publish

    def _pair_problems(self) -> Iterator[Refused]:
        if self.export and self.export.s3 and self.publish.startswith(URL_PREFIXES):
            text = "`publish` already names a place in S3; leave one of the two out"
            yield ("export", "s3"), text, self.export.s3
        if self.has_gangs and self.resources.trials_per_gpu > 1:
            text = "must be a whole number with `nodes`, because a gang's jobs don't share GPUs"
            yield ("resources", "gpus"), text, self.resources.gpus
        if self.image and self.python and "/" in self.python and not self.python.startswith("/"):
            text = "must be an absolute path in the image, or a name on its PATH"
            yield ("python",), text, self.python
        if self.learn_from and self.sampler != OWN:
            text = f"requires sampler: {OWN}; {self.sampler} cannot use earlier results"
            yield ("learn_from",), text, self.learn_from

        if self.daily and self.daily.wait_for_data and not self._has_data:
            text = "requires data; leave it out, or name the data that is awaited in `data`"
            yield ("daily", "wait_for_data"), text, self.daily.wait_for_data
        if self.daily and self.daily.takeover_after:
            yield from self._takeover_problems(self.daily.takeover_after)

    def _takeover_problems(self, after: str) -> Iterator[Refused]:
        key = ("daily", "takeover_after")
        if not (self.storage or "").startswith("postgresql"):
            text = "requires storage: postgresql+psycopg://…, which both managers reach"
            yield key, text, after
        in_s3 = self.publish.startswith(URL_PREFIXES) or (self.export and self.export.s3)
        if not in_s3:
            yield key, "requires models in S3: publish: s3://BUCKET/PREFIX", after

    @property
    def _has_data(self) -> bool:
        regions = self.listed_regions.values()  # none with a glob, whose files are the data
        return not regions or any(region.data_or(self.data) for region in regions)

    def _given_names(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name) is not None]

    @property
    def publishes(self) -> bool:
        """True if the model with each region's best settings is trained in full and published."""
        return self.publish != NO_MODELS

    @property
    def has_gangs(self) -> bool:
        """True if some region trains each model on several slots (a gang)."""
        return bool(list_gangs(self.resources, self.regions))

    @property
    def gangs_use_s3(self) -> bool:
        """True if checkpoints of gangs (trainings over several slots) are stored in S3."""
        return any(gang.checkpoints for gang in list_gangs(self.resources, self.regions))

    def region_gang(self, region: str) -> Gang | None:
        """Return how many slots train a model of `region` together; None for a single slot."""
        return self.region(region).nodes or self.resources.nodes

    @property
    def shares(self) -> int | None:
        """The number of trials that share a GPU; None for trials without a GPU."""
        return trials_per_gpu(self.accelerator, self.resources, self.fleet)

    @property
    def listed_regions(self) -> dict[str, Region]:
        """The regions that the study file names; empty if a glob of data files defines them."""
        if isinstance(self.regions, RegionGlob):
            return {}
        return {name: region or Region() for name, region in self.regions.items()}

    # -- its day -------------------------------------------------------------------------------

    @property
    def is_dated(self) -> bool:
        """True if a path of the study's data contains `{date}`."""
        given = [self.data, *(region.data or [] for region in self.listed_regions.values())]
        return any(DATE in pattern for patterns in given for pattern in patterns)

    def fill_date(self, day: date | None) -> tuple[Study, date | None]:
        """Return the study with a day in place of `{date}` in its data, and this day.

        If `day` is None, the day is today in the time zone of `daily` (default: the machine's). If
        no data path contains `{date}`, study and `day` are returned unchanged.
        """
        if not self.is_dated:
            return self, day
        zone = self.daily.tzinfo if self.daily else None
        day = day or datetime.now(UTC).astimezone(zone).date()
        regions = {name: one.fill_date(str(day)) for name, one in self.listed_regions.items()}
        data = [pattern.replace(DATE, str(day)) for pattern in self.data]
        return self.model_copy(update={"data": data, "regions": regions or self.regions}), day

    def without_regions(self, names: Collection[str]) -> Study:
        """Return the study without the regions `names`; unchanged if a glob defines its regions."""
        if isinstance(self.regions, RegionGlob):
            return self
        kept = {name: own for name, own in self.regions.items() if name not in names}
        return self.model_copy(update={"regions": kept})

    # -- the normal form ---------------------------------------------------------------------

    def resolve(self, folder: Path) -> Study:
        """Return the normal form: regions by name, and absolute paths.

        `folder` is the base of the study's relative paths. InputError, with the key, if a file
        can't be used, a glob has no matches, or the settings of a region contradict those of the
        study.
        """
        return resolution.resolve_study(self, folder)

    def channels(self, folder: Path) -> list[Channel]:
        """Return the alert channels, with absolute paths; UnusableStudyError if one is unusable."""
        return [each.resolve(folder, ("notify", i)) for i, each in enumerate(self.notify)]

    # -- a region of the normal form ---------------------------------------------------------

    @property
    def region_table(self) -> dict[str, Region]:
        """The regions by name. The study must be in the normal form that `resolve` returns."""
        assert isinstance(self.regions, dict), "the study is not resolved"
        return self.listed_regions

    @property
    def compared_metric(self) -> str:
        """The metric by which tuned settings are compared with default settings.

        For `trainer: tabular`, the default is the metric on the test rows. On the validation rows,
        the best trial is partly lucky, because it was chosen by them.
        """
        metric = self.objective.metric
        if self.trainer == "tabular" and metric.startswith("val_"):
            metric = "test_" + metric.removeprefix("val_")
        return self.report_metric or metric

    @property
    def compared_direction(self) -> Direction:
        """The direction of `compared_metric`: minimize or maximize."""
        return self.report_direction or self.objective.direction

    def region(self, name: str) -> Region:
        """Return one region of `region_table`, without building the whole table."""
        assert isinstance(self.regions, dict), "the study is not resolved"
        return self.regions[name] or Region()

    def data_paths(self, region: str) -> list[str]:
        """Return the absolute paths and the URLs of a region's data."""
        return self.region(region).data or []

    def region_space(self, region: str) -> SearchSpace:
        """Return a region's whole search space; UnusableStudyError, with the keys, if invalid."""
        own = self.region(region).search_space
        if not own:
            return self.search_space
        try:
            return SearchSpace.model_validate({**self.search_space.root, **own})
        except ValidationError as error:
            raise UnusableStudyError(*_space_problems(error, region, own)) from error

    def region_budget(self, region: str) -> Budget:
        """Return a region's budget: the study's, with the values that the region sets itself."""
        own = self.region(region).budget
        return self.budget.model_copy(update=own.model_dump(exclude_none=True) if own else {})

    @property
    def has_budget_in_usd(self) -> bool:
        """True if any region has a limit in USD. The study must be in the normal form."""
        return any(self.region_budget(name).in_usd for name in self.region_table)


def trials_per_gpu(
    accelerator: Accelerator, resources: Resources, fleet: Fleet | None
) -> int | None:
    """Return the number of a study's trials that share a GPU; None for trials without a GPU.

    With `accelerator: auto`, trials have GPUs if the study's fleet has GPUs.
    """
    if accelerator == "auto":
        accelerator = "gpu" if fleet and fleet.brings_gpus else "cpu"
    return resources.trials_per_gpu if accelerator == "gpu" else None


def _space_problems(error: ValidationError, region: str, own: Mapping[str, Any]) -> list[Problem]:
    problems = []
    for detail in error.errors(include_url=False):
        place = detail["loc"]
        at_region = not place or place[0] in own
        keys: Keys = ("regions", region, "search_space") if at_region else ("search_space",)
        problems.append(Problem((*keys, *place), f"region {region!r}: {detail['msg']}"))
    return problems
