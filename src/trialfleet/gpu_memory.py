"""Memory bandwidths of GPUs from NVIDIA's data sheets, for the GPU probe and the EC2 fleet."""

from __future__ import annotations

import re

# GB/s (10^9 bytes) of one GPU's memory, by the name that the driver gives it. Sources are NVIDIA's
# data sheets, below https://www.nvidia.com/en-us/data-center/ where no other is named. A copy
# reaches most of this bandwidth. A GPU that isn't listed is compared only with the pool's others.
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
    # GPUs of the benchmark of 2014, as its authors give them: Netflix, "Distributed Neural
    # Networks with GPUs in the AWS Cloud"
    "Tesla M2050": 148,
    "GRID K520": 198,
}


def ec2_gpu_bandwidth(name: str, memory_mb: int) -> float | None:
    """Return the memory bandwidth in GB/s of the GPU that EC2 calls `name` (`A100`), or None.

    A GPU in DATA_SHEET matches if its name there has all words of `name`. Among several matches,
    prefer the first whose name there contains the memory size, such as `80GB`.
    """
    words = set(name.casefold().split())
    known = [driver for driver in DATA_SHEET if words <= set(re.split("[ -]", driver.casefold()))]
    meant = [driver for driver in known if f"{round(memory_mb / 1024)}GB" in driver] or known
    return DATA_SHEET[meant[0]] if words and meant else None
