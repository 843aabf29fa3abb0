"""What is shown of a trainer that failed, by the standard error of real programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MakeRun
from trialfleet.workflows.plan.folder import TrialFolder
from trialfleet.workflows.run.dry_start import failure_text
from trialfleet.workflows.run.last_words import last_words, missing_module


def failed(folder: Path, program: str) -> Path:
    """Run a program that fails; return the file of its standard error."""
    (folder / "train.py").write_text(program)
    error = TrialFolder(folder).err
    with error.open("w") as file:
        command = [sys.executable, str(folder / "train.py")]
        assert subprocess.run(command, stderr=file, check=False).returncode == 1
    return error


def test_the_trainers_own_frame_is_shown_before_a_librarys_many(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    calls = "\n".join(f"def f{n}():\n    f{n + 1}()" for n in range(9))
    (packages / "deep.py").write_text(f"{calls}\ndef f9():\n    raise KeyError('prize')\n")
    program = f"import sys\nsys.path.insert(0, {str(packages)!r})\nimport deep\ndeep.f0()\n"
    shown = last_words(failed(tmp_path, program)).splitlines()
    assert f'{tmp_path / "train.py"}", line 4' in shown[0]
    assert shown[1].strip() == "deep.f0()"
    assert shown[-1].strip() == "KeyError: 'prize'"
    assert len(shown) == 12


def test_short_words_are_shown_whole(tmp_path: Path) -> None:
    shown = last_words(failed(tmp_path, "1 / 0\n"))
    assert shown.startswith("  Traceback")
    assert shown.count("train.py") == 1
    assert last_words(tmp_path / "none") == ""


@pytest.mark.parametrize(
    ("command", "python", "words"),
    [
        (["python3", "train.py"], "/opt/py/bin/python", ["/opt/py/bin/python -m pip", "`python:`"]),
        (["python3", "train.py"], None, ["python3 -m pip install nowhere ", "`python:`"]),
        (["/opt/x/python", "train.py"], None, ["/opt/x/python -m pip install nowhere "]),
    ],
)
def test_a_missing_module_is_told_with_what_mends_it(
    make_run: MakeRun, work: Path, command: list[str], python: str | None, words: list[str]
) -> None:
    error = failed(work, "import nowhere.inside\n")
    run = make_run(trainer={"command": command, "files": ["train.py"]})
    study = run.study.model_copy(update={"python": python})
    told = missing_module(error, study)
    assert all(each in told for each in words)
    assert ("`python:`" in told) is ("`python:`" in words)
    assert told in failure_text(study, "A", "exit code 1", TrialFolder(work))
    assert missing_module(failed(work, "raise ValueError\n"), study) == ""


def test_the_package_of_a_well_known_module_is_named(make_run: MakeRun, work: Path) -> None:
    command = ["/opt/x/python", "train.py"]
    own = "raise ModuleNotFoundError(\"No module named 'sklearn.linear_model'\")\n"
    error = failed(work, own)
    study = make_run(trainer={"command": command, "files": ["train.py"]}).study
    told = missing_module(error, study)
    assert "'sklearn' is a file" in told
    assert told.endswith("/opt/x/python -m pip install scikit-learn")
