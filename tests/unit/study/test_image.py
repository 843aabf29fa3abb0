"""`image:` in a study: which texts are valid, and their effect on the submit file and the agent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.study.study_texts import MINIMAL, error_of, write, write_sif
from trialfleet import InputError, Run, plan
from trialfleet.workflows.control.plan.trial_json_and_submit_file import (
    ONCE_BYTES,
    TrialFiles,
    TrialOrder,
)
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.study.image import resolved_image
from trialfleet.workflows.study.loading import load_study

FORMS = "must be docker://REPOSITORY/NAME:TAG, or the path of a .sif file"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONDOR_CONFIG", os.devnull)  # a plan here asks no pool
    (tmp_path / "go.sh").write_text("exit 0\n")
    return tmp_path


def planned(folder: Path, lines: str) -> Run:
    study = load_study(write(folder, MINIMAL + lines))
    return plan(study, run="r1", out=folder / "run")


def submit_text(run: Run) -> str:
    folder = RunFolder(run.folder)
    order = TrialOrder(region="A", node="A.l1.t01", trial=0, mode="tune", seed=1, params={"x": 0.5})
    place = folder.region("A").trial("A.l1.t01")
    return TrialFiles("r1", run.study, folder, place, order).submit_text()


@pytest.mark.parametrize(
    "image",
    [
        "python:3.12",
        "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime",
        "registry.example.org:5000/team/net_a/b--c:1",
        f"ghcr.io/me/it@sha256:{'0f' * 32}",
    ],
)
def test_a_reference_is_the_same_with_and_without_its_scheme(folder: Path, image: str) -> None:
    for text in (image, f"docker://{image}"):
        assert load_study(write(folder, f"{MINIMAL}image: {text}\n")).image == f"docker://{image}"
    assert resolved_image(f"docker://{image}", folder) == f"docker://{image}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"a\\nqueue 9"', FORMS),
        ('"a:1\\n.sif"', "write it in one line"),
        ('"a\\"b.sif"', "can't be sent by HTCondor's file transfer"),
        ("a$(X).sif", "can't be sent by HTCondor's file transfer"),
        ("' a.sif'", "can't be sent by HTCondor's file transfer"),
        ("a b", FORMS),
        ("me/$(X)", FORMS),
        ("me/$$(X)", FORMS),
        ("me/it'", FORMS),
        ("docker://", FORMS),
        ("docker://me/it.sif x", FORMS),
        ("docker://-v/it", FORMS),
        ("oras://me/it:1", FORMS),
        ("http://example.org/it.sif", FORMS),
        ("./folder", FORMS),
        ("''", FORMS),
        (f"me/{'x' * 500}", FORMS),
        ("3.12", "must be text: docker://"),
        ("none.sif", "none.sif' does not exist"),
        ("go.sif", "go.sif' is not a SIF file"),
        ("folder.sif", "folder.sif' can't be read"),
    ],
)
def test_a_text_that_is_no_image_is_refused_with_its_line(
    folder: Path, text: str, expected: str
) -> None:
    (folder / "go.sif").write_text("exit 0\n")
    (folder / "folder.sif").mkdir()
    message = error_of(folder, f"{MINIMAL}image: {text}\n")
    assert message.startswith(f"{folder}/study.yaml:9: image: ")
    assert expected in message
    assert len(message.splitlines()) == 1


def test_the_python_of_a_study_with_an_image_is_a_path_in_the_image(folder: Path) -> None:
    write_sif(folder / "it.sif")
    message = error_of(folder, f"{MINIMAL}image: it.sif\npython: env/bin/python3\n")
    assert ":10: python: must be an absolute path in the image" in message
    study = load_study(write(folder, f"{MINIMAL}image: it.sif\npython: /env/bin/python3\n"))
    assert study.python == "/env/bin/python3"


def test_an_image_file_is_sent_with_the_data(folder: Path) -> None:
    image = write_sif(folder / "-an it.sif")
    run = planned(folder, "image: -an it.sif\n")
    text = submit_text(run)
    assert "universe = container\n" in text
    assert "container_image = ./-an it.sif\ntransfer_container = false\n" in text
    assert f"region_files = {image}\n" in text
    assert f"{folder}/run/code*,{image}*" in text, "the job may read it"
    assert "CommonInputFiles" not in text
    os.truncate(image, ONCE_BYTES + 1)
    assert 'My.CommonInputFiles = TrialfleetOwnCopy ? undefined : "$(region_files)"' in (
        submit_text(run)
    )


def test_a_reference_is_fetched_by_the_node(folder: Path) -> None:
    text = submit_text(planned(folder, "image: me/it:1\n"))
    assert "universe = container\ncontainer_image = docker://me/it:1\n" in text
    assert "region_files" not in text


def test_without_an_image_nothing_says_container(folder: Path) -> None:
    run = planned(folder, "")
    assert "container" not in submit_text(run)
    assert "singularity" not in RunFolder(run.folder).agent.read_text()


def test_a_file_of_the_images_name_is_refused(folder: Path) -> None:
    write_sif(folder / "it.sif")
    with pytest.raises(InputError, match=r"2 files of a trial are called 'it\.sif'"):
        planned(folder, "image: it.sif\ndata: it.sif\n")


def test_the_agent_finds_pythons_by_the_images_path_first(folder: Path) -> None:
    """The script's own words about apptainer's files, with such files in another folder."""
    agent = RunFolder(planned(folder, "image: me/it:1\n").folder).agent.read_text()
    (folder / "env").mkdir()
    before, last = agent.rsplit("exec python3", 1)
    assert last.startswith(" -I -S agent.pyz")
    script = before.replace("/.singularity.d", str(folder)) + 'echo "$PATH"\n'

    def path() -> str:
        done = subprocess.run(
            ["/bin/sh", "-c", script],
            env={"PATH": "/n"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert not done.stderr
        return done.stdout

    assert path() == "/n\n"
    (folder / "env/90-environment.sh").write_text("# Custom environment\n")
    assert path() == "/n\n"
    (folder / "env/10-docker2singularity.sh").write_text('export PATH="/opt/conda/bin:/bin"\n')
    assert path() == "/opt/conda/bin:/bin\n"
    (folder / "env/90-environment.sh").write_text("x=(1 2\n")
    assert path() == "/opt/conda/bin:/bin\n"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('echo "3.12.4"', "python: python3 of the image (3.12.4)"),
        (
            "echo 'FATAL:   no user namespaces' >&2; exit 255",
            "apptainer can't run it here: FATAL:   no user namespaces",
        ),
    ],
)
def test_a_plan_asks_the_images_python_where_it_can(
    folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: str
) -> None:
    write_sif(folder / "it.sif")
    stand_in_for_apptainer(folder, monkeypatch, script)
    notes = "\n".join(planned(folder, "image: it.sif\n").notes)
    assert expected in notes


def test_a_plan_says_where_it_can_not_look(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sif(folder / "it.sif")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    notes = "\n".join(planned(folder, "image: it.sif\n").notes)
    assert "python: python3 of the image; not checked, because apptainer is not installed" in notes


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            'echo "FATAL: \\"python3\\": executable file not found in \\$PATH" >&2; exit 255',
            "python: 'python3' is not in ",
        ),
        ('echo "3.6.9"', "python: 'python3' is 3.6.9; trials need 3.10 or newer"),
    ],
)
def test_an_image_without_a_suitable_python_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: str
) -> None:
    write_sif(folder / "it.sif")
    stand_in_for_apptainer(folder, monkeypatch, script)
    with pytest.raises(InputError, match=expected):
        planned(folder, "image: it.sif\n")


def stand_in_for_apptainer(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program called apptainer on PATH that says what the real one would."""
    program = folder / "bin/apptainer"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
