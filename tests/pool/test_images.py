"""Trials in a container image, by a real apptainer: `make test-all` unpacks Debian's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.conftest import MakeRun
from tests.pool.images import PATH_OF_IMAGE, folder_with_apptainer, small_image
from tests.pool.watching import WaitFor, active
from trialfleet import Run, RunState
from trialfleet.infra.pool import schedd
from trialfleet.infra.pool.embedded import Pool
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.run_folder.folder import RunFolder

pytestmark = pytest.mark.thorough
ROOM = {
    "memory": "300MB",
    "disk": "300MB",
}  # apptainer unpacks the image where it has no squashfuse
TRAINER = """\
import os
import trial


def train(t):
    inside = os.path.exists("/.singularity.d"), os.path.exists({outside!r})
    print(*inside, os.environ["PATH"], os.getpid(), open(t.data[0]).read(), flush=True)
    if t.mode == "final":
        (t.model / "weights").write_text(str(t.params["x"]))
    t.complete(loss=t.params["x"])


trial.run(train)
"""
HOME_TRAINER = """\
import pathlib
import trial


def train(t):
    kept = pathlib.Path.home() / "kept"
    kept.write_text("kept")
    print(kept.read_text(), flush=True)
    if t.mode == "final":
        (t.model / "weights").write_text(str(t.params["x"]))
    t.complete(loss=t.params["x"])


trial.run(train)
"""


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    """An image; apptainer is on PATH meanwhile."""
    before, folder = os.environ["PATH"], folder_with_apptainer()
    os.environ["PATH"] = f"{folder}{os.pathsep}{before}"
    yield small_image(folder)
    os.environ["PATH"] = before


@pytest.fixture
def pool_with_apptainer(image: Path, make_pool: Callable[..., Pool]) -> Iterator[Pool]:
    assert image.exists()
    with active(make_pool(cpus=4)) as pool:
        yield pool


def printed_fields(run: Run, trial: str) -> list[str]:
    return RunFolder(run.folder).region("A").trial(trial).out.read_text().split()


@pytest.mark.usefixtures("pool_with_apptainer")
def test_a_lane_trains_in_an_image_and_its_model_is_published(
    make_run: MakeRun, work: Path, image: Path, wait_for: WaitFor
) -> None:
    (work / "train.py").write_text(TRAINER.format(outside=str(work)))
    (work / "rows.csv").write_text("rows")
    run = make_run(
        image=str(image),
        regions={"A": {"data": [str(work / "rows.csv")]}},
        trainer={"command": ["python3", "train.py"], "files": [str(work / "train.py")]},
        budget={"trials": 3, "lanes": 1, "trials_per_job": "all"},
        resources=ROOM,
    )
    assert any(note.startswith("python: python3 of the image (3.") for note in run.notes)
    run.submit()
    wait_for(lambda: run.status().state is RunState.DONE, 180)
    assert [trial.state.is_finished for trial in run.trials()] == [True] * 3
    inside, outside, path, process, rows = printed_fields(run, "A.l1.t01")
    assert (inside, outside, rows) == ("True", "False", "rows")
    assert path.split(":")[0] == PATH_OF_IMAGE
    assert printed_fields(run, "A.l1.t02")[3] == process, "the trainer stays, as ever"


@pytest.mark.usefixtures("pool_with_apptainer")
def test_an_evicted_trial_saves_and_continues_in_its_image(
    make_run: MakeRun, image: Path, wait_for: WaitFor
) -> None:
    run = make_run(
        {"steps": 40, "seconds": 0.2},
        image=str(image),
        budget={"trials": 1, "lanes": 1, "trials_per_job": 1},
        resources=ROOM,
    )
    run.submit()
    reports = RunFolder(run.folder).region("A").trial("A.l1.t01").reports
    wait_for(lambda: reports.exists() and len(reports.read_text().splitlines()) > 4, 90)
    (job,) = schedd.query(
        f'{job_queue.run_constraint(RunFolder(run.folder))} && TrialfleetNode == "A.l1.t01"',
        ["ClusterId"],
    )
    subprocess.run(["condor_vacate_job", str(job["ClusterId"])], check=True)
    wait_for(lambda: run.status().state is RunState.DONE, 180)
    words = RunFolder(run.folder).region("A").trial("A.l1.t01").out.read_text()
    begun = [int(line.rsplit(" ", 1)[1]) for line in words.splitlines() if "from step" in line]
    assert begun[0] == 0
    assert begun[-1] > 0


def test_a_pool_whose_jobs_are_below_tmp_trains_in_an_image(
    make_run: MakeRun, work: Path, make_pool: Callable[..., Pool], image: Path, wait_for: WaitFor
) -> None:
    """Each container has a /tmp of its own, which hides the machine's."""
    (work / "train.py").write_text(HOME_TRAINER)
    with TemporaryDirectory(dir="/tmp") as execute:  # the very folder is the point
        Path(execute).chmod(0o755)  # as the startd requires
        with active(make_pool(cpus=4, extra=f"EXECUTE = {execute}")):
            run = make_run(
                image=str(image),
                trainer={"command": ["python3", "train.py"], "files": [str(work / "train.py")]},
                budget={"trials": 1, "lanes": 1},
                resources=ROOM,
            )
            run.submit()
            wait_for(lambda: run.status().state is not RunState.RUNNING, 180)
            assert run.status().state is RunState.DONE
    assert printed_fields(run, "A.l1.t01") == ["kept"]


def test_the_pool_check_reports_a_missing_apptainer(
    make_run: MakeRun, make_pool: Callable[..., Pool], image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"].split(os.pathsep, 1)[1])
    with active(make_pool()):
        run = make_run(image=str(image))
        explanation = run.check_pool().hopeless
    assert (
        "TARGET.HasContainer, no slot has that" in explanation
        or "TARGET.HasSIF, no slot" in explanation
    )
