"""Facts about a gang, several jobs that train one trial together: its progress and checkpoints."""

from __future__ import annotations

import time
from itertools import chain

from trialfleet import untrusted_files
from trialfleet.errors import join_names
from trialfleet.files import unless_damaged
from trialfleet.workflows.cleaning import clean
from trialfleet.workflows.facts.jobs.gang_roster import DONE, FORM, RUN, Roster
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder

_MOST_ROSTER = 1 << 20  # bytes; the roster of a hundred ranks is a hundredth of this


def read_roster(place: TrialFolder) -> Roster | None:
    """Return the roster (orders to agents) of a DAG node's gang; None if it can't be read."""
    return unless_damaged(
        lambda: Roster.from_json(
            untrusted_files.read_bytes(place.roster, _MOST_ROSTER, place.node_root)
        ),
        None,
    )


def checkpoint_prefixes(place: TrialFolder) -> list[str]:
    """Return the S3 prefixes where checkpoints of a DAG node's gang may be.

    The first prefix is for the present attempt. The others are for earlier attempts whose
    checkpoints still exist. The result is empty if the gang stores no checkpoints in S3.
    """

    def read() -> list[str]:
        plain = untrusted_files.read_json(
            place.gang_store, untrusted_files.MOST_NOTES, place.node_root
        )
        return [str(plain["prefix"]), *map(str, plain.get("earlier", ()))]

    return unless_damaged(read, [])


def left_checkpoints(folder: RunFolder) -> tuple[str, ...]:
    """Return a message about the checkpoints that a run left in S3; empty if there are none."""
    if not folder.gang_variables.exists():
        return ()
    regions = (folder.region(path.name) for path in folder.regions.iterdir())
    nodes = ((files.best.root, *files.trials.glob("*")) for files in regions)
    left = [each for root in chain(*nodes) for each in checkpoint_prefixes(TrialFolder(root))]
    where = f"checkpoints of gangs are left in S3 and cost money: {join_names(left, 3)}"
    return (f"{where}; to delete one: aws s3 rm --recursive PREFIX",) if left else ()


def gang_progress(place: TrialFolder, slots: int, least: int) -> tuple[str, bool]:
    """Return a text on a gang's progress, and whether the gang has too few slots to train.

    The gang needs at least `least` slots. The text is empty if the gang has no roster, or if its
    trial is over.
    """
    roster = read_roster(place)
    if roster is None or roster.state == DONE or roster.code is not None:
        return "", False
    apart = _describe_apart(roster)
    if roster.state == RUN:
        trains = f"{len(roster.members)} rank(s) train, in generation {roster.generation}"
        return f"{trains}{apart}", False
    if slots < least:
        return f"its gang has {slots} slot(s), and needs at least {least} to train", True
    return f"its ranks get ready for generation {roster.generation}{apart}", False


def _describe_apart(roster: Roster) -> str:
    now = time.time()
    return "".join(
        f"; {clean(each.host)} is left out for now: it and {clean(each.other)} "
        "can't reach each other by TCP"
        for each in roster.apart
        if now < each.until
    )


def ranks_and_generation(place: TrialFolder) -> dict[str, int]:
    """Return how many ranks (gang members) train a trial, and the number of their generation.

    A generation is one set of ranks. The result has the keys "ranks" and "generation". While the
    generation forms, "ranks" is 0. The result is empty if the roster is about another trial or
    can't be read.
    """
    if (roster := _roster_of_trial(place)) is None:
        return {}
    trains = roster.state == RUN or roster.code is not None
    return {"ranks": len(roster.members) if trains else 0, "generation": roster.generation}


def count_generations(place: TrialFolder) -> int | None:
    """Return in how many generations ranks (gang members) trained a trial.

    The numbers of a gang's generations go on from trial to trial, so this is less than the number
    of the last one. The result is None if the roster is about another trial or can't be read.
    """
    if (roster := _roster_of_trial(place)) is None:
        return None
    return roster.generation - roster.first + (roster.state != FORM)


def _roster_of_trial(place: TrialFolder) -> Roster | None:
    roster = read_roster(place)
    return roster if roster and roster.trial == place.root.name else None
