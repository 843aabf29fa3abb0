"""Rows per second of a training on one machine or many: a model of compute and link.

A step on n ranks takes

    step = overhead + compute / n + max(0, traffic - overlap * compute / n) / local_steps
    traffic = bytes that a rank sends / bandwidth + messages * latency

where `compute` is the time of the whole batch on one rank. If each rank has a separate batch, or a
part of the network, it takes all of `compute`, and a step does n times as much.

The bytes depend on what the ranks share:

    all weights       2 (n - 1) / n of the gradients, in 2 (n - 1) messages: a ring adds them up
                      (Patarasuk and Yuan, 2009, "Bandwidth optimal all-reduce algorithms"). With
                      as many parameter servers as machines, each sends and receives the same
    parts of layers   (n - 1) / n of the weights, gathered for the forward and for the backward
                      pass, and of the gradients, whose sums are scattered: 3 (n - 1) messages
    the network       activations at the borders of its parts, the same for every n

Gradients of the last layers are ready before those of the first, so a trainer may send them while
it computes the others: `overlap` is the share of a rank's compute during which it sends. The
backward pass has two products per weight, and the forward pass one. So the backward pass, the most
that can overlap, is two thirds of the compute.

No constant in the model is fitted. The model has no stragglers, no limit of the network's core and
no copies within a machine, so it predicts a good implementation. docs/large-models.md compares it
with published systems and with measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """A network between machines.

    Attributes:
        bandwidth: bytes per second that a machine can send while it receives at the same rate.
        latency: seconds of a message.
    """

    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Traffic:
    """The bytes that each rank sends when the ranks exchange values.

    Attributes:
        sent: bytes, by the number of ranks.
        messages: number of successive messages, by the number of ranks.
    """

    sent: Callable[[int], float]
    messages: Callable[[int], float]

    def seconds(self, ranks: int, link: Link) -> float:
        """Return the duration of an exchange."""
        if ranks == 1:
            return 0.0
        return self.sent(ranks) / link.bandwidth + self.messages(ranks) * link.latency


def summed(gradients: float) -> Traffic:
    """Return the traffic of ranks that all have the whole network; `gradients` are in bytes."""
    return Traffic(
        sent=lambda ranks: 2 * (ranks - 1) / ranks * gradients,
        messages=lambda ranks: 2 * (ranks - 1),
    )


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of a training, whose ranks may be one or many.

    Attributes:
        rows: of a batch.
        compute: seconds of the whole batch on one rank.
        traffic: between the ranks.
        overhead: seconds that don't depend on the number of ranks.
        local_steps: steps between two exchanges.
        overlap: share of a rank's compute during which it sends.
        grows: each rank adds a batch or a part of the network; else the ranks share one batch.
    """

    rows: float
    compute: float
    traffic: Traffic
    overhead: float = 0.0
    local_steps: int = 1
    overlap: float = 0.0
    grows: bool = False

    def seconds(self, ranks: int, link: Link) -> float:
        """Return the seconds of a step on `ranks` ranks."""
        compute = self.compute if self.grows else self.compute / ranks
        waiting = max(0.0, self.traffic.seconds(ranks, link) - self.overlap * compute)
        return self.overhead + compute + waiting / self.local_steps

    def rows_per_second(self, ranks: int, link: Link) -> float:
        """Return rows per second; if the network grows, counted in one rank's part of it."""
        return self.rows * (ranks if self.grows else 1) / self.seconds(ranks, link)

    def speedup(self, ranks: int, link: Link) -> float:
        """Return the rows per second relative to one rank."""
        return self.rows_per_second(ranks, link) / self.rows_per_second(1, link)
