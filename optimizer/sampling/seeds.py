"""Random seeds that are the same in every process and release."""

from __future__ import annotations

import hashlib
import json


def stable_seed(*parts: str | int) -> int:
    """Return a seed of 31 bits that depends only on `parts`, in every process and release."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
