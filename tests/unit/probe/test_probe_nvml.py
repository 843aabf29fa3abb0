"""Reading GPUs by pynvml, where there is no nvidia-smi; the library here is a stand-in."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from trialfleet.nodes.probe import gather, nvml
from trialfleet.nodes.probe.readings import Gpu, Readings


class NoSuchThingError(Exception):
    pass


def library(**changes: Any) -> types.SimpleNamespace:
    """Return a stand-in for pynvml on a machine with one GPU."""

    def no_ecc(*_arguments: object) -> int:
        raise NoSuchThingError

    usual = {
        "NVMLError": NoSuchThingError,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "NVML_VOLATILE_ECC": 0,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlSystemGetDriverVersion": lambda: b"450.1",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 12040,
        "nvmlDeviceGetPciInfo": lambda _handle: types.SimpleNamespace(busId=b"00000000:00:1E.0"),
        "nvmlDeviceGetPowerUsage": lambda _handle: 27_500,
        "nvmlDeviceGetEnforcedPowerLimit": no_ecc,
        "nvmlDeviceGetTemperature": lambda _handle, _kind: 33,
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda _handle: 1,
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda _handle: 3,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda _handle: 8,
        "nvmlDeviceGetMaxPcieLinkWidth": no_ecc,
        "nvmlDeviceGetName": lambda _handle: "Tesla T4",
        "nvmlDeviceGetUUID": lambda _handle: "GPU-3",
        "nvmlDeviceGetTotalEccErrors": no_ecc,
        "nvmlDeviceGetComputeRunningProcesses": lambda _handle: [],
    }
    return types.SimpleNamespace(**(usual | changes))


def test_pynvml_is_used_if_there_is_no_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "pynvml", library())
    gpu = Gpu(
        index=0,
        name="Tesla T4",
        uuid="GPU-3",
        pci="0000:00:1e",
        watts=27.5,
        celsius=33,
        pcie_generation=1,
        pcie_generation_max=3,
        pcie_width=8,
    )
    assert gather.driver_readings(1) == Readings(driver="450.1", cuda="12.4", gpus=(gpu,))
    monkeypatch.setitem(sys.modules, "pynvml", None)  # can't be imported
    assert nvml.read() is None


def test_a_gpu_that_is_lost_to_pynvml_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_index: int) -> int:
        raise NoSuchThingError("GPU is lost")

    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlDeviceGetHandleByIndex=lost))
    found = nvml.read()
    assert found is not None
    assert found.problems == ("NVML: GPU is lost",)
