"""A region's study in memory, with the calls that most tests make."""

from __future__ import annotations

import os
from typing import Any

from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial

from trialfleet.optimizer.region_study import RegionStudy
from trialfleet.optimizer.region_types import (
    Assignment,
    Complete,
    RegionSettings,
)
from trialfleet.optimizer.space import SearchSpace
from trialfleet.optimizer.storage_transactions import TrialStorage

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch is imported later: as in the service

ENTRIES: dict[str, Any] = {
    "rate": {"type": "float", "low": 1e-5, "high": 1, "log": True},
    "kind": {"type": "categorical", "choices": ["sgd", "adam"]},
    "momentum": {"type": "float", "low": 0, "high": 0.9, "when": {"kind": ["sgd"]}},
    "flag": {"type": "categorical", "choices": [True, False]},
    "units": {"type": "int", "low": 8, "high": 64, "step": 8},
    "epochs": 10,
}
SPACE = SearchSpace.model_validate(ENTRIES)
NAME = "flights/2026-11-20T10-00-00/JFK"


def in_memory() -> TrialStorage:
    return TrialStorage("sqlite://")


def settings(**more: Any) -> RegionSettings:
    given: dict[str, Any] = {"region": "A", "trials": 20, "startup_trials": 20, "max_failures": 3}
    given |= {"hours": None, "seed": 5}
    return RegionSettings(metric="loss", direction="minimize", **{**given, **more})


def make(storage: TrialStorage | None = None, **more: Any) -> RegionStudy:
    return RegionStudy(storage or in_memory(), NAME, SPACE, settings(**more))


def asked(study: RegionStudy, node: str) -> Assignment:
    answer = study.ask(node)
    assert isinstance(answer, Assignment), answer
    return answer


def complete(study: RegionStudy, node: str, loss: float, **more: Any) -> None:
    result = Complete(metrics={"loss": loss, "other": 2.0}, seconds=1.5, device="NVIDIA A100")
    ran: Any = {"attempts": 1} | more
    study.tell(node, result, **ran)


def stored(storage: BaseStorage) -> list[FrozenTrial]:
    return storage.get_all_trials(storage.get_study_id_from_name(NAME))
