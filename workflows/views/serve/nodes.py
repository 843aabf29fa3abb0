"""The machines of the pool, read once for all runs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from trialfleet.errors import PoolError
from trialfleet.infra.pool.collector import read_machines
from trialfleet.infra.pool.machines import Machine

_LOOK_EVERY = 10.0  # seconds; the slots of a large pool are megabytes


@dataclass(frozen=True, kw_only=True)
class PoolNodes:
    """The nodes of a pool; if they are unknown, `notice` says why."""

    nodes: tuple[Machine, ...] = ()
    notice: str = ""

    @property
    def price(self) -> float:
        """The sum of the nodes' prices in USD per hour; unknown prices are left out."""
        return sum(node.price or 0.0 for node in self.nodes)


class NodeReader:
    """Reader of the nodes that the collector lists, with a cache for all pages."""

    def __init__(self) -> None:
        self._looked = float("-inf")
        self._found = PoolNodes()
        self._lock = threading.Lock()

    def read(self) -> PoolNodes:
        """Return the nodes as they were at most `_LOOK_EVERY` seconds ago."""
        with self._lock:
            if time.monotonic() - self._looked >= _LOOK_EVERY:
                try:
                    self._found = PoolNodes(nodes=read_machines())
                except PoolError as error:
                    self._found = PoolNodes(notice=str(error))
                self._looked = time.monotonic()
            return self._found
