"""What a study is: regions, data, search space, objective, budget, trainer, resources.

`Study` is what a `study.yaml` holds, validated. `Study.resolve` turns it into its normal form, in
which every region stands by name with its own data and overrides and every path is absolute; the
normal form is itself a valid study, and is what a run freezes in `RUN/study.yaml`.
"""

from __future__ import annotations

import difflib
import glob
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticCustomError

from trialfleet.errors import InputError
from trialfleet.optimizer.space import Entry, SearchSpace
from trialfleet.workflows.names import check_region_name, region_slug

URL_PREFIXES = ("s3://",)


class Section(BaseModel):
    """A part of a study file: frozen, and an unknown key is answered with the known ones."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _name_the_known_keys(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            for key in value:
                if key not in cls.model_fields:
                    raise PydanticCustomError(
                        "unknown_key",
                        "unknown key {key}{guess}; valid keys: {valid}",
                        {
                            "key": repr(key),
                            "guess": _did_you_mean(str(key), list(cls.model_fields)),
                            "valid": ", ".join(cls.model_fields),
                            "at": key,
                        },
                    )
        return value


def _did_you_mean(word: str, choices: list[str]) -> str:
    near = difflib.get_close_matches(word, choices, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _one_line(value: str) -> str:
    if any(ord(c) < 0x20 or ord(c) in {0x7F, 0x85, 0x2028, 0x2029} for c in value):
        raise ValueError(f"{value!r} has a line break or a control character; write it in one line")
    return value


def _transferable(value: str) -> str:
    """HTCondor's list of files to transfer is split at commas and has no quoting."""
    if "," in value or value != value.strip() or "$(" in value or '"' in value:
        raise ValueError(
            f"{value!r} can't be sent by HTCondor's file transfer: "
            "no comma, double quote, '$(' or blank at an end"
        )
    return _one_line(value)


def _expression(value: str) -> str:
    """A ClassAd expression, checked by HTCondor's own parser."""
    import classad2

    _one_line(value)
    if "$(" in value:
        raise ValueError(f"{value!r}: '$(' would be expanded as a macro of the submit file")
    try:
        classad2.ExprTree(value)
    except Exception as error:
        raise ValueError(f"{value!r} is not a ClassAd expression") from error
    return value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


OneLine = Annotated[str, StringConstraints(min_length=1), AfterValidator(_one_line)]
FileName = Annotated[str, StringConstraints(min_length=1), AfterValidator(_transferable)]
Expression = Annotated[str, StringConstraints(min_length=1), AfterValidator(_expression)]
RegionName = Annotated[str, AfterValidator(check_region_name)]
MetricName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.@/-]{0,63}$")]
Size = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)? ?(KB|MB|GB|TB)$")]
FileNames = Annotated[list[FileName], BeforeValidator(_as_list)]


class Objective(Section):
    """What is optimised: a metric of the trainer's result, and whether more of it is better."""

    metric: MetricName
    direction: Literal["minimize", "maximize"]


class Budget(Section):
    """How much a region may spend, and how its trials are spread."""

    trials: int = Field(20, ge=1, le=10_000, description="Trials of a region, failed ones too.")
    lanes: int = Field(4, ge=1, le=1_000, description="Trials of a region in parallel.")
    startup_trials: int | None = Field(
        None, ge=1, description="Trials spread over the space before the model leads (default: 10)."
    )
    hours: float | None = Field(
        None, gt=0, description="After so long since its first trial a region asks for no more."
    )
    failures: int | None = Field(
        None,
        ge=0,
        description="With more trials than this failed for good, a region stops "
        "(default: a quarter of its trials, at least 3).",
    )

    @property
    def startup(self) -> int:
        """Trials before the Gaussian process leads."""
        return min(self.startup_trials or 10, self.trials)

    @property
    def failures_allowed(self) -> int:
        """Trials that may fail for good before the region stops."""
        return max(3, self.trials // 4) if self.failures is None else self.failures


class BudgetOverride(Section):
    """A region's own budget where it differs from the study's."""

    trials: int | None = Field(None, ge=1, le=10_000)
    lanes: int | None = Field(None, ge=1, le=1_000)
    startup_trials: int | None = Field(None, ge=1)
    hours: float | None = Field(None, gt=0)
    failures: int | None = Field(None, ge=0)


class Region(Section):
    """A region's own data, and where it differs from the study."""

    data: FileNames | None = Field(None, description="Paths or s3:// URLs; default: study's data.")
    search_space: dict[str, Entry] | None = Field(
        None, description="Parameters and constants that replace the study's of the same name."
    )
    budget: BudgetOverride | None = None
    priority: int = Field(0, ge=-1_000, le=1_000, description="Higher runs first.")


class RegionGlob(Section):
    """Regions from data files: each file that matches is a region named after what `*` matched."""

    glob: FileName


class Trainer(Section):
    """The program of a trial: any command that keeps the trial's contract."""

    command: Annotated[list[OneLine], BeforeValidator(_as_list), Field(min_length=1)]
    files: FileNames = Field([], description="Files and folders to send along.")
    minutes: float | None = Field(
        None, gt=0, description="A trial that runs longer has failed; it is tried again."
    )


class Resources(Section):
    """What one trial asks of a slot."""

    cpus: int = Field(1, ge=1)
    memory: Size = "2GB"
    disk: Size = "2GB"
    gpus: int = Field(1, ge=1, description="Used with accelerator: gpu.")
    requirements: Expression | None = Field(None, description="A ClassAd expression, e.g. …")
    rank: Expression | None = Field(None, description="A ClassAd expression: higher is preferred.")


class S3Keys(Section):
    """Files on the access point with which HTCondor signs s3:// URLs for the nodes."""

    access_key_id_file: FileName
    secret_access_key_file: FileName


class Study(Section):
    """A study file."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    regions: (
        Annotated[list[RegionName], Field(min_length=1)]
        | RegionGlob
        | Annotated[dict[RegionName, Region | None], Field(min_length=1)]
    )
    data: FileNames = Field([], description="Paths or s3:// URLs; {region} is the region's name.")
    s3: S3Keys | None = Field(None, description="Needed where data has s3:// URLs.")
    objective: Objective
    report_metric: MetricName | None = Field(
        None, description="Metric in which tuned and default settings are compared."
    )
    search_space: SearchSpace
    budget: Budget = Budget()
    parallel_regions: int | None = Field(None, ge=1, description="Regions that run at once.")
    trainer: Literal["tabular"] | Trainer = Field(
        description="'tabular' is the reference trainer; or a command and its files."
    )
    resources: Resources = Resources()
    accelerator: Literal["gpu", "cpu"] = "gpu"
    retries: int = Field(2, ge=0, le=100, description="Further attempts at a trial that fails.")
    storage: OneLine | None = Field(None, description="Optuna RDB URL (default: RUN/study.db).")
    publish: OneLine = Field("models", description="Folder of the published models.")
    seed: int = Field(0, ge=0, lt=2**31)

    @model_validator(mode="after")
    def _regions_can_be_told_apart(self) -> Self:
        if not isinstance(self.regions, RegionGlob):
            names = list(self.regions)
            doubled = sorted({name for name in names if names.count(name) > 1})
            if doubled:
                raise ValueError(f"region {doubled[0]!r} is listed twice")
        return self

    # -- the normal form ---------------------------------------------------------------------

    def resolve(self, folder: Path) -> Study:
        """Return the normal form: regions by name, paths absolute.

        Args:
            folder: what relative paths are relative to: the study file's folder.

        Raises:
            InputError: a data file or trainer file doesn't exist, or a glob matches none.
        """
        regions = {
            name: region.model_copy(
                update={"data": _resolve_data(name, self._patterns(region), folder)}
            )
            for name, region in self._listed_regions(folder).items()
        }
        trainer = self.trainer
        if isinstance(trainer, Trainer):
            files = [str(_existing(file, folder, "trainer.files")) for file in trainer.files]
            trainer = trainer.model_copy(update={"files": files})
        resolved = self.model_copy(
            update={
                "regions": regions,
                "data": [],
                "s3": self._resolve_keys(regions, folder),
                "trainer": trainer,
                "publish": str((folder / self.publish).absolute()),
            }
        )
        for name in regions:
            resolved.space_of(name)  # an override may break the space
        return resolved

    def _resolve_keys(self, regions: Mapping[str, Region], folder: Path) -> S3Keys | None:
        if self.s3:
            return S3Keys(
                access_key_id_file=str(_existing(self.s3.access_key_id_file, folder, "s3")),
                secret_access_key_file=str(_existing(self.s3.secret_access_key_file, folder, "s3")),
            )
        for region in regions.values():
            for place in region.data or []:
                if place.startswith(URL_PREFIXES):
                    raise InputError(
                        f"data: {place!r} needs s3: {{access_key_id_file: …, "
                        "secret_access_key_file: …}, with which HTCondor signs it"
                    )
        return None

    def _listed_regions(self, folder: Path) -> dict[str, Region]:
        if isinstance(self.regions, RegionGlob):
            return _regions_of_glob(self.regions.glob, folder)
        if isinstance(self.regions, list):
            return {name: Region() for name in self.regions}
        return {name: region or Region() for name, region in self.regions.items()}

    def _patterns(self, region: Region) -> list[str]:
        return self.data if region.data is None else region.data

    # -- a region of the normal form ---------------------------------------------------------

    @property
    def region_table(self) -> dict[str, Region]:
        """The regions of a resolved study, by name."""
        assert isinstance(self.regions, dict), "the study is not resolved"
        return {name: region or Region() for name, region in self.regions.items()}

    @property
    def compared_metric(self) -> str:
        """The metric in which tuned and default settings are compared."""
        return self.report_metric or self.objective.metric

    def data_of(self, region: str) -> list[str]:
        """Absolute paths and URLs of a region's data."""
        return self.region_table[region].data or []

    def space_of(self, region: str) -> SearchSpace:
        """The search space of a region: the study's, with the region's entries in their places.

        Raises:
            InputError: the region's entries make a space that can't be searched.
        """
        own = self.region_table[region].search_space
        if not own:
            return self.search_space
        try:
            return SearchSpace.model_validate({**self.search_space.root, **own})
        except ValueError as error:
            raise InputError(f"region {region!r}: search_space: {error}") from error

    def budget_of(self, region: str) -> Budget:
        """The budget of a region: the study's, with the region's own figures in their places."""
        own = self.region_table[region].budget
        return self.budget.model_copy(update=own.model_dump(exclude_unset=True) if own else {})


def _regions_of_glob(pattern: str, folder: Path) -> dict[str, Region]:
    """One region per file that matches, named after what the pattern's one `*` matched."""
    if pattern.count("*") != 1:
        raise InputError(f"regions.glob: {pattern!r} needs exactly one '*': it names the region")
    before, after = (re.escape(part) for part in str(folder.absolute() / pattern).split("*"))
    name_in = re.compile(f"{before}(.*){after}", re.DOTALL)
    files = sorted(glob.glob(glob.escape(str(folder.absolute())) + "/" + pattern))  # noqa: PTH207
    regions: dict[str, Region] = {}
    for file in files:
        if match := name_in.fullmatch(file):
            try:
                name = check_region_name(match[1])
                regions[name] = Region(data=[file])
            except ValueError as error:
                raise InputError(f"regions.glob: {file!r}: {error}") from error
    if not regions:
        raise InputError(f"regions.glob: no file matches {str(folder / pattern)!r}")
    return regions


def _resolve_data(region: str, patterns: list[str], folder: Path) -> list[str]:
    resolved = []
    for pattern in patterns:
        place = pattern.replace("{region}", region)
        if place.startswith(URL_PREFIXES):
            resolved.append(_transferable(place.replace(" ", "%20")))
        else:
            resolved.append(str(_existing(place, folder, f"data of region {region!r}")))
    return resolved


def _existing(name: str, folder: Path, what: str) -> Path:
    path = (folder / name).absolute()
    try:
        _transferable(str(path))
    except ValueError as error:
        raise InputError(f"{what}: {error}") from error
    if not path.exists():
        raise InputError(f"{what}: {str(path)!r} does not exist")
    return path


def slugs_of(study: Study) -> dict[str, str]:
    """Slug of each region of a resolved study; the keys stand in the study's order."""
    return {name: region_slug(name) for name in study.region_table}
