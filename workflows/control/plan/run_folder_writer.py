"""Functions that check a study, a run's id and its place, and then write the run's folder.

The same study, run id, time and folder give the same bytes. The folder is written under a temporary
name and then renamed, so an interrupted plan leaves no run. What a killed plan leaves under this
name, the next plan in the same place removes.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet import nodes
from trialfleet.errors import InputError
from trialfleet.files import shell_quoted, sync, sync_tree, write_atomic
from trialfleet.nodes import tabular
from trialfleet.nodes.job import archive
from trialfleet.optimizer.sampling.warm_start import PreviousTask, previous_as_text
from trialfleet.workflows.control.plan.dag_files import render_files
from trialfleet.workflows.control.plan.input_provenance import (
    data_error,
    freeze_code,
    freeze_data,
    image_files,
)
from trialfleet.workflows.control.plan.run_ids import check_run_id, published_already
from trialfleet.workflows.facts.disk_space import lack_of_space
from trialfleet.workflows.facts.run_folder.dag_structure import StudyGraph, build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.run_path_check import usable_place
from trialfleet.workflows.study.checks import check_transferable
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.frozen import CostsBefore, FrozenStudy
from trialfleet.workflows.study.paths import Problem, UnusableStudyError, sandbox_name
from trialfleet.workflows.study.spec import Region, Study, Trainer
from trialfleet.workflows.study.trainer_command import CONTRACT

if TYPE_CHECKING:
    from trialfleet.infra.fleet.aws.account import AwsEnvironment
    from trialfleet.nodes.tabular.settings import Settings
    from trialfleet.optimizer.parameters import Scalar
    from trialfleet.optimizer.space import SearchSpace

# Names in a trial's sandbox that trialfleet itself uses.
_SANDBOX = (
    "agent",
    "condor_exec.exe",
    "_condor_stdout",
    "_condor_stderr",
    nodes.AGENT,
    nodes.STOP,
    *CONTRACT,
)
_GATE_SANDBOX = ("champion", "challenger", "losses")  # more such names in a study with a gate
_DRAFT = ".plan-trialfleet-"  # begins the name of a draft
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FOLDERS = (nodes.KERNELS, f"tabular/{tabular.SHARDED}")  # for trials with GPUs, and for gangs


def write_plan(
    study: Study,
    *,
    run: str,
    out: Path,
    created: datetime | None = None,
    aws: AwsEnvironment | None = None,
    notes: tuple[str, ...] = (),
    places: Mapping[str, str] | None = None,
    day: RunsDay | None = None,
    costs: CostsBefore | None = None,
    previous: Sequence[PreviousTask] = (),
) -> RunFolder:
    """Write the folder of a run and return it.

    `study` has regions by name, absolute paths, and an accelerator other than "auto". `created` is
    the time of planning; None means now. `aws` is for the run's autoscaler. `notes` are lines
    about the choices made for the study. `places` has `FILE:LINE` for each key of the study that
    limits a trial's memory, disk or time. `previous` are results from which the run learns.

    InputError if the run's id or its folder `out` is taken or can't be used, or if the trainer's
    files can't. DataError if some regions' data can't be used.
    """
    assert study.accelerator != "auto", "choose the pool's defaults before planning"
    check_run_id(run)
    folder = RunFolder(_free_place(out))
    code = _trainer_files(study)
    _check_sandbox(study, code)
    _check_settings(study, is_day=day is not None)
    graph = build_graph(study)
    if published := published_already(study, run):
        raise InputError(
            f"run id {run!r}: a model of a run with this id is already in {str(published)!r}; "
            "choose another id with --run-id"
        )
    frozen = FrozenStudy(
        run=run,
        folder=str(folder.root),
        created=created or datetime.now(UTC),
        day=day,
        costs=costs,
        notes=notes,
        places=dict(places or {}),
        study=study,
    )
    _write_beside(folder, frozen, graph, code, aws, previous)
    return folder


def _free_place(out: Path) -> Path:
    place = usable_place(out)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise _taken_error(place)
    if place.exists() and place.samefile(Path.cwd()):
        raise InputError(
            f"the run's folder {str(place)!r} is the working folder, which can't be replaced; "
            "choose another folder with --out"
        )
    return place


def _taken_error(place: Path) -> InputError:
    if not RunFolder(place).study.exists():
        what = "contains other files" if place.is_dir() else "is a file"
        return InputError(
            f"the run's folder {str(place)!r} exists already and {what}; "
            "choose another folder with --out"
        )
    return InputError(
        f"the run's folder {str(place)!r} exists already; choose another folder with --out, "
        f"or watch that run with: trialfleet status {shell_quoted(place)}"
    )


def _trainer_files(study: Study) -> list[Path]:
    if isinstance(study.trainer, Trainer):
        return [Path(file) for file in study.trainer.files]
    files = [f"tabular/{name}" for name in tabular.FILES]
    if study.accelerator == "gpu" or study.has_gangs:
        files += _FOLDERS
    return [*map(_node_file, files)]


def _check_settings(study: Study, *, is_day: bool) -> None:
    """Check that `trainer: tabular`, if used, accepts the extreme values of each parameter.

    A region's setting that none of its trials would use is refused, too. So is a setting of the
    study that no region uses, except on a day, whose other regions may use it.
    """
    if isinstance(study.trainer, Trainer):
        return
    regions = study.region_table
    shared = next((name for name, own in regions.items() if not own.search_space), None)
    used: set[str] = set()  # the study's settings that a region uses
    unused: dict[str, UnusableStudyError] = {}
    for region, own in regions.items():
        if not own.search_space and region != shared:  # the study's space is checked only once
            continue
        space = study.region_space(region)
        accepted = _accepted_settings(space, region, own)
        for name in space.root:
            lacking = [each.missing_condition(name) for each in accepted]
            text = f"has no effect without {lacking[0]}; leave it out"
            error = _setting_error(region, own, name, text)
            if not all(lacking):
                used.add(name)
            elif name in (own.search_space or {}):
                raise error
            else:
                unused[name] = error
    refused = [error for name, error in unused.items() if name not in used]
    if refused and not is_day:
        raise refused[0]


def _accepted_settings(space: SearchSpace, region: str, own: Region) -> list[Settings]:
    from trialfleet.nodes.tabular.settings import SettingError, Settings

    accepted = []
    for tried, settings in _outermost_settings(space):
        try:
            accepted.append(Settings.from_params(settings))
        except SettingError as error:
            if tried not in {error.name, None}:  # another value may be accepted
                continue
            raise _setting_error(region, own, error.name, str(error)) from error
    return accepted


def _setting_error(region: str, own: Region, name: str, text: str) -> UnusableStudyError:
    keys = ("regions", region) if name in (own.search_space or {}) else ()
    return UnusableStudyError(Problem((*keys, "search_space", name), text))


def _outermost_settings(space: SearchSpace) -> Iterator[tuple[str | None, dict[str, Scalar]]]:
    """Yield a parameter's name, and the default settings with an extreme value for it.

    The extreme values of a number are the ends of its range; those of a categorical parameter are
    all choices. The last pair has no name and the unchanged default settings.
    """
    defaults = space.trial_params(space.defaults())
    for name, parameter in space.parameters.items():
        yield from ((name, {**defaults, name: value}) for value in parameter.extreme_values())
    yield None, defaults


def _node_file(name: str) -> Path:
    return Path(str(resources.files("trialfleet.nodes") / name))


def _check_sandbox(study: Study, code: Iterable[Path]) -> None:
    """Check the names that files get in a trial's sandbox. DataError if regions' data is wrong."""
    own = (*_SANDBOX, *(_GATE_SANDBOX if study.gate else ()))
    shared = [path.name for path in (*code, *image_files(study))]
    if why := _name_fault(shared, own):
        raise UnusableStudyError(Problem(("trainer", "files"), why))
    faults = {
        region: _name_fault([*shared, *map(sandbox_name, study.data_paths(region))], own)
        for region in study.region_table
    }
    if found := {region: why for region, why in faults.items() if why}:
        raise data_error(found)


def _name_fault(names: Iterable[str], own: tuple[str, ...]) -> str:
    for name, count in Counter(names).items():
        if name in own:
            return (
                f"{name!r} is a name that trialfleet itself uses in a trial's sandbox "
                f"({', '.join(own)}); rename the file"
            )
        if count > 1:
            return (
                f"{count} files of a trial are called {name!r}; "
                "all of them are copied into one folder, so rename all but one"
            )
    return ""


def _write_beside(
    folder: RunFolder,
    frozen: FrozenStudy,
    graph: StudyGraph,
    code: list[Path],
    aws: AwsEnvironment | None,
    previous: Sequence[PreviousTask],
) -> None:
    parent, study = folder.root.parent, frozen.study
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_lost_drafts(parent)
        draft, lock = _make_draft(parent)
    except OSError as error:
        raise InputError(f"the run's folder {str(folder.root)!r} can't be made: {error}") from error
    beside = RunFolder(draft)
    try:
        _check_space(parent)
        _write_tables(study, folder, beside, frozen.day)
        beside.root.chmod(0o755)
        # a storage's URL may contain a password
        private = {beside.study} if study.storage else set()
        _write_texts(beside.root, render_files(folder, frozen, graph), private)
        if aws:
            _write_private(beside.aws, aws.to_json())
        if previous:
            write_atomic(beside.previous_results, previous_as_text(previous))
        _copy_code(beside.code, [*code, _node_file(nodes.HELPER)])
        archive.build(beside.code / nodes.AGENT)
        freeze_code(beside, frozen)
        _make_trial_folders(beside, graph)
        freeze_data(beside, study, durable=False)
        if study.notify:
            beside.alerts.mkdir(mode=0o700)
        if study.export:
            beside.export.mkdir(mode=0o700)
            _write_variables(beside.export_variables, needed=study.export.s3)
        if study.gangs_use_s3:
            _write_variables(beside.gang_variables, needed=True)
        sync_tree(beside.root)
        _put(beside.root, folder.root)
    except BaseException:
        shutil.rmtree(beside.root, ignore_errors=True)
        raise
    finally:
        os.close(lock)
    sync(parent)


def _make_draft(parent: Path) -> tuple[Path, int]:
    """Make the folder in which a plan writes a run, and return it with a descriptor of its lock.

    While the plan lives, the lock keeps other plans from removing the folder. Where folders can't
    be locked, as on NFS, no plan removes any.
    """
    while True:
        draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=parent))
        with suppress(FileNotFoundError):  # another plan has removed it before it was locked
            lock = os.open(draft, _FOLDER)
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            if draft.exists():
                return draft, lock
            os.close(lock)


def _remove_lost_drafts(parent: Path) -> None:
    """Remove the drafts of plans that were killed: nobody has their locks any more."""
    for draft in parent.glob(f"{_DRAFT}*"):
        with suppress(OSError):  # its plan lives or has just renamed it, or it is another account's
            lock = os.open(draft, _FOLDER)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(draft, ignore_errors=True)
            finally:
                os.close(lock)


def _write_variables(file: Path, *, needed: object) -> None:
    from trialfleet.infra.fleet.aws import account

    variables = account.variables() if needed else {}
    _write_private(file, {"schema": 1, "variables": variables})


def _write_private(file: Path, content: object) -> None:
    """Write a file that only its owner can read: AWS settings may contain a proxy's password."""
    write_atomic(file, json.dumps(content, indent=1) + "\n", mode=0o600)


def _put(draft: Path, place: Path) -> None:
    try:
        draft.replace(place)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
            raise
        raise _taken_error(place) from error  # another plan wrote there at the same moment


def _write_tables(study: Study, folder: RunFolder, draft: RunFolder, day: RunsDay | None) -> None:
    if isinstance(study.trainer, Trainer):
        return
    from trialfleet.workflows.control.plan.table_examination import DayChecks, write_tables
    from trialfleet.workflows.control.plan.table_summary import table_progress

    try:
        check_transferable(str(folder.root))
    except ValueError as error:
        raise InputError(
            f"the run's folder {error}; or choose another folder with --out"
        ) from error
    checks = DayChecks(study, day.date) if day and study.daily else None
    write_tables(study, draft, table_progress(), checks)


def _check_space(place: Path) -> None:
    if words := lack_of_space(place):
        raise InputError(f"{words}; make room, or choose another folder with --out")


def _write_texts(root: Path, texts: dict[Path, str], private: set[Path]) -> None:
    """Write text files. Only the owner can read those in `private`, even while they are written."""
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = 0o600 if path in private else 0o666
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        if text.startswith("#!"):
            path.chmod(0o755)


def _copy_code(folder: Path, files: list[Path]) -> None:
    folder.mkdir()
    for file in files:
        try:
            _copy(file, folder / file.name)
        except OSError as error:
            raise InputError(f"trainer.files: {str(file)!r} can't be copied: {error}") from error


def _copy(file: Path, target: Path) -> None:
    if file.is_dir():
        is_ours = file in {*map(_node_file, _FOLDERS)}
        left = nodes.NOT_ON_NODES if is_ours else ()
        shutil.copytree(file, target, ignore=shutil.ignore_patterns(*left))
    else:
        shutil.copyfile(file, target)
        shutil.copymode(file, target)
    for path in (target, *target.rglob("*")):  # the copy is read-only
        path.chmod(path.stat().st_mode & ~0o022)


def _make_trial_folders(folder: RunFolder, graph: StudyGraph) -> None:
    """Create all DAG nodes' folders, because DAGMan enters them before the PRE scripts run."""
    for region in graph.regions:
        files = folder.region(region.slug)
        files.best.root.mkdir(parents=True)
        if region.gated:
            files.gate.root.mkdir()
        for node in region.trial_nodes:
            files.trial(node).root.mkdir(parents=True)
