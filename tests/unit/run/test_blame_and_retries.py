"""Failed attempts that are a machine's fault, and so cost no retry."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import MakeRun
from tests.unit.scripts import Scripts
from trialfleet.errors import PoolError
from trialfleet.infra.pool import collector
from trialfleet.infra.pool.machines import Machine, parse_machines
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS, NODE_FAULTS
from trialfleet.workflows.status.attempts import blame_and_retries
from trialfleet.workflows.status.attempts.blame_and_retries import (
    blames_machine,
    in_hold,
    machines_to_avoid,
    own_errors,
)

RAN = """\
000 ({job:03d}.000.000) 2026-11-20 10:00:00 Job submitted from host: <127.0.0.1:1>
...
001 ({job:03d}.000.000) 2026-11-20 10:00:01 Job executing on host: <127.0.0.1:2>
\tSlotName: slot1_1@{machine}
...
"""
ABSENT = "Transfer input files failure at access point vm: (errno 2) No such file or directory"
FULL = "Transfer input files failure at execution point e: (errno 28) No space left on device"
LOST = "Transfer output files failure at execution point e: connection closed"


@pytest.mark.parametrize(
    ("code", "reason", "is_machines"),
    [
        (3, "over its memory: used 612 MB of 512 MB", False),
        (34, "Job has gone over cgroup memory limit", False),
        (47, "The job exceeded allowed execute duration of 00:09", False),
        (1, "via condor_hold", False),
        (13, ABSENT, False),
        (13, FULL, True),
        (12, LOST, True),
        (12, "(errno 2) No such file or directory", False),
        (6, "Failed to execute condor_exec.exe: Exec format error", True),
        (14, "Cannot access initial working directory", True),
    ],
)
def test_the_code_and_reason_of_a_hold_show_whether_a_machine_caused_it(
    code: int, reason: str, is_machines: bool
) -> None:
    assert in_hold(code, reason) is is_machines


@pytest.mark.parametrize(
    "message",
    [
        "OSError: [Errno 28] No space left on device: 'x'",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: No CUDA GPUs: no CUDA-capable device is detected",
        "OSError: [Errno 5] Input/output error",
        "Unable to determine the device handle for GPU 0000:00:1E.0: Unknown Error",
    ],
)
def test_messages_that_only_a_machine_can_cause_are_known(message: str) -> None:
    assert blames_machine(message)


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: CUDA error: device-side assert triggered",
        "torch.OutOfMemoryError: CUDA out of memory",
        "ValueError: x",
        "FileNotFoundError: [Errno 2] No such file or directory: 'x'",
        "",
    ],
)
def test_messages_of_the_trainers_own_errors_blame_no_machine(message: str) -> None:
    assert not blames_machine(message)


def test_a_machine_that_is_found_faulty_late_is_blamed_for_earlier_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = {str(n): {"error": "exit code 1", "machine": "eater"} for n in (1, 2, 3)}
    monkeypatch.setattr(blame_and_retries, "is_reported_broken", lambda _: False)
    assert own_errors(noted) == 3
    monkeypatch.setattr(blame_and_retries, "is_reported_broken", lambda machine: machine == "eater")
    assert own_errors(noted) == 0
    noted |= {"4": {"error": "exit code 1", "machine": "other"}, "5": {"blame": "node"}}
    assert own_errors(noted) == 1


def test_an_unreachable_pool_blames_no_machine(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> object:
        raise PoolError("no HTCondor")

    monkeypatch.setattr(collector, "slot_ads", silent)
    monkeypatch.setattr(blame_and_retries, "machines", silent)
    assert not blame_and_retries.is_reported_broken("eater")
    assert machines_to_avoid(make_run().study, {"1": {"machine": "eater"}}) == ()


def test_a_machine_without_a_gpu_is_not_to_blame_for_having_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    says = {"TrialfleetInstance": "i-1", "TrialfleetGpuHealthy": False}
    (cpus,) = parse_machines([{"Name": "slot1@vm", **says}])
    (gpus,) = parse_machines([{"Name": "slot1@vm", "TotalSlotGPUs": 1, **says}])
    monkeypatch.setattr(blame_and_retries, "machine_named", {"cpus": cpus, "gpus": gpus}.get)
    assert [blame_and_retries.is_reported_broken(name) for name in ("cpus", "gpus", "gone")] == [
        False,
        True,
        False,
    ]


@pytest.fixture
def two_machines(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A pool of two machines, of which one may say that it is broken."""
    broken: list[str] = []

    def named(machine: str) -> Machine:
        note = "3 jobs failed here within 60 s: 7.0 (exit code 1)" if machine in broken else ""
        return parse_machines([{"Name": f"slot1@{machine}", "TrialfleetNote": note}])[0]

    monkeypatch.setattr(blame_and_retries, "machines", lambda _: {"eater", "other"})
    monkeypatch.setattr(blame_and_retries, "machine_named", named)
    return broken.append


REMOVED = """\
009 (00{job}.000.000) 2026-11-22 07:09:00.000 Job was aborted.
\tevicted too often: 5 starts in a row kept no work (by user me)
...
"""


def fail(
    scripts: Scripts, node: str, retry: int, machine: str, code: int = 1, more: str = ""
) -> int:
    """Play an attempt that fails on a machine; return what its POST script answers."""
    scripts.ask(node)
    with scripts.trial(node).log.open("a") as log:
        log.write((RAN + more).format(job=retry + 1, machine=machine))
    return scripts.tell(node, code, retry=retry, retries=1 + NODE_FAULTS)


@pytest.mark.slow
def test_failures_on_a_broken_machine_use_up_no_retries(
    make_run: MakeRun, two_machines: Callable[[str], None]
) -> None:
    scripts = Scripts(make_run(budget={"trials": 2, "lanes": 1, "failures": 0}, retries=1))
    two_machines("eater")
    for retry in range(5):
        assert fail(scripts, "A.l1.t01", retry, "eater") == EXITS["retry"]
    scripts.ask("A.l1.t01")
    assert scripts.finish("A.l1.t01", retry=5) == EXITS["done"]


@pytest.mark.slow
def test_the_users_own_errors_use_up_the_retries(
    make_run: MakeRun, two_machines: Callable[[str], None]
) -> None:
    scripts = Scripts(make_run(budget={"trials": 2, "lanes": 1, "failures": 2}, retries=1))
    assert fail(scripts, "A.l1.t01", 0, "eater") == EXITS["retry"]
    assert fail(scripts, "A.l1.t01", 1, "other") == EXITS["done"]  # recorded as failed


@pytest.mark.slow
def test_another_attempt_prefers_another_machine(
    make_run: MakeRun, two_machines: Callable[[str], None]
) -> None:
    scripts = Scripts(make_run(budget={"trials": 2, "lanes": 1}, retries=2))
    fail(scripts, "A.l1.t01", 0, "eater")
    scripts.ask("A.l1.t01")
    text = scripts.trial("A.l1.t01").submit.read_text()
    assert 'TARGET.Machine =!= "eater" || time() - QDate > 120' in text


@pytest.mark.slow
def test_a_command_that_is_missing_on_one_machine_is_tried_on_another(
    make_run: MakeRun, two_machines: Callable[[str], None]
) -> None:
    scripts = Scripts(make_run(budget={"trials": 2, "lanes": 1, "failures": 2}, retries=0))
    assert fail(scripts, "A.l1.t01", 0, "eater", code=127) == EXITS["retry"]
    assert fail(scripts, "A.l1.t01", 1, "other", code=127) == EXITS["done"]


@pytest.mark.slow
def test_a_job_without_progress_on_one_machine_is_tried_on_another(
    make_run: MakeRun, two_machines: Callable[[str], None]
) -> None:
    scripts = Scripts(make_run(budget={"trials": 2, "lanes": 1, "failures": 2}, retries=0))
    assert fail(scripts, "A.l1.t01", 0, "eater", -1002, REMOVED) == EXITS["retry"]
    assert fail(scripts, "A.l1.t01", 1, "other", -1002, REMOVED) == EXITS["done"]


@pytest.mark.slow
def test_dagmans_retries_limit_the_failures_on_a_broken_machine(
    make_run: MakeRun, two_machines: Callable[[str], None]
) -> None:
    run = make_run(budget={"trials": 2, "lanes": 1, "failures": 2}, retries=1)
    dag = (run.folder / "regions/A/region.dag").read_text()
    assert f"RETRY A.l1.t01 {1 + NODE_FAULTS}" in dag
    scripts = Scripts(run)
    two_machines("eater")
    answers = [fail(scripts, "A.l1.t01", retry, "eater") for retry in range(2 + NODE_FAULTS)]
    assert answers == [EXITS["retry"]] * (1 + NODE_FAULTS) + [EXITS["done"]]
