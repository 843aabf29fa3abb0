"""Loaders, which give the training steps their rows in each epoch's random order.

`ResidentLoader` keeps all rows on the device. `StreamedLoader` is for rows that don't fit there: it
copies them from main memory, in chunks, while the device trains. Both give the same batches, so
training gives the same bits. A step reads the rows order[cursor : cursor + b], where `cursor` is
the number of rows that earlier steps of the epoch have read.

A process keeps a table's rows for its next trials.

Shapes: n training rows, m training rows of this rank, b rows in the rank's part of a batch, c rows
in a chunk.
"""

from __future__ import annotations

import math
import os
import re
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from trialfleet.nodes import trial
from trialfleet.nodes.tabular import dataset, settings
from trialfleet.nodes.tabular.ranks import Ranks

RESIDENT_SHARE = 0.5  # of the free GPU memory, for rows; the rest is for network and evaluation
CHUNK_SHARE = 0.05  # of the free GPU memory, for each of two chunks
CHUNK_BYTES = 256 << 20  # maximum size of a chunk: starting a copy then takes no noticeable time
HOST = torch.device("cpu")


def epoch_order(seed: int, epoch: int, rows: int) -> Tensor:
    """Return the numbers of the rows [n] in the epoch's random order, the same in each call."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(rows, generator=generator)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return `tensor` on `device`, without waiting for a copy to a GPU."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class RowOrders:
    """The random order of the rows in each epoch.

    The next epoch's order is drawn while the device trains.
    """

    def __init__(self, seed: int, rows: int, batch: int, team: Ranks) -> None:
        self._seed, self._rows, self._batch, self._team = seed, rows, batch, team
        self._next: tuple[int, Future[Tensor]] | None = None
        self._thread = ThreadPoolExecutor(1)
        self.batches = [min(batch, rows - begin) for begin in range(0, rows, batch)]
        self.sizes = [end - begin for begin, end in map(team.part, self.batches)]

    def take(self, epoch: int) -> Tensor:
        """Return the numbers [m] of this rank's rows in the epoch's order, in main memory."""
        drawn = self._next
        if drawn is None or drawn[0] != epoch:
            drawn = epoch, self._thread.submit(self._draw_order, epoch)
        self._next = epoch + 1, self._thread.submit(self._draw_order, epoch + 1)
        return drawn[1].result()

    def _draw_order(self, epoch: int) -> Tensor:
        order = epoch_order(self._seed, epoch, self._rows)
        if self._team.count == 1:
            return order
        batches = torch.split(order, self._batch)
        return torch.cat([batch[slice(*self._team.part(len(batch)))] for batch in batches])


class ResidentLoader:
    """A loader that keeps all rows on the device.

    Attributes:
        sizes: for each step of an epoch, the number of this rank's rows.
        batches: for each step, the number of rows of all ranks together.
    """

    def __init__(self, rows: dataset.Rows, orders: RowOrders) -> None:
        self.rows, self.sizes, self.batches = rows, orders.sizes, orders.batches
        self.order = torch.zeros(sum(orders.sizes), dtype=torch.int64, device=rows.target.device)
        self._orders = orders

    def begin(self, epoch: int) -> None:
        """Load the epoch's order of the rows."""
        self.order.copy_(self._orders.take(epoch))

    def ready(self, step: int) -> None:
        """Prepare the step's rows on the device.

        Call this before each step, in the order of the steps.
        """


class StreamedLoader:
    """A loader that copies the rows to the device in chunks, while the device trains.

    The device has room for two chunks: training reads one while the other arrives. The rows arrive
    in the epoch's random order. So `order` only lists places in the two chunks, and is the same in
    every epoch.
    """

    def __init__(
        self, rows: dataset.Rows, orders: RowOrders, device: torch.device, chunk_bytes: int
    ) -> None:
        self.sizes, self.batches = orders.sizes, orders.batches
        per_step = max(1, rows.bytes // len(rows) * self.sizes[0])
        self.steps = max(1, chunk_bytes // per_step)  # per chunk
        self.chunk = self.steps * self.sizes[0]  # c
        position = torch.arange(sum(self.sizes), device=device)
        self.order = position // self.chunk % 2 * self.chunk + position % self.chunk
        self.rows = rows.empty(2 * self.chunk, device)
        self._source, self._orders = rows, orders
        self._transfer = _CudaTransfer(device) if device.type == "cuda" else _Transfer()
        self._waiting = [
            rows.empty(self.chunk, HOST, pinned=self._transfer.pinned) for _ in range(2)
        ]
        self._thread = ThreadPoolExecutor(1)

    def begin(self, epoch: int) -> None:
        """Draw the epoch's order of the rows."""
        self._order = self._orders.take(epoch)
        self._here = -1  # no chunk yet
        self._coming: Future[None] | None = None

    def ready(self, step: int) -> None:
        """Prepare the step's rows on the device.

        In the first step of a chunk, this also starts to load the next chunk.
        """
        chunk = step // self.steps
        if chunk == self._here:
            return
        if self._coming is None:  # the first one of this epoch
            self._transfer.release()
            self._bring(chunk)
        else:
            self._coming.result()
        self._transfer.wait(chunk % 2)
        self._here = chunk
        if (chunk + 1) * self.chunk < len(self._order):
            self._transfer.release()
            self._coming = self._thread.submit(self._bring, chunk + 1)

    def _bring(self, chunk: int) -> None:
        half = chunk % 2
        index = self._order[chunk * self.chunk : (chunk + 1) * self.chunk]
        waiting = [tensor[: len(index)] for tensor in self._waiting[half].tensors]
        begin = half * self.chunk
        places = [tensor[begin : begin + len(index)] for tensor in self.rows.tensors]
        self._transfer.clear(half)
        for tensor, source in zip(waiting, self._source.tensors, strict=True):
            torch.index_select(source, 0, index, out=tensor)
        self._transfer.send(waiting, places, half)


class _Transfer:
    """Copies chunks of rows into the two halves, 0 and 1, of a buffer on the device.

    This class is for CPUs, and copies at once. `_CudaTransfer` copies while the GPU works.
    """

    pinned = False

    def clear(self, half: int) -> None:
        """Wait until the last copy into `half` is done. Then its sources can be overwritten."""

    def release(self) -> None:
        """Let the next copy begin after the device's queued work.

        The queued work still reads the rows that the copy will overwrite.
        """

    def send(self, waiting: list[Tensor], places: list[Tensor], half: int) -> None:  # noqa: ARG002
        """Copy the tensors `waiting` to the tensors `places`, which belong to `half`.

        The copy begins when `release` allows it. Any thread may call this.
        """
        for tensor, place in zip(waiting, places, strict=True):
            place.copy_(tensor, non_blocking=True)

    def wait(self, half: int) -> None:
        """Make the device's next work wait until the copy into `half` is done."""


class _CudaTransfer(_Transfer):
    pinned = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._released, *self._there = (torch.cuda.Event() for _ in range(3))  # type: ignore[no-untyped-call]

    def clear(self, half: int) -> None:
        self._there[half].synchronize()

    def release(self) -> None:
        self._released.record(torch.cuda.current_stream(self._device))

    def send(self, waiting: list[Tensor], places: list[Tensor], half: int) -> None:
        # A new thread's default is GPU 0, where it would allocate memory that is not needed.
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            self._stream.wait_event(self._released)
            super().send(waiting, places, half)
            self._there[half].record(self._stream)

    def wait(self, half: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._there[half])


# The place of the rows


Loader = ResidentLoader | StreamedLoader
_last: dict[object, dataset.Dataset] = {}  # the last trial's rows, by their files and share


def load_rows(t: trial.Trial, chosen: settings.Settings, device: torch.device) -> dataset.Dataset:
    """Return the region's rows, on the device if they fit there.

    If this process's last trial used the same files and the same share of rows, reuse its rows.
    """
    share = dataset.training_share(t, chosen)
    key = (*map(_file_state, t.data), share)
    data = _last.pop(key, None)
    _last.clear()  # free the memory before another table is read
    if data is None:
        data = dataset.load(t, chosen)
    if data.train.target.device != device:
        data = place(data, device, t.gpu_share)
    _last[key] = data
    return data


def _file_state(path: Path) -> tuple[str, int, int, int, int]:
    found = path.stat()
    return os.path.realpath(path), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def place(data: dataset.Dataset, device: torch.device, gpu_share: float) -> dataset.Dataset:
    """Return the data with its rows on the device, or unchanged if they don't fit there."""
    if device.type == "cpu" or data.bytes > RESIDENT_SHARE * free_gpu_memory(device, gpu_share):
        return data
    return data.to(device)


def build_loader(
    data: dataset.Dataset,
    chosen: settings.Settings,
    device: torch.device,
    t: trial.Trial,
    team: Ranks,
) -> Loader:
    """Return the loader of the training rows, which depends on where they are."""
    orders = RowOrders(t.seed, len(data.train), chosen.batch_size, team)
    if data.train.target.device == device:
        return ResidentLoader(data.train, orders)
    chunk_bytes = min(CHUNK_BYTES, math.floor(CHUNK_SHARE * free_gpu_memory(device, t.gpu_share)))
    return StreamedLoader(data.train, orders, device, chunk_bytes)


def free_gpu_memory(device: torch.device, share: float) -> float:
    """Return the free GPU memory in bytes, at most the trial's `share` of the whole memory."""
    free, total = torch.cuda.mem_get_info(device)
    return min(free, total * share)


def trial_memory(device: torch.device, share: float) -> float:
    """Return the memory that belongs to the trial, in bytes.

    On a GPU this is `share` of its memory. On a CPU it is the slot's memory or, outside of a slot,
    the machine's memory.
    """
    if device.type != "cpu":
        return torch.cuda.get_device_properties(device).total_memory * share
    try:
        ad = Path(os.environ["_CONDOR_MACHINE_AD"]).read_text(encoding="utf-8", errors="replace")
    except (KeyError, OSError):
        ad = ""
    if found := re.search(r"^Memory = (\d+)$", ad, re.MULTILINE):
        return float(found[1]) * (1 << 20)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
