"""The names of the samplers, in their own module, because the samplers' modules import slowly."""

from __future__ import annotations

from typing import Literal

Sampler = Literal["RegionSampler", "GPSampler", "TPESampler", "RandomSampler"]
OWN: Sampler = "RegionSampler"
