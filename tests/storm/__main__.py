"""`python -m tests.storm`: no crash leaves a run stuck, loses a trial or doubles one.

Runs of a small study in a new pool and folder, while random processes are killed at random moments.
Prints the faults that it found. The exit code is 0 if there are none; else it is 1, and the folder
is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import platformdirs
from rich.console import Console
from rich.table import Table

from tests.fleet.lab.namespaces import why_none
from tests.storm.audit import Audit
from tests.storm.clock import enter_own_time
from tests.storm.disk import INSIDE, enter_own_namespace
from tests.storm.embedded import Embedded
from tests.storm.ground import Ground, Settings
from tests.storm.lab import LabGround
from tests.storm.matrix import FAILED, PHASES, Matrix, Row
from tests.storm.moments import VICTIMS, Moments
from tests.storm.storm import Storm
from tests.storm.victims import KINDS


def main() -> None:
    """Run a storm."""
    arguments = _arguments()
    if not arguments.lab:
        enter_own_namespace()
        if INSIDE in os.environ:
            enter_own_time()
    elif why_none():
        sys.exit(f"no lab: {why_none()}")
    signal.signal(signal.SIGTERM, _end_as_by_interrupt)
    folder = arguments.folder or _own_folder()
    folder.mkdir(parents=True)
    if arguments.matrix:
        matrix = Matrix(folder, _say)
        phases = arguments.phase or PHASES
        _table(folder, matrix, lambda: matrix.rows(phases), KINDS, as_json=arguments.json)
        return
    if arguments.moments:
        moments = Moments(folder, _say)
        _table(folder, moments, moments.rows, VICTIMS, as_json=arguments.json)
        return
    settings = Settings(
        kills=arguments.kills,
        seed=arguments.seed,
        regions=arguments.regions,
        trials=arguments.trials,
        mean=arguments.mean,
        clocks=arguments.clocks,
        ambushes=arguments.ambushes,
        stopping=arguments.stopping,
        trials_per_job=arguments.trials_per_job,
    )
    ground: Ground = LabGround(folder, settings) if arguments.lab else Embedded(folder, settings)
    storm = Storm(folder, settings, ground, _say)
    is_clean = False
    try:
        storm.rage()
        is_clean = storm.audit.is_clean
    finally:
        ground.down(None if is_clean else folder / "runs-kept")
    _print(storm, as_json=arguments.json)
    if not is_clean:
        sys.exit(f"the evidence is in {folder}")
    shutil.rmtree(folder, ignore_errors=True)


def _table(
    folder: Path,
    made: Matrix | Moments,
    rows_of: Callable[[], dict[str, Row]],
    kinds: Iterable[str],
    *,
    as_json: bool,
) -> None:
    try:
        rows = rows_of()
    finally:
        made.pool.down(grace=0)
    if as_json:
        print(json.dumps({"seconds": rows, **made.audit.to_json()}, indent=1))
    else:
        _print_table(rows, kinds)
    failed = [name for name, row in rows.items() if FAILED in row.values()]
    if failed or not made.audit.is_clean:
        print("\n".join(made.audit.evidence), file=sys.stderr)
        sys.exit(f"failed: {', '.join(failed) or 'the audit'}; the evidence is in {folder}")
    shutil.rmtree(folder, ignore_errors=True)


def _print_table(rows: dict[str, Row], kinds: Iterable[str]) -> None:
    table = Table(title="seconds until all ran again")
    table.add_column("killed")
    for name in rows:
        table.add_column(name, justify="right")
    for kind in kinds:
        table.add_row(kind, *(row[kind] for row in rows.values()))
    Console().print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description=__doc__)
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument("--kills", type=int, default=500, help="processes to kill")
    parser.add_argument("--seed", type=int, default=1, help="of the order of events")
    parser.add_argument("--regions", type=int, default=41, help="of each run")
    parser.add_argument("--trials", type=int, default=6, help="of each region")
    parser.add_argument("--mean", type=float, default=1.5, help="seconds between two events")
    parser.add_argument("--clocks", type=float, default=0.02, help="share of events that set it")
    parser.add_argument(
        "--ambushes",
        type=float,
        default=0.3,
        help="share of events that kill where a job's agent and the service talk",
    )
    parser.add_argument(
        "--trials-per-job",
        type=lambda text: text if text == "all" else int(text),
        help="all or a number, of each region; default: all, 1 and 2, region by region",
    )
    parser.add_argument("--stopping", action="store_true", help="with early stopping")
    parser.add_argument("--folder", type=Path, help="a new folder")
    parser.add_argument(
        "--matrix", action="store_true", help="kill each kind once in each phase of a region"
    )
    parser.add_argument(
        "--moments",
        action="store_true",
        help="kill each that talks for a job once at each moment of the talk",
    )
    parser.add_argument(
        "--phase", choices=PHASES, action="append", help="of the matrix, this alone; default: all"
    )
    parser.add_argument(
        "--lab", action="store_true", help="over the fleet's lab; kills are events of any kind"
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    arguments = parser.parse_args()
    if arguments.phase and not arguments.matrix:
        parser.error("--phase needs --matrix")
    if arguments.lab and (arguments.stopping or arguments.matrix):
        parser.error("--stopping and --matrix are of this machine's own pool; leave --lab out")
    return arguments


def _own_folder() -> Path:
    return platformdirs.user_cache_path("trialfleet") / "storm" / secrets.token_hex(2)


def _end_as_by_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(line: str) -> None:
    print(line, end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)


def _print(storm: Storm, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_plain(storm), indent=1))
        return
    table = Table(title=f"seed {storm.settings.seed}, {storm.events['kill']} kills")
    table.add_column("what")
    table.add_column("count", justify="right")
    for name, value in _rows(storm):
        table.add_row(name, value)
    console = Console()
    console.print(table)
    for line in storm.audit.evidence:
        console.print(line, markup=False, highlight=False)


def _rows(storm: Storm) -> list[tuple[str, str]]:
    audit = storm.audit
    recovery = "-" if storm.recovery is None else f"{storm.recovery:.1f} s"
    return [
        *((FAULTS[name], str(getattr(audit, name))) for name in Audit.FAULTS),
        *([("trials stopped early", str(audit.stopped))] if storm.settings.stopping else []),
        ("runs, regions, trials", f"{audit.runs}, {audit.regions}, {audit.trials}"),
        ("trainings that ran for them", str(audit.trainings)),
        ("trainings that they needed", str(audit.trials + audit.regions)),
        ("all ran again after the last event", recovery),
        ("longest time without progress", f"{storm.longest_standstill:.0f} s"),
        *((f"repaired: {what}", str(count)) for what, count in sorted(audit.repairs.items())),
        *((f"event: {what}", str(count)) for what, count in sorted(storm.events.items())),
        *((f"left out: {what}", "-") for what in storm.ground.left_out),
    ]


FAULTS = {
    "lost": "trials lost",
    "doubled": "trials doubled",
    "wrong": "trials or models with a wrong value",
    "repeated": "trials trained again after their result had arrived",
    "unpublished": "regions not published",
    "unended": "runs that did not end well",
    "persons": "times that a person was needed",
}


def _plain(storm: Storm) -> dict[str, Any]:
    return {
        **storm.audit.to_json(),
        "seed": storm.settings.seed,
        "events": dict(storm.events),
        "left_out": list(storm.ground.left_out),
        "recovery_seconds": storm.recovery,
        "longest_standstill_seconds": storm.longest_standstill,
    }


if __name__ == "__main__":
    main()
