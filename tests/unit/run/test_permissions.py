"""Other accounts of the machine can neither write nor lock trialfleet's files."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from trialfleet.files import lock_file
from trialfleet.optimizer import service, service_client
from trialfleet.render import render_template
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.dagman.repair import run_locked
from trialfleet.workflows.control.daily.day_lock import day_lock
from trialfleet.workflows.control.models.latest import LOCK, models_lock
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.run_folder.folder import RunFolder

ROOT = Path(__file__).parents[3]


@pytest.fixture(params=[0o000, 0o002])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def writable_by_others(*roots: Path) -> list[str]:
    found = [each for root in roots for each in (root, *root.rglob("*"))]
    assert len(found) > 1
    return [str(each) for each in found if each.lstat().st_mode & 0o022 and not each.is_symlink()]


def hold_once(hold: Callable[[], object]) -> None:
    with hold():  # type: ignore[attr-defined]
        pass


@pytest.mark.usefixtures("umask")
def test_no_lock_file_is_open_to_others_even_if_it_was_before(work: Path) -> None:
    run, daily = RunFolder(work / "run"), DailyFolder(work / "daily")
    for folder in (run.root, daily.root):
        folder.mkdir()
    locks: dict[Path, Callable[[], object]] = {
        work / "any.lock": lambda: lock_file(work / "any.lock", wait=True),
        run.run_lock: lambda: run_locked(run),
        work / LOCK: lambda: models_lock(work),
        daily.lock: lambda: day_lock(daily, date(2026, 11, 20), lambda _: True),
        run.root / service_client.LOCK: lambda: service._lock_folder(run.root, wait=True),
    }
    for path, hold in locks.items():
        hold_once(hold)
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o644)  # as earlier releases made it
        hold_once(hold)
        assert path.stat().st_mode & 0o777 == 0o600


def test_every_lock_is_opened_by_open_lock() -> None:
    known = {"src/trialfleet/files.py", "optimizer/service_client.py", "nodes/kernels/build.py"}
    unlocking = {
        "nodes/probe/measure.py",  # a temporary file, which is its owner's alone
        "workflows/facts/dagman/recovery_files.py",  # DAGMan's own
        "nodes/gang/network.py",  # no lock
        "workflows/control/plan/run_folder_writer.py",  # a draft, which is its owner's alone
    }
    for top in ("infra", "nodes", "optimizer", "workflows", "src/trialfleet"):
        for path in (ROOT / top).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            if "fcntl" not in path.read_text() or name in known | unlocking:
                continue
            called = {
                node.func.id
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            }
            assert "open_lock" in called, f"{name} locks a file that others can lock, too"


@pytest.mark.usefixtures("umask")
def test_files_of_a_plan_can_not_be_written_by_others(
    make_run: MakeRun, work: Path, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("")
    assert code.stat().st_mode & 0o020  # the mask is at work
    run = make_run(
        trainer={"command": ["python3", "code/train.py"], "files": [str(code)]},
        notify=[{"command": ["true"]}],
    )
    assert writable_by_others(run.folder.parent) == []
    study = work / "study.yaml"
    study.write_text(
        "name: cli\nregions: [A]\nobjective: {metric: loss, direction: minimize}\n"
        "search_space: {x: {type: float, low: 0, high: 1}}\n"
        "trainer: {command: [sh, -c, 'true']}\naccelerator: cpu\n"
    )
    done = CliRunner().invoke(main, ["plan", str(study), "--out", str(work / "deep/er/r")])
    assert done.exit_code == 0, done.output
    assert writable_by_others(work / "deep") == []


@pytest.mark.usefixtures("umask")
def test_files_of_the_graphs_scripts_can_not_be_written_by_others(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\numask\n")
    python.chmod(0o755)
    fields = dict.fromkeys(("folder", "service_log", "gang_log"), "/dev/null")
    text = render_template("run/client.j2", python=python, ask=[str(python)], **fields)
    for word in ("publish", "report", "autoscale", "ask"):
        done = subprocess.run(["sh", "-c", text, "client", word], capture_output=True, check=True)
        assert int(done.stdout, 8) & 0o022 == 0o022
