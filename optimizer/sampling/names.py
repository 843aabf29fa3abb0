"""The names of the samplers that a study may choose.

The names are separate from the samplers, because studies are read often and the samplers are slow
to import.
"""

from __future__ import annotations

from typing import Literal

Sampler = Literal["RegionSampler", "GPSampler", "TPESampler", "RandomSampler"]
OWN: Sampler = "RegionSampler"
