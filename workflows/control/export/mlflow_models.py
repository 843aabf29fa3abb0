"""A study's models in MLflow, with the alias `champion` for each region's current model.

For each model, an export creates an MLflow run in the study's experiment, and a version of the
registered model STUDY.REGION. The MLflow run has the tag `trialfleet.model` = STUDY/REGION/RUN.
Each item is looked up before it is created, so a killed or repeated export creates nothing twice.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trialfleet.errors import ExportError, TrialfleetError
from trialfleet.files import object_or_empty, read_json, write_json
from trialfleet.workflows.control.export.mlflow_trials import (
    STATUS,
    STOPPED,
    Point,
    known_trials,
    trial_points,
    trial_tags,
    trials_of_model,
)
from trialfleet.workflows.control.export.published_models import Published
from trialfleet.workflows.control.export.pyfunc_files import (
    build_schema,
    describe_pyfunc,
    write_pyfunc,
)
from trialfleet.workflows.control.export.s3_client import read_secret
from trialfleet.workflows.facts.models.card import data_identity, read_card
from trialfleet.workflows.facts.models.folders import read_provenance
from trialfleet.workflows.study.export import Keep, Mlflow

if TYPE_CHECKING:
    from mlflow import MlflowClient

ALIAS = "champion"
TAG = "trialfleet.model"
MODEL = "model"  # the folder among a run's artifacts
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
_LOGIN = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
_OF_ONE = {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST"}
_LONGEST = 500  # characters of a parameter's value that every MLflow accepts
_MOST_SHOWN = 300  # characters of an error's reason
_BATCH = 100  # parameters in a request
_DIGEST = 36  # characters of a data set's digest that MLflow accepts


def server_title(settings: Mlflow) -> str:
    """Return a name of the MLflow server for messages, without secrets."""
    parts = urlsplit(settings.uri)
    return f"mlflow {parts.hostname}:{parts.port}" if parts.port else f"mlflow {parts.hostname}"


class MlflowServer:
    """An MLflow server. Files in the folder `records` list the model versions created on it."""

    def __init__(self, settings: Mlflow, records: Path) -> None:
        """Read the settings and send no request. ExportError if mlflow or a secret is missing."""
        self.title = server_title(settings)
        self._settings, self._records = settings, records
        password = read_secret(settings.password_file, settings.password_env)
        login = (settings.user, password, read_secret(settings.token_file, settings.token_env))
        self._environment = _SETTINGS | {
            name: value for name, value in zip(_LOGIN, login, strict=True) if value
        }
        self._client = self._make_client()
        self._experiment: str | None = None

    def check(self) -> None:
        """Test the server and the login. ExportError if MLflow refuses or is unreachable."""
        with self._asking():
            self._client.search_experiments(max_results=1)

    def export(self, published: Published, keep: Keep | None) -> list[str]:  # noqa: ARG002
        """Add a region's new models and set the alias `champion`. Return a line for each change.

        `keep` is ignored, because MLflow has its own rules for retention. ExportError if MLflow
        refuses or is unreachable.
        """
        record = self._records / f"{published.region}.json"
        known = _read(record, self._settings.uri)
        name = f"{published.study}.{published.region}"
        lines = []
        with self._asking():
            for run, model in published.models.items():
                card = read_card(model) or read_provenance(model)
                if run in known or not card:  # `keep` has just removed it
                    continue
                known[run], note = self._add(published.study, name, published.region, model, card)
                record.parent.mkdir(exist_ok=True)
                write_json(record, {"uri": self._settings.uri, "versions": known})
                lines.append(f"{run}: version {known[run]} of {name}{note}")
            if published.champion and (now := known.get(published.champion.name)):
                lines += self._switch(name, now)
        return lines

    # -- a model -------------------------------------------------------------------------------

    def _add(
        self, study: str, name: str, region: str, model: Path, card: dict[str, Any]
    ) -> tuple[str, str]:
        """Add a model to MLflow, or the parts that an earlier export did not add.

        Return the model's version in MLflow, and a note. The note is "" unless the model's trials
        can't be read.
        """
        identity = f"{study}/{region}/{model.name}"
        experiment = self._get_experiment(study)
        found = self._client.search_runs([experiment], f"tags.`{TAG}` = '{identity}'")
        begun = _to_milliseconds(card.get("created")) or 0
        run = found[0] if found else self._create_run(experiment, identity, region, model, card)
        run_id = run.info.run_id
        points = [Point(key, value, begun / 1000, 0) for key, value in _metrics(card)]
        self._log(run_id, card["params"], points)
        self._log_data(run_id, model, card)
        self._log_files(run_id, model, card)
        version = self._version(name, run_id, f"{run.info.artifact_uri}/{MODEL}", card)
        note = self._add_trials(experiment, run_id, card) if self._settings.trials else ""
        self._client.set_terminated(run_id, "FINISHED")
        return version, note

    def _get_experiment(self, study: str) -> str:
        if self._experiment is None:
            wanted = self._settings.experiment or study
            found = self._client.get_experiment_by_name(wanted)
            self._experiment = (
                found.experiment_id if found else self._client.create_experiment(wanted)
            )
        return self._experiment

    def _create_run(
        self, experiment: str, identity: str, region: str, model: Path, card: dict[str, Any]
    ) -> Any:
        begun = _to_milliseconds(card.get("created"))
        gate, source = card.get("gate") or {}, card.get("source") or {}
        tags = {
            TAG: identity,
            "trialfleet.study": card.get("study"),
            "trialfleet.region": card.get("region"),
            "trialfleet.run": model.name,
            "trialfleet.date": card.get("date"),
            "trialfleet.trial": card.get("trial"),
            "trialfleet.seed": card.get("seed"),
            "trialfleet.gate": gate.get("verdict"),
            "trialfleet.why": gate.get("why"),
            "mlflow.source.name": source.get("file"),
            "mlflow.source.type": "LOCAL" if source else None,
            "mlflow.source.git.commit": source.get("commit"),
            "trialfleet.git.dirty": source.get("dirty"),
            **{f"version.{key}": value for key, value in (card.get("versions") or {}).items()},
            **{
                f"data.{number}": f"{entry.get('path') or entry.get('url')} {data_identity(entry)}"
                for number, entry in enumerate(card.get("data") or [])
            },
        }
        name = f"{region} {model.name}"
        return self._client.create_run(
            experiment, start_time=begun, tags=_texts(tags), run_name=name
        )

    def _log(self, run_id: str, params: Mapping[str, object], points: Iterable[Point]) -> None:
        """Log parameters and metrics of an MLflow run. Repeated calls do no harm."""
        from mlflow.entities import Metric, Param

        named = [Param(_key(key), _value(value)) for key, value in params.items()]
        metrics = [
            Metric(_key(each.name), each.value, int(each.time * 1000), each.step) for each in points
        ]
        for kind, entries in (("params", named), ("metrics", metrics)):
            for start in range(0, len(entries), _BATCH):
                self._client.log_batch(run_id, **{kind: entries[start : start + _BATCH]})

    def _log_data(self, run_id: str, model: Path, card: Mapping[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        schema = build_schema(model)
        training = [InputTag("mlflow.data.context", "training")]
        inputs = []
        for entry in card.get("data") or []:
            place = str(entry.get("path") or entry.get("url"))
            kind = "s3" if place.startswith("s3://") else "local" if "path" in entry else "http"
            inputs.append(
                DatasetInput(
                    Dataset(
                        name=place.rpartition("/")[2][-_LONGEST:] or place[-_LONGEST:],
                        digest=data_identity(entry)[:_DIGEST],
                        source_type=kind,
                        source=json.dumps({"url" if kind == "http" else "uri": place}),
                        schema=schema and json.dumps(schema),
                    ),
                    training,
                )
            )
        if inputs:
            self._client.log_inputs(run_id, inputs)

    def _add_trials(self, experiment: str, parent: str, card: Mapping[str, Any]) -> str:
        """Create or complete the trials' MLflow runs. Return a note if this is impossible."""
        try:
            metric, trials = trials_of_model(card)
        except TrialfleetError as error:
            return f", without its trials: {error}"
        known = known_trials(self._client, experiment, parent)
        for trial in trials:
            run = known.get(str(trial.trial))
            if run and run.info.status != "RUNNING":
                continue
            begun, ended = (
                moment and int(moment * 1000) for moment in (trial.started, trial.ended)
            )
            run = run or self._client.create_run(
                experiment,
                start_time=begun,
                tags=_texts(trial_tags(trial, parent)),
                run_name=f"trial {trial.trial}",
            )
            self._log(run.info.run_id, trial.params, trial_points(trial, metric))
            self._client.set_terminated(run.info.run_id, STATUS.get(trial.state, STOPPED), ended)
        return ""

    def _log_files(self, run_id: str, model: Path, card: Mapping[str, Any]) -> None:
        import mlflow

        self._client.log_artifacts(run_id, str(model), MODEL)
        if pyfunc := describe_pyfunc(model):
            of_mlflow = {"artifact_path": MODEL, "run_id": run_id}
            of_mlflow["mlflow_version"] = mlflow.__version__
            with tempfile.TemporaryDirectory() as folder:
                write_pyfunc(Path(folder), pyfunc, card, of_mlflow)
                self._client.log_artifacts(run_id, folder, MODEL)

    # -- the registry --------------------------------------------------------------------------

    def _version(self, name: str, run_id: str, source: str, card: Mapping[str, Any]) -> str:
        self._make_registered(name, card)
        of_run = [
            version
            for version in self._client.search_model_versions(f"run_id = '{run_id}'")
            if version.name == name
        ]
        if of_run:
            return str(min(int(version.version) for version in of_run))
        made = self._client.create_model_version(name, source, run_id)
        return str(made.version)

    def _make_registered(self, name: str, card: Mapping[str, Any]) -> None:
        from mlflow.exceptions import MlflowException

        tags = {"trialfleet.study": card.get("study"), "trialfleet.region": card.get("region")}
        try:
            self._client.create_registered_model(name, _texts(tags))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _switch(self, name: str, version: str) -> list[str]:
        registered = self._client.get_registered_model(name)
        if str(registered.aliases.get(ALIAS)) == version:
            return []
        self._client.set_registered_model_alias(name, ALIAS, version)
        return [f"{ALIAS} is version {version}"]

    # -- requests ------------------------------------------------------------------------------

    def _make_client(self) -> MlflowClient:
        try:
            with _environment(self._environment):
                from mlflow import MlflowClient
            logging.getLogger("mlflow").setLevel(logging.WARNING)
        except ImportError as error:
            raise ExportError(
                f"the export needs the package mlflow-skinny ({error}): install it with "
                "`pip install mlflow-skinny`"
            ) from None
        uri = self._settings.uri
        return MlflowClient(tracking_uri=uri, registry_uri=uri)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        import requests
        from mlflow.exceptions import MlflowException

        try:
            with _environment(self._environment):
                yield
        except (MlflowException, requests.RequestException) as error:
            code = getattr(error, "error_code", None)
            raise ExportError(self._error_text(error), is_of_all=code not in _OF_ONE) from error

    def _error_text(self, error: Exception) -> str:
        reason = " ".join(str(error).split())
        for name in _LOGIN:
            if secret := self._environment.get(name):
                reason = reason.replace(secret, "…")
        return f"{self.title}: {reason[:_MOST_SHOWN]}"


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set `variables` during the `with` block, and unset MLflow's other login variables."""
    previous = {name: os.environ.pop(name, None) for name in {*variables, *_LOGIN}}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in previous:
            os.environ.pop(name, None)
        os.environ.update({name: value for name, value in previous.items() if value is not None})


def _metrics(card: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    gate = card.get("gate") or {}
    sides = {f"gate.{side}.": gate.get(side) for side in ("champion", "challenger", "baseline")}
    for prefix, measured in {"": card, **sides}.items():
        for key, value in ((measured or {}).get("metrics") or {}).items():
            if isinstance(value, int | float):
                yield f"{prefix}{key}", float(value)


def _texts(tags: Mapping[str, object]) -> dict[str, str]:
    return {_key(key): _value(value) for key, value in tags.items() if value is not None}


def _key(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_\-. /]", "_", name)[:250] or "_"


def _value(value: object) -> str:
    return str(value)[:_LONGEST]


def _to_milliseconds(moment: str | None) -> int | None:
    try:
        return int(datetime.fromisoformat(moment or "").timestamp() * 1000)
    except ValueError:
        return None


def _read(record: Path, uri: str) -> dict[str, str]:
    """Return the MLflow versions in the file `record`, by the id of the model's run in trialfleet.

    Return {} if the file is about another server than `uri`.
    """
    found = object_or_empty(lambda: read_json(record))
    return object_or_empty(lambda: found["versions"]) if found.get("uri") == uri else {}
