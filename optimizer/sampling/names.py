"""The names of the samplers that a study may choose; the samplers themselves import slowly."""

from __future__ import annotations

from typing import Literal

Sampler = Literal["RegionSampler", "GPSampler", "TPESampler", "RandomSampler"]
OWN: Sampler = "RegionSampler"
