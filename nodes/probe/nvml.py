"""The driver's library by pynvml, for a machine that has no nvidia-smi program."""

from __future__ import annotations

import importlib
from typing import Any

from trialfleet.nodes.probe.readings import Gpu, Readings


def read() -> Readings | None:
    """Return what the library says; None without pynvml, or where it finds no driver."""
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
        gpus = tuple(gpu_of(library, index, handle) for index, handle in enumerate(handles))
        return Readings(driver=text(library.nvmlSystemGetDriverVersion()), gpus=gpus)
    except library.NVMLError as error:
        return Readings(problems=(f"NVML: {error}",))
    finally:
        library.nvmlShutdown()


def gpu_of(library: Any, index: int, handle: Any) -> Gpu:
    """Return what the library says of one GPU."""
    return Gpu(
        index=index,
        name=text(library.nvmlDeviceGetName(handle)),
        uuid=text(library.nvmlDeviceGetUUID(handle)),
        ecc_uncorrected=ecc_uncorrected(library, handle),
        processes=len(library.nvmlDeviceGetComputeRunningProcesses(handle)),
    )


def ecc_uncorrected(library: Any, handle: Any) -> int | None:
    """Return the uncorrectable errors since the driver was loaded; None without ECC."""
    kinds = (library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, library.NVML_VOLATILE_ECC)
    try:
        return int(library.nvmlDeviceGetTotalEccErrors(handle, *kinds))
    except library.NVMLError:
        return None


def text(value: str | bytes) -> str:
    """Return a string; older versions of pynvml give bytes."""
    return value.decode() if isinstance(value, bytes) else value
