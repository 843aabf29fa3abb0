"""Lanes on the page: what is drawn of trials that were cut short, and of runs that have ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from optuna.trial import TrialState

from tests.conftest import MakeRun
from tests.stored_runs import StoredRun, stored, stored_trial, turns
from trialfleet.workflows.plan.folder import RunFolder
from trialfleet.workflows.serve.live import LiveRun, Snapshot
from trialfleet.workflows.serve.nodes import NodeReader
from trialfleet.workflows.serve.strip import WIDTH, bars_of, strip_of
from trialfleet.workflows.status.states import RunState

LOG = """\
000 (007.000.000) {began:%Y-%m-%d %H:%M:%S}.000 Job submitted from host: <127.0.0.1:22457>
...
001 (007.000.000) {began:%Y-%m-%d %H:%M:%S}.000 Job executing on host: <127.0.0.1:22457>
...
009 (007.000.000) {ended:%Y-%m-%d %H:%M:%S}.000 Job was aborted.
...
"""
BEGAN = datetime.now().replace(microsecond=0) - timedelta(hours=2)


@pytest.fixture
def run(make_run: MakeRun) -> Iterator[StoredRun]:
    with stored(make_run(regions=["A"], budget={"trials": 8, "lanes": 2})) as opened:
        opened.fill("A", 4, BEGAN)
        yield opened


def snapshot_of(run: StoredRun, state: RunState) -> Snapshot:
    found = LiveRun(RunFolder(run.run.folder), NodeReader()).read()
    return replace(found, look=replace(found.look, status=replace(found.look.status, state=state)))


@pytest.mark.slow
def test_lanes_end_where_the_run_did(run: StoredRun) -> None:
    start = BEGAN + timedelta(minutes=2)
    again = (start + timedelta(minutes=3)).astimezone()
    nodes = [node for node, _ in turns(run.graph["A"], 6, BEGAN)]
    failures = {"1": {"time": again.isoformat(), "error": "exit code 1"}}
    run.add("A", stored_trial(nodes[4], start, None, state=TrialState.RUNNING, failures=failures))
    run.add("A", stored_trial(nodes[5], start, None, state=TrialState.RUNNING))
    log = RunFolder(run.run.folder).dag_files.log
    ended = start + timedelta(minutes=8)
    log.write_text(LOG.format(began=BEGAN, ended=ended))
    failed = snapshot_of(run, RunState.FAILED)
    strip = strip_of(failed)
    assert strip is not None
    assert strip.end == ended.astimezone()
    cut, waiting = bars_of(failed, failed.graph["A"])[0][-2:]
    assert (cut.kind, waiting.kind) == ("failed", "waiting")
    assert cut.left + cut.width < waiting.left + waiting.width
    running = snapshot_of(run, RunState.RUNNING)
    strip = strip_of(running)
    assert strip is not None
    assert strip.end > ended.astimezone() + timedelta(hours=1)


@pytest.mark.slow
def test_nothing_is_drawn_of_a_trial_while_its_run_was_stopped(run: StoredRun) -> None:
    (node, start) = turns(run.graph["A"], 5, BEGAN)[4]
    at = start.timestamp()
    stays = [
        {"machine": "m", "instance": None, "began": begin, "ended": end, "end": how, "usd": None}
        for begin, end, how in ((at, at + 60, "evicted"), (at + 1200, at + 1260, "done"))
    ]
    job = {"started": at, "ended": at + 1260, "wall_seconds": 120.0, "stays": stays}
    run.add("A", stored_trial(node, start, 0.1, job=job))
    done = snapshot_of(run, RunState.DONE)
    first, second = [bar for bar in bars_of(done, done.graph["A"])[0] if bar.node == node]
    unit = WIDTH / (at + 1260 - BEGAN.timestamp())
    assert second.left - first.left == pytest.approx(1200 * unit, abs=2)
    assert first.width == second.width == pytest.approx(60 * unit, abs=2)
