"""What a GPU should reach: NVIDIA's figures for its memory, and those of its link to the host."""

from __future__ import annotations

# GB/s (10^9 bytes) of one GPU's memory, by the name that the driver gives it. Sources are NVIDIA's
# data sheets, below https://www.nvidia.com/en-us/data-center/ where no other is named. A copy
# reaches most of it, never all. A GPU that isn't listed is compared with the pool's others alone.
DATA_SHEET = {
    # GPUs of EC2's instances
    "Tesla T4": 320,  # tesla-t4/
    "NVIDIA T4G": 320,  # as the T4
    "NVIDIA A10G": 600,  # products/a10-gpu/: made for AWS after the A10, with its memory
    "NVIDIA L4": 300,  # l4/
    "NVIDIA L40S": 864,  # l40s/
    "Tesla V100-SXM2-16GB": 900,  # v100/
    "Tesla V100-SXM2-32GB": 900,  # v100/
    "NVIDIA A100-SXM4-40GB": 1_555,  # a100/
    "NVIDIA A100-SXM4-80GB": 2_039,  # a100/
    "NVIDIA H100 80GB HBM3": 3_350,  # h100/, SXM
    "NVIDIA H200": 4_800,  # h200/
    "NVIDIA B200": 8_000,  # dgx-b200/: 64 TB/s of its eight
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": 1_597,  # rtx-pro-6000-blackwell-server-edition/
    # others of today
    "NVIDIA A10": 600,  # products/a10-gpu/
    "NVIDIA A100 80GB PCIe": 1_935,  # a100/
    "NVIDIA H100 PCIe": 2_000,  # h100/
    "NVIDIA H100 NVL": 3_900,  # h100/
    # https://www.nvidia.com/en-us/products/workstations/professional-desktop-gpus/
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": 1_792,  # rtx-pro-6000/
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": 1_792,  # rtx-pro-6000-max-q/
    # those of the benchmark of 2014, as its authors give them: Netflix, "Distributed Neural
    # Networks with GPUs in the AWS Cloud"
    "Tesla M2050": 148,
    "GRID K520": 198,
}
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
    """Return the GB/s that a link can carry in one direction; None where it isn't known."""
    lane = PCIE_LANE.get(generation or 0)
    return lane * width if lane and width else None
