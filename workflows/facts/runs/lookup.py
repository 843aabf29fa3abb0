"""Runs and models by the names that people type, which may be incomplete.

Runs are searched in `./runs` by the names of their folders. This search opens no file, because a
shell's completion must be fast.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trialfleet.errors import InputError, join_names
from trialfleet.files import exists, read_record, shell_quoted
from trialfleet.spelling import did_you_mean
from trialfleet.workflows.facts.models.approval import AWAITING
from trialfleet.workflows.facts.models.folders import (
    LATEST,
    display_name,
    list_models,
    read_provenance,
    read_region_name,
)
from trialfleet.workflows.facts.record_shapes import Published
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.run_folder.run_in_place import load_in_place
from trialfleet.workflows.names import region_slug

RUNS = Path("runs")
_SHOWN = 10  # names in a message
_UNKNOWN = 0.0  # the time of planning of a run that can't be read
# Publish folders here and in the folders of studies, with and without the study's name.
_MODELS_FOLDERS = ("models/{}", "models/*/{}", "*/models/{}", "*/models/*/{}")


@dataclass(frozen=True)
class FoundRun:
    """A run's folder below `./runs`.

    `study` is the name of the folder above; empty if that is `./runs`. `run` is the name of the
    run's folder. `planned` is when the run was planned, in Unix seconds, or `_UNKNOWN`.
    """

    folder: Path
    study: str
    run: str
    planned: float

    @property
    def name(self) -> str:
        """The unique name of the run, STUDY/RUN-ID."""
        return f"{self.study}/{self.run}" if self.study else self.run

    @property
    def is_readable(self) -> bool:
        """True if the time of planning is known."""
        return self.planned != _UNKNOWN

    @property
    def submitted(self) -> bool:
        """True if the run or one of its regions was submitted to HTCondor, or if it is unknown."""
        graphs = ("study.dag.condor.sub", "regions/*/region.dag.condor.sub")
        return not self.is_readable or any(
            True for graph in graphs for _ in self.folder.glob(graph)
        )


def runs_here() -> list[FoundRun]:
    """Return the runs in `./runs`, newest first; last those that can't be read.

    InputError if `./runs` can't be read.
    """
    below = ((RUNS, ""), *((study, study.name) for study in _list_folders(RUNS)))
    found = [
        FoundRun(folder, study, folder.name, planned)
        for place, study in below
        for folder in _list_folders(place)
        if (planned := _planning_time(folder)) is not None
    ]
    return sorted(found, key=lambda run: (-run.planned, run.name))


def _list_folders(place: Path) -> list[Path]:
    try:
        names = os.listdir(place)  # noqa: PTH208 - names are enough
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if place == RUNS:
            raise InputError(f"{str(RUNS.absolute())!r} can't be read: {error.strerror}") from error
        return []  # `runs_here` has it as a run that can't be read
    return [place / name for name in names if not name.startswith(".")]


def _planning_time(folder: Path) -> float | None:
    """Return when a run was planned, or `_UNKNOWN`; None if the folder has no run."""
    try:
        return RunFolder(folder.absolute()).study.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return _UNKNOWN


def find_run(name: str | None, *, planned: bool = False) -> Path:
    """Return the folder of a run; InputError if no run or several runs match.

    Args:
        name: the run's id, STUDY/RUN-ID, or a unique beginning of one of these. A study's name, or
            a unique beginning of it, means the study's newest run. None means the newest of all
            runs. A folder is returned unchecked.
        planned: if True, "newest" means the newest run that was not submitted. By default, it means
            the newest run that was submitted. Without such a run, it means the newest of all.
    """
    runs = runs_here()
    if name is None:
        if not runs:
            raise InputError(
                f"no run was named, and there is none in {str(RUNS.absolute())!r}; "
                "name a run's folder, or plan a run with: trialfleet plan STUDY"
            )
        return _newest(runs, planned=planned).folder
    if not name:  # such as an unset variable of a shell
        raise InputError("the name of the run is empty; name a run's folder, a run or a study")
    matches = [] if _is_place(name) else _find_by_name(name, runs, planned=planned)
    if len(matches) == 1:
        return matches[0].folder
    if matches:
        raise InputError(
            f"{name!r} may be any of {len(matches)} runs; name one of them: {_run_list(matches)}"
        )
    if _is_place(name) or exists(Path(name)):
        return Path(name)
    raise InputError(_unknown_run_text(name, runs))


def _is_place(name: str) -> bool:
    """Return whether a name can only be the path of a run's folder."""
    place = Path(name)
    return place.is_absolute() or name.startswith(".") or exists(RunFolder(place.absolute()).dag)


def _newest(runs: list[FoundRun], *, planned: bool) -> FoundRun:
    known = (run for run in runs if run.is_readable and run.submitted is not planned)
    return next(known, runs[0])


def _find_by_name(name: str, runs: list[FoundRun], *, planned: bool) -> list[FoundRun]:
    of_study = [run for run in runs if run.study == name] or _find_by_study(name, runs)
    return (
        [run for run in runs if name in {run.run, run.name}]
        or ([_newest(of_study, planned=planned)] if of_study else [])
        or [run for run in runs if run.run.startswith(name) or run.name.startswith(name)]
    )


def _find_by_study(name: str, runs: list[FoundRun]) -> list[FoundRun]:
    """Return the runs of the only study whose name begins with `name`.

    The result is empty if several studies begin with `name`, or if a run's id does.
    """
    found = [run for run in runs if (run.study or "").startswith(name)]
    is_other = any(run.run.startswith(name) for run in runs) or len({r.study for r in found}) > 1
    return [] if is_other else found


def _unknown_run_text(name: str, runs: list[FoundRun]) -> str:
    if not runs:
        return (
            f"{name!r} is not a run's folder, and there are no runs in {str(RUNS.absolute())!r}; "
            "plan a run with: trialfleet plan STUDY"
        )
    names = dict.fromkeys(word for run in runs for word in (run.run, run.study, run.name) if word)
    return (
        f"{name!r} is neither a run's folder nor a run or study in {str(RUNS.absolute())!r}"
        f"{did_you_mean(name, names)}; runs, newest first: {_run_list(runs)}"
    )


def _run_list(runs: Sequence[FoundRun]) -> str:
    more = ": trialfleet runs --all" if len(runs) > _SHOWN else ""
    return join_names([run.name for run in runs], _SHOWN) + more


def _name_list(names: Iterable[str]) -> str:
    return join_names([*names], _SHOWN) or "none"


# -- models ----------------------------------------------------------------------------------------


def find_model(name: str, study: str | None = None) -> Path:
    """Return the folder of a published model; InputError if no model or several models match.

    `name` can be one of these:

    - the path of a model's folder, which is returned unchecked;
    - the path of a region's folder of models, for the current model in it;
    - REGION or STUDY/REGION, for the current model of the region: in the publish folder of the
      study's newest run, or in a folder of `models_folders_here`;
    - RUN/REGION, where RUN is a run's folder, its id, STUDY/RUN-ID, or the beginning of one of
      these two.

    The path of a current model ends with the link `latest`. With `study`, a name only means models
    of this study.
    """
    if place := _named_place(name):
        return place / LATEST if exists(place / LATEST) else place
    if found := _find_named_model(name, study):
        return found
    raise InputError(_unknown_model_text(name, study))


def find_models_folder(region: str, study: str | None = None) -> Path:
    """Return the folder with the models of a region; InputError if no folder or several match.

    `region` is the path of this folder, or any other name that `find_model` accepts.
    """
    if (place := _named_place(region)) is None:
        return find_model(region, study).parent.absolute()
    folder = place.parent if place.name == LATEST or read_provenance(place) else place
    if exists(folder) and folder.is_dir() and list_models(folder):
        return folder.absolute()
    # a region's data, say, may have the region's name
    if not _is_only_path(region) and (found := _find_named_model(region, study)):
        return found.parent.absolute()
    raise InputError(
        f"there are no models below the folder {region!r}; name a region, or the folder of its "
        "models (models/STUDY/REGION), or a study with --study; studies with models here: "
        + _name_list(sorted(_studies_with_models()))
    )


def _named_place(name: str) -> Path | None:
    """Return the path that `name` is; None for a region or model. InputError if it can't be any."""
    if not name:  # such as an unset variable of a shell
        raise InputError(
            "the name of the region or model is empty; name a region, STUDY/REGION or a folder"
        )
    if "://" in name:
        raise InputError(
            f"{name!r} is a URL, but models are read from a folder of this machine; to copy a "
            "model back from S3, see docs/exports.md"
        )
    return Path(name) if _is_only_path(name) or exists(Path(name)) else None


def _is_only_path(name: str) -> bool:
    return Path(name).is_absolute() or name.startswith(".")


def _find_named_model(name: str, study: str | None) -> Path | None:
    """Return the model that `name` means, or None. InputError if it may mean several."""
    found = _models_by_name(name, _runs_of(study), study)
    if len(found) > 1:
        raise InputError(
            f"{name!r} may be any of {len(found)} models; name one of them: {_name_list(found)}"
        )
    return next(iter(found.values()), None)


def _runs_of(study: str | None) -> list[FoundRun]:
    return [run for run in runs_here() if study in {None, run.study}]


def _models_by_name(name: str, runs: list[FoundRun], study: str | None) -> dict[str, Path]:
    """Return the models that `name` may mean, each by a name that means no other model.

    The names of regions may have slashes, so `name` is divided at each slash.
    """
    found: dict[str, Path] = {}
    words = name.split("/")
    divisions = [("/".join(words[:i]), "/".join(words[i:])) for i in range(len(words))]
    for before, region in divisions:
        found.update(_current_models(before, region, runs, study))
        place = [FoundRun(Path(before), "", before, 0.0)] if before and _is_place(before) else []
        for run in place or runs:
            if before in {run.run, run.name}:
                found.update(_model_of_run(run, region))
    if not found:  # every run of a study begins with STUDY/, so their files are read only now
        for before, region in divisions:
            for run in runs if before else ():
                if run.run.startswith(before) or run.name.startswith(before):
                    found.update(_model_of_run(run, region))
    return found


def _current_models(
    before: str, region: str, runs: list[FoundRun], study: str | None
) -> Iterator[tuple[str, Path]]:
    """Yield the current models of a region, of the study `before` if it isn't empty."""
    slug = region_slug(region)
    published = {
        of: folder / slug
        for of, folder in _publish_folders(runs).items()
        if folder and (folder / slug).is_dir()
    }
    here = [(_study_name(folder), folder) for folder in models_folders_here(region=region)]
    found = [*published.items(), *(each for each in here if each[0] not in published)]
    count = Counter(of for of, _ in found)
    for of, folder in found:
        if before in {"", of} and study in {None, of}:
            is_clear = not before and count[of] == 1
            yield f"{of}/{region}" if is_clear else shell_quoted(folder), folder / LATEST


def _model_of_run(run: FoundRun, region: str) -> dict[str, Path]:
    files = RunFolder(run.folder.absolute())
    record = files.region(region_slug(region)).published
    with suppress(InputError):  # a moved run, say; another one may be meant
        if exists(record):
            load_in_place(files)
            return {f"{run.name}/{region}": _published_path(record)}
    return {}


def _publish_folders(runs: Iterable[FoundRun]) -> dict[str, Path | None]:
    """Return the folder of each study's models, from its newest run; None if it publishes none."""
    found: dict[str, Path | None] = {}
    for run in runs:
        with suppress(InputError):  # a moved run, say; another run of the study may do
            if run.study not in found:
                study = load_in_place(RunFolder(run.folder.absolute())).study
                folder = Path(study.publish) / study.name if study.publishes else None
                found.setdefault(study.name, folder)
    return found


def models_folders_here(study: str | None = None, region: str | None = None) -> list[Path]:
    """Return the regions' folders of models in `./models` and in `./*/models`.

    A folder counts if it has a current model or a file .awaiting.json. With `study` or `region`,
    only folders of this study or region are returned.
    """
    slug = glob.escape(region_slug(region)) if region else "*"
    marks = (
        mark
        for models_folder in _MODELS_FOLDERS
        for name in (LATEST, AWAITING)
        for mark in Path().glob(f"{models_folder.format(slug)}/{name}")
    )
    found = sorted({mark.parent for mark in marks if mark.is_dir() or mark.name == AWAITING})
    return [folder for folder in found if study is None or study == _study_name(folder)]


def _study_name(models_folder: Path) -> str:
    return display_name(models_folder).partition("/")[0]


def _studies_with_models() -> set[str]:
    return {_study_name(folder) for folder in models_folders_here()}


def region_names_here(study: str | None = None) -> list[str]:
    """Return the names of the regions whose folders `models_folders_here` returns.

    If several studies have a region of the same name, the names are given as STUDY/REGION.
    """
    names = [display_name(folder) for folder in models_folders_here(study)]
    count = Counter(name.partition("/")[2] for name in names)
    return [region if count[region := name.partition("/")[2]] == 1 else name for name in names]


def find_models(name: str) -> list[Path]:
    """Return all models of the run `name`, or the one model `name`.

    A run is named by its full id or STUDY/RUN-ID. A model is named by RUN/REGION or its folder.
    Raises InputError if `name` is a region or is unknown, or if the run has no models.
    """
    from trialfleet.workflows.facts.models.listing import runs_with_models

    if exists(Path(name)) or not any(name in {run.run, run.name} for run in runs_here()):
        model = find_model(name)
        if model.name != LATEST:
            return [model]
        raise InputError(
            f"{name!r} is a region, and each run has a model of it; "
            f"name the run: RUN/{read_region_name(model.parent)}; runs, newest first: "
            f"{_name_list(runs_with_models(model.parent))}"
        )
    published = published_models(find_run(name))
    if not published:
        raise InputError(f"the run {name!r} has published no model")
    return list(published.values())


def _unknown_model_text(name: str, study: str | None) -> str:
    before, _, region = name.rpartition("/")
    folders = _publish_folders(_runs_of(study))
    studies = sorted({run.study for run in runs_here()} | _studies_with_models())
    if study not in {None, *studies}:
        guess = did_you_mean(str(study), studies)
        return f"no study {study!r}{guess}; studies: {_name_list(studies)}"
    if before and study is None and before not in {*folders, *studies}:
        try:
            known = published_models(find_run(before))
        except InputError as error:
            return f"{name!r} is neither a model's folder nor RUN/REGION: {error}"
        return (
            f"the run {before!r} has published no model of {region!r}"
            f"{did_you_mean(region, known)}; regions: {_name_list(known)}"
        )
    published = [place for folder in folders.values() if folder for place in folder.glob("[!.]*")]
    places = [*filter(Path.is_dir, published), *models_folders_here(study)]
    names = sorted(set(map(read_region_name, places)))
    return (
        f"{name!r} is neither a model's folder nor a region for which a run in "
        f"{str(RUNS.absolute())!r} published a model{did_you_mean(region, names)}; "
        f"regions with models here: {_name_list(names)}"
    )


def published_models(folder: Path) -> dict[str, Path]:
    """Return a run's published models by region; InputError if the run is moved or unreadable."""
    files = RunFolder(folder.absolute())
    regions = load_in_place(files).study.region_table
    records = {region: files.region(region_slug(region)).published for region in regions}
    return {region: _published_path(each) for region, each in records.items() if each.exists()}


def _published_path(record: Path) -> Path:
    return Path(read_record(record, "path", shape=Published)["path"])
