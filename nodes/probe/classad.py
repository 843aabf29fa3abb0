"""The verdict as a ClassAd, the way STARTD_CRON reads it."""

from __future__ import annotations

from trialfleet.nodes.probe.readings import Readings
from trialfleet.nodes.probe.verdict import Verdict, worst

END = "-"  # what ends an ad for STARTD_CRON: it is published at once


def classad(readings: Readings, judged: Verdict) -> str:
    """Return the attributes that the package's table describes, and the line that ends the ad.

    What is unknown is written as undefined: a value of the former probe must not stay.
    """
    names = ", ".join(dict.fromkeys(gpu.name for gpu in readings.gpus if gpu.name))
    attributes: dict[str, bool | float | str | None] = {
        "TrialfleetGpuHealthy": judged.healthy,
        "TrialfleetGpuReason": judged.reason,
        "TrialfleetGpuName": names or None,
        "TrialfleetGpuDriver": readings.driver or None,
        "TrialfleetBandwidth": worst(readings, lambda gpu: gpu.bandwidth, min),
        "TrialfleetLaunchMicroseconds": worst(readings, lambda gpu: gpu.launch_microseconds, max),
        "TrialfleetGpuNote": note(readings),
    }
    lines = [f"{name} = {literal(value)}" for name, value in attributes.items()]
    return "\n".join([*lines, END, ""])


def note(readings: Readings) -> str:
    """Return why something is unknown."""
    unread = "the kernel's log can't be read" if readings.gpus and readings.xids is None else ""
    return "; ".join(text for text in (readings.not_measured, unread) if text)


def literal(value: bool | float | str | None) -> str:
    """Return a value as the ClassAd language writes it."""
    if value is None:
        return "undefined"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return f"{value:.2f}"
    plain = "".join(c if c.isprintable() else " " for c in value)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
