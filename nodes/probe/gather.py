"""Reads a machine's GPUs, with a limit of time over all: a sick GPU may hang whoever asks it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from trialfleet.nodes.probe import kernel_log, nvidia_smi, nvml
from trialfleet.nodes.probe.readings import Readings

SMI_SECONDS = 4.0  # without persistence mode it starts the GPUs first
# A daemon that gives its child another name (STARTD_CRON does) keeps Python from finding itself.
PYTHON = sys.executable or os.path.realpath("/proc/self/exe")
MEASURE = (PYTHON, "-m", "trialfleet.nodes.probe.measure")
PCI = Path("/sys/bus/pci/devices")
NVIDIA = "0x10de"  # the maker's number on the PCI bus
IN_USE = "in use by other programs"


def gather(seconds: float) -> Readings:
    """Return what can be read of this machine within some seconds."""
    ends = time.monotonic() + seconds
    readings = driver_readings(min(SMI_SECONDS, seconds / 2))
    if not readings.gpus:
        return readings
    readings = replace(
        readings,
        xids=kernel_log.read_xids(),
        check_pci_config_space=kernel_log.read_option("CheckPCIConfigSpace"),
    )
    if any(gpu.processes for gpu in readings.gpus):
        return replace(readings, not_measured=IN_USE)
    lines, ended = measure(ends - time.monotonic())
    return with_measurements(readings, lines, ended=ended)


def driver_readings(seconds: float) -> Readings:
    """Return what the driver says of its GPUs, or why it can't."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        code, said = watched(nvidia_smi.COMMAND, seconds, environment)
    except OSError:
        return nvml.read() or Readings(problems=without_driver())
    if code is None:
        return Readings(problems=(f"nvidia-smi hangs: no answer in {seconds:g} s",))
    if code != 0:
        return Readings(problems=(f"nvidia-smi exits {code}: {' '.join(said.split())[:200]}",))
    try:
        return nvidia_smi.parse(said)
    except ValueError as error:
        return Readings(problems=(str(error),))


def without_driver() -> tuple[str, ...]:
    """Return that there is a GPU and no driver, if there is a GPU."""
    makers = (path.read_text(encoding="ascii").strip() for path in PCI.glob("*/vendor"))
    return ("an NVIDIA device without a driver",) if NVIDIA in makers else ()


def measure(seconds: float) -> tuple[list[dict[str, Any]], bool]:
    """Run the measurement; return the lines that it printed, and whether it ended in time."""
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    code, said = watched(MEASURE, seconds, environment)
    lines = []
    for line in said.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue  # a library's warning, or the line that it was killed in
    return [line for line in lines if isinstance(line, dict)], code is not None


def with_measurements(readings: Readings, lines: list[dict[str, Any]], *, ended: bool) -> Readings:
    """Return the readings with what the measurement found, or where it stopped."""
    found = {line["gpu"]: line for line in lines if "gpu" in line}
    names = ("launch_microseconds", "bandwidth", "matmul_error")
    gpus = tuple(
        replace(gpu, **{name: found[gpu.index][name] for name in names if gpu.index in found})
        for gpu in readings.gpus
    )
    told = [line["problem"] for line in lines if "problem" in line]
    reasons = [line["not_measured"] for line in lines if "not_measured" in line]
    finished = reasons or any("done" in line for line in lines)
    doing = next((line["doing"] for line in reversed(lines) if "doing" in line), "start")
    if not finished and doing in {"start", "import torch"}:
        reasons.append(f"torch {'can not be' if ended else 'was not yet'} imported")
    elif not finished:
        told.append(f"{'died' if ended else 'hung'} when about to {doing}")
    elif not reasons and not found and not told:
        told.append("CUDA sees no GPU")
    return replace(
        readings,
        gpus=gpus,
        problems=(*readings.problems, *told),
        not_measured="; ".join(reasons),
    )


def watched(
    command: Sequence[str], seconds: float, environment: dict[str, str]
) -> tuple[int | None, str]:
    """Return exit code (None: killed, it took too long) and output of a program.

    A program that hangs inside the driver outlives even SIGKILL: it is not waited for.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            code: int | None = process.wait(timeout=max(0.1, seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            code = None
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.5)
        output.seek(0)
        return code, output.read().decode(errors="replace")
