"""What became of an attempt at a trial: its exit, its result.json, its hold."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trialfleet.workflows.folder import TrialFolder

EXIT_UNTRAINABLE = 64  # the trainer says: these parameters can't be trained

# Holds that another attempt with the same parameters would meet again: a limit of the submit file
# (periodic_hold), memory, and the two time limits. HTCondor's manual, "Hold Reason Codes".
_LIMIT_HOLDS = frozenset({3, 34, 46, 47})
_TAIL = 300  # characters of an error that are worth keeping


@dataclass(frozen=True, kw_only=True)
class Complete:
    """The attempt succeeded."""

    metrics: dict[str, float]
    seconds: float | None
    device: str | None


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The attempt failed; `final` when another with the same parameters would fail too."""

    error: str
    final: bool


def judge(folder: TrialFolder, return_code: int, metric: str) -> Complete | Failed:
    """Return the outcome of a job that ended.

    Args:
        folder: the trial's folder, with what the job left.
        return_code: what DAGMan gives a POST script: the exit code, minus the signal's number, or
            a number below -999 for a job that was removed or could not be submitted.
        metric: the objective's metric, which a result must have.
    """
    if return_code == 0:
        return _judge_result(folder.result, metric)
    if return_code == EXIT_UNTRAINABLE:
        return Failed(error=_own_words(folder) or "these parameters can't be trained", final=True)
    if return_code < -999:
        return _judge_removed(folder.log)
    how = f"signal {-return_code}" if return_code < 0 else f"exit code {return_code}"
    said = _own_words(folder)
    return Failed(error=f"{how}: {said}" if said else how, final=False)


def _judge_result(path: Path, metric: str) -> Complete | Failed:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        return Failed(error=f"result.json can't be read: {error}", final=False)
    if not text.strip():
        return Failed(error="exited 0 without writing result.json", final=False)
    try:
        result = json.loads(text)
    except ValueError as error:
        return Failed(error=f"result.json is not JSON ({error}): {text[:80]!r}", final=False)
    return _judge_content(result, metric)


def _judge_content(result: Any, metric: str) -> Complete | Failed:
    if not isinstance(result, dict) or not isinstance(result.get("metrics", {}), dict):
        return Failed(error=f"result.json is no result: {json.dumps(result)[:80]}", final=False)
    if result.get("status") != "complete":
        said = result.get("error") or f"result.json has status {result.get('status')!r}"
        return Failed(error=str(said)[:_TAIL], final=True)
    metrics = {k: float(v) for k, v in result.get("metrics", {}).items() if _is_number(v)}
    if metric not in metrics:
        there = ", ".join(sorted(metrics)) or "none"
        return Failed(error=f"the result has no number {metric!r}; it has: {there}", final=True)
    if not math.isfinite(metrics[metric]):
        return Failed(error=f"{metric} is {metrics[metric]}", final=True)
    return Complete(
        metrics={k: v for k, v in metrics.items() if math.isfinite(v)},
        seconds=float(result["seconds"]) if _is_number(result.get("seconds")) else None,
        device=str(result["device"])[:_TAIL] if result.get("device") else None,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _own_words(folder: TrialFolder) -> str:
    """What the trainer said of its failure: in its result, or last on standard error."""
    try:
        result = json.loads(folder.result.read_text(encoding="utf-8"))
        if isinstance(result, dict) and result.get("error"):
            return str(result["error"])[:_TAIL]
    except (OSError, ValueError):
        pass
    return last_line(folder.err)


def last_line(path: Path) -> str:
    """Return the last line of a file that isn't blank, shortened; "" if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            tail = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    return lines[-1][-_TAIL:] if lines else ""


def _judge_removed(log: Path) -> Failed:
    """A removed job was held before, as the submit file removes it then; or a person removed it."""
    import htcondor2

    reason, code = "", None
    try:
        for event in htcondor2.JobEventLog(str(log)).events(stop_after=0):
            if event.type == htcondor2.JobEventType.SUBMIT:
                reason, code = "", None
            elif event.type == htcondor2.JobEventType.JOB_HELD:
                reason, code = str(event.get("HoldReason", "")), event.get("HoldReasonCode")
            elif event.type == htcondor2.JobEventType.JOB_ABORTED and not reason:
                reason = str(event.get("Reason", ""))
    except htcondor2.HTCondorException as error:
        return Failed(error=f"the job was removed; its log can't be read: {error}", final=False)
    words = reason.strip()[:_TAIL] or "the job was removed, or could not be submitted"
    return Failed(error=words, final=code in _LIMIT_HOLDS)
