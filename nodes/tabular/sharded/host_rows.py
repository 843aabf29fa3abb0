"""Rows of a table in main memory, those in use on a GPU: for a table larger than the GPU.

The GPU has slots. While it takes a step, a thread collects the rows that the next batch wants and
the slots don't have, catches them up for the steps that they missed (`coasting.py`), and sends them
by a stream of their own. Between the steps they change places with the rows that were wanted
longest ago. What is in a slot the optimiser moves in every step, so it is up to date always; a row
that is on its way is in no slot, so no step can move it meanwhile. (As GeePS does with the layers
of a network: Cui et al., EuroSys 2016.)

Shapes: R rows of e numbers, C slots, w rows that a batch wants, some of them more than once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if __package__ == "trialfleet.nodes.tabular.sharded":
    from trialfleet.nodes.tabular import settings
    from trialfleet.nodes.tabular.sharded.coasting import Coasting
elif not TYPE_CHECKING:  # travelling alone, in a trial's sandbox
    import settings
    from sharded.coasting import Coasting

_PIECE = 1 << 22  # numbers that are caught up at once where all are
_FREE = -1


@dataclass(frozen=True)
class _Arrival:
    """Rows that come to slots.

    Attributes:
        slots: [a] to which they come.
        rows: [a] of the table.
        numbers: weights, means and means of squares, [a, e] each, on the device.
    """

    slots: Tensor
    rows: Tensor
    numbers: tuple[Tensor, Tensor, Tensor]


class HostRows:
    """Rows of a table, with the optimiser's means, in main memory; those in use on a device.

    Args:
        table: [R, e] float32 in main memory; it is taken over, not copied.
        slots: C.
        chosen: the optimiser's settings.
        rate_at: the learning rate of a step, numbered from 1.
        device: where the network works.

    Attributes:
        moved: [C, e] on the device; the caller's optimiser moves all of it in each step.
        table, m, v: [R, e]; those of rows in slots, and of rows that missed steps, are old.
        wanted, brought: how many different rows batches wanted, and how many of them came from main
            memory.
    """

    def __init__(
        self,
        table: Tensor,
        slots: int,
        chosen: settings.Settings,
        rate_at: Callable[[int], float],
        device: torch.device,
    ) -> None:
        self.table, self._device = table, device
        self.m, self.v = torch.zeros_like(table), torch.zeros_like(table)
        self.moved = nn.Parameter(torch.zeros(slots, table.shape[1], device=device))
        self._means = torch.zeros_like(self.moved), torch.zeros_like(self.moved)
        self.wanted = self.brought = 0
        self._coasting = Coasting(chosen, rate_at)
        self._thread = ThreadPoolExecutor(1)
        self._coming: Future[_Arrival] | None
        self._side = _Side(device)
        self._since = torch.zeros(len(table), dtype=torch.int32)  # steps that each row has had
        self._settled = 0  # how many steps all rows had when they were last brought together
        self._forget_slots()

    def bind(self, m: Tensor, v: Tensor) -> None:
        """Take note of the optimiser's means of `moved`."""
        self._means = m, v

    # A step

    def fetch_ahead(self, wanted: Tensor, done: int) -> None:
        """Begin to bring rows [w] for the step after so many; `swap_in` raises what goes wrong."""
        self._coming = self._thread.submit(self._bring, wanted.cpu().long(), done)

    def swap_in(self) -> None:
        """Have the rows in their slots. The steps before are taken, none since they were asked for.

        Raises:
            SettingError: a batch wants more different rows than there are slots.
        """
        if self._coming is None:
            return
        coming, self._coming = self._coming, None
        arrival = coming.result()
        self._side.end(arrival.numbers)
        held = self._row_in[arrival.slots]
        self._write_back(arrival.slots[held != _FREE])
        self._slot_of[held[held != _FREE]] = _FREE
        self._slot_of[arrival.rows] = arrival.slots.int()
        self._row_in[arrival.slots] = arrival.rows
        slots = arrival.slots.to(self._device)
        with torch.no_grad():
            for mine, came in zip(self._numbers, arrival.numbers, strict=True):
                mine.index_copy_(0, slots, came)

    def places(self, wanted: Tensor) -> Tensor:
        """Return the slots [w] of rows that have been swapped in."""
        return self._slot_of[wanted.cpu().long()].long().to(wanted.device)

    def _bring(self, wanted: Tensor, done: int) -> _Arrival:
        """Choose slots for what has none of the rows, and send it off. In the thread."""
        rows = torch.unique(wanted)
        if len(rows) > len(self.moved):
            raise settings.SettingError(
                "hot_rows",
                f"hot_rows is {len(self.moved)}, and a batch has {len(rows)} different values of "
                "categorical columns; raise it, or lower batch_size",
            )
        there = self._slot_of[rows].long()
        missing = rows[there == _FREE]
        self._turn += 1
        self._last_wanted[there[there != _FREE]] = self._turn
        slots = self._last_wanted.topk(len(missing), largest=False).indices
        self._last_wanted[slots] = self._turn
        self.wanted, self.brought = self.wanted + len(rows), self.brought + len(missing)
        self._coasting.advance(done)
        with self._side.working():
            numbers = [self._side.send(each[missing]) for each in (self.table, self.m, self.v)]
            w, m, v = numbers
            self._coasting.catch_up(w, m, v, self._since[missing].long())
        return _Arrival(slots, missing, (w, m, v))

    # All rows

    def settle(self, done: int) -> Tensor:
        """Have all of `table`, `m` and `v` as so many steps have left them; return the table."""
        if self._coming is not None:
            self._coming.result()  # it reads what is written now
        if self._settled == done:
            return self.table
        self._coasting.advance(done)
        self._write_back((self._row_in != _FREE).nonzero().flatten())
        step = max(1, _PIECE // self.table.shape[1])
        for begin in range(0, len(self.table), step):
            piece = slice(begin, begin + step)
            numbers = self.table[piece], self.m[piece], self.v[piece]
            self._coasting.catch_up(*numbers, self._since[piece].long())
        self._all_are_at(done)
        return self.table

    def load(self, table: Tensor) -> None:
        """Take over other rows [R, e], to go on from where these are; the slots are empty then."""
        self.settle(self._coasting.done)
        self.table.copy_(table)
        self._forget_slots()

    def load_means(self, m: Tensor, v: Tensor, done: int) -> None:
        """Take over the optimiser's means [R, e] after so many steps."""
        self.m.copy_(m)
        self.v.copy_(v)
        self._all_are_at(done)

    def means(self) -> tuple[Tensor, Tensor]:
        """Return the optimiser's means and means of squares [R, e], once all rows are settled."""
        return self.m, self.v

    def _all_are_at(self, done: int) -> None:
        self._since.fill_(done)
        self._coasting.begin(done)
        self._settled = done

    @property
    def _numbers(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.moved, *self._means

    def _write_back(self, slots: Tensor) -> None:
        """Bring what is in slots to main memory, as the steps so far have left it."""
        rows, places = self._row_in[slots], slots.to(self._device)
        for mine, theirs in zip((self.table, self.m, self.v), self._numbers, strict=True):
            mine[rows] = theirs.detach()[places].cpu()
        self._since[rows] = self._coasting.done

    def _forget_slots(self) -> None:
        slots = len(self.moved)
        self._slot_of = torch.full((len(self.table),), _FREE, dtype=torch.int32)
        self._row_in = torch.full((slots,), _FREE)
        self._last_wanted = torch.full((slots,), _FREE)
        self._turn = 0
        self._coming = None


class _Side:
    """The way to the device beside the stream that trains; on a CPU rows are there already."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def working(self) -> ExitStack:
        """Return what has the thread's work go by that stream."""
        stack = ExitStack()
        if self._stream is not None:
            # A thread begins on GPU 0, and would go back there to take memory for nothing.
            stack.enter_context(torch.cuda.device(self._device))
            stack.enter_context(torch.cuda.stream(self._stream))
        return stack

    def send(self, values: Tensor) -> Tensor:
        """Return the values on the device, where they may arrive later."""
        if self._stream is None:
            return values
        return values.pin_memory().to(self._device, non_blocking=True)

    def end(self, values: tuple[Tensor, ...]) -> None:
        """Let the stream that trains wait for what has been sent."""
        if self._stream is not None:
            training = torch.cuda.current_stream(self._device)
            training.wait_stream(self._stream)
            for each in values:
                each.record_stream(training)
