"""Tests of the early-stopping bench: its measures, and the policy's results in it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench.optimizer.stopping import (
    EPOCHS,
    FAMILIES,
    ONE_EPOCH,
    RULES,
    Ours,
    Table,
    one_epoch,
    replayed,
    scores,
)
from trialfleet.optimizer.stopping.rule import Rule


def drawn(family: str, seed: int, trials: int = 20) -> Table:
    return FAMILIES[family](np.random.default_rng([seed, 1]), trials)


def test_a_rule_that_stops_no_trial_trains_all_epochs() -> None:
    table = drawn("power", 0)
    replay = replayed(table, Ours(table, Rule(startup_trials=1000)), lanes=4)
    assert sorted(replay.complete) == list(range(20))
    assert replay.epochs == 20 * EPOCHS


def test_the_1_epoch_rule_trains_one_epoch_of_all_and_all_epochs_of_three() -> None:
    table = drawn("power", 0)
    replay = one_epoch(table)
    assert replay.epochs == 20 + 3 * (EPOCHS - 1)
    assert set(replay.complete) == set(np.argsort(table.curves[:, 0])[:3].tolist())


@pytest.mark.slow
@pytest.mark.parametrize("family", ["power", "overfit"])
def test_our_policy_saves_40_percent_of_the_epochs_and_finds_a_near_best_trial(family: str) -> None:
    found = [scores(drawn(family, seed), lanes=4, rules=("ours",)) for seed in range(3)]
    assert np.mean([each["ours"].epochs for each in found]) < 0.6  # of 20 trials; 50 save more
    assert np.mean([each["ours"].regret for each in found]) < 0.05
    assert all(ONE_EPOCH in each for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_the_replay_of_each_rule_is_reproducible(name: str) -> None:
    table = drawn("crossing", 1, trials=12)
    first, again = (replayed(table, RULES[name](table), lanes=3) for _ in range(2))
    assert first == again
    assert first.epochs <= 12 * EPOCHS
    assert len(first.complete) >= 1
