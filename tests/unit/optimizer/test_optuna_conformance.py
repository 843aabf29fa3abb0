"""Optuna's own tests of samplers and storages, run with ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from optuna.samplers import BaseSampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    RelativeSamplerTestCase,
    SingleOnlySamplerTestCase,
)
from optuna.testing.pytest_storages import StorageTestCase

from tests.unit.optimizer.conftest import Opener
from trialfleet.optimizer import RegionSampler
from trialfleet.optimizer.storage_transactions import TrialStorage

pytestmark = pytest.mark.thorough


class TestRegionSampler(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return lambda: RegionSampler(n_startup_trials=0)


class TestSqliteStorage(StorageTestCase):
    @pytest.fixture
    def storage(self, opened: Opener, tmp_path: Path) -> TrialStorage:
        return opened(f"sqlite:///{tmp_path / 'study.db'}")
