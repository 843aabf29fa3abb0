"""Every fused operation once, at the size where memory dominates: what Nsight Compute looks at."""

from __future__ import annotations

import argparse

import torch

from tests.bench.kernels import fused
from trialfleet.nodes.kernels import ops


def main() -> None:
    """Run them."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--device", default="cuda", help="cpu: the smaller size, a dry run's")
    device = torch.device(reader.parse_args().device)
    on_gpu = device.type == "cuda"
    assert not on_gpu or ops.IMPLEMENTATION == "cuda", ops.REASON
    scale = fused.scales(device)[on_gpu]
    with torch.no_grad():
        for make in fused.FUSED:
            make(scale).ours()
    if on_gpu:
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
