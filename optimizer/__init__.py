"""The optimiser on the manager: search space, ask and tell, storage, resident service, client.

Any Optuna study can use `RegionSampler`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trialfleet.optimizer.sampling.region_sampler import RegionSampler

__all__ = ["RegionSampler"]


def __getattr__(name: str) -> object:
    """Import the sampler at its first use, because the client must start fast."""
    if name == "RegionSampler":
        from trialfleet.optimizer.sampling.region_sampler import RegionSampler

        return RegionSampler
    raise AttributeError(f"module 'trialfleet.optimizer' has no attribute {name!r}")
