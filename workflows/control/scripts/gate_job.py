"""The gate's job, which measures the new and the current model; and the gate's verdict.

A job measures both models on the same rows. If this job fails, the current model stays current, and
the region continues. The DAG node `publish` computes the verdict, because the 10,000 resamples that
this needs would delay the optimiser's service. `rules/gate_decision.py` has the rule.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trialfleet import untrusted_files
from trialfleet.errors import InputError
from trialfleet.files import write_json
from trialfleet.nodes.job.pack_and_unpack import UnsendableError, pack
from trialfleet.objective import is_number
from trialfleet.optimizer.budget_and_deadline_rules import Facts, refusal
from trialfleet.optimizer.region_types import Failed, OutOfMoney
from trialfleet.optimizer.service_client import FULL
from trialfleet.sections import parse_bytes
from trialfleet.workflows.cleaning import is_finite
from trialfleet.workflows.control.models.publication import check_model
from trialfleet.workflows.control.plan.trial_json_and_submit_file import TrialFiles, TrialOrder
from trialfleet.workflows.facts.jobs.agent_messages import MessageId
from trialfleet.workflows.facts.jobs.ordered_trial import end_place, in_lane
from trialfleet.workflows.facts.models.card import read_model_verdict
from trialfleet.workflows.facts.models.folders import (
    find_champion,
    read_provenance,
    region_models_folder,
)
from trialfleet.workflows.facts.models.verdict import (
    BASELINE,
    CHALLENGER,
    CHAMPION,
    ComparedModel,
    Verdict,
    read_verdict,
)
from trialfleet.workflows.facts.record_shapes import FullTrainingRecord
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder, TrialFolder
from trialfleet.workflows.facts.runs.failed_attempts import find_log, log_hint
from trialfleet.workflows.facts.runs.spending import read_out_of_money
from trialfleet.workflows.rules.gate_decision import SEEN, Losses, Measurement, decide, gate_rule
from trialfleet.workflows.status.attempts.outcome import (
    WrongResultError,
    finite_metrics,
    load_result,
    one_line,
    read_outcome,
    settle_attempt,
    wrong_type,
)
from trialfleet.workflows.study.frozen import FrozenStudy

MEASURED = "already measured, before its script was interrupted"
_MOST_IN_LANE = 64 << 20  # bytes of both models, because the service itself packs them
_UNKNOWN_END = 1  # an exit code for a job whose end is unknown
_UNKNOWN_MODE = (
    "its result has no models: the trainer doesn't know the mode evaluate (docs/gate.md)"
)


def prepare(
    frozen: FrozenStudy,
    folder: RunFolder,
    slug: str,
    node: str,
    lane: tuple[str, MessageId] | None = None,
) -> str | None:
    """Let a job measure the new and the current model; return None, or why no job does it.

    Without `lane`, write the files of a separate job. With `lane`, order a running job of a lane to
    measure. `lane` has the lane's DAG node, and the id of the message in
    which the lane's agent asked for work.

    Instead, write the verdict if the region has no current model, if the budget is spent, or if a
    model can't be used. OSError if the disk is full.
    """
    files, study = folder.region(slug), frozen.study
    if files.published.exists() or files.verdict.exists():
        return "already decided"
    try:
        models_folder = region_models_folder(study, slug)
        if read_provenance(models_folder / frozen.run).get("run") == frozen.run:
            return "already published"
        champion = find_champion(models_folder, study.name)
        if champion is None:
            why = "this study had no current model"
            return _keep_or_promote(frozen, files, why, promoted=True)
        if refused := refusal("gate", Facts(out_of_money=read_out_of_money(folder))):
            why = f"not measured: {refused.reason}"
            return _keep_or_promote(frozen, files, why, champion=champion.name)
        check_model(files.best.model)
        is_same = _measured_champion(files) == champion.name
        place = end_place(files, files.gate)
        if is_same and outcome_of_measurement(frozen, place, _UNKNOWN_END) is None:
            return MEASURED
        order = _copy_models(files, node, champion)
        if lane:
            return _hand_out(frozen, folder, files, order, *lane)
        untrusted_files.remove(files.gate.by_lane)
        TrialFiles(frozen.run, frozen.study, folder, files.gate, order).write()
    except (InputError, OSError) as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        return _keep_or_promote(frozen, files, f"the models can't be measured: {error}")
    return None


def _copy_models(files: RegionFolder, node: str, champion: Path) -> TrialOrder:
    trained = untrusted_files.read_record(
        files.best.trial_json, "region", "trial", shape=FullTrainingRecord
    )
    place = files.gate
    order = TrialOrder(
        region=trained["region"],
        node=node,
        trial=trained["trial"],
        mode="evaluate",
        seed=trained["seed"],
        params=trained["params"],
        models={CHAMPION: place.champion.name, CHALLENGER: place.challenger.name},
    )
    for model, to in ((champion, place.champion), (files.best.model, place.challenger)):
        untrusted_files.make_empty(to)
        untrusted_files.copy_tree(model, to, untrusted_files.share)
    return order


def _hand_out(
    frozen: FrozenStudy,
    folder: RunFolder,
    files: RegionFolder,
    order: TrialOrder,
    lane: str,
    turn: MessageId,
) -> str | None:
    """Send both models and the order to a lane's job. Return None, or why this is impossible."""
    place, models = in_lane(files, files.gate, lane), bytearray()
    try:
        pack(order.models.values(), place.root, models.extend, _MOST_IN_LANE)
    except UnsendableError as error:
        return f"its models can't be sent to a lane's job: {error}"
    write_json(place.by_lane, {"node": lane})
    untrusted_files.write(place.given, bytes(models), root=place.node_root)
    TrialFiles(frozen.run, frozen.study, folder, place, order).hand_out(turn)
    return None


def outcome_of_measurement(
    frozen: FrozenStudy, place: TrialFolder, return_code: int
) -> Failed | OutOfMoney | None:
    """Return the error of the gate's job; None if the job measured both models.

    `return_code` is the job's exit code if neither files nor log tell how the job ended.
    """
    code = settle_attempt(place, return_code, parse_bytes(frozen.study.resources.disk))
    if code != 0:
        outcome = read_outcome(place, code, frozen.study.objective.metric, frozen.places)
        assert isinstance(outcome, Failed | OutOfMoney), "a job that failed isn't complete"
        return outcome
    try:
        _models(place, gate_rule(frozen.study).metric)
    except ValueError as error:
        return Failed(error=one_line(error), final=isinstance(error, WrongResultError))
    return None


def keep(frozen: FrozenStudy, files: RegionFolder, outcome: Failed | OutOfMoney) -> str:
    """Decide that the current model stays, because the gate's job failed. Return the reason."""
    champion = _measured_champion(files)
    why = f"the gate's job failed: {outcome.error}{log_hint(find_log(files.gate))}"
    return _keep_or_promote(frozen, files, why, champion=champion)


def verdict(frozen: FrozenStudy, files: RegionFolder, slug: str) -> Verdict | None:
    """Return the gate's verdict on a region's model, and store it; None if there is no gate.

    Later calls return the same verdict. InputError if the folder of the region's models, or its
    parent, is itself a published model. OSError if the verdict can't be written.
    """
    if frozen.study.gate is None:
        return None
    if files.verdict.exists():
        return read_verdict(files.verdict)
    # a killed publication may have left the verdict in the published model
    published = read_model_verdict(region_models_folder(frozen.study, slug) / frozen.run)
    found = published or _decide(frozen, files)
    write_json(files.verdict, found.to_json())
    return found


def _decide(frozen: FrozenStudy, files: RegionFolder) -> Verdict:
    champion = _measured_champion(files)
    try:
        found = read_measurements(files.gate)
    except ValueError as error:
        why = f"the result of the gate's job can't be used: {error}"
        return _unmeasured_verdict(frozen, why, champion=champion)
    assert champion is not None, "a job that measured two models was given two"
    rule = gate_rule(frozen.study)
    return decide(rule, found, champion=champion, challenger=frozen.run)


def _measured_champion(files: RegionFolder) -> str | None:
    run = read_provenance(files.gate.champion).get("run")
    return None if run is None else str(run)


def _keep_or_promote(frozen: FrozenStudy, files: RegionFolder, why: str, **more: Any) -> str:
    """Store a verdict without a comparison; return its reason. See `_unmeasured_verdict`."""
    found = _unmeasured_verdict(frozen, why, **more)
    write_json(files.verdict, found.to_json())
    return found.why


def _unmeasured_verdict(
    frozen: FrozenStudy, why: str, *, champion: str | None = None, promoted: bool = False
) -> Verdict:
    """Return a verdict without a comparison, for the reason `why`.

    With `promoted`, the new model passes the gate. `champion` is the run of the current model.
    """
    return Verdict(
        verdict="promoted" if promoted else "kept",
        why=one_line(why),
        metric=gate_rule(frozen.study).metric,
        champion=ComparedModel(run=champion) if champion else None,
        challenger=ComparedModel(run=frozen.run),
        baseline=None,
        interval=None,
    )


# The job's result


def read_measurements(place: TrialFolder) -> dict[str, Measurement]:
    """Return the models' measurements by role, such as "champion" for the current model.

    ValueError if result.json or a file with the rows' losses can't be used. OSError if a file can't
    be read.
    """
    return {
        name: Measurement(
            metrics=finite_metrics(entry["metrics"]),
            not_finite={
                metric: one_line(value)
                for metric, value in entry["metrics"].items()
                if is_number(value) and not is_finite(value)
            },
            losses=_losses(place, f"{name}.txt"),
            note=one_line(entry.get("note") or ""),
        )
        for name, entry in _models(place).items()
    }


def _models(place: TrialFolder, decisive: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the models' entries in result.json. ValueError if the entries can't be used.

    If `decisive` is given, each model must have a number for this metric.
    """
    result = load_result(place.result)
    if result.get("status") != "complete":
        raise WrongResultError(result.get("error") or "result.json must have status 'complete'")
    models: Any = result.get("models")
    if not isinstance(models, dict):
        raise WrongResultError(_UNKNOWN_MODE)
    known = [name for name in (CHAMPION, CHALLENGER, BASELINE, *SEEN.values()) if name in models]
    for name in (CHAMPION, CHALLENGER, *known):
        entry = models.get(name)
        if not isinstance(entry, dict) or not isinstance(entry.get("metrics"), dict):
            raise WrongResultError(f'result.json has no metrics of the {name} in "models"')
        if decisive and (wrong := wrong_type(entry["metrics"], decisive)):
            raise WrongResultError(f"the {name}'s metric {wrong}")
    return {name: models[name] for name in known}


def _losses(place: TrialFolder, name: str) -> Losses | None:
    try:
        text = untrusted_files.read_bytes(
            place.losses / name, untrusted_files.MOST_LOSSES, place.root
        )
        losses = np.array(text.decode().split(), dtype=np.float64)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ValueError(f"losses/{name} must have one number per line: {error}") from error
    if not np.isfinite(losses).all():
        row = int(np.flatnonzero(~np.isfinite(losses))[0])
        raise ValueError(f"losses/{name}: line {row + 1} is {losses[row]}, not a finite number")
    return losses
