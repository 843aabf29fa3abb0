"""The samplers that a study may name: what reading a study needs to know of them.

It is apart from what they do, because a study is read often and they take time to import.
"""

from __future__ import annotations

from typing import Literal

Sampler = Literal["RegionSampler", "GPSampler", "TPESampler", "RandomSampler"]
OWN: Sampler = "RegionSampler"
