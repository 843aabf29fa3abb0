"""The answer of `trialfleet why` for a failed attempt, by patterns of the recorded error.

The error's text is from trialfleet, from HTCondor's reason for a hold, or from the trainer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trialfleet.workflows.rules.jobs_without_progress import EVICTED, STUCK
from trialfleet.workflows.status.missing_modules import installation_advice
from trialfleet.workflows.views.why.answer import Blame, Kind
from trialfleet.workflows.views.why.facts import RunFacts

# Patterns of errors; the first match counts.
_WORDS: tuple[tuple[str, Kind], ...] = (
    (rf"^{EVICTED}: ", Kind.EVICTIONS),
    (rf"^{STUCK}: ", Kind.STUCK),
    (r"^over its memory\b", Kind.MEMORY),
    (r"^over its disk\b", Kind.DISK),
    (r"^over its files\b", Kind.TOO_MANY_FILES),
    (r"^over its time\b", Kind.TIME),
    (r"^Transfer input files failure", Kind.INPUT),
    (r"^(Transfer output files failure|its result can't be used)", Kind.OUTPUT),
    (r"^exit code 12[67]\b", Kind.COMMAND),
    (r"^(exit code|signal) \d+", Kind.CRASH),
    (r"without writing result\.json|^result\.json is missing", Kind.NO_RESULT),
    (r"^(the objective )?\S+ is (nan|-?inf)\b", Kind.NOT_FINITE),
    (r"^(result\.json |the result has no number|the result's )", Kind.BAD_RESULT),
    (r"condor_(rm|hold)|by user |^the job was removed", Kind.REMOVED),
    (r"^the full training left nothing in model/", Kind.NO_MODEL),
)


@dataclass(frozen=True)
class _Fix:
    blame: Blame
    advice: str
    key: str = ""  # a key of the study; its place in the file is shown


_FIXES: Mapping[Kind, _Fix] = {
    Kind.MEMORY: _Fix(Blame.USER, "raise resources.memory", "resources.memory"),
    Kind.DISK: _Fix(Blame.USER, "raise resources.disk", "resources.disk"),
    Kind.TOO_MANY_FILES: _Fix(Blame.USER, "make the trainer put its files into an archive"),
    Kind.TIME: _Fix(Blame.USER, "raise trainer.minutes", "trainer.minutes"),
    Kind.INPUT: _Fix(Blame.USER, "put the file at the path in the study's `data`", "data"),
    Kind.OUTPUT: _Fix(Blame.USER, "make the trainer keep its output files in place"),
    Kind.COMMAND: _Fix(Blame.USER, "correct trainer.command or trainer.files", "trainer"),
    Kind.CRASH: _Fix(Blame.USER, "fix the trainer"),
    Kind.NO_RESULT: _Fix(Blame.USER, "make the trainer write result.json (t.complete)"),
    Kind.BAD_RESULT: _Fix(Blame.USER, "make the trainer write the objective's metric"),
    Kind.NOT_FINITE: _Fix(
        Blame.USER, "narrow the search space, or make the trainer reject these settings (t.reject)"
    ),
    Kind.REJECTED: _Fix(Blame.USER, "narrow the search space to settings that can be trained"),
    Kind.NO_MODEL: _Fix(
        Blame.USER, "make the trainer write its model to model/ (t.model) in mode final"
    ),
    Kind.REMOVED: _Fix(Blame.PERSON, ""),
    Kind.NODE: _Fix(Blame.NODE, ""),
    Kind.EVICTIONS: _Fix(
        Blame.NODE, "see HTCondor's reason in its log; make the trainer write checkpoints"
    ),
    Kind.STUCK: _Fix(Blame.POOL, "check the machine and its HTCondor logs"),
}


def kind_of_attempt(error: str) -> Kind:
    """Return the cause that an attempt's error shows.

    An error that matches no pattern is the trainer's own message, of the kind `Kind.REJECTED`.
    """
    return next((kind for words, kind in _WORDS if re.search(words, error)), Kind.REJECTED)


def find_blame(kind: Kind) -> Blame:
    """Return who or what is to blame for an attempt that failed for the cause `kind`."""
    return _FIXES[kind].blame


def advise(run: RunFacts, kind: Kind, error: str) -> str:
    """Return advice on attempts that fail for the cause `kind` with the text `error`."""
    fix = _FIXES[kind]
    place = run.frozen.places.get(fix.key)  # FILE:LINE
    advice = f"{fix.advice} in {place}" if place else fix.advice
    return installation_advice(error, run.frozen.study) or advice
