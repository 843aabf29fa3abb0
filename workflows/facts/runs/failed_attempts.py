"""The failed attempts at a region's trials, and the cause that status and report show.

Errors that differ only in numbers count as the same cause, unless the numbers are exit codes or
signals.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from trialfleet import untrusted_files
from trialfleet.optimizer.stored_trials import FAILURES, StoredTrial
from trialfleet.workflows.facts.record_shapes import Failures
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, TrialFolder

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    AnyTrial = FrozenTrial | StoredTrial

_FIGURES = re.compile(
    r"(?<!exit code )(?<!signal )(?<!\d)(0x[0-9a-f]+|\d+(\.\d+)?(e[-+]?\d+)?)", re.IGNORECASE
)
_EXIT_CODE = re.compile(r"\bexit code \d+: ")
SEE = "; see "  # before the path of a log, at the end of a reason
_SHORT = 60  # characters of a reason in a table
_ENOUGH_LEFT = 0.4  # share of the length; a shorter beginning of an error says too little


def log_hint(log: str) -> str:
    """Return the last words of a failure's reason, which name the log to read."""
    return f"{SEE}{shlex.quote(log)}"


@lru_cache(maxsize=1 << 12)  # a snapshot of a run needs those of all attempts
def error_kind(error: str) -> str:
    """Return an error without its numbers, so that errors with the same cause are equal."""
    return _FIGURES.sub("#", error)


class FailedAttempt(NamedTuple):
    """A failed attempt at a trial or full training.

    `time` is when it failed. `blame` is "node" if a machine made the attempt fail, and empty if the
    trainer did.
    """

    time: str
    node: str
    error: str
    blame: str = ""  # "node" if a machine made it fail; else the trainer did


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A cause of failed attempts.

    Attributes:
        error: the error of the latest attempt with this cause.
        attempts: the number of attempts with this cause.
        of: the number of all failed attempts, whatever their cause.
        log: the path of the log to read, from `find_log`.
        blame: "node" if a machine made the latest attempt fail; otherwise empty.
    """

    error: str
    attempts: int
    of: int
    log: str
    blame: str = ""

    def __str__(self) -> str:
        if self.of == 1:
            return f"an attempt failed: {self.error}{log_hint(self.log)}"
        return f"{self.attempts} of {self.of} failed attempts: {self.error}{log_hint(self.log)}"

    @property
    def short_text(self) -> str:
        """The number of failed attempts and the cause, short enough for a table."""
        some = "" if self.attempts == self.of else f"{self.attempts} of "
        return f"{some}{self.of} attempt{'s' if self.of > 1 else ''}: {in_short(self.error)}"


def in_short(reason: str) -> str:
    """Return a failure's reason without log and exit code, short enough for a table."""
    words = _EXIT_CODE.sub("", " ".join(reason.partition(SEE)[0].split()))
    return first_clauses(words, _SHORT)


def first_clauses(words: str, max_length: int) -> str:
    """Return `words`, cut to at most `max_length` characters.

    The text is cut before a colon if this keeps at least 40% of `max_length`. Otherwise it ends
    with an ellipsis (…).
    """
    if len(words) <= max_length:
        return words
    kept = words[: max_length + 1].rpartition(": ")[0]
    is_enough = len(kept) >= _ENOUGH_LEFT * max_length
    return kept if is_enough else f"{words[: max_length - 1].rstrip()}…"


def failed_attempts(trials: Iterable[AnyTrial]) -> list[FailedAttempt]:
    """Return the failed attempts at trials, oldest first."""
    failed = (trial.user_attrs for trial in trials if FAILURES in trial.user_attrs)  # most: no
    return sorted(
        _parse_attempt(noted | {"node": attributes["node"]})
        for attributes in failed
        for noted in attributes[FAILURES].values()
    )


def _parse_attempt(noted: Mapping[str, str]) -> FailedAttempt:
    words = (noted["time"], noted["node"], noted["error"], noted.get("blame", ""))
    return FailedAttempt(*map(str, words))


def find_cause(
    trials: Iterable[AnyTrial], folder: RegionFolder, *, failed: bool = False
) -> Cause | None:
    """Return a cause of a region's failed attempts; None if no attempt failed.

    For a failed region (`failed`), this is the most frequent cause. Otherwise it is the cause of
    the latest failed attempt.
    """
    full_trainings = map(_parse_attempt, noted_failures(folder.best).values())
    attempts = sorted([*failed_attempts(trials), *full_trainings])
    if not attempts:
        return None
    kinds = [error_kind(attempt.error) for attempt in attempts]
    kind = Counter(reversed(kinds)).most_common(1)[0][0] if failed else kinds[-1]
    alike = [attempt for attempt, own in zip(attempts, kinds, strict=True) if own == kind]
    return Cause(
        error=alike[-1].error,
        attempts=len(alike),
        of=len(attempts),
        log=find_log(folder.node_folder(alike[-1].node)),
        blame=alike[-1].blame,
    )


def note_final_failure(
    final: TrialFolder, node: str, *, attempt: int, error: str, **more: str
) -> dict[str, dict[str, str]]:
    """Record why an attempt at a full training or gate failed, and return all its failures.

    The result is by the number of the attempt. `more` has further entries of the record, such as
    the machine.
    """
    noted = noted_failures(final)
    known = noted.get(str(attempt), {})
    if known.get("error") != error:
        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        noted[str(attempt)] = {"time": when, "node": node, "error": error, **more}
        untrusted_files.write_json(final.failures, noted)
    return noted


def noted_failures(final: TrialFolder) -> dict[str, dict[str, str]]:
    """Return the recorded failures of a full training or gate, by the number of the attempt.

    Raises InputError if the file with the failures is damaged.
    """
    if not os.path.lexists(final.failures):
        return {}
    return untrusted_files.read_record(final.failures, shape=Failures)


def find_log(trial: TrialFolder) -> str:
    """Return the path of the log to read after a trial's failure.

    This is standard error, or standard output if standard error is empty. If both are empty, it is
    the event log of the trial's job.
    """
    printed = filter(untrusted_files.file_size, (trial.err, trial.out))
    return str(next(printed, trial.log))
