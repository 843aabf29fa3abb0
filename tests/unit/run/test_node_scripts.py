"""What a node's scripts are answered, and what lies in the trial's folder then. No pool needed."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import unittest.mock
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.conftest import MakeRun
from tests.unit.report.report_studies import text_of
from trialfleet import InputError, Run, RunState, job_files
from trialfleet.files import shell_quoted
from trialfleet.infra.fleet.scaling.last_report import default_report
from trialfleet.optimizer import ownership
from trialfleet.optimizer.service import Reply
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.cli.watching import show_end
from trialfleet.workflows.control.scripts.node_scripts import NodeScripts
from trialfleet.workflows.control.scripts.publish_node import publish_region
from trialfleet.workflows.control.scripts.report_node import write_report
from trialfleet.workflows.facts import disk_space
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.facts.run_folder.graph import EXITS
from trialfleet.workflows.facts.runs import spending
from trialfleet.workflows.facts.runs.storage import take_over
from trialfleet.workflows.status.reader import StatusReader, open_run
from trialfleet.workflows.status.run_trials import COLUMNS
from trialfleet.workflows.status.unfinished_trials import RunningTrial
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.frozen import dump_frozen, load_frozen
from trialfleet.workflows.views.report.reading import read_report
from trialfleet.workflows.views.terminal.status_view import run_view
from trialfleet.workflows.views.why.answer import Kind
from trialfleet.workflows.views.why.explain import why

pytestmark = pytest.mark.slow


class Scripts:
    """A run's scripts as DAGMan would call them, the jobs played by the test."""

    def __init__(self, run: Run) -> None:
        self.folder = RunFolder(run.folder)
        self.handler = NodeScripts(self.folder)

    def call(self, *words: str) -> Reply:
        return self.handler.handle(list(words))

    def ask(self, node: str) -> int:
        return self.call("ask", "A", node).exit_code

    def finish(self, node: str, loss: float = 0.5, retry: int = 0) -> int:
        result = {"status": "complete", "metrics": {"loss": loss}}
        self.trial(node).result.write_text(json.dumps(result))
        return self.call("tell", "A", node, "0", str(retry), "1", "0").exit_code

    def trial(self, node: str) -> TrialFolder:
        return self.folder.region("A").trial(node)


@pytest.fixture
def scripts(make_run: MakeRun) -> Scripts:
    return Scripts(make_run(budget={"trials": 3, "lanes": 1, "startup_trials": 3}))


def test_asking_writes_what_the_trial_is_told(scripts: Scripts) -> None:
    assert scripts.ask("A.l1.t01") == EXITS["done"]
    content = json.loads(scripts.trial("A.l1.t01").trial_json.read_text())
    assert content["params"] == {"x": 0.5}  # the default settings come first
    assert (content["region"], content["node"], content["trial"], content["mode"]) == (
        "A",
        "A.l1.t01",
        0,
        "tune",
    )
    assert "queue" in scripts.trial("A.l1.t01").submit.read_text().split("\n")


def test_asking_for_a_finished_trial_trains_nothing_again(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    scripts.finish("A.l1.t01")
    before = scripts.trial("A.l1.t01").result.read_text()
    assert scripts.ask("A.l1.t01") == EXITS["skip"]
    assert scripts.trial("A.l1.t01").result.read_text() == before


def test_asking_twice_tells_the_same_and_clears_what_an_attempt_left(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    first = scripts.trial("A.l1.t01").trial_json.read_bytes()
    scripts.trial("A.l1.t01").result.write_text('{"status": "complete"}')
    (scripts.trial("A.l1.t01").checkpoint / "state").touch()
    scripts.ask("A.l1.t01")
    assert scripts.trial("A.l1.t01").trial_json.read_bytes() == first
    assert scripts.trial("A.l1.t01").result.read_text() == ""
    assert list(scripts.trial("A.l1.t01").checkpoint.iterdir()) == []


def over(scripts: Scripts) -> Scripts:
    """The same run, whose day's deadline is over."""
    file = scripts.folder.study
    day = RunsDay(date=date(2026, 11, 20), deadline=datetime(2026, 11, 20, 9, tzinfo=UTC))
    file.write_text(dump_frozen(load_frozen(file).model_copy(update={"day": day})))
    return Scripts(Run(scripts.folder.root))


def test_after_the_days_deadline_what_is_best_so_far_is_trained_in_full(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    scripts.finish("A.l1.t01")
    scripts.ask("A.l1.t02")  # and its job is lost
    late = over(scripts)
    assert late.ask("A.l1.t02") == late.ask("A.l1.t03") == EXITS["skip"]
    message = late.call("ask", "A", "A.l1.t03").message
    assert "the day's deadline, 2026-11-20 09:00 UTC, is over" in message
    assert [t.state for t in Run(late.folder.root).trials()] == ["complete", "pruned"]
    assert late.call("ask-best", "A", "A.best").exit_code == EXITS["done"]


RAN = "001 (007.000.000) 2026-11-20 10:00:01 Job executing on host: <127.0.0.1:1>\n...\n"
REMOVED = "009 (007.000.000) 2026-11-20 10:01:06 Job was aborted.\n\tby the policy\n...\n"


@pytest.mark.parametrize(
    ("log", "is_over", "state"),
    [
        (REMOVED, True, "pruned"),
        (REMOVED, False, "unknown"),  # somebody removed it: it is retried
        (RAN + REMOVED, True, "unknown"),  # … and ask gives it up
    ],
)
def test_a_trial_that_waits_at_the_days_deadline_is_given_up_and_has_not_failed(
    scripts: Scripts, log: str, is_over: bool, state: str
) -> None:
    scripts.ask("A.l1.t01")
    scripts.trial("A.l1.t01").log.write_text(log)
    late = over(scripts) if is_over else scripts
    late.call("tell", "A", "A.l1.t01", "-1002", "0", "1", "0")
    (record,) = Run(late.folder.root).trials()
    assert record.state == state
    if state == "pruned":
        assert "the day's deadline, 2026-11-20 09:00 UTC, is over" in str(record.error)
        assert late.ask("A.l1.t01") == EXITS["skip"]


def test_a_job_knows_the_days_deadline_unless_it_is_a_full_training(scripts: Scripts) -> None:
    day = RunsDay(date=date(2026, 11, 20), deadline=datetime(2100, 1, 1, tzinfo=UTC))
    file = scripts.folder.study
    file.write_text(dump_frozen(load_frozen(file).model_copy(update={"day": day})))
    late = Scripts(Run(scripts.folder.root))
    for node in ("A.l1.t01", "A.l1.t02", "A.l1.t03"):
        late.ask(node)
        late.finish(node)
    late.call("ask-best", "A", "A.best")
    at = f"time() >= {int(datetime(2100, 1, 1, tzinfo=UTC).timestamp())}"
    assert at in late.trial("A.l1.t01").submit.read_text()
    assert at not in late.folder.region("A").best.submit.read_text()


def test_a_region_without_a_trial_at_the_days_deadline_fails_and_says_so(scripts: Scripts) -> None:
    late = over(scripts)
    assert late.ask("A.l1.t01") == EXITS["skip"]
    result = late.call("ask-best", "A", "A.best")
    assert result.exit_code == EXITS["stop"]
    assert "no trial completed, so there are no best settings: the day's deadline" in result.message


def test_telling_twice_tells_once(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    assert scripts.finish("A.l1.t01", loss=0.5) == EXITS["done"]
    assert scripts.finish("A.l1.t01", loss=0.1) == EXITS["done"]
    assert [t.value for t in Run(scripts.folder.root).trials()] == [0.5]


def test_a_failed_attempt_is_tried_again_and_then_told_as_failed(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    assert scripts.call("tell", "A", "A.l1.t01", "1", "0", "1", "0").exit_code == EXITS["retry"]
    assert Run(scripts.folder.root).trials()[0].state == "unknown"  # no pool can be asked
    assert scripts.call("tell", "A", "A.l1.t01", "1", "1", "1", "0").exit_code == EXITS["done"]
    record = Run(scripts.folder.root).trials()[0]
    assert (record.state, record.attempts, record.error) == ("failed", 2, "exit code 1")


JOB_LOG = """\
000 ({job:03}.000.000) 2026-11-22 07:00:00 Job submitted from host: <127.0.0.1:1>
...
001 ({job:03}.000.000) 2026-11-22 07:00:01.500 Job executing on host: <127.0.0.1:1>
\tSlotName: slot1_1@node-1
...
012 ({job:03}.000.000) 2026-11-22 07:00:05 Job was held.
\tby a person
\tCode 1 Subcode 0
...
"""


def test_a_trial_is_told_with_its_job_and_its_reports(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    trial = scripts.trial("A.l1.t01")
    trial.log.write_text(JOB_LOG.format(job=1) + JOB_LOG.format(job=2))
    trial.progress.write_text('{"step": 1, "metrics": {"loss": 0.9}}\n')
    scripts.finish("A.l1.t01")  # to this DAGMan it was the first attempt: another was before it
    (record,) = Run(scripts.folder.root).trials()
    assert record.attempts == 2
    region = read_report(scripts.folder).regions[0]
    found = region.trials[0]
    assert (found.wall_seconds, found.last_wall_seconds, found.machine) == (7.0, 3.5, "node-1")
    assert (found.attempts, found.curve) == (2, ((1, 0.9),))
    assert region.compute_seconds == 7.0


def test_a_failed_trial_is_told_with_its_job_and_its_reports(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    trial = scripts.trial("A.l1.t01")
    trial.log.write_text(JOB_LOG.format(job=1))
    trial.progress.write_text('{"step": 1, "metrics": {"loss": 0.9}}\n')
    scripts.call("tell", "A", "A.l1.t01", "64", "0", "1", "0")
    record = read_report(scripts.folder).regions[0].trials[0]
    assert (record.state, record.wall_seconds, record.attempts) == ("failed", 3.5, 1)
    assert record.curve == ((1, 0.9),)


def test_trials_are_listed_with_attempts_metrics_parameters_and_errors(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for node in ("A.l1.t01", "A.l1.t02", "A.l1.t03"):
        scripts.ask(node)
    scripts.trial("A.l1.t01").log.write_text(JOB_LOG.format(job=1))
    scripts.call("tell", "A", "A.l1.t01", "64", "0", "1", "0")
    result = {"status": "complete", "metrics": {"zeta": 3.5, "loss": 0.25, "alpha": 1.5}}
    scripts.trial("A.l1.t02").result.write_text(json.dumps(result))
    scripts.call("tell", "A", "A.l1.t02", "0", "0", "1", "0")
    shown = CliRunner().invoke(main, ["trials", str(scripts.folder.root)]).output.splitlines()
    first, second, third = Run(scripts.folder.root).trials()
    failed = next(line for line in shown if "failed" in line).split()
    assert failed[:5] == ["A", "0", "failed", "1", "3.5"]  # s, in one attempt
    assert {"node-1", f"x={first.params['x']:.4g}", "can't"} <= set(failed)
    complete = next(line for line in shown if "complete" in line)
    assert "0.25" in complete
    assert "zeta=3.5  alpha=1.5" in complete
    text = CliRunner().invoke(main, ["trials", str(scripts.folder.root), "--csv"]).output
    rows = list(csv.DictReader(text.splitlines()))
    assert list(rows[0]) == [
        *COLUMNS, "params.x", "metrics.loss", "metrics.alpha", "metrics.zeta",
    ]  # fmt: skip
    assert rows[0]["params.x"] == str(first.params["x"])
    assert (rows[0]["wall_seconds"], rows[0]["machine"]) == ("3.5", "node-1")
    assert "can't be trained" in rows[0]["error"]
    assert (rows[1]["metrics.alpha"], rows[1]["value"]) == ("1.5", "0.25")
    assert (rows[2]["state"], rows[2]["params.x"]) == (third.state, str(third.params["x"]))
    assert second.attempts == 1
    row = first.row()
    assert {*row} <= {*rows[0]}
    assert (row["state"], row["params.x"]) == ("failed", first.params["x"])
    assert first.started is not None
    assert row["started"] == datetime.fromtimestamp(first.started, UTC)
    assert rows[0]["started"] == str(first.started)
    assert third.row()["ended"] is None
    assert pl.DataFrame([trial.row() for trial in (first, second, third)]).height == 3


def test_status_shows_the_steps_of_running_trials_as_far_as_known(scripts: Scripts) -> None:
    def shown(*steps: int | None) -> str:
        trials = tuple(
            RunningTrial(node=f"A.l{at}.t01", slot=None, started=None, step=step, value=None)
            for at, step in enumerate(steps)
        )
        read = StatusReader(scripts.folder).read()
        (region,) = read.regions
        terminal = Console(file=io.StringIO(), width=150)
        regions = (replace(region, running_trials=trials),)
        terminal.print(run_view(replace(read, state=RunState.RUNNING, regions=regions)))
        assert isinstance(terminal.file, io.StringIO)
        return terminal.file.getvalue()

    assert "12 7" in shown(12, None, 7)
    assert "1 2 3 4 …" in shown(1, 2, 3, 4, 5)
    assert "step" in shown(None), "columns stay where they are"


def test_csv_has_the_same_columns_whichever_trial_comes_first(make_run: MakeRun) -> None:
    space = {
        "kind": {"type": "categorical", "choices": ["a", "b"], "default": "a"},
        "only_b": {"type": "float", "low": 0, "high": 1, "when": {"kind": ["b"]}},
        "last": {"type": "int", "low": 1, "high": 3},
        "constant": 5,
    }
    scripts = Scripts(make_run(space, budget={"trials": 3, "lanes": 1}))
    scripts.ask("A.l1.t01")  # the defaults: without only_b
    text = CliRunner().invoke(main, ["trials", str(scripts.folder.root), "--csv"]).output
    header = text.splitlines()[0].split(",")
    assert header[len(COLUMNS) :] == [
        "params.x", "params.kind", "params.only_b", "params.last", "metrics.loss",
    ]  # fmt: skip


def fail(scripts: Scripts, node: str, *, retry: int, code: int = 1, message: str = "no") -> Reply:
    scripts.trial(node).err.write_text(message)
    return scripts.call("tell", "A", node, str(code), str(retry), "2", "0")


def test_a_failed_attempt_is_kept_once_and_told_while_it_is_tried_again(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    for _ in range(2):  # DAGMan was lost after the first
        assert fail(scripts, "A.l1.t01", retry=0).exit_code == EXITS["retry"]
    run = Run(scripts.folder.root)
    (region,) = run.status().regions
    log = scripts.trial("A.l1.t01").err
    assert str(region.cause) == f"an attempt failed: exit code 1: no; see {log}"
    (record,) = run.trials()
    assert (record.state, record.error) == ("unknown", "exit code 1: no")  # no HTCondor is asked
    screen = io.StringIO()
    Console(file=screen, width=400).print(run_view(run.status()))
    assert f"A: {region.cause}" in screen.getvalue()
    scripts.finish("A.l1.t01", retry=1)
    (record,) = run.trials()
    assert (record.state, record.error) == ("complete", None)
    assert run.status().to_json()["regions"][0]["cause"]["attempts"] == 1


def test_while_all_attempts_fail_alike_that_is_said_first(make_run: MakeRun) -> None:
    """They are retried all the same: one sick machine may have failed them all."""
    scripts = Scripts(make_run(budget={"trials": 9, "lanes": 1}, retries=3))
    scripts.ask("A.l1.t01")
    for retry in range(3):
        reply = scripts.call("tell", "A", "A.l1.t01", "1", str(retry), "3", "0")
        assert reply.exit_code == EXITS["retry"]
    notice = str(Run(scripts.folder.root).status().notice)
    assert "no trial has completed: all attempts so far failed alike" in notice
    fail(scripts, "A.l1.t01", retry=3, message="something else")
    assert "alike" not in str(Run(scripts.folder.root).status().notice)


def test_a_trainer_that_cant_be_started_stops_its_region_after_three_trials(
    make_run: MakeRun,
) -> None:
    scripts = Scripts(make_run(budget={"trials": 100, "lanes": 1}, retries=2))
    words = "condor_exec.exe: 6: exec: fit: not found"
    answers = []
    for number in range(1, 4):
        node = (
            f"A.l1.t00{number}" if scripts.trial("A.l1.t001").root.exists() else f"A.l1.t0{number}"
        )
        scripts.ask(node)
        answers.append(fail(scripts, node, retry=0, code=127, message=words).exit_code)
    assert answers == [EXITS["done"], EXITS["done"], EXITS["stop"]]
    reason = json.loads(scripts.folder.region("A").stopped.read_text())["reason"]
    assert reason.startswith(f"the trainer can't be started: exit code 127: {words}; see ")
    assert reason.endswith("/err")


def test_a_trial_that_cant_be_started_where_others_were_stops_nothing(make_run: MakeRun) -> None:
    scripts = Scripts(make_run(budget={"trials": 9, "lanes": 1, "failures": 9}, retries=2))
    scripts.ask("A.l1.t01")
    scripts.finish("A.l1.t01")
    for number in range(2, 7):
        scripts.ask(f"A.l1.t0{number}")
        reply = fail(scripts, f"A.l1.t0{number}", retry=0, code=127)
        assert reply.exit_code == EXITS["done"]


def test_a_full_training_that_is_tried_again_tells_why(scripts: Scripts) -> None:
    for node in ("A.l1.t01", "A.l1.t02", "A.l1.t03"):
        scripts.ask(node)
        scripts.finish(node)
    scripts.call("ask-best", "A", "A.best")
    best = scripts.folder.region("A").best
    best.err.write_text("no room for the weights")
    for _ in range(2):
        result = scripts.call("tell-best", "A", "A.best", "1", "0", "1", "0")
        assert result.exit_code == EXITS["retry"]
    (region,) = Run(scripts.folder.root).status().regions
    words = "an attempt failed: exit code 1: no room for the weights"
    assert str(region.cause) == f"{words}; see {best.err}"
    result = scripts.call("tell-best", "A", "A.best", "1", "1", "1", "0")
    assert result.exit_code == EXITS["stop"]
    assert f"; see {best.err}" in result.message


def test_the_report_tells_the_cause_and_where_to_look(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    fail(scripts, "A.l1.t01", retry=0, message="ModuleNotFoundError: No module named 'x'")
    report = read_report(scripts.folder)
    (region,) = report.regions
    assert region.cause is not None
    assert "ModuleNotFoundError: No module named 'x'; see " in region.cause
    assert "ModuleNotFoundError" in text_of(report)


def test_a_job_that_htcondor_did_not_take_is_no_failure_of_the_trial(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    assert scripts.call("tell", "A", "A.l1.t01", "-1001", "1", "1", "0").exit_code == EXITS["retry"]
    assert scripts.ask("A.l1.t01") == EXITS["done"]
    for node in ("A.l1.t01", "A.l1.t02", "A.l1.t03"):
        scripts.ask(node)
        scripts.finish(node)
    assert scripts.call("ask-best", "A", "A.best").exit_code == EXITS["done"]
    result = scripts.call("tell-best", "A", "A.best", "-1001", "1", "1", "0")
    assert result.exit_code == EXITS["retry"]
    assert not scripts.folder.region("A").stopped.exists()


def test_a_dagman_that_recovered_does_not_know_of_the_pre_script_but_of_the_job(
    scripts: Scripts,
) -> None:
    scripts.ask("A.l1.t01")
    result = {"status": "complete", "metrics": {"loss": 0.5}}
    scripts.trial("A.l1.t01").result.write_text(json.dumps(result))
    assert scripts.call("tell", "A", "A.l1.t01", "0", "0", "1", "-1").exit_code == EXITS["done"]
    assert [record.state for record in Run(scripts.folder.root).trials()] == ["complete"]
    scripts.call("ask-best", "A", "A.best")
    best = scripts.folder.region("A").best
    best.result.write_text(json.dumps(result))
    (best.model / "weights").write_text("0.5")
    done = scripts.call("tell-best", "A", "A.best", "0", "0", "1", "-1")
    assert done.exit_code == EXITS["done"]


@pytest.mark.parametrize(("asked", "answer"), [("3", "0"), ("1", "1"), ("-9", "-9"), ("4", "4")])
def test_a_node_without_a_job_is_what_its_pre_script_said(
    scripts: Scripts, asked: str, answer: str
) -> None:
    for call in (("tell", "A", "A.l1.t01"), ("tell-best", "A", "A.best")):
        assert scripts.call(*call, "-1004", "0", "1", asked).exit_code == int(answer)


def test_beyond_the_budget_nodes_are_skipped_but_known_ones_still_answered(
    scripts: Scripts,
) -> None:
    for i in (1, 2, 3):
        scripts.ask(f"A.l1.t0{i}")
    assert scripts.ask("A.l1.t04") == EXITS["skip"]
    assert scripts.ask("A.l1.t03") == EXITS["done"]


def test_too_many_failures_stop_the_region_and_say_why(make_run: MakeRun) -> None:
    scripts = Scripts(make_run(budget={"trials": 5, "lanes": 1, "failures": 1}))
    for i in (1, 2):
        scripts.ask(f"A.l1.t0{i}")
    assert scripts.call("tell", "A", "A.l1.t01", "1", "1", "1", "0").exit_code == EXITS["done"]
    assert scripts.call("tell", "A", "A.l1.t02", "1", "1", "1", "0").exit_code == EXITS["stop"]
    assert scripts.ask("A.l1.t03") == EXITS["stop"]
    assert scripts.call("ask-best", "A", "A.best").exit_code == EXITS["stop"]
    assert "failed for good" in scripts.folder.region("A").stopped.read_text()


def test_the_best_settings_are_trained_in_full_and_published(scripts: Scripts) -> None:
    for i, loss in ((1, 0.5), (2, 0.1), (3, 0.3)):
        scripts.ask(f"A.l1.t0{i}")
        scripts.finish(f"A.l1.t0{i}", loss)
    assert scripts.call("ask-best", "A", "A.best").exit_code == EXITS["done"]
    best = scripts.folder.region("A").best
    content = json.loads(best.trial_json.read_text())
    assert (content["mode"], content["trial"]) == ("final", 1)
    best.result.write_text('{"status": "complete", "metrics": {"loss": 0.05}}')
    empty = scripts.call("tell-best", "A", "A.best", "0", "0", "1", "0")
    assert empty.exit_code == EXITS["stop"]
    assert "nothing in model/" in empty.message
    (best.model / "weights").touch()
    assert scripts.call("tell-best", "A", "A.best", "0", "0", "1", "0").exit_code == EXITS["done"]
    assert publish_region(scripts.folder, "A") == EXITS["done"]
    assert publish_region(scripts.folder, "A") == EXITS["done"]
    settings = Run(scripts.folder.root).best()[0]
    assert (settings.value, settings.final) == (0.1, {"loss": 0.05})


def publish_one(scripts: Scripts) -> None:
    """Go from the first trial to the published model."""
    scripts.ask("A.l1.t01")
    scripts.finish("A.l1.t01")
    scripts.call("ask-best", "A", "A.best")
    best = scripts.folder.region("A").best
    best.result.write_text('{"status": "complete", "metrics": {"loss": 0.05}}')
    (best.model / "weights").touch()
    assert publish_region(scripts.folder, "A") == EXITS["done"]


def test_a_run_that_publishes_late_says_why_its_model_is_not_the_latest(
    make_run: MakeRun, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monday, tuesday = Scripts(make_run(run="z")), Scripts(make_run(run="a"))
    publish_one(tuesday)
    publish_one(monday)
    latest = work / "models" / "demo" / "A" / "latest"
    assert latest.readlink().name == "a"
    status = StatusReader(monday.folder).read()
    assert "stays with a, which was planned later" in (status.regions[0].not_latest or "")
    with pytest.raises(SystemExit):
        show_end(Run(monday.folder.root), replace(status, state=RunState.DONE))
    assert "A: latest stays with a, which was planned later" in capsys.readouterr().out
    assert "planned later" in read_report(monday.folder).to_json()
    assert "planned later" in text_of(read_report(monday.folder))
    done = CliRunner().invoke(main, ["promote", str(work / "models" / "demo" / "A" / "z")])
    assert (done.exit_code, done.output) == (0, "demo/A: latest is z (was a)\n")
    assert StatusReader(monday.folder).read().regions[0].not_latest is None
    assert publish_region(tuesday.folder, "A") == EXITS["done"]  # DAGMan may run it again
    assert latest.readlink().name == "z"


def test_a_model_that_cant_be_published_stops_its_region_and_says_why(
    scripts: Scripts, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in (1, 2, 3):
        scripts.ask(f"A.l1.t0{i}")
        scripts.finish(f"A.l1.t0{i}")
    scripts.call("ask-best", "A", "A.best")
    best = scripts.folder.region("A").best
    best.result.write_text('{"status": "complete", "metrics": {"loss": 0.05}}')
    (best.model / "metrics.json").touch()
    assert publish_region(scripts.folder, "A") == EXITS["stop"]
    reason = json.loads(scripts.folder.region("A").stopped.read_text())["reason"]
    assert "trialfleet uses that name" in reason
    assert reason in capsys.readouterr().out


def test_data_that_is_gone_is_named_and_looked_for_again(make_run: MakeRun, work: Path) -> None:
    (work / "A.csv").touch()
    scripts = Scripts(make_run(budget={"trials": 3, "lanes": 1}, data="A.csv"))
    scripts.ask("A.l1.t01")
    scripts.finish("A.l1.t01")
    (work / "A.csv").rename(work / "elsewhere")
    reply = scripts.call("ask-best", "A", "A.best")
    assert reply.exit_code == EXITS["defer"]
    gone = f"the data can't be read: {work / 'A.csv'}: No such file or directory"
    assert reply.message == f"A.best: {gone}; it will be retried"
    (work / "elsewhere").rename(work / "A.csv")
    assert scripts.call("ask-best", "A", "A.best").exit_code == EXITS["done"]


def test_without_a_complete_trial_there_is_nothing_to_train(scripts: Scripts) -> None:
    reply = scripts.call("ask-best", "A", "A.best")
    assert reply.exit_code == EXITS["stop"]
    assert "no trial completed" in reply.message


UNPAID = "no money is left: the run's cap of $60.00 is reached: $60.01 is spent"
ABORTED = f"009 (007.000.000) 2026-11-20 10:01:06 Job was aborted.\n\t{UNPAID}\n...\n"


def end_for_want_of_money(scripts: Scripts, node: str, retry: int = 0) -> Reply:
    """As the autoscaler does: the job is removed, with the reason."""
    final = node.endswith("best")
    place = scripts.folder.region("A").best if final else scripts.trial(node)
    place.log.write_text(ABORTED)
    words = ("tell-best" if final else "tell", "A", node, "-1002", str(retry), "1", "0")
    return scripts.call(*words)


def test_a_trial_that_nothing_pays_for_is_given_up_and_no_other_is_begun(
    make_run: MakeRun,
) -> None:
    scripts = Scripts(make_run(budget={"trials": 8, "lanes": 4, "failures": 0}))
    nodes = [f"A.l{lane}.t01" for lane in (1, 2, 3, 4)]
    for node in nodes:
        scripts.ask(node)
    scripts.finish(nodes[0], 0.2)
    for _ in range(2):  # DAGMan may ask twice
        assert end_for_want_of_money(scripts, nodes[1]).exit_code == EXITS["done"]
    scripts.handler = NodeScripts(scripts.folder)  # the service was killed
    assert scripts.ask("A.l1.t02") == EXITS["skip"]
    assert scripts.ask(nodes[2]) == EXITS["skip"]  # asked, and its job was lost
    assert scripts.finish(nodes[3], 0.1) == EXITS["done"]  # it ended before it was removed
    records = Run(scripts.folder.root).trials()
    assert [record.state for record in records] == ["complete", "pruned", "pruned", "complete"]
    assert records[1].error == UNPAID
    assert scripts.call("ask-best", "A", "A.best").exit_code == EXITS["done"]
    assert not scripts.folder.region("A").stopped.exists()


def test_a_full_training_that_nothing_pays_for_stops_its_region(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    scripts.finish("A.l1.t01")
    assert scripts.call("ask-best", "A", "A.best").exit_code == EXITS["done"]
    reply = end_for_want_of_money(scripts, "A.best")
    assert reply.exit_code == EXITS["stop"]
    assert UNPAID in reply.message
    again = scripts.call("ask-best", "A", "A.best")
    assert (again.exit_code, again.message) == (reply.exit_code, reply.message)
    assert scripts.ask("A.l1.t02") == EXITS["skip"]


def test_a_region_without_a_trial_says_that_the_money_went_elsewhere(scripts: Scripts) -> None:
    spending.note(scripts.folder, "tune", UNPAID)
    assert scripts.ask("A.l1.t01") == EXITS["skip"]
    reply = scripts.call("ask-best", "A", "A.best")
    assert reply.exit_code == EXITS["stop"]
    assert reply.message.endswith(f"there are no best settings: {UNPAID}")
    assert Run(scripts.folder.root).trials() == []


def test_the_report_says_why_trials_ended(scripts: Scripts) -> None:
    assert read_report(scripts.folder).notice == ""
    spending.note(scripts.folder, "tune", UNPAID)
    report = write_report(scripts.folder, None)
    assert report.notice == f"Trials ended early: {UNPAID}."
    assert json.loads(scripts.folder.report_data.read_text())["notice"] == report.notice
    assert "Trials ended early: no money is left" in scripts.folder.report_page.read_text()


def test_the_end_of_a_run_tells_which_nodes_it_leaves(make_run: MakeRun) -> None:
    fleet = {"name": "left", "aws_regions": ["eu-west-1"]}
    folder = RunFolder(make_run(fleet=fleet).folder)
    now = datetime(2026, 11, 27, 5, 0, tzinfo=UTC)
    life = {"type": "g5.xlarge", "price": 0.4, "launched": "2026-11-27T04:00:00+00:00"}
    expires, ended = ("2026-11-27T05:40:00+00:00", "2026-11-27T04:30:00+00:00")
    nodes = {"i-1": life | {"expires": expires}, "i-2": life | {"ended": ended}}
    step = {"since": life["launched"], "spent": 0.1, "instances": nodes}
    folder.fleet_state.write_text(json.dumps({"run": "r1", "state": "ended", "step": step}))

    def money(at: datetime) -> spending.Spending:
        spec = load_frozen(folder.study).study.fleet
        return spending.read_spending(folder, "r1", spec, at) or pytest.fail("no money")

    assert money(now).nodes_left == (
        "nodes that ran on when the autoscaler ended: i-1 (until 05:40 UTC at the latest, for "
        "0.4000 USD per hour); trialfleet fleet scale 0 ends them"
    )
    assert money(now).spent == pytest.approx(0.6)
    later = money(now + timedelta(hours=2))
    assert later.nodes_left is None
    assert later.spent == pytest.approx(0.4 * 100 / 60 + 0.2)
    folder.fleet_state.write_text(json.dumps({"run": "r1", "state": "scaling", "step": step}))
    assert money(now).nodes_left is None


@pytest.mark.parametrize("by_hand", [False, True])
def test_the_status_shows_what_was_spent_and_what_is_left(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by_hand: bool
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    fleet = {"name": "f", "aws_regions": ["eu-west-1"], "price_cap": {"run": 60}}
    folder = RunFolder(make_run(fleet=fleet).folder)
    assert StatusReader(folder).read().money is None
    place = default_report("f") if by_hand else folder.fleet_state
    place.parent.mkdir(parents=True, exist_ok=True)
    report = {"run": "r1", "state": "failing", "error": "AWS says no", "step": {"spent": 12.5}}
    place.write_text(json.dumps(report))
    status = StatusReader(folder).read()
    assert status.to_json()["money"] == {
        "spent": 12.5,
        "cap": 60.0,
        "left": 47.5,
        "reserve": 12.0,
        "ended": None,
        "trouble": "AWS says no",
        "nodes_left": None,
    }
    spending.note(folder, "tune", UNPAID)
    shown = Console(width=200, file=io.StringIO())
    shown.print(run_view(StatusReader(folder).read()))
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    assert "fleet: 12.50 USD spent of 60.00, 47.50 left" in text
    assert f"trials ended: {UNPAID}" in text
    assert "the fleet's autoscaler: AWS says no" in text
    place.write_text(json.dumps(report | {"run": "another"}))
    assert StatusReader(folder).read().money is None


def test_a_second_service_knows_what_the_first_did(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    order = scripts.trial("A.l1.t01").trial_json.read_bytes()
    scripts.handler = NodeScripts(scripts.folder)
    scripts.ask("A.l1.t01")
    assert scripts.trial("A.l1.t01").trial_json.read_bytes() == order
    scripts.finish("A.l1.t01")
    assert len(Run(scripts.folder.root).trials()) == 1


def test_a_trial_that_the_database_made_twice_is_shown_once(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = scripts.handler._studies.storage
    begin = storage.begin
    with monkeypatch.context() as broken:
        twice = lambda *given: (begin(*given), begin(*given))[1]  # noqa: E731 - answer lost
        broken.setattr(storage, "begin", twice)
        scripts.ask("A.l1.t01")
    assert len(Run(scripts.folder.root).trials()) == 1
    assert StatusReader(scripts.folder).read().regions[0].queued <= 1


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Move this process to another machine, or back."""

    def become(name: str) -> None:
        (tmp_path / "machine-id").write_text(name)
        monkeypatch.setattr(ownership, "MACHINE_ID", tmp_path / "machine-id")
        monkeypatch.setattr("socket.gethostname", lambda: f"{name}.example")

    return become


def test_a_second_manager_may_not_write_a_runs_studies_until_a_person_says_so(
    make_run: MakeRun, work: Path, machine: Callable[[str], None]
) -> None:
    machine("first")
    shared: dict[str, Any] = {
        "storage": f"sqlite:///{work}/shared.db",
        "budget": {"trials": 3, "lanes": 1},
    }
    first = Scripts(make_run(**shared, out=work / "there"))
    assert first.ask("A.l1.t01") == EXITS["done"]
    first.handler = NodeScripts(first.folder)  # a restart, or a reboot
    assert first.ask("A.l1.t02") == EXITS["done"]

    machine("second")
    run = make_run(**shared, out=work / "here")
    second = Scripts(run)
    assert second.ask("A.l1.t03") == EXITS["stop"]
    assert second.call("tell", "A", "A.l1.t01", "1", "1", "1", "0").exit_code == EXITS["stop"]
    assert second.call("ask-best", "A", "A.best").exit_code == EXITS["stop"]
    reason = StatusReader(second.folder).read().regions[0].reason or ""
    assert f"another manager: host first.example, folder {work / 'there'}, since 20" in reason
    assert f"trialfleet takeover {work / 'here'}" in reason
    answer = why("A", str(work / "here"))
    assert answer.kind is Kind.OTHER_MANAGER
    assert "belongs to another manager: host first.example" in answer.why
    assert answer.command == f"trialfleet takeover {shell_quoted(work / 'here')}"
    with pytest.raises(InputError, match=r"another manager: host first\.example"):
        run.submit()
    assert [trial.state for trial in run.trials()] == ["interrupted"] * 2

    done = CliRunner().invoke(main, ["takeover", str(work / "here")])
    assert done.exit_code == 0, done.output
    assert "taken over from host first.example" in done.output
    assert why("A", str(work / "here")).kind is not Kind.OTHER_MANAGER
    assert second.ask("A.l1.t01") == EXITS["done"]
    assert second.trial("A.l1.t01").trial_json.read_text()

    machine("first")  # it was only cut off
    assert first.finish("A.l1.t01") == EXITS["stop"]
    assert "host second.example" in first.folder.region("A").stopped.read_text()
    assert [trial.state for trial in run.trials()] == ["unknown"] * 2


def test_a_manager_that_gets_its_run_back_knows_what_the_other_did(
    make_run: MakeRun, work: Path, machine: Callable[[str], None]
) -> None:
    machine("first")
    shared: dict[str, Any] = {"storage": f"sqlite:///{work}/shared.db"}
    first = Scripts(make_run(**shared, out=work / "there"))
    first.ask("A.l1.t01")
    machine("second")
    second = Scripts(make_run(**shared, out=work / "here"))
    take_over(second.folder)
    second.ask("A.l1.t02")
    second.finish("A.l1.t01")
    machine("first")
    take_over(first.folder)  # its service has lived on, unasked
    assert first.ask("A.l1.t01") == EXITS["skip"]
    assert first.ask("A.l1.t02") == EXITS["done"]
    assert len(Run(first.folder.root).trials()) == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_waited_for(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with monkeypatch.context() as full:
        error = OSError(code, os.strerror(code))
        full.setattr(job_files, "write_json", unittest.mock.Mock(side_effect=error))
        reply = scripts.call("ask", "A", "A.l1.t01")
    assert reply.exit_code == EXITS["defer"]
    assert os.strerror(code) in reply.message
    assert not scripts.trial("A.l1.t01").submit.exists()
    assert scripts.ask("A.l1.t01") == EXITS["done"]
    assert len(Run(scripts.folder.root).trials()) == 1


def test_another_folder_of_the_same_machine_is_another_manager(
    make_run: MakeRun, work: Path
) -> None:
    shared: dict[str, Any] = {"storage": f"sqlite:///{work}/shared.db"}
    Scripts(make_run(**shared, out=work / "there")).ask("A.l1.t01")
    assert Scripts(make_run(**shared, out=work / "here")).ask("A.l1.t01") == EXITS["stop"]
    other = Scripts(make_run(**shared, run="r2", out=work / "r2"))
    assert other.ask("A.l1.t01") == EXITS["done"]


def test_an_unknown_word_is_answered_and_not_a_crash(scripts: Scripts) -> None:
    reply = scripts.call("dance")
    assert reply.exit_code == EXITS["retry"]
    assert "ask, tell" in reply.message


def test_the_status_of_a_plan_is_planned(scripts: Scripts) -> None:
    status = StatusReader(scripts.folder).read()
    assert status.state is RunState.PLANNED
    assert status.regions[0].budget == 3
    assert json.loads(json.dumps(status.to_json()))["schema"] == 1


def test_the_status_counts_what_the_study_knows_when_no_pool_is_there(scripts: Scripts) -> None:
    for i in (1, 2):
        scripts.ask(f"A.l1.t0{i}")
    scripts.finish("A.l1.t01", 0.25)
    scripts.folder.dag.with_name("study.dag.condor.sub").touch()
    status = StatusReader(scripts.folder).read()
    assert status.state is RunState.UNKNOWN
    assert status.notice is not None
    region = status.regions[0]
    assert (region.done, region.failed, region.best, region.best_trial) == (1, 0, 0.25, 0)


def test_another_spelling_of_a_runs_folder_is_the_same_run(scripts: Scripts, work: Path) -> None:
    (work / "link").symlink_to(scripts.folder.root)
    assert open_run(work / "link") == scripts.folder
    assert open_run(scripts.folder.root / "regions" / "..") == scripts.folder


def test_a_run_that_was_moved_is_refused(scripts: Scripts, work: Path) -> None:
    scripts.folder.root.rename(work / "elsewhere")
    with pytest.raises(InputError, match="move it back"):
        open_run(work / "elsewhere")


def test_a_storage_out_of_reach_is_a_notice_beside_what_was_seen_last(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    scripts.finish("A.l1.t01", 0.25)
    reader = StatusReader(scripts.folder)
    assert reader.read().regions[0].done == 1
    for file in scripts.folder.root.glob("study.db*"):
        file.write_bytes(b"no database" * 1000)
    status = reader.read()
    assert "the study can't be read" in (status.notice or "")
    assert status.regions[0].done == 1


def test_nothing_begins_on_a_disk_that_is_nearly_full_and_what_runs_is_told(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts.ask("A.l1.t01")
    monkeypatch.setattr(disk_space, "free_bytes", lambda _: 5 << 20)
    reply = scripts.call("ask", "A", "A.l1.t02")
    assert reply.exit_code == EXITS["defer"]
    assert "5 MB are free" in reply.message
    assert scripts.call("begin", "A").exit_code == EXITS["defer"]
    assert scripts.finish("A.l1.t01") == EXITS["done"]
    assert "no space" in (StatusReader(scripts.folder).read().notice or "")


@pytest.mark.parametrize(
    ("left", "return_code", "answer"),
    [
        ("published", "0", "done"),
        ("stopped", "1", "done"),  # the report says so
        ("restart", "-1002", "retry"),  # the supervisor removed it
        (None, "-1002", "done"),  # a person did
        (None, "1", "retry"),  # DAGMan gave up
        (None, "4", "retry"),
    ],
)
def test_a_region_gets_another_dagman_unless_it_is_over(
    scripts: Scripts, left: str | None, return_code: str, answer: str
) -> None:
    if left:
        (scripts.folder.region("A").root / f"{left}.json").write_text('{"path": "", "reason": ""}')
    assert scripts.call("end", "A", return_code).exit_code == EXITS[answer]


def test_a_region_whose_dagman_was_removed_names_who_did_it(scripts: Scripts) -> None:
    files = scripts.folder.region("A")
    by = "via condor_rm (by user me)"
    files.dag_files.log.write_text(
        f"009 (7.0.0) 2026-11-20 10:00:01 Job was aborted.\n\t{by}\n...\n"
    )
    assert scripts.call("end", "A", "-1002").exit_code == EXITS["done"]
    noted = json.loads(files.stopped.read_text())
    assert noted == {"reason": f"its jobs were removed: {by}", "removed": True}


def test_a_region_begins_without_what_the_last_dagman_left(scripts: Scripts) -> None:
    files = scripts.folder.region("A")
    files.dag_files.nodes_log.write_text("events")
    files.dag_files.lock.touch()
    files.restart.write_text("{}")
    assert scripts.call("begin", "A").exit_code == EXITS["done"]
    left = {path.name for path in files.dag_files.aside.rglob("*") if path.is_file()}
    assert left == {"region.dag.nodes.log", "region.dag.lock"}
    assert not files.restart.exists()
    files.published.write_text('{"path": ""}')
    assert scripts.call("begin", "A").exit_code == EXITS["skip"]


def test_a_skipped_node_is_done_and_a_failed_ask_is_repeated(scripts: Scripts) -> None:
    tell = ("tell", "A", "A.l1.t01", "-1004", "0", "1")
    assert scripts.call(*tell, str(EXITS["skip"])).exit_code == EXITS["done"]
    assert scripts.call(*tell, str(EXITS["retry"])).exit_code == EXITS["retry"]
