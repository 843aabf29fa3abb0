"""The normal form of a study: regions with their own data, absolute paths, start-up trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trialfleet.errors import join_names
from trialfleet.infra.fleet.spec.fleet import Fleet, Gangs
from trialfleet.optimizer.sampling.startup_count import default_startup
from trialfleet.spelling import did_you_mean
from trialfleet.workflows.names import NO_MODELS, check_region_name
from trialfleet.workflows.study.checks import URL_PREFIXES
from trialfleet.workflows.study.export import DEFAULT_FOLDER, Export
from trialfleet.workflows.study.image import resolved_image
from trialfleet.workflows.study.paths import (
    ABSENT,
    AbsentError,
    Keys,
    Problem,
    UnusableStudyError,
    absolute_storage,
    check_content,
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

_GLOB: Keys = ("regions", "glob")
_SHOWN = 5  # number of regions to name in a message


def resolve_study(study: Study, folder: Path) -> Study:
    """Return the normal form of a study: regions by name, and absolute paths.

    `folder` is the base of relative paths. The errors are those of `Study.resolve`.
    """
    regions, errors = _find_regions(study, folder)
    if errors:
        raise _join_errors(study, errors, folder)
    return _resolve_rest(study, regions, folder)


def resolve_usable(study: Study, folder: Path) -> tuple[Study | None, dict[str, str]]:
    """Return the normal form of the regions whose data can be used, and why the others' can't.

    The study is None if no region's data can be used. The errors are those of `Study.resolve`.
    """
    regions, errors = _find_regions(study, folder)
    unusable = {_recordable(name): _why_unusable(error) for name, error in errors.items()}
    usable = study.without_regions(errors)
    return (_resolve_rest(usable, regions, folder) if regions else None), unusable


def _why_unusable(error: UnusableStudyError) -> str:
    if isinstance(error, AbsentError):
        return f"{ABSENT}: {error.path}"
    return f"can't be used: {'; '.join(each.message for each in error.problems)}"


def _resolve_rest(study: Study, regions: dict[str, Region], folder: Path) -> Study:
    """Return the normal form of a study with these `regions`."""
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


def _find_regions(
    study: Study, folder: Path
) -> tuple[dict[str, Region], dict[str, UnusableStudyError]]:
    """Return the regions whose data can be used, and the others' errors, which don't name them."""
    regions: dict[str, Region] = {}
    errors: dict[str, UnusableStudyError] = {}
    known_faults: dict[str, str] = {}
    for name, region in _given_regions(study, folder).items():
        try:
            regions[name] = _region(study, name, region, folder, known_faults)
        except UnusableStudyError as error:
            errors[name] = error
    return regions, errors


def _recordable(name: str) -> str:
    """Return a region's name, quoted if it comes from a file whose name can't be a region's."""
    try:
        return check_region_name(name)
    except ValueError:
        return repr(name)


def _given_regions(study: Study, folder: Path) -> Mapping[str, Region | str]:
    """Return the regions that the study file lists, or the files of a glob, by region."""
    if not isinstance(study.regions, RegionGlob):
        return study.listed_regions
    if study.data:
        text = "with `regions: {glob: …}` the matching files are the data; leave `data` out"
        raise UnusableStudyError(Problem(("data",), text))
    return regions_of_glob(study.regions.glob, folder, _GLOB)


def _join_errors(
    study: Study, errors: Mapping[str, UnusableStudyError], folder: Path
) -> UnusableStudyError:
    table = study.listed_regions
    absent: dict[Problem, str] = {}  # the first region of each problem: data may be shared
    others: dict[Problem, str] = {}
    for name, error in errors.items():
        found = absent if isinstance(error, AbsentError) and name in table else others
        for problem in error.problems:
            found.setdefault(problem, name)
    others_named = [_of_region(name, problem) for problem, name in others.items()]
    if absent:
        path = next(error.path for error in errors.values() if isinstance(error, AbsentError))
        return AbsentError(*_absent_problems(study, absent, folder), *others_named, path=path)
    return UnusableStudyError(*others_named)


def _of_region(region: str, problem: Problem, more: str = "") -> Problem:
    return Problem(problem.keys, f"region {region!r}: {problem.message}{more}")


def _absent_problems(
    study: Study, absent: Mapping[Problem, str], folder: Path
) -> Iterator[Problem]:
    """Yield the problems of regions without data.

    A region whose name seems misspelt has a problem of its own. The others share one problem per
    key.
    """
    table = study.listed_regions
    others: dict[Keys, list[tuple[str, Problem]]] = {}
    spelt: dict[str, list[str]] = {}  # by pattern: names with data that are no region
    for problem, region in absent.items():
        pattern = table[region].data_or(study.data)[int(problem.keys[-1])]
        if pattern not in spelt:
            spelt[pattern] = sorted({*regions_with_data(pattern, folder)} - {*table})
        if guess := did_you_mean(region, spelt[pattern]):
            yield _of_region(region, problem, guess)
        else:
            others.setdefault(problem.keys, []).append((region, problem))
    for (region, problem), *rest in others.values():
        more = [repr(other) for other, _ in rest]
        nor = f"; the data of {join_names(more, _SHOWN)} doesn't exist either" if more else ""
        yield _of_region(region, problem, nor)


def _region(
    study: Study, name: str, given: Region | str, folder: Path, known_faults: dict[str, str]
) -> Region:
    """Return a region with absolute paths; `given` is its entry in the file, or a glob's file."""
    keys = _data_keys(study, name)
    if isinstance(given, str):
        region = Region(data=[_glob_file(name, given, folder)])
    else:
        data = region_data(name, given.data_or(study.data), folder, keys)
        region = given.model_copy(update={"data": data})
    if isinstance(study.trainer, Trainer):  # the built-in trainer's tables are written by plan
        check_content(region.data or [], keys, known_faults)
    return region


def _glob_file(name: str, file: str, folder: Path) -> str:
    try:
        check_region_name(name)
    except ValueError as error:
        raise UnusableStudyError(Problem(_GLOB, f"{file!r}: {error}")) from error
    return find_path(file, folder, _GLOB)


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
    if isinstance(study.regions, RegionGlob):
        return _GLOB
    own = study.regions.get(region)  # `listed_regions` would be made again for each region
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
