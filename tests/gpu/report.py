"""Writes a GPU's results into BENCHMARKS.md: `make gpu-report FILE=build/gpu/gpu.json`.

What it writes stands between two markers there. Figures of a dry run are refused.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import jinja2

from tests.gpu.clocks import BITS
from tests.gpu.runner import SCHEMA

PLACE = Path(__file__).parents[1] / "bench" / "BENCHMARKS.md"
TEMPLATE = Path(__file__).with_name("report.md.j2")
IDLE = BITS[0]
PROBE_SECONDS = 10  # that it should take at most, on a cold machine
BEGIN, END = "<!-- results of a GPU: begin -->", "<!-- results of a GPU: end -->"

Found = dict[str, Any]


class RefusedError(Exception):
    """There is nothing to write; the message says why."""


def main(arguments: Sequence[str]) -> int:
    """Write the report; exit code 2 if there is none to write."""
    reader = argparse.ArgumentParser(prog="python -m tests.gpu.report", description=__doc__)
    reader.add_argument("file", type=Path, help="what `make gpu` wrote on a machine with a GPU")
    chosen = reader.parse_args(arguments)
    try:
        text = inserted(PLACE.read_text(encoding="utf-8"), report(read(chosen.file)))
    except RefusedError as error:
        print(f"{chosen.file}: {error}", file=sys.stderr)
        return 2
    PLACE.write_text(text, encoding="utf-8")
    print(f"written: {PLACE}")
    return 0


def read(file: Path) -> Found:
    """Return what `make gpu` found.

    Raises:
        RefusedError: it can't be read, or it isn't a GPU's.
    """
    try:
        record: Found = json.loads(file.read_text(encoding="utf-8"))
        known = record["schema"] == SCHEMA
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RefusedError(f"not a file of make gpu's: {error}") from error
    if not known:
        raise RefusedError(f"its schema is {record['schema']}; known is {SCHEMA}")
    if record["dry"]:
        raise RefusedError("a dry run's figures are the processor's, on the smallest cases")
    if not (of_step(record, "machine") or {}).get("gpus"):
        raise RefusedError("no GPU was seen on that machine")
    return record


def of_step(record: Found, name: str) -> Found | None:
    """Return what a step found, if anything."""
    return next((step["found"] for step in record["steps"] if step["name"] == name), None)


def report(record: Found) -> str:
    """Return the report's text."""
    found = {step["name"]: step["found"] for step in record["steps"]}
    settings: Found = {"trim_blocks": True, "lstrip_blocks": True}
    markdown = jinja2.Environment(autoescape=False, **settings)  # noqa: S701  no HTML
    template = markdown.from_string(TEMPLATE.read_text(encoding="utf-8"))
    mulc, fused = found.get("mulc") or {}, found.get("fused") or {}
    text = template.render(
        record=record,
        found=found,
        gpu=found["machine"]["gpus"][0],
        smi=(found["machine"]["nvidia_smi"] or [{}])[0],
        mulc=[*table_of(mulc.get("mulc", []))],
        mulc_labels=labels(mulc.get("mulc", [])),
        fused=[*table_of(fused.get("fused", []))],
        goals=[*goals(mulc, fused), *trainer_goals(found.get("trainer") or {})],
        probe_seconds=PROBE_SECONDS,
        cell=cell,
        ratio=ratio,
        torchs_own=torchs_own,
        spread=spread,
        reasons=reasons,
    )
    return re.sub(r"\n{3,}", "\n\n", re.sub(r" +$", "", text, flags=re.MULTILINE))


def labels(rows: Sequence[Found]) -> list[str]:
    """Return the variants, in order."""
    return [*dict.fromkeys(label(row) for row in rows)]


def label(row: Found) -> str:
    """Return variant and manner."""
    variant: str = row["variant"]
    return variant if row["manner"] == "called" else f"{variant}, {row['manner']}"


def table_of(rows: Sequence[Found]) -> Iterator[Found]:
    """Yield for each operation and size its rows by their labels."""
    for (operation, shape), group in groupby(rows, key=itemgetter("operation", "shape")):
        by_label = {label(row): row for row in group}
        yield {"operation": operation, "shape": shape, "rows": by_label}


def goals(mulc: Found, fused: Found) -> Iterator[Found]:
    """Yield the goals, each from the step that measured it."""
    for goal in mulc.get("goals", []):
        if goal["name"].startswith("MulC"):
            yield goal
    for goal in fused.get("goals", []):
        if not goal["name"].startswith("MulC"):
            yield goal


def trainer_goals(trainer: Found) -> Iterator[Found]:
    """Yield the trainer's goals; the roofline is one where flops or bytes bound the step."""
    wanted = trainer.get("goals", {})
    for result in trainer.get("workloads", []):
        for name, found in result.get("ratios", {}).items():
            bound = name != "roofline" or result["step"]["bound"] != "launches"
            if name in wanted and bound:
                yield {
                    "name": f"trainer, {name}",
                    "wanted": wanted[name],
                    "found": found,
                    "where": result["workload"]["name"],
                    "verdict": "met" if found >= wanted[name] else "not met",
                }


def cell(row: Found | None, name: str, form: str = ".2f") -> str:
    """Return one figure of a row, or that there is none."""
    if row is None or row.get(name) is None:
        return "-"
    return format(row[name], form)


def torchs_own(rows: dict[str, Found]) -> str:
    """Return the time of what torch ships itself for an operation, in a graph, and its name."""
    known = {"ours", "compile", "eager"}
    others = [row for row in rows.values() if row["variant"] not in known]
    graphs = [row for row in others if row["manner"] == "graph"] or others
    return ", ".join(f"{cell(row, 'microseconds')} ({row['variant']})" for row in graphs) or "-"


def spread(gpu: Found | None, name: str) -> str:
    """Return least, median and most of what was seen of the GPU during a step."""
    return " / ".join(f"{value:.0f}" for value in (gpu or {}).get(name, [])) or "-"


def reasons(gpu: Found | None) -> str:
    """Return why clocks were held down during a step, but for a GPU that had nothing to do."""
    found = ((gpu or {}).get("reasons") or {}).items()
    return ", ".join(f"{name} {share:.0%}" for name, share in found if name != IDLE) or "-"


def ratio(rows: dict[str, Found], manner: str) -> str:
    """Return how many times as fast as torch.compile ours is, in a manner."""
    ours, other = (rows.get(name + manner, {}).get("microseconds") for name in ("ours", "compile"))
    return f"{other / ours:.2f}" if ours and other else "-"


def inserted(text: str, results: str) -> str:
    """Return a text with the results between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RefusedError(f"{PLACE} has no markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{results.strip()}\n\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
