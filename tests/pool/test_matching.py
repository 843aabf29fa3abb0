"""A plan, a submission and a status of a run that the pool, as it is, can't run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from tests.pool.conftest import MakePool
from tests.pool.watching import WaitFor, active
from trialfleet import InputError, RunState
from trialfleet.files import shell_quoted
from trialfleet.infra.pool.embedded import Pool
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.cli.printing.plan_summary import plan_summary, plan_text

TOO_MUCH = "no slot of the pool can run them: memory: needs 900 GB, the most is "


@pytest.mark.usefixtures("pool")
def test_a_job_that_no_slot_can_run_is_reported_by_plan_submit_and_status(
    make_run: MakeRun, wait_for: WaitFor
) -> None:
    run = make_run(resources={"memory": "900GB", "disk": "20MB"})
    pool_check = run.check_pool()
    assert f"  pool     {TOO_MUCH}" in plan_text(run, pool_check)
    assert plan_summary(run, pool_check)["pool"]["hopeless"] is True
    with pytest.raises(InputError, match=r"memory: needs 900 GB.*--anyway"):
        run.submit()
    assert run.status().state is RunState.PLANNED
    run.submit(anyway=True)
    wait_for(lambda: any(TOO_MUCH in trouble for trouble in run.status().troubles))
    run.stop()


@pytest.mark.usefixtures("pool")
def test_a_region_that_no_slot_can_run_is_reported_while_another_trains(
    make_run: MakeRun, work: Path, wait_for: WaitFor
) -> None:
    (gate := work / "gate").mkdir()
    only_a = {"memory": "100MB", "disk": "20MB", "requirements": 'MY.TrialfleetRegion == "A"'}
    run = make_run({"gate": str(gate)}, regions=["A", "B", "C"], resources=only_a)
    run.submit()
    expected = "2 regions, for example B: trials wait: no slot of the pool can run them: requirem"
    wait_for(lambda: any(line.startswith(expected) for line in run.status().troubles))
    status = run.status()
    assert status.regions[0].running
    assert not status.is_well
    shown = CliRunner().invoke(main, ["status", str(run.folder)], env={"COLUMNS": "300"})
    assert shown.exit_code == 1
    assert expected in shown.output
    assert f"why: trialfleet why --run {shell_quoted(run.folder)}" in shown.output
    run.stop()


@pytest.mark.usefixtures("pool")
def test_submit_refuses_a_hopeless_run_with_exit_code_2_and_advice(
    make_run: MakeRun, wait_for: WaitFor
) -> None:
    run = make_run(resources={"memory": "900GB", "disk": "20MB"})
    refused = CliRunner().invoke(main, ["submit", str(run.folder)])
    assert refused.exit_code == 2
    assert TOO_MUCH in refused.stderr
    assert "such slots will join the pool, give --anyway" in refused.stderr
    assert CliRunner().invoke(main, ["submit", str(run.folder), "--anyway"]).exit_code == 0
    run.stop()


@pytest.mark.usefixtures("pool")
def test_submit_refuses_a_region_whose_data_no_slot_has_disk_for_and_names_it(
    make_run: MakeRun, work: Path
) -> None:
    for name, size in {"A": 5 << 20, "B": 4 << 40, "C": 0}.items():
        with (work / name).open("wb") as file:
            file.truncate(size)
    run = make_run(regions={name: {"data": [name]} for name in "ABC"})
    expected = "trials of B: no slot of the pool can run them: disk: needs 4096 GB, the most is "
    found = run.check_pool()
    assert f"  pool     {expected}" in plan_text(run, found)
    assert found.to_json()["reason"].startswith(expected)
    with pytest.raises(InputError, match=expected):
        run.submit()
    assert run.status().state is RunState.PLANNED
    assert found.can_begin, "a day trains its other regions"


def free_memory(pool: Pool) -> int:
    """MiB that no job has taken, as the collector knows it."""
    return min(machine.free.memory_mb for machine in pool.status().machines)


@pytest.mark.thorough
def test_a_slot_full_of_other_jobs_counts_as_suitable(
    make_run: MakeRun, make_pool: MakePool, wait_for: WaitFor
) -> None:
    with active(make_pool(memory_mb=1000)) as own:
        large = {"memory": "700MB", "disk": "20MB"}
        gate = {"gate": "/nowhere"}
        first = make_run(gate, resources=large, budget={"trials": 1, "lanes": 1})
        first.submit()
        wait_for(lambda: free_memory(own) < 700)
        second = make_run(run="r2", resources=large, budget={"trials": 1, "lanes": 1})
        found = second.check_pool().prospects
        assert found is not None
        assert (found.slots, found.fit, found.willing) == (1, 1, 1)
        second.submit()
        wait_for(lambda: second.status().regions[0].queued == 1)
        assert second.status().troubles == ()
        second.stop()
        first.stop()


def test_plan_sets_the_accelerator_by_the_gpus_of_the_pool(
    make_run: MakeRun, make_pool: MakePool, work: Path
) -> None:
    with active(make_pool()):
        run = make_run(accelerator="auto")
        assert run.study.accelerator == "cpu"
        assert "accelerator cpu, because no slot of the pool has a GPU" in plan_text(run)
    with active(make_pool(knobs={"GPU_DISCOVERY_EXTRA": "-extra -simulate:4,1"})):
        on_gpus = make_run(accelerator="auto", run="r2")
        assert on_gpus.study.accelerator == "gpu"
        assert "request_gpus" not in on_gpus.check_pool().lines()[0]
        assert on_gpus.check_pool().prospects is not None
        assert not on_gpus.check_pool().hopeless
        assert make_run(run="r3", accelerator="cpu").study.accelerator == "cpu"


@pytest.mark.thorough
def test_an_access_point_that_runs_no_local_jobs_is_named(
    make_run: MakeRun, make_pool: MakePool, wait_for: WaitFor
) -> None:
    with active(make_pool(knobs={"START_LOCAL_UNIVERSE": "False"})):
        run = make_run(budget={"trials": 1, "lanes": 1})
        expected = "START_LOCAL_UNIVERSE (false) is false"
        assert any(expected in line for line in run.check_pool().lines())
        run.submit()
        wait_for(lambda: any(expected in trouble for trouble in run.status().troubles), 120)
        run.stop()


# -- the study's Python --------------------------------------------------------------------------

SHOWS_PYTHON = """\
python3 -c 'import sys; print(sys.executable)'
python3 - <<'END'
import json, pathlib
order = json.loads(pathlib.Path("trial.json").read_text())
pathlib.Path("model/weights").write_text("1")
pathlib.Path("result.json").write_text('{"status": "complete", "metrics": {"loss": 1}}')
END
"""


def make_python(folder: Path) -> Path:
    """Return a Python of another place, which says that it was called."""
    folder.mkdir()
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\necho "called as $0" >&2\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_trials_run_with_the_studys_python(make_run: MakeRun, work: Path) -> None:
    python = make_python(work / "it's here")
    (work / "go.sh").write_text(SHOWS_PYTHON)
    shell: dict[str, Any] = {"trainer": {"command": ["sh", "go.sh"], "files": ["go.sh"]}}
    for name, changes, times in (("shell", shell, 2), ("python", {}, 1)):
        budget = {"trials": 1, "lanes": 1}
        run = make_run(run=name, python="it's here/python3", budget=budget, **changes)
        assert f"python   {python} (3." in plan_text(run)
        run.submit()
        assert run.wait().state is RunState.DONE
        output = (run.folder / "regions/A/trials/A.l1.t01/err").read_text()
        assert output == f"called as {python}\n" * times


@pytest.mark.usefixtures("pool")
def test_trials_run_with_the_planning_python_by_default(make_run: MakeRun) -> None:
    run = make_run()
    assert run.study.python == sys.executable
    assert json.loads(json.dumps(plan_summary(run)))["python"] == sys.executable


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("venv/bin/python", "venv/bin/python' does not exist"),
        ("python9", "'python9' is not on a job's PATH, "),
        ("plain", "plain' is not executable"),
        ("old", "old' is 3.9.1; trials need 3.10 or newer"),
        ("none", "none' does not run as a Python"),
    ],
)
def test_a_python_that_cant_run_trials_is_found_by_plan(
    make_run: MakeRun, work: Path, given: str, why: str
) -> None:
    (work / "plain").write_text("")
    for name, text in (("old", "#!/bin/sh\necho 3.9.1\n"), ("none", "#!/bin/sh\nexit 3\n")):
        (work / name).write_text(text)
        (work / name).chmod(0o755)
    with pytest.raises(InputError) as caught:
        make_run(python=f"./{given}" if given in {"plain", "old", "none"} else given)
    assert str(caught.value).startswith("python: ")
    assert why in str(caught.value)


@pytest.mark.usefixtures("pool")
def test_a_program_that_jobs_would_not_find_is_found_by_plan(make_run: MakeRun, work: Path) -> None:
    (work / "run").write_text("")
    for command, why in (
        (["nosuchprogram"], "'nosuchprogram' is not on the PATH of the pool's jobs"),
        (["/no/such"], "'/no/such' does not exist"),
        ([str(work / "run")], "run' is not executable"),
    ):
        with pytest.raises(InputError, match=r"trainer\.command") as caught:
            make_run(trainer={"command": command})
        assert why in str(caught.value)
