"""Next steps name a model by RUN/REGION wherever that means the same from the current folder."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from tests.unit.terminal import printed
from trialfleet.files import write_json
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.facts.journal.journal import Ending, Outcome
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.status.status_reader import StatusReader
from trialfleet.workflows.views.terminal.days_table import DaysOverview, DayView, commands_to_copy
from trialfleet.workflows.views.terminal.short_commands import shorten_promote
from trialfleet.workflows.views.terminal.status_view import run_view


def published(make_run: MakeRun, work: Path, study: str, region: str = "A") -> Path:
    """Return the model of a region of a study's run r1, which the gate kept out."""
    out = work / "runs" / study / "r1"
    run = make_run(name=study, out=out, regions=[region], publish="models", gate={})
    files = RunFolder(run.folder)
    files.dag_files.submit.touch()
    slug = next(files.regions.iterdir()).name
    model = work / "models" / study / slug / "r1"
    model.mkdir(parents=True)
    origin = {"study": study, "run": "r1", "region": region}
    (model / "provenance.json").write_text(json.dumps(origin))
    kept = f"kept r0: loss 9; to change that: trialfleet promote {shlex.quote(str(model))}"
    write_json(files.region(slug).published, {"path": str(model), "not_latest": kept})
    return model


def test_status_names_the_model_briefly_if_the_name_is_unambiguous(
    make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = published(make_run, work, "one")
    monkeypatch.chdir(work)
    status = StatusReader(RunFolder(work / "runs" / "one" / "r1")).read()
    assert str(model) in (status.regions[0].not_latest or ""), "programs get what was noted"
    assert "to change that: trialfleet promote r1/A\n" in "\n".join(
        line.rstrip() for line in [*printed(run_view(status), 400).splitlines(), ""]
    )
    done = CliRunner().invoke(main, ["promote", "r1/A"])
    assert (done.exit_code, (model.parent / "latest").resolve()) == (0, model)


def test_the_study_or_the_path_is_named_where_the_run_alone_is_not_enough(
    make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [published(make_run, work, study) for study in ("one", "two")]
    spaced = published(make_run, work, "three", "New York")
    monkeypatch.chdir(work)
    commands = [shorten_promote(f"next: trialfleet promote {model}") for model in models]
    assert commands == [f"next: trialfleet promote {study}/r1/A" for study in ("one", "two")]
    assert shorten_promote(f"trialfleet promote {shlex.quote(str(spaced))}; x").startswith(
        "trialfleet promote 'r1/New York'"
    ), "of the studies with a run r1, one has this region"
    elsewhere = work / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert shorten_promote(f"trialfleet promote {models[0]}") == (
        "trialfleet promote ../models/one/A/r1"
    )


def test_daily_status_names_the_model_briefly_too(
    make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = published(make_run, work, "one")
    monkeypatch.chdir(work)
    day = date(2026, 11, 22)
    why = f"kept r0: loss 9; to change that: trialfleet promote {model}"
    one = Outcome(date=day, region="A", attempt=1, ending=Ending.KEPT, why=why, run="r1")
    later = replace(one, date=day + timedelta(days=1), ending=Ending.PUBLISHED, why="", run="r2")
    for outcomes, told in (
        ([one], ["to change that  A  trialfleet promote r1/A"]),
        ([later, one], []),  # a return to the older one is not offered
    ):
        days = tuple(
            DayView(date=each.date, counts={}, open=0, attempts=(), runs=(), outcomes=(each,))
            for each in outcomes
        )
        seen = DaysOverview(study="one", days=days, newest=(), next_start=None, clock=None)
        assert commands_to_copy(seen) == told
