"""Output of commands on terminals of any width."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.conftest import MakeRun
from tests.unit.terminal import printed
from trialfleet import RunState, Stage
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.failed_attempts import Cause
from trialfleet.workflows.rules.jobs_without_progress import JobTrouble
from trialfleet.workflows.rules.useless_resume import ALIKE, GAVE_UP, LEFT_NO_MODEL, NO_MODEL
from trialfleet.workflows.status.dagman_pauses import pauses_so_far
from trialfleet.workflows.status.lost_work import WorkTime
from trialfleet.workflows.status.run_trials import Trial
from trialfleet.workflows.status.status_types import BestSettings, RegionStatus
from trialfleet.workflows.status.time_left import first_start, seconds_left, seconds_left_of_run
from trialfleet.workflows.status.unfinished_trials import RunningTrial
from trialfleet.workflows.views.output import (
    LongTable,
    keep_numbers_whole,
    plain_table,
    print_json,
    show,
)
from trialfleet.workflows.views.report.report_reader import read_report
from trialfleet.workflows.views.terminal.result_tables import best_table, trials_table
from trialfleet.workflows.views.terminal.status_view import (
    _line_printer,
    run_view,
)


def test_a_narrow_terminal_cuts_no_number() -> None:
    table = Table()
    for name in ("region", "a long title of numbers", "another title", "state"):
        table.add_column(name, justify="left" if name in {"region", "state"} else "right")
    table.add_row("Schleswig-Holstein", "0.1234567", "+0.0504321", "published, worse than default")
    keep_numbers_whole(table)
    text = printed(table, 50)
    assert "0.1234567" in text
    assert "+0.0504321" in text


@pytest.fixture
def trial() -> Trial:
    fields: dict[str, Any] = dict.fromkeys(Trial.__dataclass_fields__)
    params = {"learning_rate": 0.0012345, "leaves": 31, "penalty": 0.5}
    known = {"region": "Norge", "trial": 7, "state": "complete", "value": 0.774981}
    rest = {"params": params, "metrics": {"loss": 0.774981, "auc": 0.5}, "machine": "node-17"}
    return Trial(**{**fields, **known, **rest})


def test_times_in_json_have_one_form(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"at": datetime(2026, 11, 20, 11, 59, tzinfo=UTC), "to": Path("/r")}, indent=None)
    assert capsys.readouterr().out == '{"at": "2026-11-20T11:59:00+00:00", "to": "/r"}\n'


def test_the_trials_table_cuts_no_parameter_in_two(trial: Trial) -> None:
    narrow = printed(trials_table([trial], "loss", 80), 80)
    for part in ("learning_rate=0.001234", "leaves=31", "penalty=0.5", "0.774981"):
        assert part in narrow
    assert "node-17" not in narrow
    wide = printed(trials_table([trial], "loss", 160), 160)
    assert "node-17" in wide
    assert "auc=0.5" in wide


CELLS = st.text(
    st.one_of(st.sampled_from("ab1=. \n\t漢é\u0301\x07"), st.characters(codec="utf-8")), max_size=25
)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=6), st.integers(25, 140), st.booleans())
def test_a_long_table_looks_as_richs_own(
    rows: list[tuple[str, str, str]], width: int, is_wide: bool
) -> None:
    titles = ("region", "a title", "parameters")
    for_rich, for_us = (plain_table(*titles, right={"a title"}) for _ in range(2))
    for row in rows:
        for_rich.add_row(*map(Text, row))
    shown = LongTable(for_us, rows)
    for table in (for_rich, for_us):
        table.columns[2].min_width = 10
        if is_wide:
            keep_numbers_whole(table)
    assert printed(shown, width) == printed(for_rich, width)


def test_a_run_that_does_not_run_has_no_progress_bars(make_run: MakeRun) -> None:
    status = make_run().status()
    assert "━" not in printed(run_view(status), 80)


def region(finished: int, stage: Stage = Stage.TUNING, published: str | None = None) -> Any:
    return SimpleNamespace(finished=finished, budget=20, stage=stage, published=published)


def test_a_runs_time_left_is_by_the_pace_of_all_its_regions() -> None:
    begun = time.time() - 100
    over = region(20, Stage.PUBLISHED, "models/A")  # 21 pieces of work
    assert seconds_left_of_run([over, region(0, Stage.WAITING)], begun) == (
        pytest.approx(100, rel=0.05)
    )
    assert seconds_left_of_run([region(10), region(4)], begun) == (
        pytest.approx(100 / 14 * 28, rel=0.05)
    )
    assert seconds_left_of_run([region(10), region(4)], begun, publishes=False) == (
        pytest.approx(100 / 14 * 26, rel=0.05)
    )


def test_status_shows_a_trial_that_is_evicted_repeatedly_with_a_why_command(
    make_run: MakeRun,
) -> None:
    trouble = JobTrouble(
        region="A", node="A.l1.t01", kind="evictions", what="evicted 3 times", reason="lost"
    )
    status = replace(
        make_run().status(),
        state=RunState.RUNNING,
        troubles=(str(trouble),),
        job_troubles=(trouble,),
        work=WorkTime.from_parts([(300.0, 120.0)]),
    )
    assert not status.is_well
    text = printed(run_view(status), 200)
    assert "A.l1.t01: evicted 3 times\n" in text
    assert "40% of all work was lost: 2 of 5 min\n" in text
    assert "why: trialfleet why A --run " in text
    more = replace(trouble, what="evicted 4 times")
    shown = Console(width=200)
    with shown.capture() as capture:
        show = _line_printer(shown)
        show(status)
        show(replace(status, troubles=(str(more),), job_troubles=(more,)))
    assert capture.get().count("evicted") == 1, "a watch says it once"


def test_the_time_left_does_not_count_pauses(make_run: MakeRun) -> None:
    now = time.time()
    pause = (now - 700.0, now - 100.0)
    asked = datetime.fromtimestamp(now - 800, UTC)
    stay = {"machine": "n", "instance": None, "end": "done", "usd": None}
    job = {"stays": [{**stay, "began": now - 790, "ended": now - 700}]}
    over = SimpleNamespace(is_finished=lambda: True)
    done: list[Any] = [
        SimpleNamespace(datetime_start=asked, state=over, user_attrs={"job": job})
    ] * 2
    assert seconds_left(first_start(done), len(done), 4, None, [pause]) == pytest.approx(
        200, rel=0.05
    )
    assert seconds_left_of_run([region(10)], now - 800, [pause]) == (
        pytest.approx(200 / 10 * 11, rel=0.05)
    )
    folder = RunFolder(make_run().folder)
    write_log(folder.dag_files.log, now, submitted=[801], executing=[800, 100])  # an end is lacking
    (found,) = pauses_so_far(folder, done)
    assert found == pytest.approx((now - 700, now - 100), abs=2)


def test_page_and_report_find_the_same_pauses(make_run: MakeRun) -> None:
    now = time.time()
    folder = RunFolder(make_run(regions=["A", "B"]).folder)
    write_log(folder.dag_files.log, now, submitted=[801, 101], executing=[800, 100], removed=[700])
    alone = folder.region("B").dag_files.log  # submitted by hand
    write_log(alone, now, submitted=[751], executing=[750], removed=[300])
    (found,) = pauses_so_far(folder, [])
    assert found == pytest.approx((now - 300, now - 100), abs=2)
    assert read_report(folder).pauses == (found,)


def write_log(log: Path, now: float, **ago: list[int]) -> None:
    """Write the event log of a DAGMan's job, with events at these numbers of seconds ago."""
    kinds = {
        "submitted": ("000", "Job submitted from host: <127.0.0.1:1>"),
        "executing": ("001", "Job executing on host: <127.0.0.1:1>"),
        "removed": ("009", "Job was aborted."),
    }
    events = sorted(((-at, word) for word, times in ago.items() for at in times))
    when = "%Y-%m-%d %H:%M:%S.000"
    log.write_text(
        "".join(
            f"{kinds[word][0]} (050.000.000) {datetime.fromtimestamp(now + at):{when}} "
            f"{kinds[word][1]}\n...\n"
            for at, word in events
        )
    )


def test_the_first_trials_say_nothing_of_the_time_left() -> None:
    begun = time.time() - 100
    assert seconds_left_of_run([region(2), region(0)], begun) is None
    assert seconds_left_of_run([region(2), region(0)], None) is None
    given_up = region(0, Stage.FAILED)  # before any trial was over, and nothing is left
    assert seconds_left_of_run([given_up], begun) is None


def test_after_a_failure_of_the_trainer_another_run_is_the_next_step(make_run: MakeRun) -> None:
    status = make_run().status()
    cause = Cause(error="exit code 1: KeyError: 'lat'", attempts=6, of=6, log="err")
    status = replace(status, state=RunState.FAILED)
    (region,) = status.regions
    lost = replace(region, state=RunState.FAILED, stage=Stage.FAILED)
    text = printed(run_view(replace(status, regions=(replace(lost, cause=cause),))), 160)
    assert "trialfleet run STUDY --check" in text
    assert "next: trialfleet resume" not in text
    text = printed(run_view(replace(status, regions=(lost,))), 160)
    assert "next: trialfleet resume" in text


def test_the_next_step_is_another_run_where_resuming_cannot_help(make_run: MakeRun) -> None:
    status = make_run(regions=["A", "B"]).status()
    one, other = status.regions

    def output_of(state: RunState, *regions: RegionStatus) -> str:
        return printed(run_view(replace(status, state=state, regions=regions)), 160)

    failed = replace(one, state=RunState.FAILED, stage=Stage.FAILED)
    without_model = replace(failed, over=f"the full training {LEFT_NO_MODEL}: in mode final …")
    good = replace(other, state=RunState.DONE, stage=Stage.PUBLISHED)
    assert "next: fix the causes above, then start another run" in output_of(
        RunState.FAILED, without_model, good
    )
    cause = Cause(error="No module named 'pandsa'", attempts=4, of=4, log="err")
    stopped = replace(one, state=RunState.STOPPED, stage=Stage.STOPPED, cause=cause)
    assert "next: fix" in output_of(RunState.STOPPED, stopped)
    assert "next: fix" in output_of(RunState.STOPPED, stopped, without_model)
    used_up = replace(stopped, cause=None, over="3 trials failed for good; at most 2 may")
    assert "next: fix" in output_of(RunState.STOPPED, used_up), "a resume would start no trial"
    for may_go_on in (
        replace(stopped, done=1),
        replace(stopped, cause=replace(cause, attempts=3)),
        replace(stopped, cause=None),
    ):
        assert "next: trialfleet resume" in output_of(RunState.STOPPED, stopped, may_go_on)


def test_a_reason_that_many_regions_share_is_shown_once(make_run: MakeRun) -> None:
    status = make_run(regions=["A", "B", "C", "D"]).status()
    reasons = [f"no trial can succeed: exit code 1: lr {n}; see /runs/{n}/err" for n in "123"]
    reasons.append("something else")
    lost = tuple(
        replace(region, state=RunState.FAILED, stage=Stage.FAILED, reason=reason)
        for region, reason in zip(status.regions, reasons, strict=True)
    )
    text = printed(run_view(replace(status, state=RunState.FAILED, regions=lost)), 160)
    assert "".join(text.split("\n")[5:]).count("no trial can succeed") == 1
    assert "3 of 4 regions (A, B, C) failed: no trial can succeed: exit code 1: lr 1;" in text
    assert "D failed: something else" in text


def test_a_watch_shows_each_cause_once_and_how_to_run_the_study_again(make_run: MakeRun) -> None:
    status = make_run().status()
    (region,) = status.regions
    error = "exit code 1: KeyError: 'lat'"
    causes = [Cause(error=f"{error} {n}", attempts=n, of=n, log="err") for n in (1, 2, 3)]
    begun = replace(status, state=RunState.RUNNING, again="trialfleet run s.yaml --check")
    seen = [replace(begun, regions=(replace(region, cause=cause),)) for cause in causes]
    seen[2] = replace(seen[2], notice=f"no trial has completed{ALIKE}{error} 1; see err")
    reason = f"{GAVE_UP}{error} 3; see err"
    lost = replace(region, state=RunState.FAILED, stage=Stage.FAILED, reason=reason, over=reason)
    lost = replace(lost, cause=causes[2])
    ended = replace(begun, state=RunState.FAILED, regions=(lost,))
    shown = Console(width=200)
    with shown.capture() as capture:
        show = _line_printer(shown)
        for each in (*seen, ended):
            show(each)
    assert capture.get().count("see err") == 1, "the whole cause is said once"
    assert f"{region.name}: failed: 0/3 trials, 3 failed attempts\n" in capture.get()
    assert f"{region.name} failed: no trial can succeed: KeyError: 'lat' 3\n" in capture.get()
    text = printed(run_view(ended), 200)
    assert text.count("see err") == 1
    assert text.splitlines()[-1] == (
        "next: fix the causes above, then start another run: trialfleet run s.yaml --check"
    )
    assert "why:" not in text
    assert printed(run_view(seen[2]), 200).count("KeyError") == 1


def test_a_long_reason_is_short_in_the_rows_and_complete_once_below(
    make_run: MakeRun,
) -> None:
    status = make_run().status()
    (region,) = status.regions
    short = "the full training left nothing in model/"
    assert NO_MODEL.startswith(f"{short}: in mode final")
    cause = Cause(error=NO_MODEL, attempts=1, of=1, log="err")
    tried = replace(region, state=RunState.RUNNING, stage=Stage.TRAINING, cause=cause)
    lost = replace(region, state=RunState.FAILED, stage=Stage.FAILED, reason=NO_MODEL)
    shown = Console(width=400)
    with shown.capture() as capture:
        show = _line_printer(shown)
        show(replace(status, state=RunState.RUNNING, regions=(tried,)))
        show(replace(status, state=RunState.FAILED, regions=(lost,)))
    lines = [line.split(" ", 1)[1] for line in capture.get().splitlines()]
    assert f"A: an attempt failed: {short}; see err" in lines
    assert f"A failed: {short}" in lines
    view = printed(run_view(replace(status, state=RunState.FAILED, regions=(lost,))), 400)
    assert view.splitlines()[2].rstrip().endswith(f"  {short}")
    assert view.count("in mode final") == 1
    error = f"exit code 1: {'a long error ' * 20}"
    loud = replace(tried, cause=replace(cause, error=error))
    with shown.capture() as capture:
        _line_printer(shown)(replace(status, regions=(loud,)))
    assert "an attempt failed: exit code 1: a long error" in capture.get(), "not its head alone"
    assert "…; see err\n" in capture.get()


def test_a_cause_that_the_reason_names_is_not_said_again(make_run: MakeRun) -> None:
    status = make_run().status()
    (region,) = status.regions
    cause = Cause(error="exit code 1: KeyError: 'lat'", attempts=6, of=6, log="err")
    reason = f"no trial can succeed: {cause.error}; see err"
    lost = replace(region, stage=Stage.FAILED, reason=reason, cause=cause)
    assert printed(run_view(replace(status, regions=(lost,))), 160).count("see err") == 1


@pytest.mark.parametrize("width", [80, 120])
def test_the_row_of_a_failed_region_says_how_often_it_was_tried_and_why(
    make_run: MakeRun, width: int
) -> None:
    status = make_run(regions=["Schleswig-Holstein", "B", "C"]).status()
    one, _, well = status.regions
    error = "exit code 1: KeyError: 'a_column_with_a_rather_long_name_that_no_table_has_room_for'"
    lost = replace(one, state=RunState.FAILED, stage=Stage.FAILED)
    cause = Cause(error=error, attempts=4, of=4, log="err")
    mixed = replace(cause, attempts=3)
    regions = (replace(lost, cause=cause), replace(lost, name="B", cause=mixed), well)
    lines = printed(run_view(replace(status, state=RunState.FAILED, regions=regions)), width)
    first, second, third = lines.splitlines()[2:5]
    assert first.startswith("Schleswig-Holstein")
    assert "4 attempts: KeyError" in first
    assert "3 of 4 attempts: Key" in second
    assert "attempt" not in third
    assert all(len(line) <= width for line in (first, second))
    assert "".join(lines.split()).count("no_table_has_room_for") == 1, "the whole cause, once"
    unknown = replace(lost, reason="the run's DAGMan was lost; see log")
    text = printed(run_view(replace(status, state=RunState.FAILED, regions=(unknown,))), width)
    assert "the run's" in text.splitlines()[2]


def test_a_columns_values_have_one_precision(make_run: MakeRun, trial: Trial) -> None:
    trials = [replace(trial, value=value) for value in (0.7, 0.774981, 12.25, None)]
    text = printed(trials_table(trials, "loss", 160), 160)
    assert [word for word in ("0.7000", "0.7750", "12.2500") if word not in text] == []
    best = [
        BestSettings(
            region="A", stage=Stage.TUNED, trial=n, value=value, params={}, final=None,
            published=None,
        )
        for n, value in ((3, 0.5), (12, 0.123456))
    ]  # fmt: skip
    lines = printed(best_table(best, "loss"), 160).splitlines()
    assert " 3  0.500000" in lines[1]
    assert "12  0.123456" in lines[2]
    status = make_run().status()
    (region,) = status.regions
    regions = (replace(region, best=0.5), replace(region, best=0.71234))
    text = printed(run_view(replace(status, regions=regions)), 160)
    assert "0.50000" in text
    assert "0.71234" in text


def test_the_columns_of_a_watch_stay_where_they_are(make_run: MakeRun) -> None:
    status = replace(make_run().status(), state=RunState.RUNNING)
    (region,) = status.regions
    region = replace(region, state=RunState.RUNNING, stage=Stage.TRAINING)
    running = (
        RunningTrial(node="n", slot=None, started=None, step=step, value=None)
        for step in (10, 100_000, 7)
    )
    first = replace(region, running_trials=tuple(running), running=3, best=12.5, seconds_left=7000)
    moments = [first, replace(region, stage=Stage.TUNING), replace(region, best=0.25)]
    widths: dict[str, int] = {}
    titles = [
        printed(run_view(replace(status, regions=(moment,)), widths), 160).splitlines()[1]
        for moment in moments
    ]
    assert "step" in titles[0]
    assert titles == titles[:1] * 3


def test_a_narrow_terminal_drops_the_bars_first(make_run: MakeRun) -> None:
    status = replace(make_run().status(), state=RunState.RUNNING)
    (region,) = status.regions
    region = replace(region, name="Île-de-France (Paris)", done=2, seconds_left=7000, best=12.5)
    wide, narrow = (
        printed(run_view(replace(status, regions=(region,))), width) for width in (140, 100)
    )
    for view in (wide, narrow):
        assert "Île-de-France (Paris)" in view
        assert "time left" in view
    assert ["━" in wide, "━" in narrow] == [True, False]


LONG = "/a/folder/of/somebody/whose/names/are/all/rather/long/models/sales/UK-Ireland/r1"


@pytest.mark.parametrize("columns", [None, "40"])
def test_no_path_is_cut_or_folded(
    columns: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    show(Text(f"its model is kept in {LONG}, and not the latest"))
    assert LONG in capsys.readouterr().out


def test_output_to_a_pipe_is_not_wrapped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table = Table()
    table.add_column("state", overflow="fold")
    table.add_row(f"kept r1: {'worse by a little, ' * 30}{LONG}")
    show(table)
    assert LONG in capsys.readouterr().out
