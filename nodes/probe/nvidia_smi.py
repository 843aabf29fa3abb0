"""Parses the XML that `nvidia-smi -q -x` prints for all GPUs. Older drivers omit parts of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree as ET

from trialfleet.nodes.probe.kernel_log import address
from trialfleet.nodes.probe.readings import Gpu, Readings

COMMAND = ("nvidia-smi", "-q", "-x")
# Slowdowns that show a fault of the hardware. Power caps and an idle GPU's low clock are no faults.
SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
REASON = (
    "clocks_event_reasons/clocks_event_reason_",
    "clocks_throttle_reasons/clocks_throttle_reason_",
)
PENDING = ("remapped_rows/remapped_row_pending", "retired_pages/pending_retirement")
# The XML's names of the GPU's power: of the latest drivers, of drivers since 535, of older ones.
WATTS = (
    "gpu_power_readings/instant_power_draw",
    "gpu_power_readings/power_draw",
    "power_readings/power_draw",
)
WATTS_LIMIT = (
    "gpu_power_readings/current_power_limit",
    "power_readings/enforced_power_limit",
    "power_readings/power_limit",
)
LINK = "pci/pci_gpu_link_info"


def parse(text: str) -> Readings:
    """Return the readings in nvidia-smi's XML. Raise ValueError for any other text."""
    try:
        # This XML comes from the driver, not from a stranger.
        top = ET.fromstring(text)  # noqa: S314
    except ET.ParseError as error:
        raise ValueError(f"nvidia-smi printed no XML: {error}") from error
    gpus = tuple(parse_gpu(index, element) for index, element in enumerate(top.iter("gpu")))
    return Readings(
        driver=top.findtext("driver_version", "").strip(),
        cuda=top.findtext("cuda_version", "").strip(),
        gpus=gpus,
    )


def parse_gpu(index: int, element: ET.Element) -> Gpu:
    """Return one GPU's readings from the XML."""
    return Gpu(
        index=index,
        name=element.findtext("product_name", "").strip(),
        uuid=element.findtext("uuid", "").strip(),
        pci=address(element.get("id", "")),
        ecc_uncorrected=ecc_uncorrected(element),
        repair_pending=any_true(parse_yes_no(element, path) for path in PENDING),
        repair_failed=parse_yes_no(element, "remapped_rows/remapped_row_failure"),
        reset_required=parse_yes_no(element, "gpu_reset_status/reset_required"),
        slowdowns=tuple(name for name in SLOWDOWNS if is_slowed(element, name)),
        watts=number(element, *WATTS),
        watts_limit=number(element, *WATTS_LIMIT),
        celsius=number(element, "temperature/gpu_temp"),
        pcie_generation=parse_integer(element, f"{LINK}/pcie_gen/current_link_gen"),
        pcie_generation_max=parse_integer(element, f"{LINK}/pcie_gen/max_link_gen"),
        pcie_width=parse_integer(element, f"{LINK}/link_widths/current_link_width"),
        pcie_width_max=parse_integer(element, f"{LINK}/link_widths/max_link_width"),
        processes=len(element.findall("processes/process_info")),
    )


def ecc_uncorrected(element: ET.Element) -> int | None:
    """Return the number of uncorrectable errors in a GPU's memories since the driver was loaded.

    For GPUs up to Pascal, the XML has this number under the name `double_bit/total`. For later
    GPUs, it has several numbers, whose names contain `_uncorrectable`.
    """
    volatile = element.find("ecc_errors/volatile")
    if volatile is None:
        return None
    counts = [each.text for each in volatile.iter() if "_uncorrectable" in each.tag]
    counts.append(volatile.findtext("double_bit/total"))
    known = [int(count) for count in counts if count and count.strip().isdigit()]
    return sum(known) if known else None


def is_slowed(element: ET.Element, name: str) -> bool:
    """Return whether the GPU is slowed down for the reason `name`."""
    return any(element.findtext(place + name, "").strip() == "Active" for place in REASON)


def parse_yes_no(element: ET.Element, path: str) -> bool | None:
    """Return True for Yes, False for No, and None for anything else."""
    return {"Yes": True, "No": False}.get(element.findtext(path, "").strip())


def any_true(answers: Iterator[bool | None]) -> bool | None:
    """Return whether one of the values is True, or None if all values are unknown."""
    known = [answer for answer in answers if answer is not None]
    return any(known) if known else None


def number(element: ET.Element, *paths: str) -> float | None:
    """Return the number at the first path that has one, such as 27.5 for `27.50 W`, or None."""
    for path in paths:
        found = re.match(r"\s*([0-9]+(\.[0-9]+)?)", element.findtext(path, ""))
        if found:
            return float(found[1])
    return None


def parse_integer(element: ET.Element, path: str) -> int | None:
    """Return the whole number at a path, such as 16 of `16x`, or None if there is none."""
    found = number(element, path)
    return None if found is None else int(found)
