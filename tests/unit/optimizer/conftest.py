"""Fixtures of the optimiser's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from trialfleet.optimizer.storage import close_storage, open_storage
from trialfleet.optimizer.storage_transactions import TrialStorage

Opener = Callable[[str], TrialStorage]


@pytest.fixture
def opened() -> Iterator[Opener]:
    """Return a function that opens storages; the test's end closes them."""
    with ExitStack() as stack:

        def open_(url: str) -> TrialStorage:
            storage = open_storage(url)
            stack.callback(close_storage, storage)
            return storage

        yield open_
