"""What made an attempt at a trial fail, by the words that were kept of it.

The words are those of `outcome.py`, of HTCondor's hold reasons and of the trainer itself; a test
makes each outcome and reads it here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trialfleet.workflows.rules.hopeless_attempts import EVICTED, STUCK
from trialfleet.workflows.views.why.answer import Blame, Kind

# How each begins or what is in it, in this order.
_WORDS: tuple[tuple[str, Kind], ...] = (
    (rf"^{EVICTED}: ", Kind.EVICTIONS),
    (rf"^{STUCK}: ", Kind.STUCK),
    (r"^over its memory\b", Kind.MEMORY),
    (r"^over its disk\b", Kind.DISK),
    (r"^over its time\b", Kind.TIME),
    (r"^Transfer input files failure", Kind.INPUT),
    (r"^Transfer output files failure", Kind.OUTPUT),
    (r"^exit code 12[67]\b", Kind.COMMAND),
    (r"^(exit code|signal) \d+", Kind.CRASH),
    (r"without writing result\.json|^result\.json is missing", Kind.NO_RESULT),
    (r"^\S+ is (nan|-?inf)\b", Kind.NOT_FINITE),
    (r"^(result\.json |the result has no number)", Kind.BAD_RESULT),
    (r"condor_(rm|hold)|by user |^the job was removed", Kind.REMOVED),
    (r"^the full training left nothing in model/", Kind.NO_MODEL),
)


@dataclass(frozen=True)
class _Mending:
    blame: Blame
    advice: str
    key: str = ""  # of the study, whose place is shown


_MENDING: Mapping[Kind, _Mending] = {
    Kind.MEMORY: _Mending(Blame.USER, "raise resources.memory", "resources.memory"),
    Kind.DISK: _Mending(Blame.USER, "raise resources.disk", "resources.disk"),
    Kind.TIME: _Mending(Blame.USER, "raise trainer.minutes", "trainer.minutes"),
    Kind.INPUT: _Mending(Blame.USER, "put the file where the study's `data` says", "data"),
    Kind.OUTPUT: _Mending(Blame.USER, "let the trainer leave its files where they were"),
    Kind.COMMAND: _Mending(Blame.USER, "mend trainer.command, or name its files", "trainer"),
    Kind.CRASH: _Mending(Blame.USER, "mend the trainer"),
    Kind.NO_RESULT: _Mending(Blame.USER, "have the trainer write result.json (t.complete)"),
    Kind.BAD_RESULT: _Mending(Blame.USER, "have the trainer write the objective's metric"),
    Kind.NOT_FINITE: _Mending(
        Blame.USER, "narrow the search space, or have the trainer refuse (t.reject)"
    ),
    Kind.REJECTED: _Mending(Blame.USER, "narrow the search space to what can be trained"),
    Kind.NO_MODEL: _Mending(Blame.USER, "have mode final leave its model in model/ (t.model)"),
    Kind.REMOVED: _Mending(Blame.PERSON, ""),
    Kind.NODE: _Mending(Blame.NODE, ""),
    Kind.EVICTIONS: _Mending(
        Blame.NODE, "look at what ends it there: its log has HTCondor's words; have it checkpoint"
    ),
    Kind.STUCK: _Mending(Blame.POOL, "look at the machine, and at HTCondor's logs there"),
}


def kind_of_attempt(error: str) -> Kind:
    """Return what made an attempt fail that ended with these words.

    What is none of ours is the trainer's own: it refused the parameters.
    """
    return next((kind for words, kind in _WORDS if re.search(words, error)), Kind.REJECTED)


def blame_of(kind: Kind) -> Blame:
    """Return whose fault such an attempt is."""
    return _MENDING[kind].blame


def advice_for(kind: Kind, places: Mapping[str, str]) -> str:
    """Return what to do about attempts that fail so.

    Args:
        kind: what made them fail.
        places: where the study sets what may be changed, as `FrozenStudy` has them.
    """
    mending = _MENDING[kind]
    place = places.get(mending.key, "")
    return f"{mending.advice} in {place}" if place and mending.advice else mending.advice
