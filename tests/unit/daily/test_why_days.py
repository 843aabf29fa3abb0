"""`trialfleet why` of regions that studies share, and of those whose day made no run."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from tests.unit.study.study_texts import MINIMAL, write
from trialfleet.errors import InputError, TrialfleetError
from trialfleet.files import write_json
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.daily.day_loop import Days
from trialfleet.workflows.control.plan.run_folder_writer import write_plan
from trialfleet.workflows.facts.journal.journal import Attempt, Ending, Outcome
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.loading import load_study
from trialfleet.workflows.views.why.explain import explain
from trialfleet.workflows.views.why.subject import find_subject

DAY = date(2026, 11, 22)
TEXT = MINIMAL.replace("name: demo", "name: days") + (
    "data: 'data/{region}/{date}.txt'\ndaily: {at: '02:30', zone: UTC}\n"
)


@pytest.fixture
def shared(make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A region A of the study `demo`, which has a run, and of `days`, which has none of it yet."""
    monkeypatch.chdir(work)
    make_run(name="demo", run="r1", out=work / "runs/demo/r1")
    (work / "go.sh").write_text("exit 0\n")
    return write(work, TEXT)


def work_on(file: Path, after: timedelta) -> None:
    """Work on a day without any region's data, this long after the run was planned."""
    planned = RunFolder(Path("runs/demo/r1").absolute()).study.stat().st_mtime
    now = datetime.fromtimestamp(planned, UTC) + after
    Days(file, clock=lambda: now, say=lambda _: None).run(DAY)


def test_why_explains_a_region_by_the_newest_day_or_run_of_any_study(shared: Path) -> None:
    work_on(shared, timedelta(minutes=1))
    first, second = explain("A").lines()
    assert first.startswith(f"days/A: its day {DAY} failed: data of {DAY} isn't there")
    assert second == (
        f"next: put the data there, then: trialfleet daily backfill {shared} "
        f"--from {DAY} --to {DAY} --only missing"
    )


def test_why_passes_over_folders_of_other_accounts(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shared.parent / "runs" / "foreign").mkdir()
    stat = Path.stat

    def refuse(path: Path, **options: bool) -> os.stat_result:
        if "foreign" in path.parent.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    assert explain("A").why == "the run is planned, but was not submitted"
    with pytest.raises(InputError, match="the job 12 is neither in HTCondor's queue nor in the"):
        explain("12")


def test_an_earlier_failure_does_not_count_while_a_region_is_tried_again(shared: Path) -> None:
    work_on(shared, timedelta(minutes=1))
    journal, now = Days(shared, say=lambda _: None).journal, datetime.now(UTC)
    again = Attempt(
        date=DAY, attempt=2, run=f"days-{DAY}", regions=("A",), started=now, deadline=None
    )
    journal.begin(again)
    assert explain("A").why == "its day has started; its run is not planned yet"


def test_why_prefers_a_newer_run_to_an_older_day(shared: Path) -> None:
    work_on(shared, timedelta(minutes=-1))
    answer = explain("A")
    assert answer.subject == "demo/A"
    assert answer.why == "the run is planned, but was not submitted"
    assert explain("NO").subject == "NO", "one study alone has it"


def test_a_region_is_named_with_its_study_or_its_run(shared: Path) -> None:
    work_on(shared, timedelta(minutes=1))
    for name in ("demo/A", "r1/A"):
        assert find_subject(name).what == "region"
    assert explain("demo/A").subject == "demo/A"
    assert explain("days/A").lines()[0].startswith("days/A: its day")
    example = "A; a node, for example: A.l1.t01"
    with pytest.raises(
        InputError,
        match=rf"'B' is not a job, an instance, or a region or node of the run 'r1'.*: {example}$",
    ):
        explain("demo/B")


def test_why_explains_a_region_that_the_named_run_lacks_by_its_day(
    shared: Path, make_run: MakeRun, work: Path
) -> None:
    work_on(shared, timedelta(minutes=1))
    make_run(name="days", run="d1", out=work / "runs/days/d1", regions=["B"])
    assert explain("A", "d1").why.startswith("its day")
    assert explain("A", "r1").why.startswith("the run is planned")


def test_why_refuses_a_folder_that_is_no_run(shared: Path) -> None:
    work_on(shared, timedelta(minutes=1))
    done = CliRunner().invoke(main, ["why", "A", "--run", "."])
    assert done.exit_code == 2
    assert "is not a run's folder (it has no study.json)" in done.stderr


@pytest.mark.slow
def test_why_explains_the_named_run_and_not_a_later_day(shared: Path) -> None:
    before = DAY - timedelta(days=1)
    (shared.parent / "plain.yaml").write_text(MINIMAL)
    study = load_study(shared.parent / "plain.yaml")
    out = Path("runs/days").absolute() / str(before)
    write_plan(study, run=str(before), out=out, day=RunsDay(date=before))
    journal = Days(shared, say=lambda _: None).journal
    now = datetime.now(UTC)
    run = f"days-{DAY}"
    journal.begin(Attempt(date=DAY, attempt=1, run=run, regions=("A",), started=now, deadline=None))
    outcome = Outcome(date=DAY, region="A", attempt=1, ending=Ending.UNCHANGED)
    journal.record([outcome], now)
    assert explain("days/A").why.startswith(f"on {DAY} its data and settings had not changed")
    names = (str(before), f"days/{before}", f"runs/days/{before}")
    for answer in (explain(f"{before}/A"), *(explain("A", name) for name in names)):
        assert answer.why == "the run is planned, but was not submitted"


@pytest.mark.slow
@pytest.mark.parametrize("newer_run", [None, f"days-{DAY}"])
def test_a_region_that_a_run_lacks_is_explained_by_the_day_of_that_run(
    shared: Path, newer_run: str | None
) -> None:
    before = DAY - timedelta(days=1)
    (shared.parent / "plain.yaml").write_text(MINIMAL)
    study = load_study(shared.parent / "plain.yaml")
    for run, day in ((str(before), before), (newer_run, DAY)):
        if run:
            out = Path("runs/days").absolute() / run
            write_plan(study, run=run, out=out, day=RunsDay(date=day))
    journal, now = Days(shared, say=lambda _: None).journal, datetime.now(UTC)
    for day, run, ending, why_not in (
        (before, str(before), Ending.FAILED, f"data of {before} isn't there"),
        (DAY, f"days-{DAY}", Ending.PUBLISHED if newer_run else Ending.UNCHANGED, ""),
    ):
        regions = ("A", "B")
        journal.begin(
            Attempt(date=day, attempt=1, run=run, regions=regions, started=now, deadline=None)
        )
        its_run = newer_run if day == DAY else None
        outcome = Outcome(date=day, region="B", attempt=1, ending=ending, why=why_not, run=its_run)
        journal.record([outcome], now)
    files = RunFolder(Path("runs/days").absolute() / str(before))
    for region in study.region_table:
        write_json(files.region(region).published, {"path": f"{shared.parent}/models/{region}/x"})
    files.dag_files.submit.touch()  # it was submitted, and is done
    expected = f"its day {before} failed: data of {before} isn't there"
    assert expected in " ".join(explain(None, str(before)).lines())
    assert explain("B", str(before)).why == expected


def test_why_explains_a_run_although_the_journal_is_damaged(
    make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    place = work / "runs/demo/d2"
    study = make_run(out=work / "elsewhere").study
    write_plan(study, run="d2", out=place, day=RunsDay(date=DAY))
    (place.parent / "daily.db").write_text("no database, and long enough to be seen as none" * 10)
    damage = "the study's days are unknown: the journal "
    for word, notes in (("A", [damage]), ("demo/A", [damage]), ("d2/A", []), ("d2", [damage])):
        answer = explain(word)
        assert answer.why == "the run is planned, but was not submitted"
        assert [note[: len(damage)] for note in answer.notes] == notes
    with pytest.raises(TrialfleetError, match=r"the journal .*: file is not a database"):
        explain("B")
