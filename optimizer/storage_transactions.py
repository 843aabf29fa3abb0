"""Optuna's trial database, with one transaction for each new trial and one for each outcome.

Optuna itself writes each parameter and attribute with a separate statement, and each part of an
outcome in a separate transaction. With thousands of jobs, the optimiser's service would spend most
of its time on these statements.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy
from optuna.distributions import distribution_to_json
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial, TrialState


class TrialStorage(RDBStorage):
    """Optuna's storage with two faster methods, which write the same rows as Optuna.

    These methods may raise sqlalchemy.exc.SQLAlchemyError.
    """

    def begin(self, study_id: int, trial: FrozenTrial) -> FrozenTrial:
        """Store a new running trial, and return it numbered. KeyError if the study is missing."""
        trials = models.TrialModel.__table__
        times = models.TrialModel(datetime_start=trial.datetime_start)
        start = {"state": trial.state, "datetime_start": times._datetime_start_utc}
        before = sqlalchemy.select(sqlalchemy.func.count()).where(trials.c.study_id == study_id)
        study = sqlalchemy.select(models.StudyModel.study_id)
        study = study.where(models.StudyModel.study_id == study_id).with_for_update()
        with self.engine.begin() as connection:
            if connection.execute(study).one_or_none() is None:
                raise KeyError(f"study {study_id} does not exist")
            made = connection.execute(trials.insert(), {"study_id": study_id, **start})
            key: int = (made.inserted_primary_key or (0,))[0]
            number = connection.execute(before.where(trials.c.trial_id < key)).scalar_one()
            connection.execute(
                trials.update().where(trials.c.trial_id == key).values(number=number)
            )
            if params := _param_rows(key, trial):
                connection.execute(models.TrialParamModel.__table__.insert(), params)
            if trial.user_attrs:
                attributes = _attribute_rows(key, trial.user_attrs)
                connection.execute(models.TrialUserAttributeModel.__table__.insert(), attributes)
        begun = copy.copy(trial)
        begun._trial_id, begun.number = key, number
        begun.user_attrs = _json_round_trip(trial.user_attrs)
        return begun

    def finish(
        self,
        trial: FrozenTrial,
        state: TrialState,
        value: float | None,
        attributes: Mapping[str, Any],
        reports: Mapping[int, float],
    ) -> FrozenTrial:
        """Store the outcome of a running trial in one transaction. Return the trial as stored.

        The trial must have none of the `attributes` yet. `reports` are its intermediate values by
        step. UpdateFinishedTrialError if the trial is already finished.
        """
        key, ended = trial._trial_id, datetime.now()
        steps = models.TrialIntermediateValueModel.__table__
        row = models.TrialModel(datetime_complete=ended)
        change = (
            sqlalchemy.update(models.TrialModel.__table__)
            .where(models.TrialModel.trial_id == key, models.TrialModel.state == TrialState.RUNNING)
            .values(state=state, datetime_complete=row._datetime_complete_utc)
        )
        with self.engine.begin() as connection:
            if connection.execute(change).rowcount != 1:
                raise UpdateFinishedTrialError(f"trial {trial.number} is finished")
            if attributes:
                rows = _attribute_rows(key, attributes)
                connection.execute(models.TrialUserAttributeModel.__table__.insert(), rows)
            if reports:
                connection.execute(steps.insert(), _report_rows(key, reports))
            if value is not None:
                stored, kind = models.TrialValueModel.value_to_stored_repr(value)
                values = {"trial_id": key, "objective": 0, "value": stored, "value_type": kind}
                connection.execute(models.TrialValueModel.__table__.insert(), values)
        finished = copy.copy(trial)
        finished.state, finished.datetime_complete = state, ended
        finished.values = None if value is None else [value]
        finished.user_attrs = {**trial.user_attrs, **_json_round_trip(attributes)}
        finished.intermediate_values = dict(reports)
        return finished


def _json_round_trip(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: json.loads(json.dumps(value)) for name, value in attributes.items()}


def _param_rows(key: int, trial: FrozenTrial) -> list[dict[str, Any]]:
    return [
        {
            "trial_id": key,
            "param_name": name,
            "param_value": trial.distributions[name].to_internal_repr(value),
            "distribution_json": distribution_to_json(trial.distributions[name]),
        }
        for name, value in trial.params.items()
    ]


def _attribute_rows(trial: int, attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"trial_id": trial, "key": name, "value_json": json.dumps(value)}
        for name, value in attributes.items()
    ]


def _report_rows(trial: int, reports: Mapping[int, float]) -> list[dict[str, Any]]:
    rows = []
    for step, value in reports.items():
        stored, kind = models.TrialIntermediateValueModel.intermediate_value_to_stored_repr(value)
        one = {"intermediate_value": stored, "intermediate_value_type": kind}
        rows.append({"trial_id": trial, "step": step, **one})
    return rows
