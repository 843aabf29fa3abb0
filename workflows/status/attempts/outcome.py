"""The outcome of an attempt (metrics or an error), from its exit code, result.json or hold."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trialfleet import untrusted_files
from trialfleet.errors import InputError
from trialfleet.infra.fleet.spec.limits import NO_MONEY
from trialfleet.nodes.job.agent import EXIT_MACHINE_FAULT
from trialfleet.nodes.trial import EXIT_REJECTED
from trialfleet.objective import is_number
from trialfleet.optimizer.region_types import Complete, Failed, OutOfMoney, StoppedEarly
from trialfleet.workflows.cleaning import amount, clean, is_finite
from trialfleet.workflows.facts.jobs.agent_messages import read_ended, read_order
from trialfleet.workflows.facts.jobs.executions import read_events, submissions
from trialfleet.workflows.facts.jobs.job_log import first_failure
from trialfleet.workflows.facts.jobs.unpacking import unpack_result
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, TrialFolder
from trialfleet.workflows.rules import resource_limits
from trialfleet.workflows.rules.gang_decision import MACHINE_FAULT
from trialfleet.workflows.rules.jobs_without_progress import EVICTED, STUCK
from trialfleet.workflows.status.attempts import blame_and_retries

# Exit codes of a shell, also that of RUN/agent, if a command can't be executed or isn't found.
EXITS_NO_COMMAND = frozenset({126, 127})

# DAGMan's exit codes for jobs without one.
JOB_UNSUBMITTED, JOB_REMOVED, NO_JOB = -1001, -1002, -1004

_BY_SUBMIT_FILE = "The job attribute PeriodicRemove"  # the beginning of HTCondor's reason
_BY_USER = re.compile(r" \(by user [^()]*\)$")  # HTCondor's addition to a removal's reason
_TAIL = 300  # stored characters of an error
_LAST_BYTES = 8192  # of standard error that are read
_MOST_METRICS = 1_000  # of a result, or of a model in it: each is stored, shown and compared
_LONGEST_NAME = 100  # characters of a metric's name
_SHOWN = 40  # characters of a value that isn't a number


def settle_attempt(place: TrialFolder, return_code: int, max_bytes: float = math.inf) -> int:
    """Move an attempt's files into the trial's folder, and return the attempt's exit code.

    If neither the files nor the job's log show how the attempt ended, return `return_code`, which
    is from DAGMan or the agent. If the files are damaged, or have more than `max_bytes` in total,
    the trial gets a failed result with the reason. Raises OSError, for example if the disk is full.
    """
    unpack_result(place, place.left, max_bytes)
    if ended := read_ended(place):
        return ended.code
    # For a gang, DAGMan may report a job that was removed because another had failed.
    return first_failure(place.log) or return_code


def read_outcome(
    folder: TrialFolder, return_code: int, metric: str, places: Mapping[str, str]
) -> Complete | Failed | OutOfMoney:
    """Return the outcome of an ended job. A result must have the objective's `metric`.

    `return_code` is as DAGMan gives it to a POST script: an exit code, a negated signal number, or
    a number below -999 for a job that did not exit. For error messages, `places` has the
    `FILE:LINE` of keys such as `resources.memory` in the study file.
    """
    ended = read_ended(folder)
    if ended and ended.over:
        has_result = isinstance(_outcome_of_result(folder.result, metric), Complete)
        order = read_order(folder)
        error = resource_limits.over_by_agent(ended, order, places, has_result=has_result)
        return Failed(error=error, final=True)
    if return_code == 0:
        return _outcome_of_result(folder.result, metric)
    if return_code == EXIT_REJECTED:
        return Failed(error=_own_words(folder) or "these parameters can't be trained", final=True)
    if return_code < -999:
        return _outcome_of_removed(folder.log, places)
    if return_code == EXIT_MACHINE_FAULT and ended is None:  # the agent's exit code
        return _outcome_of_machine_fault(folder.agent_log)
    how = f"signal {-return_code}" if return_code < 0 else f"exit code {return_code}"
    words = _own_words(folder)
    never_began = return_code in EXITS_NO_COMMAND
    error = f"{how}: {words}" if words else how
    by_machine = not never_began and blame_and_retries.blames_machine(words)
    return Failed(error=error, final=never_began, never_began=never_began, by_machine=by_machine)


def _outcome_of_machine_fault(agent_log: Path) -> Failed:
    words = last_line(agent_log).removeprefix("trialfleet: ")
    error = f"exit code {EXIT_MACHINE_FAULT}: the machine has a fault"
    error = f"{error}: {words}" if words else error
    return Failed(error=error, final=False, by_machine=True)


def early_stop(folder: TrialFolder, metric: str) -> StoppedEarly | None:
    """Return the outcome of a trial that was ordered to stop early, or None without an order."""
    order = read_stop(folder)
    if order is None:
        return None
    try:
        result = load_result(folder.result)
    except ValueError:
        result = {"metrics": {}}
    return StoppedEarly(order=order, **_result_numbers(result, metric))


def read_stop(folder: TrialFolder) -> dict[str, Any] | None:
    """Return the order to stop a trial early, or None if there is no valid order."""
    try:
        order = untrusted_files.parse_json(
            untrusted_files.read_bytes(folder.stop, untrusted_files.MOST_ORDER) or b"null"
        )
    except (OSError, ValueError):
        return None
    usable = isinstance(order, dict) and is_finite(order.get("predicted"))
    return order if usable and order.get("trial", folder.root.name) == folder.root.name else None


class WrongResultError(ValueError):
    """A trainer's result can't be used, and another attempt would give the same result."""


class _NoResultError(WrongResultError):
    """result.json is valid JSON, but is not an object, or its "metrics" are not an object."""


def _outcome_of_result(path: Path, metric: str) -> Complete | Failed:
    try:
        result = load_result(path)
    except _NoResultError as error:
        return Failed(error=one_line(f"{error}; {_expected_shape(metric)}"), final=True)
    except ValueError as error:
        return Failed(error=one_line(error), final=isinstance(error, WrongResultError))
    if result.get("status") != "complete":
        reason = one_line(result.get("error") or "") or one_line(_incomplete_reason(result, metric))
        return Failed(error=reason, final=True)
    given = result["metrics"]
    if not is_finite(given.get(metric)):
        return Failed(error=one_line(_missing_objective_reason(result, metric)), final=True)
    return Complete(**_result_numbers(result, metric))


def _result_numbers(result: dict[str, Any], metric: str) -> dict[str, Any]:
    return {
        "metrics": finite_metrics(result["metrics"], metric),
        "seconds": amount(result.get("seconds")),
        "device": one_line(result["device"]) if result.get("device") else None,
    }


def load_result(path: Path) -> dict[str, Any]:
    """Return a trial's result, in which "metrics" is a dict.

    ValueError if the file is missing, empty or unreadable. WrongResultError if its content can't be
    used.
    """
    try:
        text = untrusted_files.read_bytes(path, untrusted_files.MOST_RESULT)
    except FileNotFoundError:
        raise ValueError("result.json is missing") from None
    except untrusted_files.JobFileError as error:
        raise WrongResultError(str(error)) from error
    except OSError as error:
        raise ValueError(f"result.json can't be read: {error}") from error
    if not text.strip():
        raise ValueError("the trainer exited without writing result.json")
    shown = text[:80].decode(errors="replace")
    try:
        result = untrusted_files.parse_json(text)
    except ValueError as error:
        raise WrongResultError(f"result.json is not JSON ({error}): {shown}") from error
    usable = isinstance(result, dict) and isinstance(result.get("metrics", {}), dict)
    if not usable:
        raise _NoResultError(f"result.json has the wrong form: {shown}")
    _check_count(result)
    return {"metrics": {}, **result}


def _check_count(result: dict[str, Any]) -> None:
    models = result.get("models")
    of_models = models.values() if isinstance(models, dict) else ()
    for part in (result, *(one for one in of_models if isinstance(one, dict))):
        metrics = part.get("metrics")
        if isinstance(metrics, dict) and len(metrics) > _MOST_METRICS:
            raise WrongResultError(
                f"result.json has {len(metrics):,} metrics; the maximum is {_MOST_METRICS:,}"
            )


def _expected_shape(metric: str) -> str:
    return f'result.json must be like {{"status": "complete", "metrics": {{"{metric}": 0.5}}}}'


def _misplaced_metric_text(result: dict[str, Any], metric: str) -> str:
    found = is_finite(result.get(metric)) and metric not in result["metrics"]
    return f', and {metric!r} is beside "metrics" instead of in it' if found else ""


def _incomplete_reason(result: dict[str, Any], metric: str) -> str:
    status = result.get("status")
    shown = repr(status) if isinstance(status, str) else one_line(status)
    has = f"has status {shown}" if "status" in result else "has no status"
    return f"result.json {has}{_misplaced_metric_text(result, metric)}; {_expected_shape(metric)}"


def _missing_objective_reason(result: dict[str, Any], metric: str) -> str:
    given = result["metrics"]
    value = given.get(metric)
    if is_number(value):
        return f"{metric} is {one_line(value)}"
    if wrong := wrong_type(given, metric) or wrong_type(result, metric):
        return f"the result's {wrong}; {_expected_shape(metric)}"
    there = ", ".join(sorted(finite_metrics(given))) or "none"
    others = next((wrong for name in given if (wrong := wrong_type(given, name))), "")
    beside = _misplaced_metric_text(result, metric)
    hint = f"{beside}; {_expected_shape(metric)}" if beside else f"; {others}" if others else ""
    return f"the result has no number {metric!r}; it has: {there}{hint}"


def wrong_type(given: Mapping[str, Any], metric: str) -> str:
    """Describe the type and value of a metric that is not a number.

    Return "" if it is a number or missing. `given` has the metrics' values by name.
    """
    value = given.get(metric)
    if metric not in given or is_number(value):
        return ""
    if value is None:
        return f"{one_line(metric)!r} is null"
    kind = {str: "text", bool: "true or false", list: "a list"}.get(type(value), "an object")
    shown = repr(one_line(value)[:_SHOWN]) if kind == "text" else one_line(value)[:_SHOWN]
    return f"{one_line(metric)!r} is {kind}: {shown}"


def finite_metrics(given: dict[str, Any], objective: str | None = None) -> dict[str, float]:
    """Return the finite metrics, by name.

    All names except the objective's are cleaned for display. Metrics with an empty name, or with a
    name of more than 100 characters, are left out.
    """
    metrics = {}
    for name, value in given.items():
        key = name if name == objective else one_line(name)
        if not is_finite(value) or not key or len(name) > _LONGEST_NAME:
            continue
        if name == objective or key != objective:
            metrics[key] = float(value)
    return metrics


def reported_metrics(place: TrialFolder) -> dict[str, float]:
    """Return the finite metrics of a trial or full training, or {} without a valid result."""
    try:
        return finite_metrics(load_result(place.result)["metrics"])
    except ValueError:
        return {}


def final_metrics(files: RegionFolder) -> dict[str, float] | None:
    """Return the full training's metrics, or None before the region's model is published.

    Raises InputError if the result of the full training is missing or damaged.
    """
    if not files.published.exists():
        return None
    try:
        return finite_metrics(load_result(files.best.result)["metrics"])
    except ValueError as error:
        raise InputError(f"{str(files.best.result)!r} is damaged: {error}") from error


def one_line(value: Any) -> str:
    """Return the beginning of `value` as one line of text that can be shown and stored."""
    return _clean(value)[:_TAIL]


def _clean(value: Any) -> str:
    try:
        text = str(value)
    except RecursionError:
        text = f"a deeply nested {type(value).__name__}"
    return " ".join(str(clean(text)).split())


def _own_words(folder: TrialFolder) -> str:
    try:
        error = load_result(folder.result).get("error")
    except ValueError:
        error = None
    return one_line(error or "") or last_line(folder.err)


def last_line(path: Path) -> str:
    """Return the last non-blank line of a file, cleaned and shortened, or "" if there is none."""
    tail, _ = untrusted_files.tail(path, _LAST_BYTES)
    for line in reversed(tail.decode(errors="replace").splitlines()):
        if words := _clean(line):
            return words[-_TAIL:]
    return ""


def _outcome_of_removed(log: Path, places: Mapping[str, str]) -> Failed | OutOfMoney:
    hold, removal, evictions = "", "", 0
    code: int | None = None
    for event in submissions(read_events(log))[-1]:
        match event.kind:
            case "JOB_RELEASED":  # earlier events no longer count
                hold, code, removal = "", None, ""
            case "JOB_HELD":
                hold, code = str(event.get("HoldReason") or ""), event.get("HoldReasonCode")
            case "JOB_ABORTED":
                removal = str(event.get("Reason") or "")
            case "JOB_EVICTED":
                evictions += 1
    if NO_MONEY in removal:
        words = removal[removal.index(NO_MONEY) :]
        return OutOfMoney(error=one_line(_BY_USER.sub("", words)))
    if words := _got_nowhere(removal, 0 if hold else evictions):
        return Failed(error=one_line(words), final=False, got_nowhere=True)
    words = one_line(resource_limits.over_limit(code, hold, places) or removal)
    by_machine = MACHINE_FAULT in removal or (
        code is not None and blame_and_retries.in_hold(code, hold)
    )
    is_final = code in resource_limits.CODES
    return Failed(error=words or "the job was removed", final=is_final, by_machine=by_machine)


def _got_nowhere(removal: str, evictions: int) -> str:
    """Return why a job was removed for lack of progress, or "" if it was not.

    `removal` is the reason in the job's log. A removal by the submit file (PeriodicRemove) means
    lack of progress only if the job had `evictions`.
    """
    for beginning in (f"{EVICTED}: ", f"{STUCK}: "):
        if beginning in removal:
            return _BY_USER.sub("", removal[removal.index(beginning) :])
    is_bound = _BY_SUBMIT_FILE in removal and evictions
    return f"{EVICTED}: {evictions} time(s), soon after each start" if is_bound else ""
