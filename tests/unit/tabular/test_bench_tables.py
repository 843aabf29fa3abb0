"""The benchmark on tables: small forms of it, and what keeps its comparison fair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.bench.tables import ways
from tests.bench.tables.__main__ import table_of
from tests.bench.tables.sets import File, late, narrow, spelt
from trialfleet.nodes.tabular.table import VALIDATION

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
SETTING = ways.Setting(
    seed=1,
    learning_rate=0.01,
    hidden=32,
    layers=2,
    batch_size=128,
    weight_decay=1e-4,
    leaves=16,
)


@pytest.mark.parametrize("make", [late, narrow, spelt])
def test_ours_is_not_much_worse_than_scikit_learns_network(
    make: Callable[[], File], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "EPOCHS", 12)
    source = table_of(make(), tmp_path)
    ours, scikit, constant = (
        ways.WAYS[way](source, SETTING, tmp_path).test for way in ("ours", "scikit", "constant")
    )
    assert ours < 1.25 * scikit
    assert ours < 0.7 * constant


def test_all_ways_try_the_same_settings_and_the_validation_rows_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [*ways.settings(3, 1)] == [*ways.settings(5, 1)][:3]
    source = table_of(narrow(), tmp_path)
    tried = iter([ways.Errors(2.0, 1.0), ways.Errors(1.0, 3.0), ways.Errors(3.0, 2.0)])
    monkeypatch.setitem(ways.WAYS, "ours", lambda *_: next(tried))
    assert ways.best_of("ours", source, ways.settings(3, 1), tmp_path).test == 3.0
    perfect = source.target.astype(np.float64)
    assert ways.error_of(source, perfect, VALIDATION) == 0
