"""Facts about a gang (jobs that train one trial) from its roster: the orders for its agents."""

from __future__ import annotations

import time

from trialfleet import job_files
from trialfleet.files import unless_damaged
from trialfleet.workflows.cleaning import clean
from trialfleet.workflows.facts.jobs.gang_roster import DONE, RUN, Roster
from trialfleet.workflows.facts.run_folder.folder import TrialFolder

_MOST_ROSTER = 1 << 20  # bytes; a hundred ranks are a hundredth of it


def read_roster(place: TrialFolder) -> Roster | None:
    """Return the roster of a DAG node's gang; None if the roster is missing or unreadable."""
    return unless_damaged(
        lambda: Roster.from_json(job_files.read_bytes(place.roster, _MOST_ROSTER, place.node_root)),
        None,
    )


def in_words(place: TrialFolder, slots: int, least: int) -> tuple[str, bool]:
    """Return a text on a gang's progress, and whether the gang can't train for lack of slots.

    The text is empty if the gang has no roster, or if its trial is over. The gang has `slots` slots
    and needs at least `least`.
    """
    roster = read_roster(place)
    if roster is None or roster.state == DONE or roster.code is not None:
        return "", False
    apart = _describe_apart(roster)
    if roster.state == RUN:
        trains = f"{len(roster.members)} rank(s) train, in generation {roster.generation}"
        return f"{trains}{apart}", False
    if slots < least:
        return f"its gang has {slots} slot(s), and trains with {least} or more", True
    return f"its ranks get ready for generation {roster.generation}{apart}", False


def _describe_apart(roster: Roster) -> str:
    now = time.time()
    return "".join(
        f"; {clean(each.host)} is left out for now: it and {clean(each.other)} "
        "don't reach each other by TCP"
        for each in roster.apart
        if now < each.until
    )


def ranks_and_generation(place: TrialFolder) -> dict[str, int]:
    """Return how many ranks (gang members) train a trial, and which generation; empty if unknown.

    While a generation (one set of ranks) forms, no rank trains. If the trial was the gang's
    last and has ended, the numbers are those at its end. For the gang's earlier trials, the result
    is empty.
    """
    roster = read_roster(place)
    if roster is None or roster.trial != place.root.name:
        return {}
    trains = roster.state == RUN or roster.code is not None
    return {"ranks": len(roster.members) if trains else 0, "generation": roster.generation}
