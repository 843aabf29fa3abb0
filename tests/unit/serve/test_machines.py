"""The timeline on a run's page: the jobs on its machines, from its storage and its queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from optuna.trial import TrialState

from tests.conftest import MakeRun
from tests.job_logs import JobLog
from tests.stored_runs import StoredRun, stored, stored_trial, turns
from trialfleet.files import write_json
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.rules.states import RunState
from trialfleet.workflows.status.unfinished_trials import RunningTrial
from trialfleet.workflows.views.report.timeline import Timeline, build_timeline
from trialfleet.workflows.views.serve.live_runs import LiveRun, NodeReader, Snapshot
from trialfleet.workflows.views.serve.live_timeline import timeline_of_run
from trialfleet.workflows.views.serve.region_and_trial_pages import region_page, trial_page

pytestmark = pytest.mark.slow  # each fills a storage

BEGAN = datetime.now().replace(microsecond=0) - timedelta(hours=2)


@pytest.fixture
def run(make_run: MakeRun) -> Iterator[StoredRun]:
    with stored(make_run(regions=["A"], budget={"trials": 8, "lanes": 2})) as opened:
        opened.fill("A", 4, BEGAN)
        yield opened


def snapshot_of(run: StoredRun) -> Snapshot:
    return LiveRun(RunFolder(run.run.folder), NodeReader()).read()


def test_snapshots_of_a_run_have_different_numbers_also_after_an_error(
    run: StoredRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = LiveRun(RunFolder(run.run.folder), NodeReader())
    with monkeypatch.context() as broken:
        broken.setattr(live, "read", _fail)
        with pytest.raises(OSError, match="not readable now"):
            live.snapshot()

    def checked() -> int:
        monkeypatch.setattr(live, "_next_check", 0.0)
        return live.snapshot().number

    numbers = [checked(), checked()]  # the first read finds files to watch
    assert checked() == numbers[-1], "nothing has changed"
    live.folder.alerts.mkdir()
    numbers.append(checked())
    numbers.append(LiveRun(RunFolder(run.run.folder), NodeReader()).read().number)
    assert numbers == sorted(set(numbers)), "pages are cached by this number"


def hold_reads(
    live: LiveRun, monkeypatch: pytest.MonkeyPatch, *, found: Snapshot
) -> tuple[threading.Event, threading.Event]:
    """Make the next read of a run that has changed wait, and then return `found`.

    Return an event that is set when the read begins, and one that lets it go on.
    """
    begins, goes_on = threading.Event(), threading.Event()

    def read() -> Snapshot:
        begins.set()
        assert goes_on.wait(60)
        return found

    monkeypatch.setattr(live, "read", read)
    live.folder.alerts.mkdir()
    return begins, goes_on


def test_no_request_waits_while_a_run_is_read_again_for_another(
    run: StoredRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = LiveRun(RunFolder(run.run.folder), NodeReader())
    known = live.snapshot()
    begins, goes_on = hold_reads(live, monkeypatch, found=known)
    monkeypatch.setattr(live, "_next_check", time.monotonic())
    with ThreadPoolExecutor() as others:
        first = others.submit(live.snapshot)
        assert begins.wait(60)
        assert live.snapshot() is known
        goes_on.set()
        first.result()


def test_requests_after_a_quiet_night_wait_for_the_new_state(
    run: StoredRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = LiveRun(RunFolder(run.run.folder), NodeReader())
    night = live.snapshot()
    morning = replace(night, number=night.number + 1)
    begins, goes_on = hold_reads(live, monkeypatch, found=morning)
    monkeypatch.setattr(live, "_next_check", time.monotonic() - 3600)
    with ThreadPoolExecutor() as others:
        both = [others.submit(live.snapshot)]
        assert begins.wait(60)
        both.append(others.submit(live.snapshot))
        time.sleep(0.1)
        assert not both[1].done()
        goes_on.set()
        assert [each.result() for each in both] == [morning] * 2


def _fail() -> Snapshot:
    raise OSError("not readable now")


def bars(found: Timeline) -> list[tuple[int | None, str, float, float, str]]:
    begun = BEGAN.timestamp()
    return [
        (b.trial, b.state, b.start - begun, b.end - begun, found.rows[b.row]) for b in found.bars
    ]


def test_a_trial_that_runs_is_drawn_until_now_on_its_machine(run: StoredRun) -> None:
    (node, start) = turns(run.graph["A"], 5, BEGAN)[4]
    run.add("A", stored_trial(node, start, None, state=TrialState.RUNNING))
    seen = snapshot_of(run)
    began = start.timestamp()
    running = RunningTrial(node=node, slot="slot1_2@node-7", started=began, step=5, value=0.25)
    region = replace(seen.run.status.regions[0], running_trials=(running,))
    status = replace(seen.run.status, regions=(region,))
    live = replace(seen, run=replace(seen.run, status=status))
    found = timeline_of_run(live)
    *finished, (trial, state, at, until, machine) = bars(found)
    assert {each[-1] for each in finished} == {"node-1"}
    assert (trial, state, at, machine) == (4, "running", began - BEGAN.timestamp(), "node-7")
    assert until > at + 3000
    assert region_page(live, "A").progress == {node: "slot1_2@node-7, step 5: 0.25"}
    page = trial_page(live, "A", node)
    assert page is not None
    assert ("Runs", "slot1_2@node-7, step 5: 0.25", "") in page.facts
    assert [bar[0] for bar in bars(timeline_of_run(seen))] == [0, 2, 1, 3]  # it waits for a slot


def test_an_evicted_trial_has_a_bar_for_each_execution(run: StoredRun) -> None:
    (node, start) = turns(run.graph["A"], 5, BEGAN)[4]
    at = start.timestamp()
    stays = [
        {"machine": "m", "instance": None, "began": begin, "ended": end, "end": how, "usd": None}
        for begin, end, how in ((at, at + 60, "evicted"), (at + 1200, at + 1260, "done"))
    ]
    job = {"started": at, "ended": at + 1260, "wall_seconds": 120.0, "stays": stays}
    run.add("A", stored_trial(node, start, 0.1, job=job))
    begun = at - BEGAN.timestamp()
    assert [bar for bar in bars(timeline_of_run(snapshot_of(run))) if bar[0] == 4] == [
        (4, "cut off", begun, begun + 60, "m"),
        (4, "complete", begun + 1200, begun + 1260, "m"),
    ]


def test_the_full_training_and_the_gate_are_drawn(run: StoredRun) -> None:
    files = RunFolder(run.run.folder).region("A")
    for place, start in ((files.best, 900), (files.gate, 1000)):
        began = BEGAN.timestamp() + start
        place.root.mkdir(parents=True, exist_ok=True)
        stay = {"machine": "node-2", "instance": None, "began": began, "ended": began + 60}
        write_json(place.job, {"stays": [stay | {"end": "done", "usd": None}]})
    assert bars(timeline_of_run(snapshot_of(run)))[-2:] == [
        (None, "full training", 900, 960, "node-2"),
        (None, "gate", 1000, 1060, "node-2"),
    ]


def test_a_job_without_a_known_end_is_not_drawn_until_now_after_its_run_ended(
    run: StoredRun,
) -> None:
    (node, start) = turns(run.graph["A"], 5, BEGAN)[4]
    run.add("A", stored_trial(node, start, None, state=TrialState.RUNNING))
    log = JobLog(RunFolder(run.run.folder).region("A").trial(node).log, begin=start)
    log.submitted(0)
    log.executes(1)
    seen = snapshot_of(run)
    until = {}
    for state in (RunState.RUNNING, RunState.FAILED):
        status = replace(seen.run.status, state=state)
        page = region_page(replace(seen, run=replace(seen.run, status=status)), "A")
        until[state] = build_timeline(page.report).end - BEGAN.timestamp()
    assert until[RunState.RUNNING] > 3600 > until[RunState.FAILED]
