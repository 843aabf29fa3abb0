"""A day whose run is resumed after regions failed: each succeeds once, even after a kill."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from trialfleet import Run, plan
from trialfleet.files import write_json
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.dagman import repair
from trialfleet.workflows.control.daily import day_attempt as day_module
from trialfleet.workflows.control.daily.day_loop import Days
from trialfleet.workflows.facts.journal.journal import Attempt, Ending, Journal, Outcome
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.status.day_outcomes import outcomes_now
from trialfleet.workflows.views.terminal.days_table import newest_days

DAY = date(2026, 11, 22)
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
REGIONS = ("A", "B", "C")
STUDY = """name: demo
regions: [A, B, C]
trainer: {command: [sh, go.sh], files: [go.sh]}
objective: {metric: loss, direction: minimize}
search_space: {x: {type: float, low: 0.0, high: 1.0}}
budget: {trials: 3}
daily: {at: '02:30', zone: UTC}
"""


@pytest.fixture
def stopped(make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A day that ended with A published and B and C failed: their run was stopped."""
    monkeypatch.chdir(work)
    monkeypatch.setattr(day_module, "POLL_SECONDS", 0.01)
    (work / "go.sh").write_text("exit 0\n")
    (work / "study.yaml").write_text(STUDY)
    place = work / "runs/demo" / str(DAY)
    files = RunFolder(make_run(name="demo", run=str(DAY), out=place, regions=list(REGIONS)).folder)
    publish(files, "A")
    journal = Journal(work / "runs/demo/daily.db")
    attempt = journal.begin(
        Attempt(date=DAY, attempt=1, run=str(DAY), regions=REGIONS, started=NOON, deadline=None)
    )
    outcomes = [
        Outcome(
            date=DAY,
            region=region,
            attempt=1,
            ending=Ending.PUBLISHED if region == "A" else Ending.FAILED,
            run=str(DAY),
        )
        for region in REGIONS
    ]
    journal.record(outcomes, NOON)
    journal.end(attempt, NOON)
    return files


def publish(files: RunFolder, region: str, verdict: str = "promoted") -> None:
    write_json(files.region(region).published, {"path": str(files.root / "model" / region)})
    models = {"champion": {"run": "r0", "metrics": {}}, "challenger": {"run": "r1", "metrics": {}}}
    entry = {"verdict": verdict, "why": "worse by 3%", "metric": "loss", **models}
    write_json(files.region(region).verdict, {**entry, "baseline": None, "interval": None})


def write_resumed_files(files: RunFolder) -> None:
    """Write the files of a resumed run: B has a model, C has no current one."""
    files.dag_files.submit.touch()
    files.dag_files.log.write_text("000 (001.000.000) submitted\n")
    publish(files, "B")
    publish(files, "C", verdict="kept")


def days_here(say: Callable[[str], None] = lambda _: None) -> Days:
    return Days(Path("study.yaml"), clock=lambda: NOON + timedelta(hours=1), say=say)


def current_endings(journal: Journal) -> dict[str, Ending]:
    return {region: one.ending for (_, region), one in outcomes_now(journal).items()}


WELL = {"A": Ending.PUBLISHED, "B": Ending.PUBLISHED, "C": Ending.KEPT}


def test_the_next_start_records_the_outcomes_of_a_resumed_run(stopped: RunFolder) -> None:
    write_resumed_files(stopped)
    done = CliRunner().invoke(main, ["daily", "run", "study.yaml", "--date", str(DAY)])
    assert done.output.splitlines()[-2] == f"{DAY}: 2 published, 1 kept"
    assert done.exit_code == 0
    days = days_here()
    assert current_endings(days.journal) == WELL
    assert [(a.attempt, a.run, a.regions) for a in days.journal.attempts()] == [
        (1, str(DAY), REGIONS),
        (2, str(DAY), ("B", "C")),
    ]
    assert days.backfill(DAY, DAY, only_missing=True) == [], "nothing is trained again"


def test_a_run_that_nobody_resumed_stays_failed(stopped: RunFolder) -> None:
    publish(stopped, "B")  # and yet its DAGMan has not run
    days = days_here()
    days.run(DAY)
    assert current_endings(days.journal) == {
        "A": Ending.PUBLISHED,
        "B": Ending.FAILED,
        "C": Ending.FAILED,
    }
    assert len(days.journal.attempts()) == 1


def test_status_of_a_days_run_names_a_region_without_data(stopped: RunFolder) -> None:
    day = DAY - timedelta(days=1)
    place = stopped.root.with_name(str(day))
    plan(Run(stopped.root).study.without_regions(["B", "C"]), run=str(day), out=place, day=day)
    journal = days_here().journal
    attempt = Attempt(
        date=day, attempt=1, run=str(day), regions=("A", "J"), started=NOON, deadline=None
    )
    journal.end(journal.begin(attempt), NOON)
    why_not = f"data of {day} isn't there: data/J.csv"
    failed = Outcome(date=day, region="J", attempt=1, ending=Ending.FAILED, why=why_not)
    journal.record([failed], NOON)
    files = RunFolder(place)
    publish(files, "A")
    files.dag_files.submit.touch()
    done = CliRunner().invoke(main, ["status", str(place)])
    assert f"J is not in this run, because its day failed: {why_not}" in done.output
    first, second = CliRunner().invoke(main, ["why", "--run", str(place)]).output.splitlines()
    assert f"1 of 2 regions, for example J: its day {day} failed: {why_not}" in first
    assert f"--from {day} --to {day} --only missing" in second


@pytest.mark.usefixtures("empty_queue")
def test_resuming_a_run_from_python_reopens_its_day(
    stopped: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submitted(files: RunFolder) -> str:
        files.dag_files.submit.touch()
        files.dag_files.log.write_text("000 (001.000.000) submitted\n")
        publish(files, "B")
        return "1"

    stopped.dag_files.submit.touch()
    monkeypatch.setattr(repair, "submit", submitted)
    assert Run(stopped.root).resume() == "1"
    (_, again) = days_here().journal.attempts()
    assert (again.run, again.regions, again.ended) == (str(DAY), ("B",), None)


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("survived", range(8))
def test_a_kill_between_any_two_writes_of_the_journal_loses_nothing(
    stopped: RunFolder, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    """Before the write of a number, and after it: the next start ends the same."""
    write_resumed_files(stopped)
    writes = 0
    killed_before = survived % 2 == 0

    def dies(real: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any) -> Any:
            nonlocal writes
            writes += 1
            if killed_before and writes > survived // 2:
                raise Killed
            made = real(*args)
            if writes > survived // 2:
                raise Killed
            return made

        return write

    with monkeypatch.context() as patch:
        days = days_here()
        for name in ("begin", "record", "end"):
            patch.setattr(Journal, name, dies(getattr(Journal, name)))
        with pytest.raises(Killed):
            days.run(DAY)
    days = days_here()
    days.run(DAY)
    assert current_endings(days.journal) == WELL
    well = [o.region for o in days.journal.outcomes() if o.ending is not Ending.FAILED]
    assert sorted(well) == list(REGIONS), "each once"
    assert len(days.journal.attempts()) == 2
    assert all(attempt.ended for attempt in days.journal.attempts())


def test_regions_of_a_resumed_run_are_open_until_they_have_outcomes(
    stopped: RunFolder,
) -> None:
    journal = days_here().journal
    journal.begin(
        Attempt(date=DAY, attempt=2, run=str(DAY), regions=("B", "C"), started=NOON, deadline=None)
    )
    (day,) = newest_days(journal, 7)
    assert (day.open, day.counts[Ending.FAILED], day.counts[Ending.PUBLISHED]) == (2, 0, 1)
    write_resumed_files(stopped)
    (day,) = newest_days(journal, 7)
    assert (day.open, day.counts[Ending.KEPT], day.counts[Ending.PUBLISHED]) == (0, 1, 2)
