"""The optimiser on the manager machine: chooses the trials' parameters and stores their results.

`RegionSampler` can also be used alone, as the sampler of any Optuna study.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trialfleet.optimizer.sampling.region_sampler import RegionSampler

__all__ = ["RegionSampler"]


def __getattr__(name: str) -> object:
    """Import `RegionSampler` only when it is used.

    The import is slow, and `service_client`, a program in this package, must start fast.
    """
    if name == "RegionSampler":
        from trialfleet.optimizer.sampling.region_sampler import RegionSampler

        return RegionSampler
    raise AttributeError(f"module 'trialfleet.optimizer' has no attribute {name!r}")
