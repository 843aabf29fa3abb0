"""A trainer's command, checked against the files sent with a trial before any trial runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.study.study_texts import TRAINER, error_of, with_line, write
from trialfleet import StudyError, plan
from trialfleet.workflows.control.plan import accelerator_and_python
from trialfleet.workflows.control.plan.accelerator_and_python import PoolFacts
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.study.loading import load_study
from trialfleet.workflows.study.spec import Trainer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("go.sh", "train.py", "conf.toml", "rows.csv", "plain"):
        (tmp_path / name).touch()
    for package in ("src", "net"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "train.py").touch()
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    return tmp_path


FORGOTTEN = "is beside the study, but not in trainer.files: add it there"


@pytest.mark.parametrize(
    ("command", "files", "why"),
    [
        ("[python3, train.py]", "[go.sh]", f"'train.py' {FORGOTTEN}"),
        ("sh go.sh", "[]", f"'go.sh' {FORGOTTEN}"),
        ("[python3, train.py, conf.toml]", "[train.py]", f"'conf.toml' {FORGOTTEN}"),
        ("[./tool]", "[go.sh]", f"'./tool' {FORGOTTEN}"),
        ("[python3, -m, net.train]", "[go.sh]", f"'net' {FORGOTTEN}"),
        (
            "[python3, trian.py]",
            "[train.py]",
            "'trian.py' is not in trainer.files (did you mean 'train.py'?)",
        ),
        ("[Rscript, fit.R]", "[go.sh]", "'fit.R' is not in trainer.files"),
        ("[python3, src/train.py]", "[src/train.py]", "without its parent folders"),
        ("[python3, src/fit.py]", "[src]", "src/fit.py' is not in "),
        (
            "[tool]",
            "[tool]",
            "'tool' is in trainer.files; to run it in a trial, write './tool'",
        ),
        ("[./plain]", "[plain]", "'./plain' is not executable: chmod +x plain"),
    ],
)
def test_a_file_that_a_trial_would_not_find_is_reported_with_its_line(
    folder: Path, command: str, files: str, why: str
) -> None:
    message = error_of(
        folder, with_line(TRAINER, f"trainer: {{command: {command}, files: {files}}}")
    )
    assert ":7: trainer.command" in message
    assert why in message


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("[python3, train.py, --data, rows.parquet]", "[train.py]"),  # an argument may be anything
        ("[python3, ./train.py]", "[train.py]"),
        ("[python3, src/train.py]", "[src]"),
        ("[python3, -m, net.train]", "[net]"),
        ("[python3, -m, torch.distributed.run, train.py]", "[train.py]"),
        ("[python3, trial.py]", "[]"),
        ("[./tool, trial.json]", "[tool]"),
        ("[sh, -c, 'exit 0']", "[]"),
        ("[python3, -c, 'import train']", "[]"),
        ("[julia, /opt/model/fit.jl]", "[]"),
        ("[myprogram, plain]", "[]"),
        ("[myprogram, '*.py', '0.5', s3://b/x.py]", "[]"),
    ],
)
def test_commands_whose_files_a_trial_may_find_are_accepted(
    folder: Path, command: str, files: str
) -> None:
    text = with_line(TRAINER, f"trainer: {{command: {command}, files: {files}}}")
    trainer = load_study(write(folder, text)).trainer
    assert isinstance(trainer, Trainer)


def test_data_is_found_by_its_name(folder: Path) -> None:
    text = with_line(TRAINER, "trainer: {command: [python3, train.py, rows.csv], files: train.py}")
    load_study(write(folder, text + "data: rows.csv\n"))


@pytest.fixture
def look_of_no_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The facts of this machine's own pool; there is none."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, mode in (("python3", 0o755), ("pyhton2", 0o644)):
        (programs / name).touch()
        (programs / name).chmod(mode)
    look = PoolFacts(on_this_machine=True, job_path=f"{programs}:{tmp_path / 'none'}")
    monkeypatch.setattr(accelerator_and_python, "inspect_pool", lambda: look)


@pytest.mark.usefixtures("look_of_no_pool")
@pytest.mark.parametrize("command", ["[pyhton3, train.py]", "pyhton3 train.py"])
def test_a_misspelt_program_is_reported_with_its_line_and_a_suggestion(
    folder: Path, command: str
) -> None:
    text = with_line(TRAINER, f"trainer: {{command: {command}, files: [train.py]}}")
    study = write(folder, text)
    with pytest.raises(StudyError) as caught:
        plan(study, out=folder / "run")
    message = str(caught.value)
    assert message.startswith(f"{study}:7: trainer.command")
    assert "'pyhton3' is not on the PATH of the pool's jobs" in message
    assert "(did you mean 'python3'?)" in message


@pytest.mark.usefixtures("look_of_no_pool")
def test_a_missing_python_is_reported_with_its_line(folder: Path) -> None:
    text = with_line(TRAINER, "trainer: {command: [python3, train.py], files: [train.py]}")
    study = write(folder, text + "python: pyhton3\n")
    with pytest.raises(StudyError) as caught:
        plan(study, out=folder / "run")
    assert str(caught.value).startswith(f"{study}:9: python: 'pyhton3' is not on a job's PATH")


@pytest.mark.usefixtures("look_of_no_pool")
def test_a_run_knows_where_its_study_sets_a_trials_limits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = with_line(TRAINER, "trainer: {command: [python3, train.py], files: [train.py]}")
    study = write(folder, text + "resources:\n  cpus: 1\n  memory: 1GB\n")
    frozen = load_frozen(plan(study, out=folder / "run", run="r").folder / "study.json")
    assert frozen.places == {
        "resources.memory": f"{study}:11",
        "resources.disk": str(study),
        "trainer.minutes": str(study),
    }
