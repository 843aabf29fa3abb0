"""The probe's verdict as a ClassAd, which HTCondor's STARTD_CRON adds to the machine's ClassAd."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trialfleet.gpu_memory import DATA_SHEET
from trialfleet.nodes.probe.gpu_health import Verdict
from trialfleet.nodes.probe.readings import Gpu, Readings

END = "-"  # a line that ends an ad; STARTD_CRON then publishes the ad at once

Value = bool | int | float | str | None


def classad(readings: Readings, health: Verdict) -> str:
    """Return the verdict as a ClassAd, in which unknown values are `undefined`.

    If unknown values were left out, HTCondor would keep the values of the previous probe.
    """
    gpus = usable_gpus(readings, health)
    attributes: dict[str, Value] = {
        "TrialfleetGpuHealthy": health.healthy,
        "TrialfleetGpuReason": health.reason,
        "TrialfleetSickGpus": ",".join(health.sick),
        "TrialfleetGpuName": ", ".join(dict.fromkeys(gpu.name for gpu in gpus if gpu.name)) or None,
        "TrialfleetGpuDriver": readings.driver or None,
        "TrialfleetGpuCuda": readings.cuda or None,
        "TrialfleetBandwidth": worst_value(gpus, lambda gpu: gpu.bandwidth, min),
        "TrialfleetBandwidthShare": worst_value(gpus, bandwidth_share, min),
        "TrialfleetLaunchMicroseconds": worst_value(gpus, lambda gpu: gpu.launch_microseconds, max),
        "TrialfleetLaunchRate": worst_value(gpus, lambda gpu: gpu.launch_rate, min),
        "TrialfleetHostBandwidth": worst_value(gpus, lambda gpu: gpu.host_bandwidth, min),
        "TrialfleetGpuWatts": worst_value(gpus, lambda gpu: gpu.watts, max),
        "TrialfleetGpuWattsLimit": worst_value(gpus, lambda gpu: gpu.watts_limit, min),
        "TrialfleetGpuCelsius": worst_value(gpus, lambda gpu: gpu.celsius, max),
        "TrialfleetPcieGeneration": worst_value(gpus, lambda gpu: gpu.pcie_generation, min),
        "TrialfleetPcieGenerationMax": worst_value(gpus, lambda gpu: gpu.pcie_generation_max, min),
        "TrialfleetPcieWidth": worst_value(gpus, lambda gpu: gpu.pcie_width, min),
        "TrialfleetPcieWidthMax": worst_value(gpus, lambda gpu: gpu.pcie_width_max, min),
        "TrialfleetKernels": readings.kernels,
        "TrialfleetGpuNote": note(readings),
    }
    lines = [f"{name} = {literal(value)}" for name, value in attributes.items()]
    return "\n".join([*lines, END, ""])


def usable_gpus(readings: Readings, health: Verdict) -> list[Gpu]:
    """Return the GPUs that the ClassAd describes.

    On a healthy machine these are the healthy GPUs, because trials get no others. On a sick machine
    these are all GPUs.
    """
    return [gpu for gpu in readings.gpus if not (health.healthy and gpu.id in health.sick)]


def worst_value(
    gpus: Sequence[Gpu], value: Callable[[Gpu], float | None], worst: Callable[..., float]
) -> float | None:
    """Return the worst of the GPUs' values, or None if all of them are unknown.

    `value` returns a GPU's value. `worst` is `min` if lower values are worse, else `max`.
    """
    known = [found for gpu in gpus if (found := value(gpu)) is not None]
    return worst(known) if known else None


def bandwidth_share(gpu: Gpu) -> float | None:
    """Return a GPU's memory bandwidth, divided by its data sheet's, or None if one is unknown."""
    sheet = DATA_SHEET.get(gpu.name)
    return gpu.bandwidth / sheet if sheet and gpu.bandwidth is not None else None


def note(readings: Readings) -> str:
    """Return why some values are unknown, as text, or "" if there is no known reason."""
    unread = "the kernel's log can't be read" if readings.gpus and readings.xids is None else ""
    return "; ".join(text for text in (readings.not_measured, unread) if text)


def literal(value: Value) -> str:
    """Return a value in the syntax of ClassAds."""
    if value is None:
        return "undefined"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.2f}"
    plain = "".join(c if c.isprintable() else " " for c in value)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
