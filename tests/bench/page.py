"""Costs of the live page at 41 regions of 100 trials: `python -m tests.bench.page`.

The server runs as users start it. A client asks as the page in a browser does: once a second, with
the version that it has. Processor time is that of all threads of the server.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import sqlite3
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from urllib.request import urlopen

import platformdirs
import psutil
from optuna.trial import TrialState

from tests.stored_runs import StoredRun, stored, stored_trial, turns
from tests.unit.serve.page_server import Server, serving
from trialfleet import Run, Study, plan
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.run_storage import study_name

REGIONS, TRIALS = 41, 100
FOLLOWED = 30.0  # seconds
_PER_REGION = 1000  # ids of a region's trials


def main() -> None:
    """Measure and print."""
    base = platformdirs.user_cache_path("trialfleet") / "bench-page"
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    os.environ["TRIALFLEET_POOL"] = str(base / "pool")
    try:
        run = _planned(base)
        with stored(run) as opened:
            _fill(opened)
            with serving(base) as server:
                _measure(opened, server)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _planned(base: Path) -> Run:
    (base / "go.sh").write_text("#!/bin/sh\n")
    study = {
        "name": "page", "regions": [f"R{at:02}" for at in range(REGIONS)],
        "objective": {"metric": "loss", "direction": "minimize"},
        "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "budget": {"trials": TRIALS + 50, "lanes": 4}, "accelerator": "cpu",
        "trainer": {"command": ["sh", "go.sh"], "files": [str(base / "go.sh")]},
        "resources": {"memory": "100MB", "disk": "20MB"},
    }  # fmt: skip
    return plan(Study.model_validate(study).resolve(base), run="r1", out=base / "runs/page/r1")


def _fill(opened: StoredRun) -> None:
    """Store trials of the first region, and copy them for the others by SQL, which is fast."""
    began = datetime.now() - timedelta(minutes=40)
    names = list(opened.graph)
    opened.fill(names[0], TRIALS, began)
    for name in names[1:]:
        opened.study(name)
    with closing(sqlite3.connect(RunFolder(opened.run.folder).database)) as database:
        for at, name in enumerate(names[1:], start=1):
            study = study_name(opened.run.study, opened.run.run_id, name)
            _copy(database, names[0], name, study, at * _PER_REGION)
        database.commit()


def _copy(database: sqlite3.Connection, source: str, name: str, study: str, offset: int) -> None:
    database.execute(
        "INSERT INTO trials (trial_id, number, study_id, state, datetime_start, datetime_complete)"
        " SELECT trial_id + ?, number, (SELECT study_id FROM studies WHERE study_name = ?), state,"
        " datetime_start, datetime_complete FROM trials WHERE trial_id < ?",
        (offset, study, _PER_REGION),
    )
    database.execute(
        "INSERT INTO trial_user_attributes (trial_id, key, value_json)"
        " SELECT trial_id + ?, key, replace(value_json, ?, ?) FROM trial_user_attributes"
        " WHERE trial_id < ?",
        (offset, f"{source}.", f"{name}.", _PER_REGION),
    )
    database.execute(
        "INSERT INTO trial_values (trial_id, objective, value, value_type)"
        " SELECT trial_id + ?, objective, value, value_type FROM trial_values WHERE trial_id < ?",
        (offset, _PER_REGION),
    )
    database.execute(
        "INSERT INTO trial_intermediate_values"
        " (trial_id, step, intermediate_value, intermediate_value_type)"
        " SELECT trial_id + ?, step, intermediate_value, intermediate_value_type"
        " FROM trial_intermediate_values WHERE trial_id < ?",
        (offset, _PER_REGION),
    )


def _measure(opened: StoredRun, server: Server) -> None:
    first = _first_byte(server.url)
    again = statistics.median(_first_byte(server.url) for _ in range(9))
    print(
        f"first byte   {first:.3f} s for the first page, {again:.3f} s for the next (median of 9)"
    )
    page = server.ask("/").text
    assert f"{REGIONS * TRIALS:,} of" in page
    links = re.findall(r'(?:src|href)="(/assets/[^"]+)"', page)
    assets = {link: server.ask(link).text.encode() for link in links}
    whole = len(page.encode()) + sum(map(len, assets.values()))
    packed = sum(len(gzip.compress(each)) for each in (page.encode(), *assets.values()))
    print(
        f"size         {len(page.encode()) / 1000:.0f} kB,"
        f" with its {len(assets)} files {whole / 1000:.0f} kB"
    )
    print(f"             {packed / 1000:.0f} kB of that over the wire, compressed")
    outside = re.findall(r'(?:src|href)="(?:https?:)?//', page)
    print(f"from outside {len(outside)} files")
    delays = [_seconds_to_screen(opened, server, at) for at in range(5)]
    print(
        f"told trial   on screen after {statistics.median(delays):.2f} s,"
        f" at most {max(delays):.2f} s (5 trials)"
    )
    print(f"open page    {_share(server, lambda: None):.2%} of a core while nothing happens")
    turn = iter(range(5, 500))
    busy = _share(server, lambda: _record(opened, next(turn)))
    print(f"             {busy:.2%} while a trial is recorded about every second")


def _first_byte(url: str) -> float:
    began = time.perf_counter()
    with urlopen(url) as answer:  # noqa: S310 - our own server
        answer.read(1)
        return time.perf_counter() - began


def _seconds_to_screen(opened: StoredRun, server: Server, at: int) -> float:
    """Measure how soon a page that asks each second shows a newly recorded trial."""
    time.sleep(3)
    version = server.seen()
    _record(opened, at)
    began = time.perf_counter()
    while server.ask(f"/?seen={version}").status == 204:
        time.sleep(1)
    return time.perf_counter() - began


def _record(opened: StoredRun, at: int) -> None:
    name = list(opened.graph)[at % REGIONS]
    lanes = turns(opened.graph[name], TRIALS + 1 + at // REGIONS, datetime.now())
    node, _ = lanes[-1]
    start = datetime.now() - timedelta(seconds=50)
    trial = opened.add(name, stored_trial(node, start, None, state=TrialState.RUNNING))
    opened.tell(trial, 0.3)


def _share(server: Server, meanwhile: Callable[[], None]) -> float:
    """Return the share of a core that the server uses while one page is open."""
    process = psutil.Process(server.process)
    version = server.seen()
    time.sleep(3)
    before, began = sum(process.cpu_times()[:2]), time.perf_counter()
    while time.perf_counter() - began < FOLLOWED:
        meanwhile()
        answer = server.ask(f"/?seen={version}")
        if answer.status == 200:
            found = re.search(r"\?seen=(\w+)", answer.text)
            version = found[1] if found else version
        time.sleep(1)
    return (sum(process.cpu_times()[:2]) - before) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
