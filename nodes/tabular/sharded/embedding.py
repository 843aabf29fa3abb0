"""A table of embeddings of which each rank has its rows: row r lies with rank r mod n.

So do its gradient and the optimiser's means: all the 16 bytes that a number takes. For each batch a
rank asks the others for the rows of the codes that are in its part, and sends their gradients back:
what travels is the batch's, whatever the size of the table (as in GeePS: Cui et al., EuroSys 2016).

Shapes: V codes, e numbers of each, n ranks, u different codes in a rank's part of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn

from trialfleet.nodes.tabular.loader import send
from trialfleet.nodes.tabular.ranks import Ranks

_ROWS = 1 << 40  # more than a rank has


class Rows:
    """A rank's rows of the table, R of them: here all where the network works, unlike `HostRows`.

    Attributes:
        moved: what the optimiser moves of them, a row in each place: [places, e].
    """

    def __init__(self, table: Tensor, device: torch.device) -> None:
        self.moved = nn.Parameter(table.to(device, copy=True))

    def bind(self, m: Tensor, v: Tensor) -> None:
        """Take note of the optimiser's means of `moved`."""
        self._means = m, v

    def bring(self, wanted: Tensor) -> Tensor:
        """Have the rows [w], in main memory, that a step wants in `moved`; return their places."""
        return send(wanted, self.moved.device)

    def put_back(self) -> None:
        """Take note that the optimiser has moved what was brought: a step has been taken."""

    def settle(self) -> Tensor:
        """Return all rows [R, e], as the steps so far have left them."""
        return self.moved.detach()

    def means(self) -> tuple[Tensor, Tensor]:
        """Return the optimiser's means and means of squares [R, e], once all rows are settled."""
        return self._means

    @torch.no_grad()
    def load(self, table: Tensor) -> None:
        """Take over other rows [R, e]."""
        self.moved.copy_(table)

    def load_means(self, m: Tensor, v: Tensor, done: int) -> None:  # noqa: ARG002
        """Load the optimiser's means [R, e] of step `done`; the rows are loaded before."""
        for mine, given in zip(self._means, (m, v), strict=True):
            mine.copy_(given)

    def close(self) -> None:
        """Let go of the machine's memory; no step is taken any more."""


@dataclass(frozen=True)
class Route:
    """The rows of the table that a rank requests from the others, and they from it."""

    place: Tensor  # of each code [*] among the u rows that arrive, on the device
    asked: list[int]  # how many of each rank
    given: list[int]  # how many to each rank
    wanted: Tensor  # [w] of this rank's rows, by the rank that asks, in main memory


class ShardedEmbedding(nn.Module):
    """A table of embeddings that the ranks share; its state has this rank's rows, "shard"."""

    def __init__(self, rows: Rows, team: Ranks) -> None:
        super().__init__()
        self.rows, self._team = rows, team
        self.moved = rows.moved

    def forward(self, codes: Tensor) -> Tensor:
        """Return the embeddings [*, e] of codes [*], which have no gradient."""
        route = self.route(codes.cpu())
        table = self.rows.settle()
        given = table[route.wanted.to(table.device)].to(codes.device)
        return _chosen(_to_all(given, route.given, route.asked, self._team), route.place)

    def route(self, codes: Tensor) -> Route:
        """Tell the others which rows this rank needs for codes [*]. All ranks call it together.

        Codes are in main memory, and so is all that travels here: nobody waits for a GPU.
        """
        count = self._team.count
        codes = codes.long()
        # Those of rank 0 come first, and of each rank by row.
        different, place = different_of(codes % count * _ROWS + codes // count)
        asked = torch.bincount(different // _ROWS, minlength=count)
        given = _to_all(asked, [1] * count, [1] * count, self._team)
        counts = asked.tolist(), given.tolist()
        wanted = _to_all(different % _ROWS, *counts, self._team)
        return Route(send(place, self.moved.device), *counts, wanted)

    def train_on(self, route: Route) -> Tensor:
        """Return the embeddings [*, e] of a route's codes, for a step."""
        places = self.rows.bring(route.wanted)
        rows: Tensor = _Exchange.apply(self.moved, places, route, self._team)  # type: ignore[no-untyped-call]
        return _chosen(rows, route.place)

    def _save_to_state_dict(
        self,
        destination: dict[str, Any],
        prefix: str,
        keep_vars: bool,  # noqa: ARG002
    ) -> None:
        destination[prefix + "shard"] = self.rows.settle()

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *_others: object
    ) -> None:
        self.rows.load(state_dict[prefix + "shard"])


class _Exchange(torch.autograd.Function):
    """The rows [u, e] of a route from the ranks that have them; `places` [w] are in `moved`."""

    @staticmethod
    def forward(ctx: Any, moved: Tensor, places: Tensor, route: Route, team: Ranks) -> Tensor:
        ctx.save_for_backward(places)
        ctx.route, ctx.shape, ctx.team = route, moved.shape, team
        return _to_all(moved[places], route.given, route.asked, team)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (places,) = ctx.saved_tensors
        route: Route = ctx.route
        arrived = _to_all(grads[0], route.asked, route.given, ctx.team)
        mine = grads[0].new_zeros(ctx.shape)
        return mine.index_add_(0, places, arrived), None, None, None


def different_of(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the different ones of values [*], in order, and the place of each among them [*].

    As torch.unique, in half the time: numpy sorts faster.
    """
    different, place = np.unique(values.numpy(), return_inverse=True)
    return torch.from_numpy(different), torch.from_numpy(place).view(values.shape)


def _chosen(rows: Tensor, place: Tensor) -> Tensor:
    """Return rows [*, e] of those [u, e]; its gradient is faster than that of an embedding."""
    return rows.index_select(0, place.flatten()).view(*place.shape, rows.shape[1])


def _to_all(values: Tensor, to: list[int], of: list[int], team: Ranks) -> Tensor:
    """Send so many of the values to each rank, return so many of each."""
    if team.count == 1:
        return values
    arrived = values.new_empty(sum(of), *values.shape[1:])
    distributed.all_to_all_single(arrived, values.contiguous(), of, to)
    return arrived
