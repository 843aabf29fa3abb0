"""The pauses of a run: the times when none of its DAGMans executed.

A run is paused between a stop and a resume, or while HTCondor is down. Pauses don't count as wall
time, and don't slow the run's pace in estimates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.workflows.facts.jobs.job_log import parse_stays, read_executions, read_removals
from trialfleet.workflows.facts.run_folder.folder import RunFolder

SHORTEST = 60.0  # seconds: a crashed DAGMan restarts sooner, which is not a pause
BLINK = 1.0  # … after a stop: a shorter pause is ignored

Span = tuple[float, float]  # from and to, in Unix seconds


def read_dagmans(folder: RunFolder) -> tuple[list[tuple[float, float | None]], list[float]]:
    """Return begin and end of each execution of a run's DAGMans, and when the run was stopped.

    Besides the whole graph's DAGMan, the regions' DAGMans are read, because a person may submit a
    region's graph alone. All times are in Unix seconds.
    """
    active = [span for files in folder.all_dags() for span in read_executions(files.log)]
    return active, read_removals(folder.dag_files.log)


def pauses_so_far(folder: RunFolder, trials: Iterable[StoredTrial]) -> tuple[Span, ...]:
    """Return the times when no DAGMan of a run executed, from the DAGMans' event logs.

    If a log lacks the end of an execution, `find_pauses` estimates it from the trials' executions.
    """
    active, stops = read_dagmans(folder)
    signs: set[float] = set()
    if any(end is None for _, end in active):
        stays = [stay for each in trials for stay in parse_stays(each.user_attrs.get("job") or {})]
        signs = {at for stay in stays for at in (stay.began, stay.ended)}
    return find_pauses(active, signs, stops)


def find_pauses(
    active: Sequence[tuple[float, float | None]],
    signs: Collection[float],
    stops: Collection[float] = (),
) -> tuple[Span, ...]:
    """Return the times when no DAGMan of a run executed, oldest first, in Unix seconds.

    After a stop, a pause of at least a second counts. Any other pause must last at least a minute.

    Args:
        active: begin and end of each DAGMan's execution. If the end is None (unknown), the last of
            `signs` before the next execution is used.
        signs: the times of events of the run's jobs.
        stops: the times when the whole graph's DAGMan was removed from the queue.
    """
    begins = sorted(begin for begin, _ in active)
    spans = sorted((begin, _end(begin, end, begins, signs)) for begin, end in active)
    pauses: list[Span] = []
    before = latest = begins[0] if begins else 0.0
    for begin, end in spans:
        stopped = any(before <= stop <= begin for stop in stops)
        if begin - latest >= (BLINK if stopped else SHORTEST):
            pauses.append((latest, begin))
        before, latest = begin, max(latest, end)
    return tuple(pauses)


def _end(
    begin: float, end: float | None, begins: Iterable[float], signs: Collection[float]
) -> float:
    if end is not None:
        return end
    following = next((other for other in begins if other > begin), begin)
    return max((sign for sign in signs if begin <= sign < following), default=begin)


def pause_overlap(pauses: Iterable[Span], begin: float, end: float) -> float:
    """Return how many seconds between `begin` and `end` (Unix seconds) were pauses."""
    return sum(max(0.0, min(end, to) - max(begin, since)) for since, to in pauses)
