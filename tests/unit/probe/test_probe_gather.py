"""Reading a machine's GPUs: programs that hang or fail, measurements that stop."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.probe.recorded_gpus import AMPERE, GOOD, HEALTHY, OTHER, TURING
from trialfleet.files import lock_file
from trialfleet.nodes.probe import gather, kernel_log, measure, privileged_readings
from trialfleet.nodes.probe.__main__ import main as probe
from trialfleet.nodes.probe.gpu_health import verdict
from trialfleet.nodes.probe.kernel_log import Xid
from trialfleet.nodes.probe.readings import Gpu, Readings


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program named nvidia-smi before all others."""
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_a_driver_that_hangs_or_fails_is_the_reason_of_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, "exec sleep 30")
    assert verdict(gather.gather(1)).reason == "nvidia-smi hangs: it did not end within 0.5 s"
    program(tmp_path, monkeypatch, "echo 'Driver/library version mismatch'; exit 18")
    assert (
        verdict(gather.gather(9)).reason
        == "nvidia-smi failed with exit code 18: Driver/library version mismatch"
    )
    program(tmp_path, monkeypatch, "echo hello")
    assert verdict(gather.gather(9)).reason.startswith("nvidia-smi printed no XML")


def test_a_gpu_in_use_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, f"cat <<'E'\n{AMPERE}\nE")
    monkeypatch.setattr(gather, "MEASURE", ("false",))
    readings = gather.gather(9)
    assert len(readings.gpus) == 2
    assert readings.not_measured == gather.IN_USE


def test_a_measurement_that_a_trial_disturbed_is_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "before").write_text(TURING)
    (tmp_path / "after").write_text(AMPERE)  # with processes
    twice = f'cd "{tmp_path}"; [ -e seen ] && exec cat after; touch seen; exec cat before'
    program(tmp_path, monkeypatch, twice)
    slow = {"found": {"launch_microseconds": 9_000.0}}
    monkeypatch.setattr(gather, "MEASURE", measuring(tmp_path, slow, {"done": True}))
    monkeypatch.setattr(gather, "KERNELS", ("false",))
    readings = gather.gather(9)
    assert readings.not_measured == gather.IN_USE
    assert readings.gpus[0].launch_microseconds is None
    assert "slow (" not in verdict(readings).reason


def test_a_machine_without_torch_has_only_the_drivers_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, f"cat <<'E'\n{TURING}\nE")
    monkeypatch.setattr(gather, "MEASURE", measuring(tmp_path, {"not_measured": "no torch: why"}))
    monkeypatch.setattr(gather, "KERNELS", ("false",))
    readings = gather.gather(9)
    assert readings.not_measured == "no torch: why"
    assert readings.gpus[0].bandwidth is None
    assert readings.kernels is None
    assert verdict(replace(readings, gpus=())).reason == "no GPU"
    assert readings.gpus[0].problem == ""


def test_privileged_readings_are_assigned_to_their_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, f"cat <<'E'\n{AMPERE}\nE")
    log = (Xid("0000:00:1b", 31), Xid("0000:00:1c", 79), Xid("0000:00:1d", 48))
    monkeypatch.setattr(
        privileged_readings,
        "read",
        lambda: privileged_readings.PrivilegedReadings(xids=log, pool={"NVIDIA A10G": (9.0,)}),
    )
    monkeypatch.setattr(kernel_log, "read_xids", lambda: None)
    readings = gather.gather(9)
    assert [gpu.xids for gpu in readings.gpus] == [(31,), (79,)]
    assert readings.xids == (48,)
    assert readings.pool == {"NVIDIA A10G": (9.0,)}
    monkeypatch.setattr(kernel_log, "read_xids", lambda: log[:1])
    assert gather.gather(9).xids == (), "the log itself counts where it can be read"


def measuring(folder: Path, *lines: dict[str, Any], then: str = "") -> tuple[str, ...]:
    """Return a measurement that prints these lines and does something."""
    script = folder / "measure.py"
    script.write_text(
        "".join(f"print({json.dumps(json.dumps(line))}, flush=True)\n" for line in lines) + then
    )
    return (sys.executable, str(script))


FOUND = {"found": {"launch_microseconds": 12.0}}
MORE = {"found": {"bandwidth": 250.0, "launch_rate": 1e5, "host_bandwidth": 6.0}}
HANG = "import time; time.sleep(30)"
BRIEFLY = {"doing": "measure bandwidth", "seconds": 0.2}
ENDS: dict[str, tuple[list[dict[str, Any]], str, str, str]] = {
    "complete": ([{"doing": "x"}, FOUND, MORE, {"done": True}], "", "", ""),
    "slow import": (
        [{"doing": "import torch"}],
        HANG,
        "",
        "there was no time left to import torch",
    ),
    "slow start": (
        [{"doing": "start CUDA", "seconds": 30}],
        HANG,
        "",
        "no time left to start CUDA",
    ),
    "broken import": (
        [{"doing": "import torch"}],
        "1/0",
        "the measurement died in the step 'import torch'",
        "",
    ),
    "hangs": ([FOUND, BRIEFLY], HANG, "the measurement hung in the step 'measure bandwidth'", ""),
    "dies": ([{"doing": "start CUDA"}], "1/0", "the measurement died in the step 'start CUDA'", ""),
    "fails": ([{"problem": "lost"}, {"done": True}], "", "lost", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize(("lines", "then", "problem", "note"), ENDS.values(), ids=ENDS)
def test_an_interrupted_measurement_reports_its_last_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: list[dict[str, Any]],
    then: str,
    problem: str,
    note: str,
) -> None:
    monkeypatch.setattr(gather, "MEASURE", measuring(tmp_path, *lines, then=then))
    monkeypatch.setattr(gather, "KERNELS", ("echo", "{}"))
    readings = gather.measure_gpus(HEALTHY, time.monotonic() + (30 if problem else 1))
    assert readings.gpus[0].problem.startswith(problem)
    assert bool(readings.gpus[0].problem) is bool(problem)
    assert readings.not_measured.endswith(note)
    assert bool(readings.not_measured) is bool(note)
    assert readings.gpus[0].launch_microseconds == (12.0 if FOUND in lines else 18.25)
    assert readings.gpus[0].bandwidth == (250.0 if MORE in lines else 482.0)


BUILT = {"implementation": "cuda", "library": "/var/lib/trialfleet/kernels/k/x.so"}
WHICH = """
import json, os, time
mine = os.environ["CUDA_VISIBLE_DEVICES"]
print(json.dumps({"doing": "measure bandwidth", "seconds": 3}), flush=True)
if mine.startswith("GPU-0b"):
    time.sleep(30)
print(json.dumps({"found": {"bandwidth": 500.0}}), json.dumps({"done": True}), sep="\\n")
"""


@pytest.mark.slow
def test_a_gpu_that_hangs_does_not_affect_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "MEASURE", (sys.executable, "-c", WHICH))
    monkeypatch.setattr(gather, "KERNELS", ("echo", json.dumps(BUILT)))
    readings = gather.measure_gpus(replace(HEALTHY, gpus=(GOOD, OTHER)), time.monotonic() + 25)
    assert [gpu.bandwidth for gpu in readings.gpus] == [500.0, 482.0]
    assert readings.kernels is True
    health = verdict(readings)
    assert health.healthy
    assert health.sick == (OTHER.id,)
    assert health.reason == "GPU 1: the measurement hung in the step 'measure bandwidth'"


BY_TURNS = """
import os, time
from pathlib import Path
from trialfleet.nodes.probe import measure
order = Path("{order}")
def note(word):
    with order.open("a") as file:
        file.write(word + " ")
measure.print_json(doing="start CUDA", seconds=20)
with measure.link_alone():
    note("begins")
    measure.print_json(doing="measure host_bandwidth", seconds=1)
    if {hangs} and os.environ["CUDA_VISIBLE_DEVICES"].startswith("GPU-0b"):
        time.sleep(60)
    time.sleep(0.1)
    note("ends")
    measure.print_json(found=dict(host_bandwidth=12.0))
measure.print_json(done=True)
"""


def by_turns(folder: Path, monkeypatch: pytest.MonkeyPatch, *, hangs: bool) -> tuple[Readings, str]:
    """Return the readings of four GPUs that measure the link, and the order of their work."""
    order = folder / "order"
    script = BY_TURNS.format(order=order, hangs=hangs)
    monkeypatch.setattr(gather, "MEASURE", (sys.executable, "-c", script))
    monkeypatch.setattr(gather, "KERNELS", ("echo", "{}"))
    gpus = (
        *(replace(GOOD, index=n, host_bandwidth=None) for n in range(3)),
        replace(OTHER, index=3),
    )
    readings = gather.measure_gpus(replace(HEALTHY, gpus=gpus), time.monotonic() + 50)
    return readings, order.read_text()


@pytest.mark.slow
def test_the_links_to_the_host_are_measured_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings, order = by_turns(tmp_path, monkeypatch, hangs=False)
    assert order == "begins ends " * 4
    assert [gpu.host_bandwidth for gpu in readings.gpus] == [12.0] * 4


@pytest.mark.slow
def test_a_gpu_that_hangs_on_its_link_does_not_block_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings, _ = by_turns(tmp_path, monkeypatch, hangs=True)
    assert [gpu.host_bandwidth for gpu in readings.gpus[:3]] == [12.0] * 3
    hung = "the measurement hung in the step 'measure host_bandwidth'"
    assert verdict(readings).reason == f"GPU 3: {hung}"


def test_each_step_of_a_measurement_announces_its_time_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    for name in ("launch_microseconds", "launch_rate", "bandwidth", "host_bandwidth"):
        monkeypatch.setattr(measure, name, lambda *_: 1.0)
    measure.measure(torch, torch.device("cpu"))
    output = gather.lines(capsys.readouterr().out)
    assert [line["doing"] for line in output if "doing" in line][-1] == "measure host_bandwidth"
    assert all(line["seconds"] == measure.MEASURE_SECONDS for line in output if "doing" in line)
    assert gather.patience('{"doing": "import torch"}\n') == float("inf")
    assert gather.patience("") == float("inf")


def test_only_the_link_to_the_host_is_measured_by_one_gpu_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    link = tmp_path / "link"
    link.touch()
    monkeypatch.setenv(measure.LINK, str(link))
    alone = []

    def measuring(name: str) -> Callable[..., float]:
        def measurement(*_: object) -> float:
            with lock_file(link, wait=False) as another_could:
                if not another_could:
                    alone.append(name)
            return 1.0

        return measurement

    for name in gather.MEASURED:
        monkeypatch.setattr(measure, name, measuring(name))
    measure.measure(torch, torch.device("cpu"))
    assert alone == ["host_bandwidth"]


def test_eight_gpus_that_hang_take_no_longer_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "MEASURE", ("sleep", "30"))
    monkeypatch.setattr(gather, "KERNELS", ("sleep", "30"))
    began = time.monotonic()
    gpus = tuple(replace(GOOD, index=index) for index in range(8))
    readings = gather.measure_gpus(replace(HEALTHY, gpus=gpus), began + 0.5)
    assert time.monotonic() - began < 20  # each sleeps for 30 s unless it is killed
    assert readings.kernels is None


@pytest.mark.parametrize(
    ("code", "expected", "loads"),
    [
        (0, json.dumps(BUILT), True),
        (0, json.dumps({"implementation": "cuda", "library": None}), False),
        (0, json.dumps({"implementation": "plain", "library": "x"}), False),
        (0, json.dumps({"implementation": "cpu", "library": "x"}), False),
        (0, "[]", None),
        (0, "Traceback", None),
        (1, json.dumps(BUILT), None),
        (None, "", None),
    ],
)
def test_kernels_load_only_if_their_status_names_a_cuda_library(
    code: int | None, expected: str, loads: bool | None
) -> None:
    assert gather.kernels_load(code, expected) is loads


@pytest.mark.slow
def test_the_status_of_the_kernels_package_is_understood() -> None:
    ended = subprocess.run(gather.KERNELS, capture_output=True, text=True)
    assert gather.kernels_load(ended.returncode, ended.stdout) is False, "torch here has no CUDA"


def test_the_measurements_work_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    monkeypatch.setattr(measure, "COPY_BYTES", 1 << 22)
    monkeypatch.setattr(measure, "PINNED_BYTES", 1 << 22)
    measure.measure(torch, torch.device("cpu"))
    gpu, _ = gather.add_measurements(GOOD, gather.lines(capsys.readouterr().out), ended=True)
    assert 0 < (gpu.launch_microseconds or 0) < 1e5
    assert 10 < (gpu.launch_rate or 0) < 1e8
    assert gpu.bandwidth is not None  # by a difference, which a busy processor makes anything
    assert 0.01 < (gpu.host_bandwidth or 0) < 1e4
    assert gpu.matmul_error == 0


def test_a_slow_launch_is_not_taken_for_slow_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy takes 1 ms here, and each launch of one or of many 50 ms."""
    clock = 0.0

    def repeated(*_arguments: object) -> Any:
        copies = _arguments[-1]

        def replay() -> None:
            nonlocal clock
            clock += 0.05 + 0.001 * int(str(copies))

        return replay

    class Torch:
        uint8 = None
        cuda = types.SimpleNamespace(synchronize=lambda _device: None)
        zeros = empty_like = staticmethod(lambda *_sizes, **_options: None)

    monkeypatch.setattr(measure, "repeat_work", repeated)
    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    assert measure.bandwidth(Torch, None) == pytest.approx(2 * measure.COPY_BYTES / 0.001 / 1e9)


def test_a_wrong_matrix_product_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    class Wrong(torch.Tensor):
        def __matmul__(self, other: Any) -> Any:
            product = torch.Tensor.__matmul__(self.as_subclass(torch.Tensor), other)
            product[7, 7] += 1
            return product

    to = torch.Tensor.to
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, device: to(self, device).as_subclass(Wrong)
    )
    assert measure.matmul_error(torch, torch.device("cpu")) == 1


def gpu_after_main(capsys: pytest.CaptureFixture[str]) -> tuple[Gpu, str]:
    """Return the measurement's result for a GPU on this machine."""
    assert measure.main() == 0
    output = gather.lines(capsys.readouterr().out)
    assert output[0] == {"doing": "import torch"}
    return gather.add_measurements(GOOD, output, ended=True)


def test_torch_without_cuda_makes_the_gpu_sick_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", None)
    gpu, note = gpu_after_main(capsys)
    health = verdict(replace(HEALTHY, gpus=(gpu,)))
    assert not health.healthy
    assert health.reason.endswith("is built without CUDA: trials would run on the CPU")
    assert note == ""


def test_a_driver_too_old_makes_the_gpu_sick_with_torchs_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    def too_old() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", too_old)
    gpu, _ = gpu_after_main(capsys)
    assert "The NVIDIA driver on your system is too old (found version 11040)" in gpu.problem
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    gpu, _ = gpu_after_main(capsys)
    assert gpu.problem == "CUDA doesn't find the GPU"


def test_a_start_from_a_cold_disk_gets_a_generous_time_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure.main() == 0
    starts, cuda = gather.lines(capsys.readouterr().out)[:2]
    assert gather.patience(json.dumps(starts)) == float("inf")
    assert cuda["doing"] == "start CUDA"
    assert gather.patience(json.dumps(cuda)) > 2 * 13
    given: list[float] = []
    monkeypatch.setattr("trialfleet.nodes.probe.__main__.gather", given.append)
    monkeypatch.setattr("trialfleet.nodes.probe.__main__.verdict", lambda *_: verdict(HEALTHY))
    monkeypatch.setattr("trialfleet.nodes.probe.__main__.classad", lambda *_: "")
    assert probe([]) == 0
    assert given == [60]


@pytest.mark.parametrize(
    ("error", "problem", "note"),
    [
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "", "torch can't be imp"),
        (ModuleNotFoundError("No module named 'x'", name="x"), "torch can't be imported: No", ""),
        (OSError("libcudart.so.13: no such file"), "torch can't be imported: OSError: libcud", ""),
    ],
    ids=["absent", "a part is absent", "broken"],
)
def test_missing_torch_is_noted_and_a_broken_torch_is_a_problem(
    error: Exception,
    problem: str,
    note: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("builtins.__import__", failing_import(error))
    gpu, output = gpu_after_main(capsys)
    assert gpu.problem.startswith(problem)
    assert bool(gpu.problem) is bool(problem)
    assert output.startswith(note)


def failing_import(error: Exception) -> Any:
    """Return an import that fails for torch."""
    usual = __import__

    def fails(name: str, *rest: Any, **options: Any) -> Any:
        if name == "torch":
            raise error
        return usual(name, *rest, **options)

    return fails


def test_a_device_without_a_driver_differs_from_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    has_device = gather.has_device
    monkeypatch.setattr(gather, "has_device", lambda: has_device(tmp_path))
    assert verdict(gather.gather(5)).reason == "no GPU"
    device = tmp_path / "sys/bus/pci/devices/0000:00:1e.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    assert verdict(gather.gather(5)).reason == (
        "there is an NVIDIA GPU, but no nvidia-smi, which comes with NVIDIA's driver"
    )
