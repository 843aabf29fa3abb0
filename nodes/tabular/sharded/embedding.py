"""A table of embeddings whose rows are divided among the ranks.

Row r is on rank r mod n, with its gradient and the optimiser's moments. For each batch a rank
requests the needed rows from the other ranks. After the backward pass it sends the rows' gradients
back. So the traffic does not depend on the size of the table (as in GeePS: Cui et al., EuroSys
2016).

Shapes: V codes (numbers of rows) with e numbers in each row, n ranks, u distinct codes in a rank's
part of a batch.
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

_ROWS = 1 << 40  # more than a rank can have rows


class Rows:
    """A rank's R rows of the table.

    The optimiser updates the rows in the tensor `moved`. In this class, `moved` has all R rows.
    """

    def __init__(self, table: Tensor, device: torch.device) -> None:
        self.moved = nn.Parameter(table.to(device, copy=True))

    def bind(self, m: Tensor, v: Tensor) -> None:
        """Use `m` and `v` as the optimiser's moments of the rows in `moved`."""
        self._means = m, v

    def bring(self, wanted: Tensor) -> Tensor:
        """Load the rows with the numbers `wanted` [w] into `moved`. Return their indexes there."""
        return send(wanted, self.moved.device)

    def put_back(self) -> None:
        """Store the rows that `bring` has loaded, after the optimiser's step."""

    def settle(self) -> Tensor:
        """Return all rows [R, e], up to date with the steps so far."""
        return self.moved.detach()

    def means(self) -> tuple[Tensor, Tensor]:
        """Return the moments m and v of all rows, [R, e] each. Call `settle` first."""
        return self._means

    @torch.no_grad()
    def load(self, table: Tensor) -> None:
        """Set the R rows to `table` [R, e]."""
        self.moved.copy_(table)

    def load_means(self, m: Tensor, v: Tensor, done: int) -> None:  # noqa: ARG002
        """Set the moments of all rows to `m` and `v` [R, e], the moments after step `done`.

        Call `load` first.
        """
        for mine, given in zip(self._means, (m, v), strict=True):
            mine.copy_(given)

    def close(self) -> None:
        """Release main memory that the GPU accesses. No step may follow."""


@dataclass(frozen=True)
class Route:
    """The rows that a rank requests for a batch, and those that other ranks request from it."""

    place: Tensor  # index of each code [*] among the u rows that arrive, on the device
    asked: list[int]  # number of rows requested from each rank
    given: list[int]  # number of rows to send to each rank
    wanted: Tensor  # [w] numbers of this rank's rows to send, in the order of the receiving ranks


class ShardedEmbedding(nn.Module):
    """A table of embeddings, divided among the ranks.

    `weight` has the rows that the optimiser updates (`Rows.moved`). The entry "weight" of the
    state_dict has all rows of this rank.
    """

    def __init__(self, rows: Rows, team: Ranks) -> None:
        super().__init__()
        self.rows, self._team = rows, team
        self.weight = rows.moved

    def forward(self, codes: Tensor) -> Tensor:
        """Return embeddings [*, e] of codes [*], without gradients. All ranks must call this."""
        route = self.route(codes.cpu())
        table = self.rows.settle()
        given = table[route.wanted.to(table.device)].to(codes.device)
        return _gather_rows(_exchange(given, route.given, route.asked, self._team), route.place)

    def route(self, codes: Tensor) -> Route:
        """Return the rows that the ranks must exchange for this rank's `codes` [*].

        All ranks must call this. `codes` must be in main memory, so that nothing waits for a GPU.
        """
        count = self._team.count
        codes = codes.long()
        # Sorted by rank, and then by row.
        different, place = distinct_values(codes % count * _ROWS + codes // count)
        asked = torch.bincount(different // _ROWS, minlength=count)
        given = _exchange(asked, [1] * count, [1] * count, self._team)
        counts = asked.tolist(), given.tolist()
        wanted = _exchange(different % _ROWS, *counts, self._team)
        return Route(send(place, self.weight.device), *counts, wanted)

    def lookup_with_gradient(self, route: Route) -> Tensor:
        """Return the embeddings [*, e] of the codes that `route` was made for, with gradients.

        All ranks must call this.
        """
        places = self.rows.bring(route.wanted)
        rows: Tensor = _Exchange.apply(self.weight, places, route, self._team)  # type: ignore[no-untyped-call]
        return _gather_rows(rows, route.place)

    def _save_to_state_dict(
        self,
        destination: dict[str, Any],
        prefix: str,
        keep_vars: bool,  # noqa: ARG002
    ) -> None:
        destination[prefix + "weight"] = self.rows.settle()

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *_others: object
    ) -> None:
        self.rows.load(state_dict[prefix + "weight"])


class _Exchange(torch.autograd.Function):
    """An exchange of rows among the ranks, with gradients.

    A rank sends the rows `moved[places]`, and receives the rows [u, e] that it has requested.
    """

    @staticmethod
    def forward(ctx: Any, moved: Tensor, places: Tensor, route: Route, team: Ranks) -> Tensor:
        ctx.save_for_backward(places)
        ctx.route, ctx.shape, ctx.team = route, moved.shape, team
        return _exchange(moved[places], route.given, route.asked, team)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (places,) = ctx.saved_tensors
        route: Route = ctx.route
        arrived = _exchange(grads[0], route.asked, route.given, ctx.team)
        mine = grads[0].new_zeros(ctx.shape)
        return mine.index_add_(0, places, arrived), None, None, None


def distinct_values(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sorted distinct values, and the index [*] of each value among them."""
    # numpy sorts faster: this takes half the time of torch.unique.
    different, place = np.unique(values.numpy(), return_inverse=True)
    return torch.from_numpy(different), torch.from_numpy(place).view(values.shape)


def _gather_rows(rows: Tensor, place: Tensor) -> Tensor:
    # The gradient of nn.Embedding would be slower.
    return rows.index_select(0, place.flatten()).view(*place.shape, rows.shape[1])


def _exchange(
    values: Tensor, sent_counts: list[int], received_counts: list[int], team: Ranks
) -> Tensor:
    """Send the next `sent_counts[i]` values to each rank i, and return the values that arrive."""
    if team.count == 1:
        return values
    arrived = values.new_empty(sum(received_counts), *values.shape[1:])
    distributed.all_to_all_single(arrived, values.contiguous(), received_counts, sent_counts)
    return arrived
