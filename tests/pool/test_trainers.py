"""Runs on a real pool whose trainers fail, are evicted, or need data and GPUs."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import MOODY, MakeRun
from tests.pool.watching import WaitFor, active, assert_exactly_once, steps_run
from trialfleet import RunState
from trialfleet.classads import plain_attributes
from trialfleet.errors import InputError
from trialfleet.files import read_json
from trialfleet.infra.pool.collector import slot_ads
from trialfleet.infra.pool.embedded import Pool
from trialfleet.infra.pool.machines import parse_machines
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.facts.run_folder.folder import RunFolder


def moody(mood: str, **more: object) -> dict[str, object]:
    return {"search_space": {"mood": mood, **more}}


@pytest.mark.usefixtures("pool")
def test_bad_trainers_are_recorded_as_failed_and_stop_no_other_region(make_run: MakeRun) -> None:
    run = make_run(
        regions={
            "good": {},
            "always": moody("fails"),
            "sometimes": moody("sometimes"),
            "garbage": moody("garbage"),
            "silent": moody("silent"),
            "nan": moody("nan"),
            "hangs": {**moody("hangs"), "budget": {"trials": 1}},
            "fills": {**moody("fills"), "budget": {"trials": 1}},
            "sparse": {**moody("sparse"), "budget": {"trials": 1}},
            "saves-sparse": {**moody("sparse", again=1), "budget": {"trials": 1}},
            "no-model": moody("good", final_mood="nan"),
        },
        budget={"trials": 2, "lanes": 1, "failures": 1},
        trainer={
            "command": ["python3", "moody.py"],
            "files": [str(MOODY)],
            "minutes": 0.15,
        },
        retries=1,
    )
    run.submit()
    status = run.wait()
    assert status.state is RunState.FAILED
    errors = {r.region: r.error or "" for r in run.trials() if r.state == "failed"}
    assert "exit code 1: I always fail" in errors["always"]
    assert "I fail on odd trials" in errors["sometimes"]
    assert "not JSON" in errors["garbage"]
    assert "without writing result.json" in errors["silent"]
    assert "loss is nan" in errors["nan"]
    assert errors["hangs"] == (
        "over its time: ran for more than 0.15 min; raise trainer.minutes in the study"
    )
    assert re.fullmatch(
        r"over its disk: used \d+ MB of 20 MB; raise resources\.disk in the study", errors["fills"]
    )
    assert "sparse" not in errors  # a package that is not taken costs nothing
    assert errors["saves-sparse"] == (
        "over its disk: the files that it left exceed the limit; raise resources.disk in the study"
    )
    left = [file.stat().st_size for file in run.folder.rglob("big")]
    assert max(left, default=0) < 25 << 20  # of the 3 GB that it seems to have
    attempts = {(r.region, r.trial): r.attempts for r in run.trials() if r.state == "failed"}
    assert attempts["always", 0] == attempts["always", 1] == 2  # retried
    assert attempts["nan", 0] == 1  # the same parameters would give the same
    assert attempts["hangs", 0] == attempts["fills", 0] == 1  # and meet the same limit
    assert attempts["saves-sparse", 0] == 1
    states = {region.name: region.state for region in status.regions}
    assert states["good"] is states["sometimes"] is RunState.DONE
    assert states["always"] is states["hangs"] is states["no-model"] is RunState.FAILED
    reasons = {region.name: region.reason or "" for region in status.regions}
    assert "2 trials failed for good" in reasons["always"]
    assert "no trial completed" in reasons["hangs"]
    assert "full training" in reasons["no-model"]
    causes = {region.name: region.cause for region in status.regions}
    always = causes["always"]
    assert always is not None
    assert (always.error, always.attempts, always.of) == ("exit code 1: I always fail", 4, 4)
    assert Path(always.log).read_text() == "I always fail\n"
    assert causes["good"] is None
    sometimes = causes["sometimes"]
    assert sometimes is not None, "a region that goes on tells the latest cause"
    assert "I fail on odd trials" in sometimes.error
    assert "I always fail" in run.report.read_text()


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_trial_gets_no_more_memory_than_it_asks_for(make_run: MakeRun) -> None:
    run = make_run(
        regions={"swells": moody("swells"), "shares": moody("shares")},
        budget={"trials": 1, "lanes": 1},
        resources={"memory": "64MB", "disk": "20MB"},
        trainer={"command": ["python3", "moody.py"], "files": [str(MOODY)], "minutes": 1},
    )
    run.submit()
    states = {region.name: region.state for region in run.wait().regions}
    assert states == {"swells": RunState.FAILED, "shares": RunState.DONE}
    (swollen,) = run.trials("swells")
    assert re.fullmatch(
        r"over its memory: used \d+ MB of 64 MB when it was ended, and may need more; "
        r"raise resources\.memory in the study",
        swollen.error or "",
    )
    assert swollen.attempts == 1  # the same parameters would need as much again


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_parameters_that_cant_be_trained_are_not_tried_again(make_run: MakeRun) -> None:
    run = make_run({"mood": "rejects"}, budget={"trials": 6, "lanes": 2, "failures": 6})
    run.submit()
    run.wait()
    failed = [r for r in run.trials() if r.state == "failed"]
    assert all(r.params["x"] > 0.5 for r in failed)
    assert all((r.attempts, r.error) == (1, "x is too large") for r in failed)
    assert_exactly_once(run, 6)


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_trainer_that_cant_be_started_ends_the_run_long_before_its_budget(
    make_run: MakeRun, work: Path
) -> None:
    (work / "fit").write_text("#!/no/such/interpreter\n")
    (work / "fit").chmod(0o755)
    run = make_run(
        regions=["A", "B"],
        trainer={"command": ["./fit"], "files": ["fit"]},
        budget={"trials": 40, "lanes": 2},
        retries=2,
    )
    run.submit()
    status = run.wait()
    assert status.state is RunState.FAILED
    assert {r.attempts for r in run.trials() if r.state == "failed"} == {1}
    for region in status.regions:
        # A trial that already runs for longer than the others ran may turn out to be better.
        assert 3 <= region.failed <= 8, "of 40"
        assert "the trainer can't be started: exit code 127: " in str(region.reason)
        assert region.cause is not None
        assert "fit: not found" in Path(region.cause.log).read_text()
    assert "./fit: not found" in run.report.read_text()


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_trainer_that_always_crashes_ends_the_run_long_before_its_budget(
    make_run: MakeRun,
) -> None:
    run = make_run({"mood": "fails"}, regions=["A", "B"], budget={"trials": 40, "lanes": 2})
    run.submit()
    status = run.wait()
    assert status.state is RunState.FAILED
    for region in status.regions:
        assert "no trial can succeed: all attempts so far failed alike: " in str(region.reason)
        assert region.failed + region.interrupted <= 4
    with pytest.raises(InputError, match="no region can continue"):
        run.resume()
    assert sum(len(record.error or "") > 0 for record in run.trials()) < 10


# -- checkpoints ---


@pytest.mark.thorough
def test_a_trial_whose_startd_is_killed_continues_from_its_last_upload(
    make_run: MakeRun, make_pool: Callable[..., Pool], wait_for: WaitFor
) -> None:
    with active(make_pool()) as pool:
        params = {"steps": 24, "seconds": 0.25, "save_every": 4, "upload": True}
        run = make_run(params, budget={"trials": 1, "lanes": 1})
        run.submit()
        place = RunFolder(run.folder).region("A").trial("A.l1.t01")
        wait_for(lambda: place.log.exists() and "A.l1.t01 saved" in place.log.read_text())
        for process in pool.processes():
            if process.name in {"condor_startd", "condor_starter"}:
                os.kill(process.pid, signal.SIGKILL)
        assert run.wait().state is RunState.DONE
        assert steps_run(place) == list(range(1, 25))
        assert place.log.read_text().count("Job executing on host") >= 2
        assert_exactly_once(run, 1)


# -- files -----------------------------------------------------------------------------------------


def received(log: Path) -> int:
    """Bytes that a job received with its own input, by its event log."""
    lines = [line for line in log.read_text().splitlines() if "Total Bytes Received By Job" in line]
    return int(lines[-1].split()[0])


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_regions_data_goes_to_a_node_once(make_run: MakeRun, work: Path) -> None:
    (work / "rows one.bin").write_bytes(os.urandom(12_000_000))
    run = make_run(data="rows one.bin", budget={"trials": 4, "lanes": 2, "trials_per_job": 1})
    run.submit()
    assert run.wait().state is RunState.DONE
    logs = [*run.folder.glob("regions/A/trials/*/log"), run.folder / "regions/A/best/log"]
    assert len(logs) == 5
    assert sum(received(log) for log in logs) < 12_000_000
    sent = sum(log.read_text().count("Common files event: TransferFinished") for log in logs)
    assert sent == 1
    ads = [plain_attributes(ad) for ad in slot_ads()]
    assert any(ad.get("IsDataSlot") for ad in ads)  # it keeps the file, claimed and busy
    (machine,) = parse_machines(ad for ad in ads if ad.get("IsDataSlot") or "JobId" not in ad)
    assert machine.jobs == ()


@pytest.mark.slow
@pytest.mark.usefixtures("pool")
def test_a_model_trained_on_a_csv_file_predicts_new_rows(
    make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        f"{'ab'[i % 2]},{i % 7},{'yes' if i % 7 + 3 * (i % 2) > 4 else 'no'}" for i in range(300)
    ]
    (work / "rows.csv").write_text("\n".join(["kind,number,late", *rows]) + "\n")
    run = make_run(
        data="rows.csv",
        trainer="tabular",
        target="late",
        table={"columns": {"number": "numeric"}},
        objective={"metric": "val_auc", "direction": "maximize"},
        search_space={
            "learning_rate": {"type": "float", "low": 1.0e-3, "high": 0.1, "default": 0.01},
            "epochs": 2,
            "hidden": 8,
        },
        resources={"memory": "1GB", "disk": "200MB"},
        budget={"trials": 2, "lanes": 1},
    )
    (work / "rows.csv").write_text("gone")  # a run has the rows that it was planned with
    run.submit()
    assert run.wait().state is RunState.DONE
    assert {record.attempts for record in run.trials()} == {1}
    [best] = run.best()
    published = Path(best.published or "")
    [source] = read_json(published / "provenance.json")["data"]
    assert source["path"] == str(work / "rows.csv")
    (work / "new.csv").write_text("number,kind\n6,b\n0,a\n")
    monkeypatch.chdir(work)
    result = CliRunner().invoke(main, ["predict", "A", "new.csv", "-o", "predicted.csv"])
    assert result.exit_code == 0, result.output
    header, *lines = (work / "predicted.csv").read_text().splitlines()
    assert header == "number,kind,predicted_late"
    late, early = (float(line.split(",")[2]) for line in lines)
    assert late > early


@pytest.mark.thorough
def test_a_gpu_trial_runs_only_on_a_slot_with_a_gpu(
    make_run: MakeRun, make_pool: Callable[..., Pool], wait_for: WaitFor
) -> None:
    with active(make_pool()):
        run = make_run(accelerator="gpu", budget={"trials": 1, "lanes": 1})
        run.submit(anyway=True)
        wait_for(lambda: run.status().regions[0].queued == 1)
        subprocess.run(["sleep", "6"], check=True)  # several negotiation cycles
        assert run.status().regions[0].running == 0
        run.stop()
    gpus = make_pool(knobs={"GPU_DISCOVERY_EXTRA": "-extra -simulate:4,2"})
    with active(gpus):
        run = make_run(accelerator="gpu", run="r2", budget={"trials": 2, "lanes": 1})
        run.submit()
        assert run.wait().state is RunState.DONE
        assert "GPUs = 1" in RunFolder(run.folder).region("A").trial("A.l1.t01").log.read_text()


@pytest.mark.thorough
def test_published_models_say_where_they_come_from(
    make_run: MakeRun, pool: Pool, work: Path, wait_for: WaitFor
) -> None:
    """The data of A is rewritten before the run is submitted, that of B while it trains."""
    gate = work / "gate"
    gate.mkdir()
    for region in ("A", "B"):
        (work / f"{region}.txt").write_text("as planned")
    run = make_run(
        {"gate": str(gate)},
        regions=["A", "B"],
        data="{region}.txt",
        budget={"trials": 1, "lanes": 1},
    )
    (work / "A.txt").write_text("as submitted")
    run.submit()
    wait_for(lambda: run.status().regions[1].running == 1)
    (work / "B.txt").write_text("too late")
    for node in ("A.l1.t01", "A.best", "B.l1.t01", "B.best"):
        (gate / node).touch()
    status = run.wait()
    assert status.state is RunState.DONE
    provenances = {}
    for best in run.best():
        provenance = read_json(Path(best.published or "") / "provenance.json")
        assert provenance["params"]["x"] == best.params["x"]
        assert provenance["run"] == "r1"
        provenances[best.region] = provenance
    as_submitted = hashlib.sha256(b"as submitted").hexdigest()
    assert provenances["A"]["data"][0]["sha256"] == as_submitted
    assert "changed" not in provenances["A"]
    assert provenances["B"]["data"] == [{"path": str(work / "B.txt"), "sha256": None}]
    assert "B.txt" in provenances["B"]["changed"]
    assert [bool(region.changed) for region in status.regions] == [False, True]
