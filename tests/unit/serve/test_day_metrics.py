"""A study's days in /metrics and on the page, also for regions that the newest run lacks."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from tests.unit.serve.page_server import serving
from tests.unit.study.study_texts import MINIMAL, write
from trialfleet import load_study, plan
from trialfleet.files import write_json
from trialfleet.workflows.control.models.latest import promote
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Attempt, Ending, Journal, Outcome
from trialfleet.workflows.facts.journal.last_days import RegionDays, study_days
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.views.report import days_matrix as by_day
from trialfleet.workflows.views.report.report_reader import read_report
from trialfleet.workflows.views.serve.live_runs import PoolNodes
from trialfleet.workflows.views.serve.metrics import exposition
from trialfleet.workflows.views.terminal.days_table import newest_days

NOW = datetime.now(UTC).replace(microsecond=0)
TODAY = NOW.date()
_LABELS = ("study", "region", "outcome", "what")
DAILY = "daily: {at: '00:00', zone: UTC}\n"


@pytest.fixture(autouse=True)
def _today(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the test, not that of its import: a suite takes half an hour."""
    now = datetime.now(UTC).replace(microsecond=0)
    monkeypatch.setattr(sys.modules[__name__], "NOW", now)
    monkeypatch.setattr(sys.modules[__name__], "TODAY", now.date())


@pytest.fixture
def folder(tmp_path: Path) -> DailyFolder:
    """Three days of two regions: A failed twice, and NO once before it was made up for."""
    folder = DailyFolder(tmp_path / "runs" / "demo")
    folder.root.mkdir(parents=True)
    (tmp_path / "go.sh").touch()
    folder.study.write_text(f"{write(tmp_path, MINIMAL + DAILY)}\n")
    day = TODAY - timedelta(days=2)
    end(folder, day, 1, A=Ending.PUBLISHED, NO=Ending.KEPT)
    end(folder, day + timedelta(days=1), 1, A=Ending.FAILED, NO=Ending.UNCHANGED)
    end(folder, TODAY, 1, A=Ending.FAILED, NO=Ending.FAILED)
    end(folder, TODAY, 2, NO=Ending.PUBLISHED)
    for region, age in (("A", 48), ("NO", 1)):
        model = tmp_path / "models" / "demo" / region / "r"
        model.mkdir(parents=True)
        created = (NOW - timedelta(hours=age)).isoformat()
        origin = {"study": "demo", "region": region, "run": "r", "created": created}
        write_json(model / "provenance.json", origin)
        (model.parent / "latest").symlink_to("r")
    return folder


def end(folder: DailyFolder, day: date, number: int, **endings: Ending) -> None:
    journal = Journal(folder.journal)
    attempt = Attempt(
        date=day,
        attempt=number,
        run=f"{day}-{number}",
        regions=tuple(endings),
        started=NOW,
        deadline=None,
    )
    journal.begin(attempt)
    journal.record(
        [
            Outcome(date=day, region=region, attempt=number, ending=ending)
            for region, ending in endings.items()
        ],
        NOW,
    )
    journal.end(attempt, NOW)


def samples(folders: Iterable[DailyFolder]) -> dict[tuple[str, ...], float]:
    days = [found for each in folders if (found := study_days(each))]
    nodes = PoolNodes()
    text = exposition([], days, nodes, "text/plain")[0].decode()
    return {
        (
            sample.name.removeprefix("trialfleet_"),
            *(sample.labels[label] for label in _LABELS if label in sample.labels),
        ): sample.value
        for family in parsed(text)
        for sample in family.samples
    }


def test_each_region_has_its_last_day_and_the_age_of_its_model(folder: DailyFolder) -> None:
    found = samples([folder])
    assert found["region_day", "demo", "A", "failed"] == 1
    assert found["region_day", "demo", "A", "published"] == 0
    assert found["region_day", "demo", "NO", "published"] == 1, "it was made up for"
    assert found["region_failed_days", "demo", "A"] == 2
    assert found["region_failed_days", "demo", "NO"] == 0
    assert found["missed_days", "demo"] == 0
    assert found["day_end_timestamp_seconds", "demo"] == NOW.timestamp()
    assert found["model_age_seconds", "demo", "A"] == pytest.approx(48 * 3600, abs=600)
    assert found["model_age_seconds", "demo", "NO"] == pytest.approx(3600, abs=600)


def test_the_metrics_show_how_long_a_model_waits_for_approval(
    folder: DailyFolder, tmp_path: Path
) -> None:
    assert ("approval_wait_seconds", "demo", "NO") not in samples([folder])
    models_folder = tmp_path / "models" / "demo" / "NO"
    origin = {"study": "demo", "region": "NO", "run": "r2", "created": NOW.isoformat()}
    (models_folder / "r2").mkdir()
    write_json(models_folder / "r2" / "provenance.json", origin)
    since = (NOW - timedelta(hours=2)).isoformat()
    write_json(models_folder / ".awaiting.json", {"schema": 1, "run": "r2", "since": since})
    found = samples([folder])
    assert found["approval_wait_seconds", "demo", "NO"] == pytest.approx(2 * 3600, abs=600)
    assert ("approval_wait_seconds", "demo", "A") not in found
    promote(models_folder / "r2")
    assert ("approval_wait_seconds", "demo", "NO") not in samples([folder])


def test_days_that_did_not_begin_are_counted(folder: DailyFolder) -> None:
    found = study_days(folder)
    assert found
    assert found.daily
    later = found.daily.due_day(NOW + timedelta(days=3))
    assert (later - found.begun).days == 3


def test_the_metrics_show_days_without_the_study_file(folder: DailyFolder) -> None:
    folder.study.write_text("/nowhere/study.yaml\n")
    found = samples([folder])
    assert found["region_failed_days", "demo", "A"] == 2
    assert ("missed_days", "demo") not in found
    assert ("model_age_seconds", "demo", "A") not in found
    assert found["unreadable", "demo", "study"] == 1


def test_the_metrics_show_that_a_current_model_can_not_be_read(
    folder: DailyFolder, tmp_path: Path
) -> None:
    (tmp_path / "models" / "demo" / "NO" / "r" / "provenance.json").write_text("{")
    found = samples([folder])
    assert found["unreadable", "demo", "models"] == 1
    assert ("model_age_seconds", "demo", "NO") not in found
    assert ("model_age_seconds", "demo", "A") in found


def test_a_folder_without_a_journal_has_no_days(tmp_path: Path) -> None:
    assert study_days(DailyFolder(tmp_path)) is None


def test_a_region_that_failed_once_and_then_ended_well_has_no_failed_days(
    folder: DailyFolder,
) -> None:
    found = study_days(folder)
    assert found
    assert found.regions["NO"] == RegionDays(TODAY, Ending.PUBLISHED, 0)


@pytest.mark.slow
def test_the_page_of_a_days_run_shows_regions_that_are_not_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "go.sh").write_text("exit 0\n")
    for region in ("A", "NO"):
        (tmp_path / f"{region}.txt").write_text("1")
    text = MINIMAL + DAILY + "data: '{region}.txt'\n"
    study = load_study(write(tmp_path, text)).without_regions(["NO"])
    folder = DailyFolder(tmp_path / "runs" / "demo")
    plan(study, run=str(TODAY), out=folder.run(str(TODAY)), day=TODAY)
    journal = Journal(folder.journal)
    attempt = Attempt(
        date=TODAY, attempt=1, run=str(TODAY), regions=("A", "NO"), started=NOW, deadline=None
    )
    journal.begin(attempt)
    why = f"data of {TODAY} isn't there: /data/<b>.txt"
    journal.record([attempt.outcome("NO", Ending.FAILED, why)], NOW)
    with serving(tmp_path) as server:
        page = server.ask("/").text
    assert "0 of 2" in page
    expected = f"NO is not in this run, because its day failed: {why}."
    assert expected in read_report(RunFolder(folder.run(str(TODAY)))).notice
    concern = f"data of {TODAY} isn&#39;t there: /data/&lt;b&gt;.txt"
    words = f"NO is not in this run, because its day failed: {concern}"
    assert re.search(rf"Needs attention.*<bdi>{re.escape(words)}", page, re.S)
    row = re.search(r'<tr><th scope="row"><bdi>NO</bdi></th>.*?</tr>', page)
    assert row
    assert f'title="{TODAY}: failed: {concern}">✕' in row[0]


def test_the_matrix_begins_with_regions_whose_last_day_failed(folder: DailyFolder) -> None:
    end(folder, TODAY, 3, B=Ending.KEPT)
    rows = by_day.matrix(newest_days(Journal(folder.journal), 14))
    assert [row.region for row in rows] == ["A", "B", "NO"]
    endings = [[one.ending if one else None for one in row.outcomes] for row in rows]
    assert endings == [
        [Ending.PUBLISHED, Ending.FAILED, Ending.FAILED],
        [None, None, Ending.KEPT],
        [Ending.KEPT, Ending.UNCHANGED, Ending.PUBLISHED],
    ]
