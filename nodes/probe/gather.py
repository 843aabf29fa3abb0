"""Takes all readings of a machine's GPUs. A GPU whose measurement hangs or dies is sick."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trialfleet.nodes.probe import kernel_log, nvidia_smi, privileged_readings
from trialfleet.nodes.probe.measure import LINK
from trialfleet.nodes.probe.programs import Program, finish
from trialfleet.nodes.probe.readings import Gpu, Readings

SMI_SECONDS = 20.0  # nvidia-smi may have to start the GPUs first, one after the other
# sys.executable is empty if a daemon (such as STARTD_CRON) has changed Python's argv[0].
PYTHON = sys.executable or os.path.realpath("/proc/self/exe")
MEASURE = (PYTHON, "-m", "trialfleet.nodes.probe.measure")
KERNELS = (PYTHON, "-m", "trialfleet.nodes.kernels", "status")
NVIDIA = "0x10de"  # the maker's number on the PCI bus
MEASURED = ("launch_microseconds", "launch_rate", "bandwidth", "host_bandwidth", "matmul_error")
IN_USE = "GPUs are in use by other programs"
LOOK_AGAIN = 5.0  # seconds for nvidia-smi after the measurement, when the driver is loaded
HUNG, DIED = "the measurement hung", "the measurement died"

Line = dict[str, Any]


def gather(seconds: float) -> Readings:
    """Take this machine's readings within `seconds`, and return them."""
    ends = time.monotonic() + seconds
    readings = driver_readings(min(SMI_SECONDS, seconds / 2))
    if not readings.gpus:
        return readings
    root = privileged_readings.read()
    own = kernel_log.read_xids()  # None if this process may not read the log
    readings = add_xids(readings, root.xids if own is None else own)
    readings = replace(readings, pool=root.pool)
    if used(readings):
        return replace(readings, not_measured=IN_USE)
    look_again = min(LOOK_AGAIN, seconds / 6)
    found = measure_gpus(readings, ends - look_again)
    # A trial that started meanwhile slows the measurement down, so its values don't count. But if a
    # GPU hangs, the program that uses it may be the measurement itself.
    if any(gpu.problem.startswith(HUNG) for gpu in found.gpus):
        return found
    return replace(readings, not_measured=IN_USE) if used(driver_readings(look_again)) else found


def used(readings: Readings) -> bool:
    """Return whether a program uses one of the GPUs."""
    return any(gpu.processes for gpu in readings.gpus)


def driver_readings(seconds: float) -> Readings:
    """Return the readings of nvidia-smi. If it fails, `problems` has the reason."""
    try:
        program = Program(nvidia_smi.COMMAND, {**os.environ, "LC_ALL": "C"})
    except OSError:
        missing = "there is an NVIDIA GPU, but no nvidia-smi, which comes with NVIDIA's driver"
        return Readings(problems=(missing,) if has_device() else ())
    ((code, output, _),) = finish([program], time.monotonic() + seconds)
    if code is None:
        return Readings(problems=(f"nvidia-smi hangs: it did not end within {seconds:g} s",))
    if code != 0:
        words = " ".join(output.split())[:200]
        return Readings(problems=(f"nvidia-smi failed with exit code {code}: {words}",))
    try:
        return nvidia_smi.parse(output)
    except ValueError as error:
        return Readings(problems=(str(error),))


def has_device(root: Path = Path("/")) -> bool:
    """Return whether this machine has an NVIDIA device. `root` is `/` except in tests."""
    makers = (path.read_text().strip() for path in root.glob("sys/bus/pci/devices/*/vendor"))
    return NVIDIA in makers


def add_xids(readings: Readings, found: tuple[kernel_log.Xid, ...] | None) -> Readings:
    """Assign the driver's errors (Xid) in `found` to their GPUs, and return the new readings.

    Errors of GPUs that `readings.gpus` lacks go into the machine's `xids`. If `found` is None,
    return the readings unchanged.
    """
    if found is None:
        return readings
    places = {gpu.pci for gpu in readings.gpus}
    gpus = (
        replace(gpu, xids=tuple(xid.code for xid in found if xid.pci == gpu.pci))
        for gpu in readings.gpus
    )
    others = tuple(xid.code for xid in found if xid.pci not in places)
    return replace(readings, gpus=tuple(gpus), xids=others)


def measure_gpus(readings: Readings, ends: float) -> Readings:
    """Measure all GPUs, and return the readings with the measured values.

    Measurements that still run at the time `ends`, by `time.monotonic`, are killed. Each GPU is
    measured by a process of its own, so that a GPU that hangs does not affect the others. The links
    to the host are measured one after the other, because GPUs may share them.
    """
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "OMP_NUM_THREADS": "1"}
    with tempfile.NamedTemporaryFile() as link:
        environment[LINK] = link.name
        programs = [
            Program(MEASURE, {**environment, "CUDA_VISIBLE_DEVICES": gpu.uuid or str(gpu.index)})
            for gpu in readings.gpus
        ]
        *measurements, kernels = finish([*programs, Program(KERNELS, environment)], ends, patience)
    found = [
        add_measurements(gpu, lines(end.output), ended=end.code is not None, hung=end.silent)
        for gpu, end in zip(readings.gpus, measurements, strict=True)
    ]
    return replace(
        readings,
        gpus=tuple(gpu for gpu, _ in found),
        kernels=kernels_load(kernels.code, kernels.output),
        not_measured="; ".join(dict.fromkeys(reason for _, reason in found if reason)),
    )


def patience(output: str) -> float:
    """Return the time limit of the last step in `output`, in seconds. It may be infinity."""
    doing = [line for line in lines(output) if "doing" in line]
    return float(doing[-1].get("seconds", math.inf)) if doing else math.inf


def lines(output: str) -> list[Line]:
    """Return the JSON objects in a program's output, one per line."""
    found = []
    for line in output.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # a library's warning, or an incomplete line of a killed program
    return [line for line in found if isinstance(line, dict)]


def add_measurements(
    gpu: Gpu, output_lines: Iterable[Line], *, ended: bool, hung: bool = False
) -> tuple[Gpu, str]:
    """Return a GPU with its measurements, and the reason why some are missing.

    `ended` is True if the measurement ended by itself. `hung` is True if it was killed because a
    step exceeded its time limit.

    The GPU is sick if the measurement hung, reported a problem, or ended before its last step. Then
    the GPU's `problem` is set, and the reason is "". The GPU isn't sick if the measurement was
    killed at the time limit of all measurements.
    """
    reported = list(output_lines)
    found = {name: value for line in reported for name, value in line.get("found", {}).items()}
    last = {name: value for line in reported for name, value in line.items()}
    after = replace(gpu, **{name: found[name] for name in MEASURED if name in found})
    if "not_measured" in last:
        return after, str(last["not_measured"])
    if "problem" in last:
        return replace(after, problem=str(last["problem"])), ""
    if "done" in last:
        return after, ""
    doing = last.get("doing", "start")
    if not ended and not hung:
        return after, f"there was no time left to {doing}"
    return replace(after, problem=f"{HUNG if hung else DIED} in the step {doing!r}"), ""


def kernels_load(code: int | None, output: str) -> bool | None:
    """Return whether trialfleet's CUDA kernels are built and can be loaded, or None if unknown.

    `code` and `output` are the exit code and the output of the command KERNELS.
    """
    try:
        status = json.loads(output) if code == 0 else {}
        return status["implementation"] == "cuda" and bool(status["library"])
    except (ValueError, LookupError, TypeError):
        return None
