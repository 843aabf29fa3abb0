"""Jobs that have left the queue are found by their id in the logs of their run."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from trialfleet import Run
from trialfleet.errors import InputError
from trialfleet.files import write_json
from trialfleet.infra.pool import connection, schedd
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.views.why.subject import find_subject

EVENT = "{} ({:03d}.000.000) 2026-11-22 22:18:43.545 Job {}\n...\n"


@pytest.fixture
def run(make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose DAGMan was job 50 and then 60, its region's 51, a trial 52, its report 61."""
    monkeypatch.chdir(work)
    made = make_run(name="demo", run="r1", out=work / "runs/demo/r1")
    files = RunFolder(made.folder)
    region = files.region("A")
    root = [EVENT.format("000", job, "submitted") for job in (50, 60)]
    files.dag_files.log.write_text("".join(root))
    files.dag_files.nodes_log.write_text(
        EVENT.format("000", 51, "submitted") + EVENT.format("000", 61, "submitted")
    )
    ended = "was aborted.\n\tremoved with DAGMan job (050.000.000)"
    region.dag_files.log.write_text(
        EVENT.format("000", 51, "submitted") + EVENT.format("009", 51, ended)
    )
    region.trial("A.l1.t01").log.write_text(EVENT.format("000", 52, "submitted"))
    return made


@pytest.mark.usefixtures("run")
def test_the_jobs_of_graphs_are_known_once_they_have_ended() -> None:
    found = {
        job: (subject.what, subject.region and subject.region.name, subject.node)
        for job in ("50", "50.0", "60.0", "61.0", "51.0", "52.0")
        for subject in [find_subject(job)]
    }
    assert found == {
        "50": ("run", None, ""),
        "50.0": ("run", None, ""),
        "60.0": ("run", None, ""),
        "61.0": ("run", None, ""),
        "51.0": ("region", "A", ""),
        "52.0": ("node", "A", "A.l1.t01"),
    }
    with pytest.raises(InputError, match="the job 5 is neither in"):
        find_subject("5")


def test_a_job_of_other_software_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedd, "query", lambda *_: [{}])
    with pytest.raises(InputError, match=r"not a job of trialfleet; .*-better-analyze 5\.1"):
        find_subject("5.1")


@pytest.mark.parametrize("place", [".", "..", "link"])
def test_a_run_is_named_by_its_folder_however_that_is_given(
    run: Run, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.folder / ("regions" if place == ".." else ""))
    (run.folder / "link").symlink_to(run.folder)
    assert find_subject(None, place).word == "r1"


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("is_embedded", [True, False])
def test_condor_q_is_named_with_the_shell_of_an_embedded_pool(
    work: Path, monkeypatch: pytest.MonkeyPatch, *, is_embedded: bool
) -> None:
    config = work / "condor_config"
    monkeypatch.setenv("CONDOR_CONFIG", str(config))
    if is_embedded:
        (work / "pool.json").touch()
        monkeypatch.setattr(connection, "_put", {str(config)})
    done = CliRunner().invoke(main, ["why", "77.0"])
    assert done.exit_code == 2
    assert "condor_q -nobatch" in done.stderr
    assert ("(in: trialfleet pool shell)" in done.stderr) is is_embedded


@pytest.mark.slow
def test_why_and_status_name_the_same_command_for_a_pool_that_is_down(
    run: Run, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = work / "my pool"
    pool.mkdir()
    record = {"release": "/usr", "version": "25.14.1", "unpacked": False}
    write_json(pool / "pool.json", record)
    monkeypatch.setenv("CONDOR_CONFIG", str(pool / "condor_config"))
    RunFolder(run.folder).dag_files.submit.touch()
    command = f"TRIALFLEET_POOL={shlex.quote(str(pool))} trialfleet pool up"
    output = CliRunner().invoke(main, ["status", str(run.folder)]).output
    assert f"start it by `{command}`" in " ".join(output.split())
    for words in (["A", "--run", str(run.folder)], ["--run", str(run.folder)]):
        answer = CliRunner().invoke(main, ["why", *words]).output
        assert answer.splitlines()[1] == f"next: {command}"


def test_a_name_without_any_run_is_refused_with_advice(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    done = CliRunner().invoke(main, ["logs", "nosuch"])
    assert done.exit_code == 2
    assert done.stderr == (
        "error: 'nosuch' is not a run, region, node, job or instance; "
        f"there are no runs in {str(work / 'runs')!r}: make one with: trialfleet plan STUDY, "
        "or name a run's folder with --run\n"
    )
