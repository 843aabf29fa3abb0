"""Runs the benchmark. Importing this module loads the kernels, and builds missing ones."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.bench.kernels import fused, mulc, npp, timing
from tests.bench.kernels.results import Machine, Results, Row, in_words
from tests.bench.kernels.timing import Call, CudaMeter, Meter
from trialfleet.nodes.kernels import build, ops

FUSED_SECONDS = 1.0  # at most, for one row of the fused operations: there are many
CHECKED = 3  # calls whose result is looked at, before any is timed
WRONG = "WRONG: it does not multiply"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The measurements to make, and their time limits.

    Attributes:
        sizes: elements of MulC's arrays, in rising order.
        budget: maximum seconds for a row.
        tables: "mulc", "fused" or both.
        quick: leave out the larger size of the fused operations.
        without: variants to leave out.
    """

    sizes: tuple[int, ...]
    budget: float
    tables: tuple[str, ...]
    quick: bool = False
    without: tuple[str, ...] = ()


def growing(device: torch.device, wanted: Wanted, results: Results) -> Iterator[Results]:
    """Yield the results so far, after each measured row."""
    meter = CudaMeter(device) if device.type == "cuda" else Meter(device)
    with torch.no_grad():
        for row in mulc_rows(meter, wanted):
            results = replace(results, mulc=(*results.mulc, row))
            yield results
        for row in fused_rows(meter, wanted) if "fused" in wanted.tables else ():
            results = replace(results, fused=(*results.fused, row))
            yield results


def mulc_rows(meter: Meter, wanted: Wanted) -> Iterator[Row]:
    """Yield the rows of MulC, the largest array first, as shares are relative to its copy.

    If the table isn't wanted, only that copy is measured.
    """
    whole = "mulc" in wanted.tables
    for size in reversed(wanted.sizes if whole else wanted.sizes[-1:]):
        build.print_progress(f"mulc, {in_words(size)}")
        x = torch.rand(size, device=meter.device)  # equal numbers would ask less of a GPU
        for name, make in mulc.VARIANTS.items():
            if name in wanted.without or not (whole or name == "copy"):
                continue
            blank = Row("mulc", in_words(size), name, "called", bytes=2 * x.nbytes)
            right = () if name == "copy" else (partial(mulc.multiplies, meter, x),)
            yield from rows_of(meter, blank, partial(make, x, meter), wanted.budget, *right)


def fused_rows(meter: Meter, wanted: Wanted) -> Iterator[Row]:
    """Yield the rows of the fused operations; with `quick`, only of the smaller size."""
    scales = fused.scales(meter.device)
    for make in fused.FUSED:
        for scale in scales[:1] if wanted.quick else scales:
            try:
                case = make(scale)
            except torch.OutOfMemoryError:
                build.print_progress(f"{make.__name__} left out: too large for the memory here")
                continue
            build.print_progress(f"{case.name}, {case.shape}")
            for name, implementation in case.implementations().items():
                if name not in wanted.without:
                    blank = Row(case.name, case.shape, name, "called", bytes=case.bytes)
                    budget = min(wanted.budget, FUSED_SECONDS)
                    yield from rows_of(meter, blank, implementation, budget)


def rows_of(
    meter: Meter,
    blank: Row,
    make: Callable[[], Call],
    budget: float,
    right: Callable[[Call, int], bool] = lambda _action, _calls: True,
) -> Iterator[Row]:
    """Yield a call's row for each of the device's ways to repeat it.

    Args:
        meter: of the device.
        blank: the row without the measurement.
        make: returns the call.
        budget: seconds for a row.
        right: returns whether an action really made its number of calls.
    """
    call: Call | None = None
    for manner, repeat in meter.manners.items():
        row = replace(blank, manner=manner)
        try:
            call = call or make()
            if not right(repeat(call, CHECKED), CHECKED):
                yield replace(row, skipped=WRONG)
                continue
            yield with_timing(row, timing.measured(meter, call, repeat, budget))
        except mulc.UnavailableError as error:
            yield replace(row, skipped=str(error))
        except Exception as error:  # noqa: BLE001  whatever a library raises, the others go on
            yield replace(row, skipped=f"{type(error).__name__}: {first_line(str(error))}")


def with_timing(row: Row, found: timing.Timing) -> Row:
    """Return a row with the measurement `found`."""
    low, middle, high = found.microseconds
    return replace(
        row,
        rounds=len(found.rounds),
        calls=found.calls,
        seconds=found.seconds,
        microseconds=middle,
        low=low,
        high=high,
    )


def driver_option(name: str) -> str | None:
    """Return the value of an option of the loaded NVIDIA driver, or None if there is none."""
    options = read(Path("/proc/driver/nvidia/params"))
    found = re.search(rf"^{name}: *(.*?) *$", options, re.MULTILINE)
    return found[1] if found else None


def machine_of(device: torch.device) -> Machine:
    """Return the facts of this machine and one of its devices."""
    on_gpu = device.type == "cuda"
    gpu: Any = torch.cuda.get_device_properties(device) if on_gpu else None
    return Machine(
        when=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        device=str(device),
        name=gpu.name if on_gpu else processor(),
        cache_bytes=gpu.L2_cache_size if on_gpu else None,
        driver=first_line(read(Path("/sys/module/nvidia/version"))) or None,
        check_pci_config_space=driver_option("CheckPCIConfigSpace"),
        torch_version=torch.__version__,
        cuda_version=torch.version.cuda,
        python_version=platform.python_version(),
        threads=torch.get_num_threads(),
        implementation=ops.IMPLEMENTATION,
        reason=ops.REASON,
        npp=npp_here(),
    )


def processor() -> str:
    """Return the CPU's name, or its architecture if the name is unknown."""
    found = re.search(r"^model name\s*: (.*)$", read(Path("/proc/cpuinfo")), flags=re.MULTILINE)
    return found[1] if found else platform.machine()


def npp_here() -> str:
    """Return NPP's wheel and version, or that there is none."""
    try:
        return npp.load(torch.version.cuda).wheel
    except npp.NppError as error:
        return str(error)


def read(file: Path) -> str:
    """Return a file's text; empty if it can't be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def first_line(text: str) -> str:
    """Return a text's first line."""
    return text.strip().partition("\n")[0]
