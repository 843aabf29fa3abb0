"""The text of `trialfleet plan` about the regions' tables: sizes, and doubtful data."""

from __future__ import annotations

import re
import sys
import time
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from trialfleet.errors import InputError, join_names
from trialfleet.files import object_or_empty, read_json
from trialfleet.spelling import did_you_mean
from trialfleet.workflows.facts.models.folders import find_champion, region_models_folder
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.rules.unusual_tables import FEWEST_DAYS
from trialfleet.workflows.study.spec import Study

_MOST_REGIONS = 50
_MOST_NAMES = 4
_MOST_COLUMNS = 20
_FEW_ROWS = 50
_PARTS = 3  # training, validation and test rows
_QUOTED = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""  # a text as repr() writes it
_COLUMN = re.compile(rf"column {_QUOTED}")
_EXAMPLES = re.compile(rf"{_QUOTED}|\d+")
_YES, _NO = ("yes", "y", "true", "1"), ("no", "n", "false", "0")
_SECONDS = 2.0  # between two messages

Table = dict[str, Any]
Checked = dict[str, Any]


def checks_lines(checks: dict[str, Checked]) -> list[str]:
    """Return a line for each unusual table, and one about regions with too few earlier days."""
    new = [name for name, found in checks.items() if found["days"] < FEWEST_DAYS]
    lines = [f"{name}: {found['reason']}" for name, found in checks.items() if found["reason"]]
    if new:
        lines.append(
            f"too few days to compare with: fewer than {FEWEST_DAYS} earlier days have a model "
            f"({join_names(new, _MOST_NAMES)})"
        )
    return [f"  checks   {line}" for line in lines]


def table_lines(tables: dict[str, Table]) -> list[str]:
    """Return a line for each region's table and each note about tables; [] if there are none."""
    if not tables:
        return []
    head = ("region", "rows", "train/validation/test", "columns", "missing", "target")
    rows = [head, *(_row(name, table) for name, table in [*tables.items()][:_MOST_REGIONS])]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = [
        "    "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    if (more := len(tables) - _MOST_REGIONS) > 0:
        lines.append(f"    … and {more} more regions; trialfleet plan --json has all")
    return ["  tables", *lines, *(f"    {note}" for note in _notes(tables))]


def gate_lines(study: Study, tables: dict[str, Table]) -> list[str]:
    """Return a line for each column that current models need, but that the new tables lack.

    The gate can't measure such a model on a new table, so the model stays current.
    """
    lacking = defaultdict(list)
    for region, table in tables.items() if study.gate else ():
        there = {*table["numeric"], *table["categorical"], *table.get("unused", ())}
        for column in _needed_columns(study, region):
            if column not in there:
                lacking[column].append(region)
    return [
        f"    the gate will keep the current model of {join_names(regions, _MOST_NAMES)}, because "
        f"it needs column {column!r}, which today's rows lack"
        for column, regions in lacking.items()
    ]


def _needed_columns(study: Study, region: str) -> list[str]:
    try:
        model = find_champion(region_models_folder(study, region_slug(region)), study.name)
    except InputError:  # the publication reports this
        return []
    if model is None:
        return []
    file = model / "model.json"
    columns = object_or_empty(lambda: read_json(file)["columns"])
    return [*columns.get("numeric", ()), *columns.get("categorical", ())]


def _row(name: str, table: Table) -> tuple[str, ...]:
    parts = "/".join(f"{count}" for count in table["parts"].values())
    columns = f"{len(table['numeric'])} numeric, {len(table['categorical'])} categorical"
    if table["ignored"]:
        columns += f", {len(table['ignored'])} ignored"
    return (
        name,
        str(table["rows"]),
        parts,
        columns,
        str(sum(table["missing"].values())),
        f"{table['target']}: {_target(table)}",
    )


def _target(table: Table) -> str:
    if table["task"] == "regression":
        low, high = table["range"]
        digits = next((n for n in range(6, 17) if f"{low:.{n}g}" != f"{high:.{n}g}"), 6)
        return f"{low:.{digits}g} … {high:.{digits}g}"
    classes = [f"{name} ({count})" for name, count in table["classes"].items()]
    return join_names(classes, _MOST_NAMES)


def _notes(tables: dict[str, Table]) -> list[str]:
    """Return all notes. Notes that differ only in counts and examples are merged into one."""
    of_tables = ((region, note) for region, table in tables.items() for note in _table_notes(table))
    tell = (
        _beginnings,
        _without_target,
        _repeated,
        _in_no_cell,
        _mixed_role_notes,
        _partial_column_notes,
    )
    return [
        *_merge_notes(of_tables, len(tables)),
        *(note for of_all in tell for note in of_all(tables)),
    ]


def _merge_notes(notes: Iterable[tuple[str, str]], total: int) -> list[str]:
    """Merge similar notes of different regions. `notes` has pairs of a region and a note."""
    about: dict[str, dict[str, str]] = {}  # regions and their notes, by the note without counts
    for region, note in notes:
        about.setdefault(_without_examples(note), {})[region] = note
    return [_merged_note(own, total) for own in about.values()]


def _merged_note(notes: dict[str, str], total: int) -> str:
    [first, *others], note = notes, next(iter(notes.values()))
    is_of_all = len(notes) == total
    if len({*notes.values()}) == 1:
        return note if is_of_all else f"{note} (in {join_names([*notes], _MOST_NAMES)})"
    likewise = "all others" if is_of_all else join_names(others, _MOST_NAMES)
    return f"{note} (in {first}; likewise in {likewise})"


def _without_examples(note: str) -> str:
    if not (column := _COLUMN.match(note)):
        return note
    return column[0] + _EXAMPLES.sub("…", note[column.end() :])


def _beginnings(tables: dict[str, Table]) -> list[str]:
    """Return notes about the times that separate training, validation and test rows."""
    begins = {name: table["begins"] for name, table in tables.items() if table["begins"]}
    each = (
        (name, "split by time: " + ", ".join(f"{part} from {at}" for part, at in parts.items()))
        for name, parts in begins.items()
    )
    return _first(_merge_notes(each, len(tables)), "such splits", _MOST_NAMES)


def _table_notes(table: Table) -> list[str]:
    notes = []
    if table["task_inferred"]:
        notes.append(f"{table['task']}, inferred from the target; table: {{task: …}} changes this")
    if table["task"] == "classification" and len(table["classes"]) == 2:
        notes.append(f"predicted is the probability of {[*table['classes']][1]!r}")
    notes += _untaught_classes(table) + _rare_classes(table["classes"])
    notes += _classes_alike([*table["classes"]])
    if min(table["parts"]["validation"], table["parts"]["test"]) < _FEW_ROWS:
        notes.append(
            f"fewer than {_FEW_ROWS} rows for validation or test: metrics from so few rows, "
            "and a gate's decision by them, are mostly chance; see table.split"
        )
    ignored = [f"column {name!r} is ignored: {why}" for name, why in table["ignored"].items()]
    others = [f"column {name!r} {note}" for name, note in table["notes"].items()]
    return [
        *notes,
        *_first(ignored, "columns, ignored"),
        *_first(others, "columns, others like these"),
    ]


def _untaught_classes(table: Table) -> list[str]:
    classes = [f"{name!r} ({table['classes'][name]})" for name in table["untaught"]]
    if not classes:
        return []
    named = join_names(classes, _MOST_NAMES)
    return [f"classes without a training row: {named}; the model can't learn them, see table.split"]


def _rare_classes(classes: dict[str, int]) -> list[str]:
    rare = [name for name, rows in classes.items() if rows < _PARTS]
    if not rare:
        return []
    others = [name for name in classes if name not in rare]
    named = join_names([f"{name!r}{did_you_mean(name, others)}" for name in rare], _MOST_NAMES)
    return [f"classes of fewer than {_PARTS} rows: {named}; correct the file if that is a mistake"]


def _classes_alike(classes: list[str]) -> list[str]:
    plain = {name: _plain(name) for name in classes}
    if {*plain.values()} <= {*_YES, *_NO}:
        plain = {name: "yes" if each in _YES else "no" for name, each in plain.items()}
    alike: dict[str, list[str]] = {}
    for name, each in plain.items():
        alike.setdefault(each, []).append(repr(name))
    groups = [f"{', '.join(names)} and {last}" for *names, last in alike.values() if names]
    if not groups:
        return []
    named = join_names(groups, _MOST_NAMES)
    return [f"separate classes that may be the same: {named}; write each in one way in the file"]


def _plain(name: str) -> str:
    """Return a text that is the same for names that differ only in case, blanks or Unicode form."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def _first(notes: list[str], what: str, most: int = _MOST_COLUMNS) -> list[str]:
    if (more := len(notes) - most) <= 1:
        return notes
    return [*notes[:most], f"and {more} more {what}; trialfleet plan --json has all"]


def _without_target(tables: dict[str, Table]) -> list[str]:
    found = ((table["without_target"], name) for name, table in tables.items())
    counts = join_names([f"{count} in {name}" for count, name in found if count], _MOST_NAMES)
    return [f"rows without a target are left out: {counts}"] if counts else []


def _repeated(tables: dict[str, Table]) -> list[str]:
    found = ((table.get("repeated"), name) for name, table in tables.items())
    shares = join_names([f"{share:.0%} in {name}" for share, name in found if share], _MOST_NAMES)
    why = "remove repeated rows from the file, or the metrics are too good"
    return [f"test rows that are also training rows: about {shares}; {why}"] if shares else []


def _in_no_cell(tables: dict[str, Table]) -> list[str]:
    texts, *others = (table["in_no_cell"] for table in tables.values())
    idle = [repr(text) for text in texts if all(text in other for other in others)]
    if not idle:
        return []
    cells = "no cell" if len(tables) == 1 else "no cell of any region"
    return [f"table.null_values: {cells} is {join_names(idle, _MOST_NAMES)}"]


def _mixed_role_notes(tables: dict[str, Table]) -> list[str]:
    numeric = {name for table in tables.values() for name in table["numeric"]}
    categorical = {name for table in tables.values() for name in table["categorical"]}
    return [
        f"column {name!r} is numeric in some regions and categorical in others; "
        f"table: {{columns: {{{name}: …}}}} makes them agree"
        for name in sorted(numeric & categorical)
    ]


def _partial_column_notes(tables: dict[str, Table]) -> list[str]:
    in_file = {
        region: {*table["numeric"], *table["categorical"], *table["ignored"], table["target"]}
        for region, table in tables.items()
    }
    used = dict.fromkeys(
        name for table in tables.values() for name in (*table["numeric"], *table["categorical"])
    )
    lacking = {
        name: [region for region, columns in in_file.items() if name not in columns]
        for name in used
    }
    notes = [
        f"column {name!r} is in {len(tables) - len(without)} of {len(tables)} regions, not in "
        f"{join_names(without, _MOST_NAMES)}"
        for name, without in lacking.items()
        if without
    ]
    return _first(notes, "columns, not in all regions")


def table_progress() -> Callable[[int, int], None]:
    """Return a function that prints on a terminal, every 2 s, how many tables were read."""
    last_shown = time.monotonic()

    def tell(done: int, regions: int) -> None:
        nonlocal last_shown
        if sys.stderr.isatty() and done < regions and time.monotonic() - last_shown >= _SECONDS:
            last_shown = time.monotonic()
            print(f"tables read: {done} of {regions}", file=sys.stderr, flush=True)

    return tell
