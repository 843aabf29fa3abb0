"""The normal form of a study: regions with their own data, absolute paths, start-up trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trialfleet.errors import join_names
from trialfleet.infra.fleet.spec.fleet import Fleet, Gangs
from trialfleet.optimizer.sampling.startup_count import default_startup
from trialfleet.spelling import did_you_mean
from trialfleet.workflows.names import NO_MODELS
from trialfleet.workflows.study.checks import URL_PREFIXES
from trialfleet.workflows.study.export import DEFAULT_FOLDER, Export
from trialfleet.workflows.study.image import resolved_image
from trialfleet.workflows.study.paths import (
    AbsentError,
    Keys,
    Problem,
    UnusableStudyError,
    absolute_storage,
    check_links,
    find_path,
    named_program,
    region_data,
    regions_with_data,
    sandbox_name,
    writable_folder,
)
from trialfleet.workflows.study.regions import regions_of_glob
from trialfleet.workflows.study.sections import (
    BudgetOverride,
    Region,
    RegionGlob,
    S3Keys,
    Trainer,
    startup_problem,
)
from trialfleet.workflows.study.trainer_command import command_problems

if TYPE_CHECKING:
    from trialfleet.workflows.study.spec import Study

_SHOWN = 5  # number of regions to name in a message


def resolve_study(study: Study, folder: Path) -> Study:
    """Return the normal form of a study: regions by name, and absolute paths.

    `folder` is the base of relative paths. The errors are those of `Study.resolve`.
    """
    regions = _regions(study, folder)
    _check_s3_keys(study, regions)
    normal = study.model_copy(
        update={
            "regions": regions,
            "data": [],
            "trainer": _trainer(study, folder),
            "image": study.image and resolved_image(study.image, folder),
            "python": study.python and named_program(study.python, folder),
            "storage": study.storage and absolute_storage(study.storage, folder, ("storage",)),
            **resolve_publishing(study, folder),
            "fleet": study.fleet
            and studys_fleet(study.fleet, study.name, study.shares, gangs=study.has_gangs),
            "notify": study.channels(folder),
        }
    )
    _check_command(normal, folder)
    startups = {name: _set_startup_trials(normal, name) for name in regions}
    return normal.model_copy(update={"regions": startups})


def resolve_publishing(study: Study, folder: Path) -> dict[str, Any]:
    """Return the values of `s3`, `publish` and `export` with absolute paths.

    UnusableStudyError if one of them can't be used.
    """
    keys = [(key, find_path(file, folder, ("s3", key))) for key, file in study.s3 or ()]
    return {
        "s3": S3Keys(**dict(keys)) if keys else None,
        "publish": _publish(study, folder),
        "export": _export(study, folder),
    }


def _regions(study: Study, folder: Path) -> dict[str, Region]:
    if isinstance(study.regions, RegionGlob):
        if study.data:
            text = "with `regions: {glob: …}` the matching files are the data; leave `data` out"
            raise UnusableStudyError(Problem(("data",), text))
        found = regions_of_glob(study.regions.glob, folder, ("regions", "glob"))
        return {name: Region(data=[file]) for name, file in found.items()}
    table = study.listed_regions
    whole: dict[str, Region] = {}
    absent: list[_Absent] = []
    problems: list[Problem] = []
    for name, region in table.items():
        try:
            whole[name] = _region(study, name, region, folder)
        except AbsentError as error:
            patterns = region.data_or(study.data)
            absent += [_Absent(name, patterns, problem) for problem in error.problems]
        except UnusableStudyError as error:
            problems += error.problems
    if absent:
        raise AbsentError(*_absent_problems(absent, [*table], folder), *problems)
    if problems:
        raise UnusableStudyError(*dict.fromkeys(problems))
    return whole


class _Absent(NamedTuple):
    region: str
    patterns: list[str]
    problem: Problem

    @property
    def short_message(self) -> str:
        return self.problem.message.removeprefix(f"region {self.region!r}: ")


def _absent_problems(absent: list[_Absent], regions: list[str], folder: Path) -> Iterator[Problem]:
    """Yield the problems of regions without data.

    A region whose name seems misspelt has a problem of its own. The others share one problem per
    key.
    """
    others: dict[Keys, list[_Absent]] = {}
    spelt: dict[str, list[str]] = {}  # by pattern: names with data that are no region
    for each in absent:
        keys = each.problem.keys
        pattern = each.patterns[int(keys[-1])]
        if pattern not in spelt:
            spelt[pattern] = sorted({*regions_with_data(pattern, folder)} - {*regions})
        if guess := did_you_mean(each.region, spelt[pattern]):
            yield Problem(keys, each.problem.message + guess)
        else:
            others.setdefault(keys, []).append(each)
    for keys, (first, *rest) in others.items():
        more = [repr(each.region) for each in rest if each.short_message != first.short_message]
        nor = f"; the data of {join_names(more, _SHOWN)} doesn't exist either" if more else ""
        yield Problem(keys, first.problem.message + nor)


def _region(study: Study, name: str, region: Region, folder: Path) -> Region:
    keys = _data_keys(study, name)
    data = region_data(name, region.data_or(study.data), folder, keys)
    if isinstance(study.trainer, Trainer):  # the built-in trainer's tables are written by plan
        check_links(data, keys)
    return region.model_copy(update={"data": data})


def _publish(study: Study, folder: Path) -> str:
    if not study.publishes:
        return NO_MODELS
    name = DEFAULT_FOLDER if study.publish.startswith(URL_PREFIXES) else study.publish
    return writable_folder(name, folder, ("publish",))


def _export(study: Study, folder: Path) -> Export | None:
    export = study.export and study.export.resolve(folder)
    if not study.publish.startswith(URL_PREFIXES):
        return export
    return (export or Export(s3=study.publish)).model_copy(update={"s3": study.publish})


def _trainer(study: Study, folder: Path) -> Literal["tabular"] | Trainer:
    if not isinstance(study.trainer, Trainer):
        return study.trainer
    place: Keys = ("trainer", "files")
    files = [find_path(file, folder, (*place, i)) for i, file in enumerate(study.trainer.files)]
    return study.trainer.model_copy(update={"files": files})


def _check_s3_keys(study: Study, regions: Mapping[str, Region]) -> None:
    if study.s3:
        return
    for name, region in regions.items():
        for place in region.data or []:
            if place.startswith(URL_PREFIXES):
                raise UnusableStudyError(
                    Problem(
                        _data_keys(study, name),
                        f"{place!r} is in S3, so HTCondor needs keys to read it: add "
                        "`s3: {access_key_id_file: …, secret_access_key_file: …}`",
                    )
                )


def _data_keys(study: Study, region: str) -> Keys:
    own = study.listed_regions.get(region)
    return ("data",) if own is None or own.data is None else ("regions", region, "data")


def _check_command(study: Study, folder: Path) -> None:
    if not isinstance(study.trainer, Trainer):
        return
    data = {sandbox_name(place) for name in study.region_table for place in study.data_paths(name)}
    found = command_problems(study.trainer.command, study.trainer.files, data, folder)
    if problems := [Problem(("trainer", "command", i), text) for i, text in found]:
        raise UnusableStudyError(*problems)


def _set_startup_trials(study: Study, name: str) -> Region:
    """Return region `name` with a number for `startup_trials`.

    The number is stored, so that a release with another default does not change an existing run.
    """
    region, budget, space = study.region(name), study.region_budget(name), study.region_space(name)
    own = region.budget or BudgetOverride()
    if problem := startup_problem(own.startup_trials, budget.trials):
        keys = ("regions", name, "budget", "startup_trials")
        raise UnusableStudyError(Problem(keys, problem))
    if budget.startup_trials is not None:
        return region
    tuned = [entry for entry in space.parameters.values() if entry.count != 1]
    startup = default_startup(budget.trials, len(tuned))
    budget_override = own.model_copy(update={"startup_trials": startup})
    return region.model_copy(update={"budget": budget_override})


def studys_fleet(fleet: Fleet, study: str, shares: int | None, *, gangs: bool = False) -> Fleet:
    """Return `fleet` with defaults from the study: its name, trials per GPU, and support for gangs.

    `shares` is the default for trials per GPU; None if trials need no GPU. UnusableStudyError if
    the fleet's own trials_per_gpu differs from `shares`, because trials would then wait forever.
    """
    if shares and fleet.trials_per_gpu not in {None, shares}:
        text = (
            f"is {fleet.trials_per_gpu}, but resources.gpus requests {shares} trial(s) per GPU; "
            "leave trials_per_gpu out"
        )
        raise UnusableStudyError(Problem(("fleet", "trials_per_gpu"), text))
    name = study.lower().replace("_", "-")[:32].strip("-")
    return fleet.model_copy(
        update={
            "name": name if fleet.name is None else fleet.name,
            "trials_per_gpu": fleet.trials_per_gpu or shares,
            "gangs": fleet.gangs or (Gangs() if gangs else None),
        }
    )
