"""Steps of the bootstrap: readings for the probe, and kernels that are compiled in advance."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node_stand_ins import IP, Bench
from tests.unit.nodes.test_bootstrap_host import SPOT, TOLD
from trialfleet.instance_aws import Aws, Imds
from trialfleet.nodes.bootstrap import configuration, cuda_kernels, driver, steps
from trialfleet.nodes.bootstrap.host import Host, StepError
from trialfleet.nodes.bootstrap.settings import Settings
from trialfleet.nodes.probe import kernel_log, privileged_readings
from trialfleet.nodes.probe.kernel_log import Xid


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path / "bench")
    bench.program("systemctl")
    monkeypatch.setenv("PATH", bench.path)
    return bench


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def node(bench: Bench, messages: list[str]) -> steps.Node:
    host = Host(bench.root, messages.append)
    settings = Settings.from_table(TOLD)
    node = steps.Node(host, settings, SPOT, Aws(Imds(), "eu-west-1"), messages.append)
    node.driver = driver.NO_LONGER
    return node


def jobs_python(bench: Bench, body: str) -> None:
    """Make the first Python that jobs find: it has torch; `body` is what else it does."""
    folder = bench.root / configuration.JOB_PATH[0].lstrip("/")
    folder.mkdir(parents=True)
    (folder / "python3").write_text(
        f'#!/bin/sh\necho "python $*" >> "{bench.folder}/calls"\n{body}\n'
    )
    (folder / "python3").chmod(0o755)


def readings_file(bench: Bench) -> privileged_readings.PrivilegedReadings:
    return privileged_readings.read(bench.root / privileged_readings.FILE.lstrip("/"))


def test_the_first_probe_gets_readings_that_only_root_can_make(
    bench: Bench, node: steps.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    xids = (Xid("0000:00:1e", 79),)
    monkeypatch.setattr(kernel_log, "read_xids", lambda: xids)
    ads = [
        {"TrialfleetGpuName": "NVIDIA L4", "TrialfleetBandwidth": 250.0, "TrialfleetInstance": name}
        for name in (SPOT.id, "i-2")
    ]
    bench.program("condor_status", f"echo '{json.dumps(ads)}'")
    steps.tell_probe(node)
    assert readings_file(bench) == privileged_readings.PrivilegedReadings(
        xids, {"NVIDIA L4": (250.0,)}
    )
    (asked,) = bench.calls
    assert asked.startswith("condor_status -json -attributes TrialfleetGpuName,")


@pytest.mark.parametrize("program", ["exit 1", "echo no JSON", "exit 0"])
def test_a_silent_collector_does_not_stop_the_bootstrap(
    bench: Bench, node: steps.Node, program: str
) -> None:
    bench.program("condor_status", program)
    steps.tell_probe(node)
    assert readings_file(bench).pool == {}


def test_a_node_without_a_gpu_runs_no_program_and_compiles_nothing(
    bench: Bench, node: steps.Node
) -> None:
    node.driver = driver.NONE
    steps.tell_probe(node)
    assert "nothing to compile" in steps.build_kernels(node)
    assert bench.calls == []


def test_without_a_torch_that_has_cuda_nothing_is_compiled(bench: Bench, node: steps.Node) -> None:
    jobs_python(bench, 'case "$2" in *libtorch_cuda*) exit 1 ;; esac')
    assert "nothing to compile" in steps.build_kernels(node)
    assert not any("systemctl" in call or "build" in call for call in bench.calls)


def test_a_node_compiles_the_kernels_in_the_background(bench: Bench, node: steps.Node) -> None:
    jobs_python(bench, "exit 0")
    for _ in range(2):
        assert steps.build_kernels(node).startswith("compiling in the background")
    unit = bench.text(f"etc/systemd/system/{cuda_kernels.UNIT}")
    python = f"{bench.root}{configuration.JOB_PATH[0]}/python3"
    into = f"{bench.root}{cuda_kernels.PLACE}"
    assert f"ExecStart=-{python} -m trialfleet.nodes.kernels build --into {into}\n" in unit
    assert "Nice=19\n" in unit
    assert bench.calls[-2] == "systemctl daemon-reload"
    assert bench.calls[-1] == f"systemctl start --no-block {cuda_kernels.UNIT}"
    assert not any(call.startswith("python -m") for call in bench.calls)


@pytest.mark.parametrize(
    ("body", "outcome"),
    [("exit 0", "compiled"), ("", "the compilation failed; trials will compile the kernels")],
)
def test_kernels_are_compiled_while_an_image_is_made(
    bench: Bench, node: steps.Node, messages: list[str], body: str, outcome: str
) -> None:
    node.settings = Settings.from_table({**TOLD, "image": True})
    jobs_python(bench, body or 'test "$1" = -c || { echo "needs an nvcc" >&2; exit 1; }')
    assert steps.build_kernels(node) == outcome
    assert (
        bench.calls[-1]
        == f"python -m trialfleet.nodes.kernels build --into {bench.root}{cuda_kernels.PLACE}"
    )
    assert any("needs an nvcc" in line for line in messages) is (outcome != "compiled")


def test_the_check_for_cuda_works_in_a_real_python() -> None:
    question = [sys.executable, "-c", cuda_kernels._HAS_CUDA_TORCH]
    import torch

    assert subprocess.run(question).returncode == int(torch.version.cuda is None)
    assert subprocess.run([*question[:1], "-I", "-S", *question[1:]]).returncode == 1


def test_kernels_are_compiled_into_the_folder_that_trials_search() -> None:
    from trialfleet.nodes.kernels import build

    assert str(build.SYSTEM) == cuda_kernels.PLACE


def test_htcondor_is_not_started_without_the_fence(
    bench: Bench, node: steps.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps from the fence on, with an `ip` that can't raise it and with one that can."""
    names = [name for name, _ in steps.STEPS]
    there = names.index("fence")
    assert names[there + 1] == "start"
    monkeypatch.setattr(steps, "STEPS", steps.STEPS[there : there + 2])
    bench.program("ip", "exit 1")
    with pytest.raises(StepError, match="jobs could reach the instance's metadata"):
        steps.run(node)
    assert not any("restart" in call for call in bench.calls)
    bench.program("ip", IP)
    steps.run(node)
    assert "systemctl restart condor.service" in bench.calls
