"""Tests of the bench of early stopping during optimization."""

from __future__ import annotations

import pytest

from tests.bench.optimizer.pool import Results
from tests.bench.optimizer.stopped_tuning import KINDS, opened, recorded_as, tuned
from trialfleet.optimizer.stopping.rule import Decision

REGION = "JFK-03"
TRIALS = 14


@pytest.mark.slow
def test_all_epochs_are_trained_without_stopping_and_few_by_the_1_epoch_rule() -> None:
    assert tuned("flights", REGION, "never", TRIALS).epochs == 1
    expected = (TRIALS + 3 * 11) / (TRIALS * 12)  # one of all, eleven more of three
    assert tuned("flights", REGION, "1-Epoch", TRIALS).epochs == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["predicted", "worst"])
def test_stopping_saves_epochs_and_is_reproducible(way: str) -> None:
    first, again = (tuned("power", REGION, way, TRIALS) for _ in range(2))
    assert first == again
    assert first.epochs < 0.9
    assert first.regret >= 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"flights"}))
def test_synthetic_curves_end_near_the_real_results(kind: str) -> None:
    _, real = opened("flights", REGION)
    pool, table = opened(kind, REGION)
    assert table.curves.shape[0] == len(pool.settings) == len(real.results)
    assert (table.curves[:, 0] > table.results).mean() > 0.9  # falling curves
    spread = real.results.std()
    assert abs(table.results - real.results).max() < spread


@pytest.mark.parametrize(
    ("way", "value"), [("predicted", 64.6), ("reached", 52.9), ("reported", 52.9), ("worst", 90.0)]
)
def test_each_way_records_its_own_value_for_a_stopped_trial(way: str, value: float) -> None:
    decision = Decision(step=1, max_steps=9, loss=64.6, deviation=16, chance=0.01, best=16.5)
    results = Results(asked=[0, 1], losses={0: 16.5, 1: 90.0})
    assert recorded_as(way, decision, 52.9, results) == value
