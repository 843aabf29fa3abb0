"""Troubles of jobs and scripts that make no progress although nothing failed.

HTCondor restarts an evicted job forever. Restarts are useless if every start ends in the same way.
Two kinds of trouble are reported:

evictions   The job is evicted repeatedly for the same reason, or has lost more work than it kept.
            The attempt fails after five starts in a row that kept no work, unless the job belongs
            to a gang.
stuck       A job stays too long in a temporary state, a DAG node's script runs too long, or a job's
            agent gets no answer from the optimiser's service. The attempt fails only if its job
            stays in a temporary state for three times the allowed time.

After a start that kept work, the count of starts begins again. So spot instances may interrupt a
trial any number of times if checkpoints save its work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from trialfleet.classads import GONE, JobStatus
from trialfleet.workflows.facts.dagman.running_scripts import ScriptFacts
from trialfleet.workflows.facts.jobs.executions import Execution
from trialfleet.workflows.facts.jobs.job_facts import LONG, JobFacts
from trialfleet.workflows.formatting import rough_duration

# The beginnings of errors of attempts that ended at a limit.
EVICTED, STUCK = "evicted too often", "stuck"
MOST_WASTED = 5  # starts in a row that kept no work
STUCK_TIMES = 3
_ALIKE, _WITHIN = 3, 600.0  # evictions for one reason, within these seconds
_LEAST_LOST = 60.0  # seconds of lost work that are worth reporting
_MB_PER_SECOND = 1.0  # a slower transfer counts as stuck
_ANSWER_SECONDS = 30.0  # an answer takes milliseconds; a suggestion in a large study, seconds
_COMPLETED_SECONDS, _SCRIPT_SECONDS = 120.0, 300.0
_FIGURES = re.compile(r"\d+")

Kind = Literal["evictions", "stuck"]


@dataclass(frozen=True, kw_only=True)
class JobTrouble:
    """The reason why a trial makes no progress.

    Attributes:
        what: the trouble in words.
        job: the job's id, or "" if the trouble is a script's.
        reason: why the last start ended, in HTCondor's words.
        error: why the attempt must fail, or "" while the trouble is below its limit.
    """

    region: str
    node: str
    kind: Kind
    what: str
    job: str = ""
    machine: str = ""
    reason: str = ""
    log: str = ""
    error: str = ""

    @property
    def cause(self) -> str:
        """The trouble's kind and reason as text.

        While the trouble lasts, only numbers in the text change, so that alerts can recognise the
        same trouble.
        """
        return f"{self.kind} {self.reason or self.what}"

    def __str__(self) -> str:
        return f"{self.node}: {self.what}"


def job_troubles(
    jobs: Iterable[JobFacts], now: float, scripts: Iterable[ScriptFacts] = ()
) -> list[JobTrouble]:
    """Return a trouble for each job and each script of a run that makes no progress."""
    of_jobs = (
        _unanswered_trouble(job, now) or _stuck_trouble(job, now) or _eviction_trouble(job, now)
        for job in jobs
    )
    return [*filter(None, of_jobs), *_script_troubles(scripts, now)]


def _unanswered_trouble(job: JobFacts, now: float) -> JobTrouble | None:
    if job.asked is None or job.status != JobStatus.RUNNING or now - job.asked <= _ANSWER_SECONDS:
        return None
    what = (
        f"its job {job.job} has waited {now - job.asked:.0f} s for the optimiser's service: the "
        "service or its storage does not respond, or the storage's disk is full"
    )
    return _build_trouble(job, "stuck", what)


def _script_troubles(scripts: Iterable[ScriptFacts], now: float) -> Iterator[JobTrouble]:
    for each in scripts:
        if now - each.since > _SCRIPT_SECONDS:
            what = f"its {each.script} script has not ended for {rough_duration(now - each.since)}"
            yield JobTrouble(
                region=each.region, node=each.node, kind="stuck", what=what, log=each.log
            )


# --- evictions ------------------------------------------------------------------------------------


def _eviction_trouble(job: JobFacts, now: float) -> JobTrouble | None:
    if job.status in GONE or not (cuts := job.cuts):
        return None
    last, alike = cuts[-1], _same_cuts(cuts)
    wasted = _wasted_starts(job, now)
    is_often = len(alike) >= _ALIKE and now - alike[-_ALIKE].ended <= _WITHIN
    saved = sum(cut.saved_seconds for cut in cuts)
    lost = sum(cut.seconds - min(cut.seconds, cut.saved_seconds) for cut in cuts)
    present = max(0.0, now - job.executing.began) if job.executing else 0.0
    is_wasteful = len(alike) > 1 and lost > max(saved + present, _LEAST_LOST)
    is_over = wasted >= MOST_WASTED and not job.is_rank
    if not (is_often or is_wasteful or is_over):
        return None
    reason = last.reason or last.ended_by
    where = f"from {last.machine}" if last.machine else "before it executed"
    since = datetime.fromtimestamp(alike[0].ended).astimezone()
    often = f"its job {job.job} was evicted {len(alike)} times since {since:%H:%M}"
    words = [f"{often}, the last time {where}: {reason}"]
    if lost:
        words.append(f"it lost {lost:.0f} s of work and kept {saved:.0f} s")
    if wasted and not job.is_rank:
        words.append(
            f"{wasted} start(s) in a row kept no work; after {MOST_WASTED} the attempt fails"
        )
    error = (
        f"{EVICTED}: {wasted} starts in a row kept no work, the last one ended {where}: {reason}"
    )
    return _build_trouble(
        job,
        "evictions",
        "; ".join(words),
        machine=last.machine,
        reason=reason,
        error=error if is_over else "",
    )


def _same_cuts(cuts: Sequence[Execution]) -> list[Execution]:
    kind = _FIGURES.sub("#", cuts[-1].reason)
    return [cut for cut in cuts if _FIGURES.sub("#", cut.reason) == kind]


def _wasted_starts(job: JobFacts, now: float) -> int:
    """Return how many of the latest starts, in a row, kept no work.

    Return 0 if the present start has run for more than a minute, and longer than each of them.
    """
    wasted: list[Execution] = []
    for cut in reversed(job.cuts):
        if cut.saved_seconds:
            break
        wasted.append(cut)
    longest = max((cut.seconds for cut in wasted), default=0.0)
    executing = job.executing
    has_outlived = executing is not None and now - executing.began > max(longest, _LEAST_LOST)
    return 0 if has_outlived else len(wasted)


# --- states ---------------------------------------------------------------------------------------


def _stuck_trouble(job: JobFacts, now: float) -> JobTrouble | None:
    found = _state(job)
    if found is None:
        return None
    state, limit = found
    seconds = now - job.since
    if seconds <= limit:
        return None
    where = f" on {job.machine}" if job.machine else ""
    is_over = seconds > STUCK_TIMES * limit and job.status not in GONE
    how = f"{state} for {rough_duration(seconds)}{where}"
    error = f"{STUCK}: its job was {how}" if is_over else ""
    what = f"its job {job.job} has been {how}"
    return _build_trouble(job, "stuck", what, machine=job.machine, error=error)


def _state(job: JobFacts) -> tuple[str, float] | None:
    """Return a job's state and how many seconds it may last, or None if it isn't temporary."""
    of_input = LONG + job.input_mb / _MB_PER_SECOND
    states: dict[int, tuple[str, float]] = {
        JobStatus.REMOVED: ("removed but has stayed in the queue", LONG),
        JobStatus.COMPLETED: ("completed but has stayed in the queue", _COMPLETED_SECONDS),
        JobStatus.SENDS_OUTPUT: ("sending its output", LONG + job.disk_mb / _MB_PER_SECOND),
        JobStatus.SUSPENDED: ("suspended", LONG),
        JobStatus.BLOCKED: ("waiting for the files that it shares with other jobs", of_input),
    }
    if job.status == JobStatus.RUNNING and job.starts is not None and job.executing is None:
        return "receiving its input", of_input
    return states.get(job.status)


def _build_trouble(job: JobFacts, kind: Kind, what: str, **more: str) -> JobTrouble:
    of = {"region": job.region, "node": job.node, "job": job.job, "log": job.log}
    return JobTrouble(kind=kind, what=what, **of, **more)
