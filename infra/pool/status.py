"""The status of a pool, read from the JSON output of condor_status and condor_q."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trialfleet.classads import JobStatus, Universe, from_json
from trialfleet.infra.pool.machines import ATTRIBUTES, Machine, parse_machines
from trialfleet.infra.pool.processes import run_captured

PoolState = Literal["up", "down", "failing"]

# The types of the daemons' ads, and the programs that send them. The master sends its ad some
# seconds later than the other daemons, so the master's process is checked instead.
DAEMON_ADS = {
    "Collector": "condor_collector",
    "Negotiator": "condor_negotiator",
    "Scheduler": "condor_schedd",
    "StartD": "condor_startd",
}
JOB_STATES = {  # display names
    **{status: status.name.lower() for status in JobStatus},
    JobStatus.SENDS_OUTPUT: "running",
    JobStatus.BLOCKED: "idle",
}
JOB_ATTRIBUTES = "JobStatus,JobUniverse,DAGManJobId,TrialfleetFolder,TrialfleetMode,TrialfleetDaily"
TOOL_SECONDS = 20  # time limit of a tool; a tool takes longer only if the daemon does not answer


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The numbers of jobs in a queue.

    `trials` (jobs that run trials) and `jobs` (all jobs that need a slot) map the name of a job
    state to the number of jobs in that state. `runs` counts the DAGMan jobs of trialfleet that no
    other DAGMan started. `clocks` counts the jobs that start a study's run each day.
    """

    runs: int = 0
    trials: Mapping[str, int] = field(default_factory=dict)
    jobs: Mapping[str, int] = field(default_factory=dict)
    clocks: int = 0


@dataclass(frozen=True, kw_only=True)
class PoolStatus(Queue):
    """A pool at one moment, with the numbers of jobs in its queue.

    Attributes:
        state: `up` if all daemons answer. `down` if the pool has no process. `failing` if it has
            processes, but a daemon does not answer, for example because the pool is starting.
        version: HTCondor's version. Empty if the pool was never up.
        master: process number of condor_master, or 0 if there is none.
        daemons: names of the daemons that answer, condor_master first.
        silent: the daemons that don't answer, each with its log's path. Empty if the pool is down.
    """

    state: PoolState
    folder: Path
    condor_config: Path
    version: str = ""
    master: int = 0
    daemons: tuple[str, ...] = ()
    silent: Mapping[str, Path] = field(default_factory=dict)
    machines: tuple[Machine, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the status as a dict for JSON: of each machine its resources and its slots."""
        machines = [
            {"name": one.name, "in_use": one.in_use, "free": one.offered_room, "slots": one.slots}
            for one in self.machines
        ]
        return vars(self) | {"machines": machines}


def daemons_and_machines(
    environment: Mapping[str, str],
) -> tuple[tuple[str, ...], tuple[Machine, ...]]:
    """Return the daemons and machines that the collector lists, or none if it does not answer."""
    attributes = ",".join(("MyType", *ATTRIBUTES))
    ads = read_ads(["condor_status", "-any", "-json", "-attributes", attributes], environment) or []
    kinds = {ad.get("MyType") for ad in ads}
    daemons = tuple(program for kind, program in DAEMON_ADS.items() if kind in kinds)
    return daemons, parse_machines(ad for ad in ads if ad.get("MyType") == "Machine")


def silent_daemons(
    daemons: Sequence[str], machines: Sequence[Machine], queue: Queue | None
) -> list[str]:
    """Return the daemons that don't answer. If the collector is silent, return only the collector.

    The schedd counts as silent if `queue` is None. The startd counts as silent if `machines` is
    empty, even if it runs without a slot.
    """
    if not daemons:
        return [DAEMON_ADS["Collector"]]
    answers = {"condor_schedd": queue is not None, "condor_startd": bool(machines)}
    return [
        name for name in DAEMON_ADS.values() if name not in daemons or not answers.get(name, True)
    ]


def look_at_queue(environment: Mapping[str, str]) -> Queue | None:
    """Return the numbers of jobs in the queue, or None if the schedd doesn't answer."""
    ads = read_ads(["condor_q", "-allusers", "-json", "-attributes", JOB_ATTRIBUTES], environment)
    return None if ads is None else count_jobs(ads)


def count_jobs(ads: Iterable[Mapping[str, Any]]) -> Queue:
    """Return the numbers of jobs in the queue, counted from the jobs' ClassAds."""
    everything, own = list(ads), {Universe.SCHEDULER, Universe.LOCAL}
    jobs = [ad for ad in everything if ad.get("JobUniverse") not in own]
    dags = [ad for ad in everything if ad.get("JobUniverse") == Universe.SCHEDULER]
    return Queue(
        runs=sum("TrialfleetFolder" in ad and "DAGManJobId" not in ad for ad in dags),
        trials=_count_by_state(ad for ad in jobs if ad.get("TrialfleetMode") == "tune"),
        jobs=_count_by_state(jobs),
        clocks=sum("TrialfleetDaily" in ad for ad in everything),
    )


def _count_by_state(ads: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    counts = Counter(JOB_STATES.get(ad["JobStatus"], "in another state") for ad in ads)
    return dict(sorted(counts.items()))


def read_ads(command: list[str], environment: Mapping[str, str]) -> list[dict[str, Any]] | None:
    """Return the ClassAds that a tool prints as JSON, or None if it fails or TOOL_SECONDS pass."""
    try:
        done = run_captured(command, env=environment, timeout=TOOL_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return from_json(done.stdout) if done.returncode == 0 else None
