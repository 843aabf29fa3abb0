"""Readings of GPUs by NVIDIA's library NVML, on images with a driver but without nvidia-smi."""

from __future__ import annotations

import importlib
from typing import Any

from trialfleet.nodes.probe.kernel_log import address
from trialfleet.nodes.probe.readings import Gpu, Readings


def read() -> Readings | None:
    """Return the library's readings, or None if pynvml or the driver is missing."""
    try:
        library: Any = importlib.import_module("pynvml")
        library.nvmlInit()
    except Exception:  # noqa: BLE001  NVMLError derives from Exception and comes with the module
        return None
    try:
        handles = [
            library.nvmlDeviceGetHandleByIndex(index)
            for index in range(library.nvmlDeviceGetCount())
        ]
        gpus = tuple(read_gpu(library, index, handle) for index, handle in enumerate(handles))
        driver = text(library.nvmlSystemGetDriverVersion())
        return Readings(driver=driver, cuda=cuda(library), gpus=gpus)
    except library.NVMLError as error:
        return Readings(problems=(f"NVML: {error}",))
    finally:
        library.nvmlShutdown()


def read_gpu(library: Any, index: int, handle: Any) -> Gpu:
    """Return one GPU's readings from the library."""

    def reading(name: str, *arguments: Any) -> Any:
        try:
            return getattr(library, f"nvmlDeviceGet{name}")(handle, *arguments)
        except library.NVMLError:
            return None

    uncorrected = (library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, library.NVML_VOLATILE_ECC)
    return Gpu(
        index=index,
        name=text(library.nvmlDeviceGetName(handle)),
        uuid=text(library.nvmlDeviceGetUUID(handle)),
        pci=address(text(library.nvmlDeviceGetPciInfo(handle).busId)),
        ecc_uncorrected=reading("TotalEccErrors", *uncorrected),
        watts=to_watts(reading("PowerUsage")),
        watts_limit=to_watts(reading("EnforcedPowerLimit")),
        celsius=reading("Temperature", library.NVML_TEMPERATURE_GPU),
        pcie_generation=reading("CurrPcieLinkGeneration"),
        pcie_generation_max=reading("MaxPcieLinkGeneration"),
        pcie_width=reading("CurrPcieLinkWidth"),
        pcie_width_max=reading("MaxPcieLinkWidth"),
        processes=len(library.nvmlDeviceGetComputeRunningProcesses(handle)),
    )


def cuda(library: Any) -> str:
    """Return the newest CUDA version that the driver can run, such as 12.4 (12040 in NVML)."""
    version = library.nvmlSystemGetCudaDriverVersion_v2()
    return f"{version // 1000}.{version % 1000 // 10}"


def to_watts(milliwatts: float | None) -> float | None:
    """Convert milliwatts to watts. An unknown value remains None."""
    return None if milliwatts is None else milliwatts / 1000


def text(value: str | bytes) -> str:
    """Return `value` as a string. Older versions of pynvml give bytes."""
    return value.decode() if isinstance(value, bytes) else value
