"""Checks of all regions' tables, and of the study's metrics, before any job starts.

All problems that are found are reported in one error.

Planning converts each CSV or Parquet file once into arrays in the run's folder. So all trials train
on the same rows and columns, even if the file changes later. Jobs read a .npz file directly.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from trialfleet import ctrl_c
from trialfleet.errors import join_names
from trialfleet.files import shell_quoted, write_json
from trialfleet.nodes.tabular.settings import GAINS, METRICS, metric_names
from trialfleet.nodes.tabular.table import Table, read_table, save_table
from trialfleet.spelling import nearest_choice
from trialfleet.workflows.checksums import FileState, compute_sha256
from trialfleet.workflows.control.plan.fetching import UnreachableError, fetch
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.past_tables import past_tables
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder
from trialfleet.workflows.facts.run_folder.table_findings import read_description
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.rules.gate_decision import gate_rule
from trialfleet.workflows.rules.unusual_tables import MOST_DAYS, Finding, findings
from trialfleet.workflows.study.daily import Checks
from trialfleet.workflows.study.paths import DataError, Problem, UnusableStudyError
from trialfleet.workflows.study.sections import Gate
from trialfleet.workflows.study.spec import URL_PREFIXES, Study
from trialfleet.workflows.study.table_options import TableOptions
from trialfleet.workflows.tables.csv_rows import TableError
from trialfleet.workflows.tables.day_profile import build_profile
from trialfleet.workflows.tables.reading import file_format, read_rows
from trialfleet.workflows.tables.table_from_rows import Description, build_table, describe

Progress = Callable[[int, int], None]
TABLE_SCHEMA = 1
_MOST_PROBLEMS, _MOST_FILES, _MOST_CLASSES = 20, 3, 4
# The beginning of a problem's text if the problem is about a key of the study.
_KEY = re.compile(
    r"((?:objective\.|report_|gate\.)(?:metric|direction)|target|checks\.\w+|table(?:\.\w+)*): "
)
# Names of the kinds of target; a message uses the last kind that has the metric.
_TARGETS = {"binary": "two classes", "multiclass": "classes", "regression": "numbers"}
_PART_OF = {
    f"{prefix}_{name}": part
    for prefix, part in [("val", "validation"), ("test", "test")]
    for name in ("auc", "r2")
}
_THREADS = 8  # to overlap reading, hashing and writing; polars has its own threads


class DayChecks:
    """Checks that compare the tables of one day with the tables of past days."""

    def __init__(self, study: Study, day: date) -> None:
        """Read statistics of past days' tables. TrialfleetError if the journal is unreadable."""
        self._checks = study.checks or Checks()
        self._seed = study.seed
        self._past = past_tables(DailyFolder.for_study(study.name), day, MOST_DAYS)

    def problems(
        self, region: str, files: RegionFolder, table: Table, found: Description
    ) -> list[str]:
        """Compare a region's table with those of past days; return the table's problems.

        A problem makes the region fail on this day. Warnings are only written into the region's
        folder `files`, with the table's statistics. OSError if a file can't be written.
        """
        labels = self._checks.labels != "off"
        profile = build_profile(table, found, seed=self._seed, labels=labels)
        write_json(files.profile, asdict(profile))
        past = self._past.get(region, [])
        unusual = findings(profile, past)
        warnings = "; ".join(str(one) for one in unusual if self._reaction(one) == "warn")
        reason = f"its new table is unusual: {warnings}" if warnings else None
        write_json(files.checks, {"schema": 1, "days": len(past), "reason": reason})
        return [
            f"checks.{one.check}: {one.text}; correct the file, or set "
            f"checks: {{{one.check}: warn}} to train on it as it is"
            for one in unusual
            if self._reaction(one) == "fail"
        ]

    def _reaction(self, one: Finding) -> str:
        return self._checks.reaction(one.check)


def write_tables(
    study: Study,
    folder: RunFolder,
    progress: Progress | None = None,
    checks: DayChecks | None = None,
) -> None:
    """Write each region's table.json, and table.npz for CSV or Parquet data.

    `study` has `trainer: tabular`, regions listed by name, and absolute paths. `progress` is called
    with two counts: the regions read so far, and all regions.

    Raises:
        DataError: some data can't be used for training. A problem of several files is reported
            once, with the files' names.
        UnusableStudyError: the target has classes in one region and numbers in another.
        OSError: the folder can't be written.
    """
    regions = list(study.region_table)
    problems: dict[str, list[_Fault]] = {}
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as threads:
        asked = {
            threads.submit(_write_region_table, study, folder, name, checks): name
            for name in regions
        }
        try:
            for done, future in enumerate(as_completed(asked), start=1):
                problems[asked[future]] = future.result()
                ctrl_c.stop_if_pressed()
                if progress:
                    progress(done, len(regions))
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
    if found := _group_faults(fault for name in regions for fault in problems[name]):
        more = len(found) - _MOST_PROBLEMS
        rest = [Problem(("data",), f"… and {more} more problems")] if more > 0 else []
        by_region = {name: [f"{f.file}: {f.text}" for f in problems[name]] for name in regions}
        raise DataError(
            *found[:_MOST_PROBLEMS], *rest, by_region={k: v for k, v in by_region.items() if v}
        )
    if disagreements := list(_task_disagreements(folder, regions)):
        raise UnusableStudyError(*disagreements)


class _Fault(NamedTuple):
    """A problem of a data file. If it conflicts with a study's key, `text` begins with this key."""

    file: str
    text: str


def _group_faults(faults: Iterable[_Fault]) -> list[Problem]:
    files: dict[str, list[str]] = {}
    for fault in faults:
        files.setdefault(fault.text, []).append(fault.file)
    return [_problem(text, list(dict.fromkeys(names))) for text, names in files.items()]


def _problem(text: str, files: list[str]) -> Problem:
    where = join_names(files, _MOST_FILES)
    if key := _KEY.match(text):
        return Problem(tuple(key[1].split(".")), f"{text[key.end() :]} ({where})")
    return Problem(("data",), f"{where}: {text}")


def _write_region_table(
    study: Study, folder: RunFolder, region: str, checks: DayChecks | None
) -> list[_Fault]:
    """Write a region's table. Return the problems of its data; [] if it can be used."""
    places = study.data_paths(region)
    if len(places) != 1:
        count = len(places) or "none"
        text = f"`trainer: tabular` reads one file per region, but `data` names {count}"
        return [_Fault(f"region {region!r}", text)]
    files = folder.region(region_slug(region))
    files.root.mkdir(parents=True, exist_ok=True)
    place = places[0]
    is_url = place.startswith(URL_PREFIXES)
    name = place if is_url else shell_quoted(Path(place))
    try:
        form = file_format(place)
        with fetch(place, study.s3, files.root) as path:
            source, table, found = _examine(study, path, form, files)
        identity = {"url" if is_url else "path": place, **source}
        note = {"schema": TABLE_SCHEMA, "format": form, "source": [identity]}
        write_json(files.table_found, {**note, "table": asdict(found)})
        problems = [*_metric_problems(study, found)]
        if checks and not problems:
            problems = checks.problems(region, files, table, found)
        return [_Fault(name, problem) for problem in problems]
    except UnreachableError as error:
        return [_Fault(name, str(error))]
    except TableError as error:
        return [_Fault(name, problem) for problem in error.problems]
    except OSError as error:
        if error.filename and Path(error.filename) == Path(place):
            return [_Fault(name, str(error.strerror))]
        raise


def _examine(
    study: Study, path: Path, form: str, files: RegionFolder
) -> tuple[dict[str, Any], Table, Description]:
    """Return a file's checksum and size, its table, and the table's description.

    The table of a csv or parquet file (see `form`) is saved as table.npz in the folder `files`.
    """
    before = FileState.from_file(path) if path.is_file() else None
    if before is None:
        raise TableError("is not a file; `trainer: tabular` reads one file per region")
    checksum = compute_sha256(path)
    if form == "npz":
        table = _examine_npz(study, path)
        found = describe(table)
    else:
        options = study.table or TableOptions()
        table, found = build_table(read_rows(path, form), study.target, options, study.seed)
        save_table(files.table, table, compressed=False)
    if FileState.from_file(path) != before:
        raise TableError("changed while it was read; plan again when the file is complete")
    return {"sha256": checksum, "bytes": before.bytes}, table, found


def _examine_npz(study: Study, path: Path) -> Table:
    try:
        table = read_table(path)
    except ValueError as error:
        raise TableError(str(error).removeprefix(f"{path} ")) from error
    if study.target not in {None, table.columns.target}:
        raise TableError(
            f"target: {study.target!r} differs from the target in the .npz file, "
            f"{table.columns.target!r}"
        )
    if study.table is not None:
        raise TableError(
            "table: does not apply to .npz files, because write_table has stored the columns' "
            "roles in the file; remove `table:` from the study"
        )
    return table


def _metric_problems(study: Study, found: Description) -> Iterator[str]:
    kind = found.kind
    known = metric_names(kind)
    slip = found.notes.get(found.target)  # a cell without a number turned a regression into classes
    objective, gate = study.objective, study.gate or Gate()
    gate_direction = gate_rule(study).direction if study.gate else None
    given = [  # the prefix of two keys, their values, and the direction with defaults
        ("objective.", objective.metric, objective.direction, objective.direction),
        ("report_", study.report_metric, study.report_direction, study.compared_direction),
        ("gate.", gate.metric, gate.direction, gate_direction),
    ]
    for section, metric, own, direction in given:
        if metric is None:
            continue
        right = "maximize" if metric.partition("_")[2] in GAINS else "minimize"
        if metric in metric_names("regression") and metric not in known and slip:
            yield f"target: column {found.target!r} {slip}"
        elif metric not in known:
            yield f"{section}metric: {_unknown_metric_reason(metric, found)}"
        elif section == "objective." and metric.startswith("test_"):
            val = metric.replace("test_", "val_", 1)
            yield f"objective.metric: the tuning must not use the test rows: write {val}"
        elif direction != right:
            size = "large" if right == "maximize" else "small"
            if own:
                text = f"is {direction}, but a {size} {metric} is good: write {right}"
                yield f"{section}direction: {text}"
            else:
                add = f"is by default {direction}: add {section}direction: {right}"
                yield f"{section}metric: a {size} {metric} is good, but the direction {add}"
        elif (part := _PART_OF.get(metric)) in found.one_class:
            what = "class, but {} needs both" if found.classes else "value, but {} needs more"
            yield f"{section}metric: the {part} rows have only one {what.format(metric)}"


def _unknown_metric_reason(metric: str, found: Description) -> str:
    known = metric_names(found.kind)
    kinds = [kind for kind in METRICS if metric in metric_names(kind)]
    if kinds:
        part = metric[: metric.index("_") + 1]
        fitting = [part + name for name in (*METRICS[found.kind], "loss")]
        return f"{metric} is for {_TARGETS[kinds[-1]]}; {_target(found)}; use {', '.join(fitting)}"
    near = nearest_choice(metric, (name for kind in METRICS for name in metric_names(kind)))
    guess = f" (did you mean {near!r}?)" if near in known else ""
    return f"there is no {metric!r}{guess}; {_target(found)}; use {', '.join(known)}"


def _target(found: Description) -> str:
    if found.task == "regression":
        return f"the target {found.target!r} has numbers"
    counted = [f"{name!r} {rows} times" for name, rows in found.classes.items()]
    names = f" ({join_names(counted, _MOST_CLASSES)})" if found.kind == "multiclass" else ""
    return f"the target {found.target!r} has {len(found.classes)} classes{names}"


def _task_disagreements(folder: RunFolder, regions: list[str]) -> Iterator[Problem]:
    tasks: dict[str, list[str]] = {}
    for region in regions:
        found = read_description(folder.region(region_slug(region)))
        if found:
            tasks.setdefault(found["task"], []).append(region)
    if len(tasks) > 1:
        conflicting = "; ".join(
            f"{task} in {join_names(names, 3)}" for task, names in sorted(tasks.items())
        )
        yield Problem(("table", "task"), f"{conflicting}; say which with table: {{task: …}}")
