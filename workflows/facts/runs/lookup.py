"""Runs and models by the names that people type, which may be incomplete.

Runs are searched in `./runs` by the names of their folders. This search opens no file, because a
shell's completion must be fast.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trialfleet.errors import InputError, join_names
from trialfleet.files import exists, read_record, shell_quoted
from trialfleet.spelling import did_you_mean
from trialfleet.workflows.facts.models.approval import AWAITING
from trialfleet.workflows.facts.models.folders import (
    LATEST,
    published_models_folder,
    read_provenance,
    read_region_name,
)
from trialfleet.workflows.facts.record_shapes import Published
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.run_folder.frozen_head import parse_head
from trialfleet.workflows.names import region_slug

RUNS = Path("runs")
_SHOWN = 10  # names in a message
# Publish folders here and in the folders of studies, with and without the study's name.
_MODELS_FOLDERS = ("models/{}", "models/*/{}", "*/models/{}", "*/models/*/{}")


@dataclass(frozen=True)
class FoundRun:
    """A run's folder below `./runs`.

    `study` is the name of the folder above; empty if that is `./runs`. `run` is the name of the
    run's folder. `planned` is when the run was planned, in Unix seconds.
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
    def submitted(self) -> bool:
        """True if the run or one of its regions was submitted to HTCondor."""
        graphs = ("study.dag.condor.sub", "regions/*/region.dag.condor.sub")
        return any(True for graph in graphs for _ in self.folder.glob(graph))


def runs_here() -> list[FoundRun]:
    """Return the runs in `./runs`, newest first."""
    below = ((RUNS, ""), *((study, study.name) for study in _list_folders(RUNS)))
    found = [
        FoundRun(folder, study, folder.name, planned)
        for place, study in below
        for folder in _list_folders(place)
        if (planned := _planning_time(folder)) is not None
    ]
    return sorted(found, key=lambda run: (-run.planned, run.name))


def _list_folders(place: Path) -> Iterator[Path]:
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir() and not entry.name.startswith("."):
                    yield place / entry.name
    except OSError:
        return


def _planning_time(folder: Path) -> float | None:
    try:
        return RunFolder(folder.absolute()).study.stat().st_mtime
    except OSError:
        return None


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
    return next((run for run in runs if run.submitted is not planned), runs[0])


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
    return join_names([*names], _SHOWN)


# -- models ----------------------------------------------------------------------------------------


def find_model(name: str) -> Path:
    """Return the folder of a published model; InputError if no model or several models match.

    `name` can be one of these:

    - the path of a model's folder, which is returned unchecked;
    - RUN/REGION, where RUN is a run's id or the beginning of an id;
    - the path of a region's folder of models, for the current model in it;
    - STUDY/REGION, for the current model of the region in the publish folder of the study's
      newest run;
    - REGION, if only one study has this region.
    """
    check_model_name(name)
    place = Path(name)
    if exists(place) or place.is_absolute() or name.startswith("."):
        return place / LATEST if exists(place / LATEST) else place
    runs = runs_here()
    before, region = _divide(name, runs)
    of_study = [run for run in runs if run.study == before]
    if before and not of_study:
        alone = models_folders_here(before, region)
        return alone[0] / LATEST if len(alone) == 1 else _model_of_run(name, before, region)
    if folder := _folder_of_one_study(region, of_study or runs, elsewhere=not before):
        return folder / LATEST
    known: dict[str, None] = {}
    for found in of_study or runs:
        try:
            published = published_models(found.folder)
        except InputError:  # a moved run, say; another run may have it
            continue
        if region in published:
            return published[region].parent / LATEST
        known |= dict.fromkeys(published)
    if not before and not known:  # models may have been copied here without their runs
        return _model_alone(region)
    raise InputError(
        f"{name!r} is neither a model's folder nor a region for which a run in "
        f"{str(RUNS.absolute())!r} published a model{did_you_mean(region, known)}; "
        f"regions: {_name_list(known) or 'none'}"
    )


def find_models_folder(region: str, study: str | None = None) -> Path:
    """Return the folder with the models of a region; InputError if no folder or several match.

    `region` is a region's name, STUDY/REGION, the path of the folder itself, or any other name that
    `find_model` accepts.
    """
    check_model_name(region)
    if exists(Path(region)) and (Path(region) / LATEST).is_symlink():
        return Path(region).absolute()
    if study is not None:
        _check_study(study)
    runs = runs_here()
    before, name = _divide(region, runs, study)
    here = models_folders_here(study or before or None, name)
    if not (study or before) and (folder := _folder_of_one_study(name, runs)):
        return folder.absolute()
    if len(here) == 1:
        return here[0].absolute()
    return find_model(f"{study}/{name}" if study else region).parent.absolute()


def _check_study(name: str) -> None:
    here = models_folders_here()
    studies = {run.study for run in runs_here()}
    studies |= {str(read_provenance(m / LATEST).get("study") or m.parent.name) for m in here}
    if name not in studies:
        known = sorted(studies)
        raise InputError(
            f"no study {name!r}{did_you_mean(name, known)}; studies: {_name_list(known) or 'none'}"
        )


def check_model_name(name: str) -> None:
    """Raise InputError if `name` can't be the name of a region or a model."""
    if not name:  # such as an unset variable of a shell
        raise InputError(
            "the name of the region or model is empty; name a region, STUDY/REGION or a folder"
        )
    if "://" in name:
        raise InputError(
            f"{name!r} is a URL, but models are read from a folder of this machine; to copy a "
            "model back from S3, see docs/exports.md"
        )


def _divide(name: str, runs: list[FoundRun], study: str | None = None) -> tuple[str, str]:
    """Divide [STUDY/][RUN/]REGION into what is before the region, and the region.

    The names of regions may have slashes, too. So every division is tried, in `study` if given.
    Without a known region, the name is divided at its last slash. Raises InputError if several
    divisions name a known region.
    """
    before, _, region = name.rpartition("/")
    words = name.split("/")
    divisions = [("/".join(words[:i]), "/".join(words[i:])) for i in range(len(words))]
    known = [one for one in divisions if len(words) > 1 and _is_known(*one, runs, study)]
    exact = {"", *(name for run in runs for name in (run.study, run.run, run.name))}
    known = [one for one in known if one[0] in exact] or known  # rather than a name's beginning
    if len(known) > 1:
        choices = (f"the region {of!r}" + (f" of {at!r}" if at else "") for at, of in known)
        raise InputError(
            f"{name!r} may be {' or '.join(choices)}; name STUDY/REGION, or the folder of the "
            "region's models"
        )
    return known[0] if known else (before, region)


def _is_known(before: str, region: str, runs: list[FoundRun], study: str | None) -> bool:
    slug = region_slug(region)
    here = [run for run in runs if study in {None, run.study}]
    named = [one for one in here if one.study == before] if before else here
    named = named or _find_by_name(before, here, planned=False)
    folders = [run.folder for run in named] or ([Path(before)] if before else [])
    if any(exists(RunFolder(folder.absolute()).region(slug).root) for folder in folders):
        return True
    can_be_of = not before or study in {None, before}
    return can_be_of and bool(models_folders_here(study or before or None, region))


def _folder_of_one_study(
    region: str, runs: list[FoundRun], *, elsewhere: bool = True
) -> Path | None:
    """Return the folder of a region's models in the publish folders of `runs`; None if none exists.

    With `elsewhere`, `models_folders_here` is searched, too. Raises InputError if several studies
    have models of the region.
    """
    found = _folders_by_study(region, runs)
    if elsewhere:
        for folder in models_folders_here(region=region):
            if study := read_provenance(folder / LATEST).get("study"):
                found.setdefault(str(study), folder)
    if len(found) > 1:
        raise InputError(
            f"{region!r} may be any of {len(found)} regions; name one of them: "
            f"{_name_list(f'{study}/{region}' for study in sorted(found))}"
        )
    return next(iter(found.values()), None)


def _folders_by_study(region: str, runs: list[FoundRun]) -> dict[str, Path]:
    slug = region_slug(region)
    found: dict[str, Path] = {}
    seen: set[str] = set()
    for each in runs:
        if each.study in seen:
            continue
        try:
            head = parse_head(files := RunFolder(each.folder.absolute()))
            folder = (
                published_models_folder(head.publish, head.study, slug) if head.publishes else None
            )
        except InputError:  # a moved run, say; another run of the study may do
            continue
        seen |= {each.study} - {""}
        if files.region(slug).root.is_dir() and folder and folder.is_dir():
            found.setdefault(head.study, folder)
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
    return [models_folder for models_folder in found if study in {None, models_folder.parent.name}]


def region_names_here(study: str | None = None) -> list[str]:
    """Return the names of the regions whose folders `models_folders_here` returns.

    If several studies have a region of the same name, the names are given as STUDY/REGION.
    """
    found = [
        (folder.parent.name, read_region_name(folder)) for folder in models_folders_here(study)
    ]
    count = Counter(region for _, region in found)
    return [region if count[region] == 1 else f"{of}/{region}" for of, region in found]


def _model_alone(region: str) -> Path:
    found = models_folders_here(region=region)
    if len(found) == 1:
        return found[0] / LATEST
    if found:
        choices = "\n".join(f"  {shell_quoted(models_folder)}" for models_folder in found)
        raise InputError(
            f"several studies have models of a region named {region!r}; choose one of these:\n"
            f"{choices}"
        )
    regions = sorted({models_folder.name for models_folder in models_folders_here()})
    known = f"there are models of {', '.join(regions)}" if regions else "there are none in ./models"
    raise InputError(
        f"{region!r} is neither a model's folder nor a region with a published model"
        f"{did_you_mean(region, regions)}; {known}"
    )


def find_models(name: str) -> list[Path]:
    """Return all models of the run `name`, or the one model `name`.

    A run is named by its full id or STUDY/RUN-ID. A model is named by RUN/REGION or its folder.
    Raises InputError if `name` is a region or is unknown, or if the run has no models.
    """
    from trialfleet.workflows.facts.models.listing import runs_with_models

    runs = [] if exists(Path(name)) else runs_here()
    matches = [run for run in runs if name in {run.run, run.name}]
    if not matches:
        model = find_model(name)
        if model.name != LATEST:
            return [model]
        region = model.parent.name if exists(Path(name)) else _divide(name, runs)[1]
        raise InputError(
            f"{name!r} is a region, and each run has a model of it; name the run: RUN/{region}; "
            f"runs, newest first: {_name_list(runs_with_models(model.parent)) or 'none'}"
        )
    published = published_models(find_run(name))
    if not published:
        raise InputError(f"the run {name!r} has published no model")
    return list(published.values())


def _model_of_run(name: str, run: str, region: str) -> Path:
    try:
        folder = find_run(run)
        published = published_models(folder)
    except InputError as error:
        raise InputError(f"{name!r} is neither a model's folder nor RUN/REGION: {error}") from None
    if region not in published:
        run_id = parse_head(RunFolder(folder.absolute())).run
        raise InputError(
            f"the run {run_id!r} has published no model of {region!r}"
            f"{did_you_mean(region, published)}; regions: {_name_list(published) or 'none'}"
        )
    return published[region]


def published_models(folder: Path) -> dict[str, Path]:
    """Return a run's published models by region; InputError if the run is moved or unreadable."""
    from trialfleet.workflows.study.frozen import load_frozen

    files = RunFolder(folder.absolute())
    parse_head(files)
    regions = load_frozen(files.study).study.region_table
    records = {region: files.region(region_slug(region)).published for region in regions}
    return {
        region: Path(read_record(record, "path", shape=Published)["path"])
        for region, record in records.items()
        if record.exists()
    }
