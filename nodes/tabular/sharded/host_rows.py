"""Rows of a table of embeddings in main memory, for tables larger than a GPU's memory.

Before a step the batch's rows are copied to the device, and take the steps that they have missed
(see `missed_steps.py`). After the optimiser's step the rows are written back. The GPU itself reads
and writes main memory, so the host doesn't wait.

Shapes: R rows of e numbers; w rows that a batch needs, of which u are distinct.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from trialfleet.nodes.tabular.loader import send
from trialfleet.nodes.tabular.settings import Settings
from trialfleet.nodes.tabular.sharded.embedding import Rows, distinct_values
from trialfleet.nodes.tabular.sharded.missed_steps import MissedSteps

_PIECE = 1 << 20  # numbers that are updated at once when all rows are updated


class HostRows(Rows):
    """Rows of a table and their moments in main memory. Only a batch's rows are on a device.

    Args:
        table: [R, e] float32, which is copied.
        rate_at: returns the learning rate of a step, counted from 1.

    Attributes:
        moved: [u, e], a batch's rows on the device.
        table, m, v: [R, e], up to date only after `settle`. SGD doesn't use v.
        caught_up: [R] int32, the last step that each row has taken.
    """

    def __init__(
        self,
        table: Tensor,
        chosen: Settings,
        rate_at: Callable[[int], float],
        device: torch.device,
    ) -> None:
        count, e = table.shape
        means = 2 if chosen.optimizer == "adamw" else 1
        self._all = torch.zeros(count, 1 + means, e)  # a row's numbers are adjacent, for one access
        self.table, self.m = self._all[:, 0], self._all[:, 1]
        self.v = self._all[:, 2] if means == 2 else torch.zeros(count, e)
        self.table.copy_(table)
        self.caught_up = torch.zeros(len(table), dtype=torch.int32)
        self.moved = nn.Parameter(torch.zeros(0, e, device=device))
        self._reached = _map_to_device(device, self._all)
        self._missed = MissedSteps(chosen, rate_at)
        self._settled = 0  # number of steps at the last `settle`

    def bind(self, m: Tensor, v: Tensor) -> None:
        """Use `m` and `v` as the optimiser's moments of the rows in `moved`."""
        self._here = (self.moved, m, v)[: self._all.shape[1]]

    # A step

    @torch.no_grad()
    def bring(self, wanted: Tensor) -> Tensor:
        """Load the rows with the numbers `wanted` [w] into `moved`, and return their indexes there.

        Raise IndexError for unknown rows. The caller must first free the last step's autograd
        graph, because `moved` gets another shape.
        """
        self._rows, places = distinct_values(wanted)
        since = self.caught_up.index_select(0, self._rows).long()
        device = self.moved.device
        self._there = send(self._rows, device)
        numbers = _split_copies(self._reached.index_select(0, self._there))
        self._missed.catch_up(numbers, since)
        for mine, came in zip(self._here, numbers, strict=True):
            mine.data = came
        return send(places, device)

    @torch.no_grad()
    def put_back(self) -> None:
        """Store the rows that `bring` has loaded, after the optimiser's step."""
        self._reached.index_copy_(0, self._there, torch.stack(self._here, 1))  # rows are distinct
        self._missed.count()
        self.caught_up[self._rows] = self._missed.done

    # All rows

    @torch.no_grad()
    def settle(self) -> Tensor:
        """Bring `table`, `m` and `v` up to date with the steps so far, and return `table`."""
        if self._settled == self._missed.done:
            return self.table
        size = max(1, _PIECE // self.table.shape[1])
        for piece, since in zip(
            torch.split(self._all, size), torch.split(self.caught_up, size), strict=True
        ):
            numbers = _split_copies(piece.to(self.moved.device))
            self._missed.catch_up(numbers, since.long())
            piece.copy_(torch.stack(numbers, 1))
        self._mark_caught_up(self._missed.done)
        return self.table

    def means(self) -> tuple[Tensor, Tensor]:
        """Return the optimiser's moments of all rows. Call `settle` first."""
        return self.m, self.v

    def load(self, table: Tensor) -> None:
        """Set the R rows to `table` [R, e], and keep the optimiser's moments."""
        self.settle()
        self.table.copy_(table)

    def load_means(self, m: Tensor, v: Tensor, done: int) -> None:
        """Set the moments of all rows to `m` and `v` [R, e], the moments after step `done`."""
        self.m.copy_(m)
        self.v.copy_(v)
        self._mark_caught_up(done)

    def close(self) -> None:
        """Release main memory that the GPU accesses. No step may follow."""
        if self._reached.is_cuda and self._all.numel():
            torch.cuda.synchronize(self.moved.device)
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            torch.cuda.check_error(cudart.cudaHostUnregister(self._all.data_ptr()))
            self._reached = self._all

    def _mark_caught_up(self, done: int) -> None:
        self.caught_up.fill_(done)
        self._missed.begin(done)
        self._settled = done


def _split_copies(rows: Tensor) -> tuple[Tensor, ...]:
    """Return copies [n, e] of the weights and of each moment in `rows` [n, kinds, e]."""
    return rows.transpose(0, 1).clone(memory_format=torch.contiguous_format).unbind()


def _map_to_device(device: torch.device, memory: Tensor) -> Tensor:
    """Return a tensor through which the device uses `memory`, which stays where it is."""
    if device.type != "cuda" or not memory.numel():
        return memory.to(device)
    with torch.cuda.device(device):  # torch assigns pinned memory to the current device
        # torch's own pinned memory is not used: its size would be rounded up to a power of two.
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(cudart.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
        return torch.as_tensor(_Registered(memory), device=device)


class _Registered:
    def __init__(self, memory: Tensor) -> None:
        self._memory = memory
        self.__cuda_array_interface__ = {
            "shape": tuple(memory.shape),
            "typestr": "<f4",
            "data": (memory.data_ptr(), False),
            "version": 3,
        }
