"""A process group of one process: collectives for real, with nobody else there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import distributed


@contextmanager
def world_of_one(backend: str = "gloo") -> Iterator[None]:
    """Let a rank of several add up its own part alone."""
    store = distributed.HashStore()  # type: ignore[attr-defined]
    distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()
