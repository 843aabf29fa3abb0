"""The decision whether a resume of a region is useless, because the region would fail again."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trialfleet.optimizer.budget_and_deadline_rules import Facts, refusal
from trialfleet.workflows.facts.runs.failed_attempts import Cause, FailedAttempt, error_kind

ENOUGH = 3  # if this many attempts all fail alike, it is no accident
LEFT_NO_MODEL = "left nothing in model/"  # said of a full training; another would fail alike
NO_MODEL = (
    f"the full training {LEFT_NO_MODEL}: in mode final (`mode` in trial.json, t.mode in "
    "Python) the trainer must write its model into the folder model/ (t.model); to tune without "
    "publishing a model, set publish: none in the study and plan again"
)
ALIKE = ": all attempts so far failed alike: "
GAVE_UP = f"no trial can succeed{ALIKE}"  # the beginning of an abandoned region's reason
# Causes outside of the run, which has its own copy of trainer and
# study: a data file, a program on the machines, room on the disk.
_OUTSIDE = re.compile(
    r"^(Transfer input files failure|exit code 12[67]\b|.*No space left on device)"
)


def all_alike(attempts: Sequence[FailedAttempt]) -> bool:
    """Return whether at least `ENOUGH` attempts failed, all for the same cause."""
    return len(attempts) >= ENOUGH and len({error_kind(one.error) for one in attempts}) == 1


def seems_useless(final: str | None, cause: Cause | None, *, complete: int) -> bool:
    """Return whether a region would probably fail again after a resume.

    This is so if there is a final reason (`final`, from `final_reason`). It is also so if no trial
    is complete, and at least `ENOUGH` attempts failed, all of them for `cause`.
    """
    if final or cause is None:
        return bool(final)
    return not complete and ENOUGH <= cause.attempts == cause.of


def _would_recur(reason: str | None) -> bool:
    text = reason or ""
    why = text.removeprefix(GAVE_UP)
    return LEFT_NO_MODEL in text or (why != text and not _OUTSIDE.match(why))


def final_reason(
    reason: str | None, *, failed: int, allowed: int, finished: int, budget: int, done: int
) -> str | None:
    """Return why a region with no model gets no more trials, even after a resume.

    Return None if the region may get more trials. `reason` is why the region ended early, if it
    did. `failed` trials failed for good, and `allowed` trials may fail. `finished` trials have
    ended in any way, and `done` trials are complete. `budget` is the maximum number of trials.
    """
    if refused := refusal("region", Facts(failed=failed, failures=allowed)):
        return refused.reason
    if _would_recur(reason):
        return reason
    if finished >= budget and not done:
        return f"no trial completed, and the budget of {budget} trial(s) is used up"
    return None
