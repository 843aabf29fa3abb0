"""Results and checkpoints of gangs, packed and unpacked."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from trialfleet.nodes import CHECKPOINT
from trialfleet.nodes.gang import packages
from trialfleet.nodes.gang.packages import RESULT, Package
from trialfleet.nodes.job.packages import DamagedPackageError, unpack
from trialfleet.workflows.gang.results import take_result
from trialfleet.workflows.gang.roster import DONE, Roster
from trialfleet.workflows.plan.folder import TrialFolder

ENDED = Roster(cluster=1, generation=3, state=DONE, code=0, proc=2)


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    box = tmp_path / "sandbox"
    (box / "model").mkdir(parents=True)
    (box / "checkpoint/a").mkdir(parents=True)
    (box / "trial.json").write_text('{"mode": "final"}')
    (box / "result.json").write_text('{"status": "complete"}')
    (box / "progress.jsonl").write_text('{"step": 1}\n')
    (box / "model/weights").write_text("w")
    (box / "checkpoint/a/state").write_text("s")
    return box


@pytest.fixture
def place(tmp_path: Path) -> TrialFolder:
    found = TrialFolder(tmp_path / "trial")
    for folder in (found.gang, found.model):
        folder.mkdir(parents=True)
    found.result.write_text("")
    found.progress.write_text("")
    return found


@pytest.mark.parametrize("generation", [3, 2])  # it ended while the third ran, or formed
def test_a_result_comes_to_its_place_once(
    sandbox: Path, place: TrialFolder, generation: int
) -> None:
    packages.pack(RESULT, sandbox, place.gang / Package(RESULT, generation, 2).name)
    for _ in range(2):  # whoever did it may be killed, and another does it again
        take_result(place, ENDED)
        assert json.loads(place.result.read_text()) == {"status": "complete"}
        assert place.progress.read_text() == '{"step": 1}\n'
        assert (place.model / "weights").read_text() == "w"
    assert list(place.gang.iterdir()) == []


def test_a_trial_that_only_tunes_leaves_no_model(sandbox: Path, place: TrialFolder) -> None:
    (sandbox / "trial.json").write_text('{"mode": "tune"}')
    packages.pack(RESULT, sandbox, place.gang / Package(RESULT, 3, 2).name)
    take_result(place, ENDED)
    assert list(place.model.iterdir()) == []


def test_a_result_that_reaches_out_of_its_folder_is_none(place: TrialFolder) -> None:
    package = place.gang / Package(RESULT, 3, 2).name
    with tarfile.open(package, "w") as tar:
        member = tarfile.TarInfo("../outside")
        tar.addfile(member, io.BytesIO())
    take_result(place, ENDED)
    assert "its result can't be used" in json.loads(place.result.read_text())["error"]
    assert not (place.gang / "outside").exists()
    package.write_bytes(b"no tar")
    take_result(place, ENDED)
    assert "its result can't be used" in json.loads(place.result.read_text())["error"]


def test_a_generation_begins_with_its_checkpoint_alone(sandbox: Path, tmp_path: Path) -> None:
    package = tmp_path / Package(CHECKPOINT, 1, 1).name
    packages.pack(CHECKPOINT, sandbox, package)
    saved = packages.state_of(sandbox)
    (sandbox / "checkpoint/a/newer").write_text("n")
    assert packages.state_of(sandbox) != saved
    packages.begin_anew(sandbox)
    assert packages.state_of(sandbox) == ()
    unpack(package, sandbox)
    assert [path.name for path in sandbox.glob("checkpoint/a/*")] == ["state"]
    assert (sandbox / "progress.jsonl").read_text() == '{"step": 1}\n'
    assert list((sandbox / "model").iterdir()) == []
    package.write_bytes(package.read_bytes()[:700])
    with pytest.raises(DamagedPackageError):
        unpack(package, sandbox)
