"""The names of the samplers, apart from the samplers' modules, which import slowly."""

from __future__ import annotations

from typing import Literal

Sampler = Literal["RegionSampler", "GPSampler", "TPESampler", "RandomSampler"]
OWN: Sampler = "RegionSampler"
