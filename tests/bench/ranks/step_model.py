"""Rows per second of a training on one machine or many: a model of compute and link.

A step on n ranks takes

    step = overhead + compute / n + max(0, traffic - overlap * compute / n) / local_steps
    traffic = bytes that a rank sends / bandwidth + messages * latency

where `compute` are the seconds of the whole batch on one rank. Where each rank brings a batch of
its own, or a part of the network, it takes all of `compute`, and a step does n times as much.

The bytes depend on what the ranks share:

    all weights       2 (n - 1) / n of the gradients, in 2 (n - 1) messages: a ring adds them up
                      (Patarasuk and Yuan, 2009, "Bandwidth optimal all-reduce algorithms"); of as
                      many parameter servers as machines each sends and receives the same
    parts of layers   (n - 1) / n of the weights, gathered for the way forward and for the way
                      back, and of the gradients, whose sums are scattered: three times n - 1
    the network       activations at the borders of its parts, the same whatever n is

Gradients of the last layers are ready before those of the first, so a trainer may send them while
it computes the others: `overlap` is the share of a rank's compute beside which it sends. The way
back, with two products for each weight where the way forward has one, is two thirds of it.

There is no constant in this that was fitted. It knows nothing of stragglers, of what the network's
middle can carry, or of copies within a machine, so it tells what a good implementation may come to.
docs/large-models.md has it beside published systems, and beside what was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """A network between machines.

    Attributes:
        bandwidth: bytes per second that a machine sends while it receives as many.
        latency: seconds of a message.
    """

    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Traffic:
    """The bytes that each rank sends when the ranks exchange values.

    Attributes:
        sent: bytes, by the number of ranks.
        messages: how many follow each other, by the number of ranks.
    """

    sent: Callable[[int], float]
    messages: Callable[[int], float]

    def seconds(self, ranks: int, link: Link) -> float:
        """Return how long a meeting takes."""
        if ranks == 1:
            return 0.0
        return self.sent(ranks) / link.bandwidth + self.messages(ranks) * link.latency


def summed(gradients: float) -> Traffic:
    """Return the traffic of ranks that all hold the network, with this size of gradients."""
    return Traffic(
        sent=lambda ranks: 2 * (ranks - 1) / ranks * gradients,
        messages=lambda ranks: 2 * (ranks - 1),
    )


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of a training, whose ranks may be one or many.

    Attributes:
        rows: of a batch.
        compute: seconds of all of it on one rank.
        traffic: between the ranks.
        overhead: seconds that no number of ranks shortens.
        local_steps: steps between two meetings.
        overlap: share of a rank's compute beside which it sends.
        grows: each rank brings as much again: a batch of its own, or a part of the network. Else
            the ranks share one batch out.
    """

    rows: float
    compute: float
    traffic: Traffic
    overhead: float = 0.0
    local_steps: int = 1
    overlap: float = 0.0
    grows: bool = False

    def seconds(self, ranks: int, link: Link) -> float:
        """Return the seconds of a step on this number of ranks."""
        compute = self.compute if self.grows else self.compute / ranks
        waiting = max(0.0, self.traffic.seconds(ranks, link) - self.overlap * compute)
        return self.overhead + compute + waiting / self.local_steps

    def rows_per_second(self, ranks: int, link: Link) -> float:
        """Return what is done in a second; of a network that grows, in rows of one rank's part."""
        return self.rows * (ranks if self.grows else 1) / self.seconds(ranks, link)

    def speedup(self, ranks: int, link: Link) -> float:
        """Return how many times as much is done in a second as on one rank."""
        return self.rows_per_second(ranks, link) / self.rows_per_second(1, link)
