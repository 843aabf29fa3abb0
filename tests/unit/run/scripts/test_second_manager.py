"""Two managers with the same studies: only the owner writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from tests.unit.scripts import Scripts
from trialfleet import InputError
from trialfleet.files import shell_quoted
from trialfleet.optimizer import run_ownership
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.facts.runs.run_storage import take_over
from trialfleet.workflows.views.why.answer import Kind
from trialfleet.workflows.views.why.explain import explain

pytestmark = pytest.mark.slow


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Move this process to another machine, or back."""

    def become(name: str) -> None:
        (tmp_path / "machine-id").write_text(name)
        monkeypatch.setattr(run_ownership, "MACHINE_ID", tmp_path / "machine-id")
        monkeypatch.setattr("socket.gethostname", lambda: f"{name}.example")

    return become


def test_a_second_manager_may_not_write_a_runs_studies_before_a_takeover(
    make_run: MakeRun, work: Path, machine: Callable[[str], None]
) -> None:
    machine("first")
    shared: dict[str, Any] = {
        "storage": f"sqlite:///{work}/shared.db",
        "budget": {"trials": 3, "lanes": 1},
    }
    first = Scripts(make_run(**shared, out=work / "there"))
    assert first.ask("A.l1.t01") == EXITS["done"]
    first.restart_service()  # a restart, or a reboot
    assert first.ask("A.l1.t02") == EXITS["done"]

    machine("second")
    run = make_run(**shared, out=work / "here")
    second = Scripts(run)
    assert second.ask("A.l1.t03") == EXITS["stop"]
    assert second.tell("A.l1.t01", 1, retry=1) == EXITS["stop"]
    assert second.ask_best().exit_code == EXITS["stop"]
    reason = second.region_status.reason or ""
    assert f"another manager: host first.example, folder {work / 'there'}, since 20" in reason
    assert f"trialfleet takeover {work / 'here'}" in reason
    answer = explain("A", str(work / "here"))
    assert answer.kind is Kind.OTHER_MANAGER
    assert "belongs to another manager: host first.example" in answer.why
    assert answer.command == f"trialfleet takeover {shell_quoted(work / 'here')}"
    with pytest.raises(InputError, match=r"another manager: host first\.example"):
        run.submit()
    assert [trial.state for trial in run.trials()] == ["interrupted"] * 2

    done = CliRunner().invoke(main, ["takeover", str(work / "here")])
    assert done.exit_code == 0, done.output
    assert "taken over from host first.example" in done.output
    assert explain("A", str(work / "here")).kind is not Kind.OTHER_MANAGER
    assert second.ask("A.l1.t01") == EXITS["done"]
    assert second.trial("A.l1.t01").trial_json.read_text()

    machine("first")  # it was only cut off
    assert first.finish("A.l1.t01") == EXITS["stop"]
    assert "host second.example" in first.files.stopped.read_text()
    assert [trial.state for trial in run.trials()] == ["unknown"] * 2


def test_a_manager_that_takes_its_run_back_reads_the_other_managers_trials(
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
    assert len(first.run.trials()) == 2


def test_another_folder_of_the_same_machine_is_another_manager(
    make_run: MakeRun, work: Path
) -> None:
    shared: dict[str, Any] = {"storage": f"sqlite:///{work}/shared.db"}
    Scripts(make_run(**shared, out=work / "there")).ask("A.l1.t01")
    assert Scripts(make_run(**shared, out=work / "here")).ask("A.l1.t01") == EXITS["stop"]
    other = Scripts(make_run(**shared, run="r2", out=work / "r2"))
    assert other.ask("A.l1.t01") == EXITS["done"]
