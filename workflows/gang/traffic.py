"""What the ranks of a gang send each other, and the networks that it goes by.

In a step of data parallel training each of n ranks computes the gradients of its part of the batch,
and a ring adds them up, in which each sends and receives 2 (n - 1) / n times their bytes.

Ranks that hold a part of each layer gather the weights for the way forward and for the way back,
and scatter the gradients' sums: (n - 1) / n of the bytes three times instead of twice.

`scaling.py` tells how long that takes, and what it leaves of several machines' speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Link:
    """A network between machines.

    Attributes:
        bandwidth: bytes per second that a machine sends while it receives as many.
        latency: seconds of a message.
    """

    bandwidth: float
    latency: float


# Bandwidths are the links' own; the 50 µs of TCP within a zone are assumed.
ETHERNET_10 = Link(bandwidth=1.25e9, latency=50e-6)
ETHERNET_100 = Link(bandwidth=12.5e9, latency=50e-6)


def sent_bytes(gradients: float, ranks: int) -> float:
    """Return the bytes that each rank sends to have gradients of so many bytes added up."""
    return 2 * (ranks - 1) / ranks * gradients


def weights_of(
    numeric: int, vocabularies: Sequence[int], outputs: int, settings: Mapping[str, Any]
) -> int:
    """Return how many weights the reference trainer's network has.

    Args:
        numeric: numeric columns.
        vocabularies: texts of each categorical column.
        outputs: 1, or one for each class where there are more than two.
        settings: as `nodes.tabular.settings.Settings` has them: embedding, hidden, layers.
    """
    embedding = settings["embedding"]
    width = numeric + len(vocabularies) * embedding
    count = max(1, sum(size + 1 for size in vocabularies)) * embedding
    for _ in range(settings["layers"]):
        count += (width + 1) * settings["hidden"]
        width = settings["hidden"]
    return int(count + (width + 1) * outputs)


def gradient_bytes(weights: int, wire: str) -> int:
    """Return the bytes of the gradients of so many weights, as they travel."""
    return weights * _BYTES[wire]


def sharded_bytes(weights: int, wire: str, ranks: int) -> float:
    """Return the bytes that each rank sends in a step where each has a part of so many weights."""
    return (ranks - 1) / ranks * weights * (2 * _BYTES["float32"] + _BYTES[wire])
