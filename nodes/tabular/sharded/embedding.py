"""A table of embeddings of which each rank has its rows: row r lies with rank r mod n.

So do its gradient and the optimiser's means: all the 16 bytes that a number takes. For each batch a
rank asks the others for the rows of the codes that are in its part, and sends their gradients back:
what travels is the batch's, whatever the size of the table (as in GeePS: Cui et al., EuroSys 2016).

Shapes: V codes, e numbers of each, n ranks, u different codes in a rank's part of a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

if __package__ == "trialfleet.nodes.tabular.sharded":
    from trialfleet.nodes.tabular.ranks import Ranks
elif not TYPE_CHECKING:  # travelling alone, in a trial's sandbox
    from ranks import Ranks


class ShardedEmbedding(nn.Module):
    """A rank's rows of a table of embeddings, and the way to the others'.

    Args:
        weight: [V, e], the same on all ranks.
        team: the ranks.
    """

    def __init__(self, weight: Tensor, team: Ranks) -> None:
        super().__init__()
        self.rows, self._team = len(weight), team
        self.shard = nn.Parameter(weight.detach()[team.rank :: team.count].clone())

    def forward(self, codes: Tensor) -> Tensor:
        """Return the embeddings [*, e] of codes [*]. All ranks call it together."""
        different, place = torch.unique(codes, return_inverse=True)  # [u], [*]
        rows = _Exchange.apply(self.shard, different, self._team)  # type: ignore[no-untyped-call]
        return functional.embedding(place, rows)


class _Exchange(torch.autograd.Function):
    """The rows [u, e] of different codes [u], rising, from the ranks that have them."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, codes: Tensor, team: Ranks) -> Tensor:
        count = team.count
        order = torch.argsort(codes % count, stable=True)  # by rank
        asked = [int(n) for n in torch.bincount(codes % count, minlength=count)]
        given = _exchange_counts(asked, codes.device, team)
        wanted = _to_all(codes[order] // count, asked, given, team)  # of this rank's rows
        rows = shard.new_empty(len(codes), shard.shape[1])
        rows[order] = _to_all(shard[wanted], given, asked, team)
        ctx.save_for_backward(order, wanted)
        ctx.routes, ctx.shape, ctx.team = (asked, given), shard.shape, team
        return rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        order, wanted = ctx.saved_tensors
        asked, given = ctx.routes
        arrived = _to_all(grads[0][order], asked, given, ctx.team)
        mine = grads[0].new_zeros(ctx.shape)
        return mine.index_add_(0, wanted, arrived), None, None


def _exchange_counts(asked: list[int], device: torch.device, team: Ranks) -> list[int]:
    """Return how many rows each rank asks this one for."""
    if team.count == 1:
        return asked
    given = torch.empty(team.count, dtype=torch.int64, device=device)
    distributed.all_to_all_single(given, torch.tensor(asked, device=device))
    return [int(n) for n in given]


def _to_all(values: Tensor, to: list[int], of: list[int], team: Ranks) -> Tensor:
    """Send so many of the values to each rank, return so many of each."""
    if team.count == 1:
        return values
    arrived = values.new_empty(sum(of), *values.shape[1:])
    distributed.all_to_all_single(arrived, values.contiguous(), of, to)
    return arrived
