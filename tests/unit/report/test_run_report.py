"""The report of a run as its FINAL node writes it: from the run's folder and its storage."""

from __future__ import annotations

import html
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from tests.unit.report.report_studies import blocks_of
from tests.unit.scripts import Scripts, write_result
from tests.unit.serve.page_server import serving
from tests.unit.study.study_texts import MINIMAL, error_of
from tests.unit.terminal import printed
from trialfleet import Run, plan
from trialfleet.errors import OptimizerError
from trialfleet.files import write_json
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.scripts.report_program import write_report
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Attempt, Ending, Journal
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.lookup import FoundRun
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.views.report.page_texts import subtitle
from trialfleet.workflows.views.report.report_reader import read_report
from trialfleet.workflows.views.report.terminal_table import summary_table
from trialfleet.workflows.views.terminal.run_list import list_runs, runs_table
from trialfleet.workflows.views.why.explain import explain

pytestmark = pytest.mark.slow


def tuned(run: Run, *results: Mapping[str, float]) -> RunFolder:
    """Return the run's folder after trials with these metrics."""
    scripts = Scripts(run)
    for number, metrics in enumerate(results, start=1):
        node = f"A.l1.t{number:02}"
        assert scripts.ask(node) == 0
        write_result(scripts.trial(node), metrics=metrics)
        report = json.dumps({"step": 1, "metrics": metrics})
        scripts.trial(node).progress.write_text(f"{report}\n")
        assert scripts.tell(node, 0) == 0
    return scripts.folder


BUDGET = {"trials": 2, "lanes": 1, "startup_trials": 2}
DEFAULT, BEST = {"loss": 0.5, "accuracy": 0.5}, {"loss": 0.25, "accuracy": 0.75}


def test_the_page_and_the_list_of_runs_label_the_time_of_planning(make_run: MakeRun) -> None:
    run = make_run()
    assert re.search(r" · planned \d{4}-.* UTC$", subtitle(read_report(RunFolder(run.folder))))
    heading = printed(runs_table(list_runs([FoundRun(run.folder, "demo", "r1", 0.0)])))
    assert heading.split()[:4] == ["study", "run", "published", "planned"]


def test_a_report_metric_with_the_opposite_direction_shows_a_positive_gain(
    make_run: MakeRun,
) -> None:
    run = make_run(budget=BUDGET, report_metric="accuracy", report_direction="maximize")
    folder = tuned(run, DEFAULT, BEST)
    report = write_report(folder, None)
    content = json.loads(folder.report_data.read_text())
    assert content["report_direction"] == "maximize"
    assert content["regions"][0]["report"]["gain"] == 0.25
    assert content["regions"][0]["objective"]["gain"] == 0.25
    page = folder.report_page.read_text()
    assert "by accuracy (higher is better); trials were chosen by loss (lower is better)" in page
    assert "+0.25" in page
    assert "+0.25" in printed(summary_table(report), 160)


def test_a_days_report_shows_days_by_region_with_regions_outside_its_run(
    make_run: MakeRun, work: Path
) -> None:
    day, now = date(2026, 11, 22), datetime(2026, 11, 22, 3, tzinfo=UTC)
    study, place = make_run(budget=BUDGET).study, work / "runs" / "demo" / "d2"
    run = plan(study, run="d2", out=place, day=RunsDay(date=day))
    journal = Journal(DailyFolder(run.folder.parent).journal)
    for back, name in ((1, "d1"), (0, "d2"), (-1, "d3")):
        attempt = journal.begin(
            Attempt(
                date=day - timedelta(days=back),
                attempt=1,
                run=name,
                regions=("A", "NO"),
                started=now,
                deadline=None,
            )
        )
        why = "data isn't there: <b>"
        journal.record([attempt.outcome("NO", Ending.FAILED, why)], now)
        if back == 1:
            journal.record([attempt.outcome("A", Ending.PUBLISHED, "", run=name)], now)
    folder = tuned(run, DEFAULT)
    write_json(folder.region("A").stopped, {"reason": "4 trials failed"})
    report = write_report(folder, datetime(2026, 11, 22, 4, tzinfo=UTC))
    assert [each.date for each in report.days] == [day, day - timedelta(days=1)], "none after it"
    page = folder.report_page.read_text()
    [rows] = [block["days"] for block in blocks_of(page) if "days" in block]
    found = re.findall(r"<bdi>(.*?)</bdi>(.*?)</tr>", rows)
    marks = {region: re.findall(r"[✓=·✕](?=</span>)", cells) for region, cells in found}
    assert marks == {"NO": ["✕", "✕"], "A": ["✓", "✕"]}
    assert "2026-11-22: failed: data isn&#39;t there: &lt;b&gt;" in rows
    assert "2026-11-22: failed: 4 trials failed" in rows, "which its journal doesn't have yet"
    assert "2 failed" in page
    listed = json.loads(folder.report_data.read_text())["days"]
    assert [(each["date"], len(each["regions"])) for each in listed] == [
        ("2026-11-22", 2),
        ("2026-11-21", 2),
    ]


def test_a_damaged_journal_of_days_hides_nothing_but_the_days(
    make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = RunsDay(date=date(2026, 11, 22))
    study, place = make_run(budget=BUDGET).study, work / "runs" / "demo" / "d2"
    folder = tuned(plan(study, run="d2", out=place, day=day), DEFAULT, BEST)
    journal = DailyFolder(place.parent).journal
    journal.write_text("no database, and long enough to be seen as none" * 10)
    damage = f"the study's days are unknown: the journal '{journal}' can't be used: file is not a"
    report = write_report(folder, None)
    assert len(report.regions[0].trials) == 2
    assert damage in report.notice
    monkeypatch.chdir(work)
    shown = " ".join(CliRunner().invoke(main, ["status", "d2"]).output.split())
    assert "2/2" in shown
    assert damage in shown
    assert damage in " ".join(explain("d2").notes)
    with serving(work) as server:
        page = server.ask("/")
    assert page.status == 200
    assert damage in html.unescape(page.text)


def test_the_report_of_a_run_of_no_day_has_no_days(make_run: MakeRun) -> None:
    folder = tuned(make_run(budget=BUDGET), DEFAULT)
    assert write_report(folder, None).days == ()
    assert "days-title" not in folder.report_page.read_text()


DAGMAN_LOG = """\
000 (007.000.000) 2026-11-20 02:00:00.000 Job submitted from host: <127.0.0.1:22457>
...
001 (007.000.000) 2026-11-20 02:00:01.000 Job executing on host: <127.0.0.1:22457>
...
009 (007.000.000) 2026-11-20 02:30:00.000 Job was aborted.
\tvia condor_rm (by user a)
...
000 (011.000.000) 2026-11-20 10:00:00.000 Job submitted from host: <127.0.0.1:22457>
...
001 (011.000.000) 2026-11-20 10:00:01.000 Job executing on host: <127.0.0.1:22457>
...
"""


EVICTED = """\
\t(0) CPU times
\t\tUsr 0 00:00:02, Sys 0 00:00:01  -  Run Remote Usage
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Local Usage
\t279  -  Run Bytes Sent By Job
\t978  -  Run Bytes Received By Job
"""


def test_the_wall_time_of_a_resumed_run_comes_from_its_dagmans_logs(make_run: MakeRun) -> None:
    folder = tuned(make_run(budget=BUDGET), DEFAULT)
    folder.dag_files.log.write_text(DAGMAN_LOG)
    finished = datetime(2026, 11, 20, 10, 40).astimezone()  # logs have the machine's own time
    report = write_report(folder, finished)
    assert report.paused_seconds == 7.5 * 3600 + 1
    assert report.wall_seconds == 40 * 60 - 1 + 30 * 60 - 1
    assert json.loads(folder.report_data.read_text())["paused_seconds"] == report.paused_seconds


def test_half_a_minute_between_stop_and_resume_is_a_pause(make_run: MakeRun) -> None:
    folder = tuned(make_run(budget=BUDGET), DEFAULT)
    log = DAGMAN_LOG.replace("10:00:0", "02:30:3")
    folder.dag_files.log.write_text(log)
    assert write_report(folder, datetime(2026, 11, 20, 2, 40).astimezone()).paused_seconds == 31
    aborted, evicted = "009 (007.000.000)", "004 (007.000.000)"
    crashed = log.replace(aborted, evicted).replace("aborted", "evicted")
    crashed = crashed.replace("\tvia condor_rm (by user a)\n", EVICTED)
    folder.dag_files.log.write_text(crashed)
    assert write_report(folder, datetime(2026, 11, 20, 2, 40).astimezone()).paused_seconds == 0


def test_the_report_metric_takes_the_objectives_direction_by_default(
    make_run: MakeRun,
) -> None:
    folder = tuned(make_run(budget=BUDGET, report_metric="accuracy"), DEFAULT, BEST)
    report = write_report(folder, None)
    assert report.report_direction == "minimize"
    assert report.regions[0].report.gain == -0.25
    assert "by accuracy (lower is better)" in folder.report_page.read_text()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("report_direction: maximize", "requires report_metric"),
        (
            "report_metric: loss\nreport_direction: maximize",
            "contradicts the objective 'loss', which is minimized",
        ),
        ("report_metric: auc\nreport_direction: up", "'minimize' or 'maximize' (got 'up')"),
    ],
)
def test_a_direction_that_means_nothing_is_refused(tmp_path: Path, lines: str, words: str) -> None:
    (tmp_path / "go.sh").touch()
    message = error_of(tmp_path, MINIMAL + lines + "\n")
    at = 9 + lines.count("\n")
    assert f"study.yaml:{at}: report_direction: " in message
    assert words in message


def test_a_storage_that_was_never_made_gives_regions_without_trials(make_run: MakeRun) -> None:
    folder = RunFolder(make_run(budget=BUDGET).folder)
    before = read_report(folder)
    assert [region.trials for region in before.regions] == [()]
    assert not folder.database.exists()
    folder.database.touch()  # the service was killed before it made the tables
    assert read_report(folder).regions == before.regions
    assert folder.database.stat().st_size == 0


def test_an_unreadable_storage_raises_an_error(make_run: MakeRun) -> None:
    folder = RunFolder(make_run(budget=BUDGET).folder)
    folder.database.write_bytes(b"no database at all" * 100)
    with pytest.raises(OptimizerError, match="can't be used: file is not a database"):
        read_report(folder)


def test_the_error_names_a_damaged_attribute_that_the_report_needs(make_run: MakeRun) -> None:
    folder = tuned(make_run(budget=BUDGET), DEFAULT, BEST)
    before = read_report(folder)
    damage(folder.database, "seed")
    assert read_report(folder).regions == before.regions
    damage(folder.database, "params")
    with pytest.raises(OptimizerError, match="attribute 'params' is not valid JSON"):
        read_report(folder)


def damage(database: Path, attribute: str) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        words = "UPDATE trial_user_attributes SET value_json = '{' WHERE key = ?"
        assert connection.execute(words, (attribute,)).rowcount


def test_a_run_without_a_fleet_needs_nothing_of_aws(make_run: MakeRun) -> None:
    folder = tuned(make_run(budget=BUDGET), DEFAULT, BEST)
    code = "import sys; from trialfleet.workflows.control.scripts.report_program import *; "
    code += f"write_report(RunFolder(Path({str(folder.root)!r})), None); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "jinja2" in done.stdout.split()
    assert not {"boto3", "botocore", "optuna"} & {*done.stdout.split()}


def test_reading_changes_nothing_in_the_storage(make_run: MakeRun) -> None:
    folder = tuned(make_run(budget=BUDGET), DEFAULT, BEST)
    before = dump(folder.database)
    assert read_report(folder).complete == 2
    assert dump(folder.database) == before


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def test_a_trial_has_the_same_names_in_python_and_in_the_report(make_run: MakeRun) -> None:
    run = make_run(budget=BUDGET)
    write_report(folder := tuned(run, DEFAULT, BEST), None)
    (region,) = json.loads(folder.report_data.read_text())["regions"]
    assert region["trials"] == json.loads(json.dumps([asdict(trial) for trial in run.trials()]))
    assert [trial["curve"] for trial in region["trials"]] == [[[1, 0.5]], [[1, 0.25]]]
