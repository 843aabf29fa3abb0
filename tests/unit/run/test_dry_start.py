"""The check of a trainer before a run; tests/pool tests it on a real pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from trialfleet.classads import JobStatus
from trialfleet.errors import InputError
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.plan.trial_json_and_submit_file import Mode, TrialFiles
from trialfleet.workflows.control.run import trainer_check
from trialfleet.workflows.control.run.trainer_check import CheckResult, check_metrics, first_order
from trialfleet.workflows.control.run.trainer_check_job import CheckJobEnd, wait_reason
from trialfleet.workflows.control.scripts.script_requests import ScriptRequests
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.run_folder.dag_structure import build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder

TOLD = {"loss": 0.5, "test_loss": 0.6}


def test_the_check_has_the_seed_and_parameters_of_the_first_trial(make_run: MakeRun) -> None:
    run = make_run(regions=["Île", "B"])
    folder = RunFolder(run.folder)
    region = build_graph(run.study).regions[0]
    order = first_order(run.study, region)
    node = f"{region.slug}.l1.t01"
    ScriptRequests(folder).handle(["ask", region.slug, node])
    content = json.loads(folder.region(region.slug).trial(node).trial_json.read_text())
    assert (order.seed, order.params) == (content["seed"], content["params"])


def test_a_run_that_was_submitted_is_not_removed_by_a_check(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    RunFolder(run.folder).dag_files.submit.touch()
    with pytest.raises(InputError, match="the check only works before submission"):
        run.check_or_remove()
    assert run.folder.exists()


def test_the_submit_file_of_the_checks_job_names_its_node(make_run: MakeRun) -> None:
    run = make_run()
    folder = RunFolder(run.folder)
    order = first_order(run.study, build_graph(run.study).regions[0])
    TrialFiles("r1", run.study, folder, folder.check, order).write()
    assert f'My.TrialfleetNode = "{order.node}"' in folder.check.submit.read_text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"report_metric": "tset_loss"},
            "report_metric: the trial of --check reports no 'tset_loss'",
        ),
        (
            {"gate": {"metric": "test_los"}},
            "gate.metric: the trial of --check reports no 'test_los'",
        ),
    ],
)
def test_a_metric_that_no_trial_reports_is_refused(
    make_run: MakeRun, changes: dict[str, Any], words: str
) -> None:
    study = make_run(**changes).study
    expected = r" \(did you mean 'test_loss'\?\); the trainer reports: loss, test_loss$"
    with pytest.raises(InputError, match=words + expected):
        check_metrics(study, TOLD)


def test_a_metric_that_only_the_gates_job_may_report_is_a_warning(make_run: MakeRun) -> None:
    study = make_run(gate={"metric": "profit"}).study
    warning = check_metrics(study, TOLD)
    assert (
        "gate.metric: the trial of --check reports no 'profit'; the trainer reports: loss"
        in warning
    )
    assert "rejects every new model" in warning
    checked = CheckResult(region="A", metrics=TOLD, warning=warning)
    assert str(checked).endswith(f"\nbut {warning}")
    known = make_run(run="r2", gate={"metric": "test_loss"}, report_metric="test_loss").study
    assert check_metrics(known, TOLD) == ""


@pytest.mark.parametrize(
    ("modes", "unseen", "lines"),
    [
        (("tune",), None, []),
        (("tune",), "final", ["mode final did not end: the check stopped waiting after 60 s"]),
        (("tune", "final"), None, ["mode final works: it writes a model"]),
        (
            ("tune", "final", "evaluate"),
            None,
            ["mode final works: it writes a model", "mode evaluate works: it measures the model"],
        ),
    ],
)
def test_each_mode_that_was_tried_is_shown(
    modes: tuple[Mode, ...], unseen: Mode | None, lines: list[str]
) -> None:
    checked = CheckResult(region="A", metrics={"loss": 0.5}, modes=modes, unseen=unseen)
    assert str(checked).splitlines() == ["A with its default settings: loss 0.5", *lines]


def test_regions_that_were_not_tried_are_mentioned() -> None:
    note = "only A of 4 regions was tried; to try another: --check-region REGION"
    assert str(CheckResult(region="A", metrics={"loss": 0.5}, regions=4)).endswith(f"0.5\n{note}")
    assert str(CheckResult(region="A", metrics=None, regions=4)).endswith(f"60 s\n{note}")
    assert "alone" not in str(CheckResult(region="A", metrics=None))


def test_each_line_of_progress_names_the_mode(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_job(*arguments: Any) -> CheckJobEnd:
        arguments[-1]("runs on slot1@here")
        place: TrialFolder = arguments[1]
        place.result.write_text(json.dumps({"status": "complete", "metrics": {"loss": 0.5}}))
        place.model.mkdir(exist_ok=True)
        (place.model / "weights").write_text("w")
        return CheckJobEnd(code=0)

    monkeypatch.setattr(trainer_check, "connect", dict)
    monkeypatch.setattr(trainer_check, "use", lambda _: None)
    monkeypatch.setattr(trainer_check, "run_job", run_job)
    said: list[str] = []
    run = make_run(regions=["A", "B"])
    checked = trainer_check.check(RunFolder(run.folder), progress=said.append)
    assert said == ["tune: runs on slot1@here", "final: runs on slot1@here"]
    assert checked.regions == 2


def test_the_description_of_a_job_shows_that_its_files_are_being_sent(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"ClusterId": 12, "ProcId": 0, "JobStatus": JobStatus.BLOCKED}
    monkeypatch.setattr(job_queue, "one_idle", lambda *_: job)
    state = wait_reason(RunFolder(make_run().folder), "A.check")
    assert state == "its job (job 12.0) has a slot and is receiving the files that jobs share"


@pytest.mark.parametrize("command", ["plan", "run"])
def test_an_unknown_region_is_refused_before_anything_is_shown_or_kept(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["init", "first"]).exit_code == 0
    monkeypatch.setattr("trialfleet.infra.pool.connection.connect", lambda: None)
    result = CliRunner().invoke(main, [command, "first/study.yaml", "--check-region", "nort"])
    assert result.exit_code == 2
    last = result.output.splitlines()[-1]
    assert last.startswith("error: no region 'nort' (did you mean 'north'?); regions: 'north'")
    assert "check" not in result.output
    assert not list(tmp_path.glob("runs/*/*"))
