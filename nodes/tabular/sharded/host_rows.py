"""Rows of a table in main memory, those in use on a device: for a table larger than a GPU.

The device has slots. While it takes a step, a thread collects the rows that the next batch wants
and no slot has, catches them up for the steps that they missed, and sends them. Between the steps
they change places with the rows that were wanted longest ago. What is in a slot the optimiser moves
in every step, so it is up to date; what is on its way is in no slot, so no step moves it meanwhile.
(As GeePS does with a network's layers: Cui et al., EuroSys 2016.)

Shapes: R rows of e numbers, C slots, w rows that a batch wants, a of them that arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trialfleet.nodes.tabular.settings import SettingError, Settings
from trialfleet.nodes.tabular.sharded.embedding import Rows
from trialfleet.nodes.tabular.sharded.missed_steps import MissedSteps

_FREE = -1
_PIECE = 1 << 20  # numbers that are caught up at once where all rows are


@dataclass(frozen=True)
class _Arrival:
    """Rows on their way to slots."""

    rows: Tensor  # [a] of the table
    slots: Tensor  # [a] to which they come
    used: Tensor  # [u] slots of all rows that the batch wants, theirs included
    numbers: list[Tensor]  # weights and means, [a, e] each, on the device
    done: int  # steps for which they are caught up


class HostRows(Rows):
    """Rows of a table, with the optimiser's means, in main memory; those in use on a device.

    Args:
        table: [R, e] float32 in main memory; it is taken over, not copied.
        slots: C.
        rate_at: the learning rate of step t, from 1; always the same of a step.

    Attributes:
        moved: [C, e] on the device; the caller's optimiser moves all of it in each step.
        table, m, v: [R, e]; only after `settle` are they those of the whole table. SGD has no v.
        caught_up: [R] int32, the step up to which a row of `table` is current; without meaning
            while the row is in a slot.
        wanted_rows, brought_rows: how many different rows batches wanted, and how many of them
            came from main memory.
    """

    def __init__(
        self,
        table: Tensor,
        slots: int,
        chosen: Settings,
        rate_at: Callable[[int], float],
        device: torch.device,
    ) -> None:
        self.table = table
        self.m, self.v = torch.zeros_like(table), torch.zeros_like(table)
        kinds = 3 if chosen.optimizer == "adamw" else 2
        self._host = (self.table, self.m, self.v)[:kinds]
        self.moved = nn.Parameter(torch.zeros(slots, table.shape[1], device=device))
        self._arena: tuple[Tensor, ...] = ()
        self.caught_up = torch.zeros(len(table), dtype=torch.int32)
        self.wanted_rows = self.brought_rows = 0
        self._missed = MissedSteps(chosen, rate_at)
        self._transfer = _CudaTransfer(device) if device.type == "cuda" else _Transfer()
        self._thread = ThreadPoolExecutor(1)
        self._coming: Future[_Arrival] | None
        self._forget_slots()
        self._settled = 0  # steps that the table had, as a whole, when it was last settled

    def bind(self, m: Tensor, v: Tensor) -> None:
        """Take note of the optimiser's means [C, e] of `moved`; before the first `swap_in`."""
        self._arena = (self.moved, m, v)[: len(self._host)]

    # A step

    def fetch_ahead(self, wanted: Tensor, done: int) -> None:
        """Begin to bring the rows of the next step; `swap_in` raises what goes wrong.

        Args:
            wanted: [w], some perhaps more than once. Best in main memory: of what lies on a
                GPU the caller waits for the copy.
            done: how many steps will have been taken when `swap_in` is called.
        """
        self._wait()  # of two that were begun the later one counts
        self._coming = self._thread.submit(self._bring, wanted.cpu().long(), done)

    @torch.no_grad()
    def swap_in(self) -> None:
        """Have the rows in slots. Without a fetch before, nothing happens.

        Raises:
            SettingError: the batch wants more different rows than there are slots.
            IndexError: the table has no such row.
        """
        if self._coming is None:
            return
        coming, self._coming = self._coming, None
        arrival = coming.result()
        self._turn += 1
        self._last_used[arrival.used] = self._turn
        self.wanted_rows += len(arrival.used)
        self.brought_rows += len(arrival.rows)
        if not len(arrival.rows):
            return
        leaving = self._row_in[arrival.slots]
        self._write_back(arrival.slots[leaving != _FREE], arrival.done)
        self._slot_of[leaving[leaving != _FREE]] = _FREE
        self._slot_of[arrival.rows] = arrival.slots.int()
        self._row_in[arrival.slots] = arrival.rows
        self._transfer.arrived(arrival.numbers)
        slots = arrival.slots.to(self.moved.device)
        for mine, came in zip(self._arena, arrival.numbers, strict=True):
            mine.index_copy_(0, slots, came)  # no slot twice

    def places(self, wanted: Tensor) -> Tensor:
        """Return the slots [w] of rows, on the device; ValueError for one that wasn't fetched."""
        slots = self._slot_of[wanted.cpu().long()].long()
        if bool((slots == _FREE).any()):
            raise ValueError("a row is in no slot; fetch_ahead and swap_in have to bring it first")
        return slots.to(self.moved.device)

    @torch.no_grad()
    def _bring(self, wanted: Tensor, done: int) -> _Arrival:
        """Choose slots for the rows that have none, and send these off. In the thread."""
        rows = torch.unique(wanted)
        slots = len(self.moved)
        if len(rows) > slots:
            raise SettingError(
                "hot_rows",
                f"hot_rows is {slots}, and a batch has {len(rows)} different values of categorical "
                "columns; raise it, or lower batch_size",
            )
        if len(rows) and not 0 <= int(rows[0]) <= int(rows[-1]) < len(self.table):
            raise IndexError(
                f"rows {int(rows[0])} … {int(rows[-1])} are wanted; "
                f"the table has 0 … {len(self.table) - 1}"
            )
        self._missed.advance(done)
        there = self._slot_of[rows].long()
        missing, kept = rows[there == _FREE], there[there != _FREE]
        # Free slots were last used in turn 0. Those of this batch come last: there are enough.
        age = self._last_used.index_fill(0, kept, self._turn + 1)
        chosen = age.topk(len(missing), largest=False).indices
        # They are caught up where they arrive: on a GPU that is a dozen short kernels beside the
        # step's, and the thread's core is left to the gathering, which only it can do.
        with self._transfer.working():
            numbers = self._transfer.send(self._host, missing)
            self._missed.catch_up(numbers, self.caught_up[missing].long())
            self._transfer.sent()
        return _Arrival(missing, chosen, torch.cat([kept, chosen]), numbers, done)

    # All rows

    @torch.no_grad()
    def settle(self, done: int) -> Tensor:
        """Have `table`, `m` and `v` as so many steps have left them; return the table.

        What is in slots stays there. ValueError where rows have later steps already.
        """
        if self._settled == done:
            return self.table
        self._wait()  # it reads what is written here
        self._missed.advance(done)
        self._write_back((self._row_in != _FREE).nonzero().flatten(), done)
        size = max(1, _PIECE // self.table.shape[1])
        for begin in range(0, len(self.table), size):
            end = begin + size
            numbers = [each[begin:end] for each in self._host]
            self._missed.catch_up(numbers, self.caught_up[begin:end].long())
        self._all_are_at(done)
        return self.table

    def means(self) -> tuple[Tensor, Tensor]:
        """See `Rows`."""
        return self.m, self.v

    def load(self, table: Tensor) -> None:
        """Go on from another table [R, e], with the means of this one; slots are empty."""
        self.settle(self._missed.done)
        self.table.copy_(table)
        self._forget_slots()

    def load_means(self, m: Tensor, v: Tensor, done: int) -> None:
        """Go on from other means [R, e], after so many steps; slots are empty."""
        self._wait()
        for mine, loaded in zip(self._host[1:], (m, v), strict=False):
            mine.copy_(loaded)
        self._forget_slots()
        self._all_are_at(done)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _wait(self) -> None:
        """Wait for the thread; what it brought, or what went wrong, stays for `swap_in`."""
        if self._coming is not None:
            self._coming.exception()

    def _write_back(self, slots: Tensor, done: int) -> None:
        """Bring slots' rows to main memory, as so many steps have left them."""
        if not len(slots):
            return
        rows, places = self._row_in[slots], slots.to(self.moved.device)
        for mine, theirs in zip(self._host, self._arena, strict=True):
            mine[rows] = theirs[places].cpu()
        self.caught_up[rows] = done

    def _all_are_at(self, done: int) -> None:
        self.caught_up.fill_(done)
        self._missed.begin(done)
        self._settled = done

    def _forget_slots(self) -> None:
        slots = len(self.moved)
        self._slot_of = torch.full((len(self.table),), _FREE, dtype=torch.int32)
        self._row_in = torch.full((slots,), _FREE)
        self._last_used = torch.zeros(slots, dtype=torch.int64)
        self._turn = 0
        self._coming = None


class _Transfer:
    """From main memory to the device; on a CPU there is none, and rows are only gathered."""

    def working(self) -> ExitStack:
        """Return what the thread's work goes by."""
        return ExitStack()

    def send(self, host: Sequence[Tensor], rows: Tensor) -> list[Tensor]:
        """Return rows [a] of each tensor, on the device."""
        return [each[rows] for each in host]

    def sent(self) -> None:
        """Say that all work on what was sent is queued."""

    def arrived(self, numbers: list[Tensor]) -> None:
        """Let the device's next work wait until they are there."""


class _CudaTransfer(_Transfer):
    """By pinned memory of a batch's size, on a stream beside the one that trains."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._staging: list[Tensor] = []
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copied, self._ready = torch.cuda.Event(), torch.cuda.Event()  # type: ignore[no-untyped-call]

    def working(self) -> ExitStack:
        stack = ExitStack()
        # A thread begins on GPU 0, and would go back there to take memory for nothing.
        stack.enter_context(torch.cuda.device(self._device))
        stack.enter_context(torch.cuda.stream(self._stream))
        return stack

    def send(self, host: Sequence[Tensor], rows: Tensor) -> list[Tensor]:
        self._copied.synchronize()  # the former copy has been read out of the staging
        if not self._staging or len(self._staging[0]) < len(rows):
            shape = max(1, len(rows)), host[0].shape[1]
            self._staging = [torch.empty(shape, pin_memory=True) for _ in host]
        numbers = []
        for each, staging in zip(host, self._staging, strict=True):
            part = torch.index_select(each, 0, rows, out=staging[: len(rows)])
            numbers.append(part.to(self._device, non_blocking=True))
        self._copied.record(self._stream)
        return numbers

    def sent(self) -> None:
        self._ready.record(self._stream)

    def arrived(self, numbers: list[Tensor]) -> None:
        training = torch.cuda.current_stream(self._device)
        training.wait_event(self._ready)
        for each in numbers:  # taken on the other stream: not free before this one has read them
            each.record_stream(training)
