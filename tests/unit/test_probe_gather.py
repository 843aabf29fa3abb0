"""Reading a machine's GPUs: programs that hang or fail, measurements that stop, pynvml."""

from __future__ import annotations

import json
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from tests.unit.recorded_gpus import AMPERE, HEALTHY, TURING
from trialfleet.nodes.probe import gather, measure, nvml
from trialfleet.nodes.probe.readings import Gpu, Readings
from trialfleet.nodes.probe.verdict import verdict


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program named nvidia-smi before all others."""
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_a_driver_that_hangs_or_fails_is_a_sick_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, "exec sleep 30")
    began = time.monotonic()
    assert verdict(gather.gather(1)).reason == "nvidia-smi hangs: no answer in 0.5 s"
    assert time.monotonic() - began < 5
    program(tmp_path, monkeypatch, "echo 'Driver/library version mismatch'; exit 18")
    assert (
        verdict(gather.gather(9)).reason == "nvidia-smi exits 18: Driver/library version mismatch"
    )
    program(tmp_path, monkeypatch, "echo hello")
    assert verdict(gather.gather(9)).reason.startswith("nvidia-smi printed no XML")


def test_a_gpu_in_use_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, f"cat <<'E'\n{AMPERE}\nE")
    monkeypatch.setattr(gather, "MEASURE", ("false",))
    readings = gather.gather(9)
    assert len(readings.gpus) == 2
    assert readings.not_measured == gather.IN_USE


def test_without_cuda_the_drivers_word_is_all_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, f"cat <<'E'\n{TURING}\nE")
    monkeypatch.setattr(gather, "MEASURE", measuring(tmp_path, {"not_measured": "no torch: why"}))
    readings = gather.gather(9)
    assert readings.not_measured == "no torch: why"
    assert readings.gpus[0].bandwidth is None
    assert readings.problems == ()


def measuring(folder: Path, *lines: dict[str, Any], then: str = "") -> tuple[str, ...]:
    """A measurement that prints these lines and does something."""
    script = folder / "measure.py"
    script.write_text(
        "".join(f"print({json.dumps(json.dumps(line))}, flush=True)\n" for line in lines) + then
    )
    return (sys.executable, str(script))


FOUND = {"gpu": 0, "launch_microseconds": 12.0, "bandwidth": 250.0, "matmul_error": 0.0}
HANG = "import time; time.sleep(30)"
ENDS: dict[str, tuple[list[dict[str, Any]], str, tuple[str, ...], str]] = {
    "complete": ([{"doing": "x"}, FOUND, {"done": True}], "", (), ""),
    "slow import": ([{"doing": "import torch"}], HANG, (), "torch was not yet imported"),
    "broken import": ([{"doing": "import torch"}], "1/0", (), "torch can not be imported"),
    "hangs": ([{"doing": "use GPU 0"}], HANG, ("hung when about to use GPU 0",), ""),
    "dies": ([{"doing": "use GPU 0"}], "1/0", ("died when about to use GPU 0",), ""),
    "blind": ([{"doing": "start CUDA"}, {"done": True}], "", ("CUDA sees no GPU",), ""),
    "fails": ([{"problem": "GPU 0: lost"}, {"done": True}], "", ("GPU 0: lost",), ""),
}


@pytest.mark.parametrize(("lines", "then", "problems", "note"), ENDS.values(), ids=ENDS)
def test_a_measurement_that_stops_says_where(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: list[dict[str, Any]],
    then: str,
    problems: tuple[str, ...],
    note: str,
) -> None:
    monkeypatch.setattr(gather, "MEASURE", measuring(tmp_path, *lines, then=then))
    told, ended = gather.measure(1.5)
    readings = gather.with_measurements(HEALTHY, told, ended=ended)
    assert readings.problems == problems
    assert readings.not_measured == note
    assert readings.gpus[0].bandwidth == (250.0 if FOUND in lines else 482.0)


def test_measuring_works_on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    monkeypatch.setattr(measure, "COPY_BYTES", 1 << 20)
    found = measure.measured(torch, torch.device("cpu"), 0)
    assert 0 < found["launch_microseconds"] < 1e5
    assert 0.01 < found["bandwidth"] < 1e4
    assert found["matmul_error"] == 0


def test_a_device_that_computes_wrongly_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_torch_without_cuda_is_said_to_be_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", None)
    assert measure.main() == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said[0] == {"doing": "import torch"}
    assert "has no CUDA" in said[1]["not_measured"]


class NoSuchThingError(Exception):
    pass


def library(**changes: Any) -> types.SimpleNamespace:
    """What pynvml offers, of a machine with one GPU."""

    def no_ecc(*_arguments: object) -> int:
        raise NoSuchThingError

    usual = {
        "NVMLError": NoSuchThingError,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "NVML_VOLATILE_ECC": 0,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlSystemGetDriverVersion": lambda: b"450.1",
        "nvmlDeviceGetName": lambda _handle: "Tesla T4",
        "nvmlDeviceGetUUID": lambda _handle: "GPU-3",
        "nvmlDeviceGetTotalEccErrors": no_ecc,
        "nvmlDeviceGetComputeRunningProcesses": lambda _handle: [],
    }
    return types.SimpleNamespace(**(usual | changes))


def test_pynvml_stands_by_where_there_is_no_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "pynvml", library())
    expected = Readings(driver="450.1", gpus=(Gpu(index=0, name="Tesla T4", uuid="GPU-3"),))
    assert gather.driver_readings(1) == expected
    monkeypatch.setitem(sys.modules, "pynvml", None)  # can't be imported
    assert nvml.read() is None


def test_a_gpu_that_is_lost_to_pynvml_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_index: int) -> int:
        raise NoSuchThingError("GPU is lost")

    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlDeviceGetHandleByIndex=lost))
    found = nvml.read()
    assert found is not None
    assert found.problems == ("NVML: GPU is lost",)


def test_a_device_without_a_driver_is_told_from_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(gather, "PCI", tmp_path)
    assert verdict(gather.gather(5)).reason == "no GPU"
    (tmp_path / "0000:00:1e.0").mkdir()
    (tmp_path / "0000:00:1e.0" / "vendor").write_text("0x10de\n")
    assert verdict(gather.gather(5)).reason == "an NVIDIA device without a driver"
