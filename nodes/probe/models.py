"""The capacity of a GPU's PCIe link; `gpu_memory` has the bandwidth of the GPU's memory."""

from __future__ import annotations

# GB/s of one lane in one direction, by generation: the transfers per second of PCI-SIG's base
# specification (2.5, 5, 8, 16, 32 GT/s) times the share of a line code that is data (8 of 10
# bits, from generation 3 on 128 of 130), by 8 bits.
PCIE_LANE = {
    1: 2.5 * 8 / 10 / 8,
    2: 5 * 8 / 10 / 8,
    3: 8 * 128 / 130 / 8,
    4: 16 * 128 / 130 / 8,
    5: 32 * 128 / 130 / 8,
}


def link(generation: int | None, width: int | None) -> float | None:
    """Return a PCIe link's capacity in one direction in GB/s; None if it is unknown."""
    lane = PCIE_LANE.get(generation or 0)
    return lane * width if lane and width else None
