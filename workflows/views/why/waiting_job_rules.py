"""The answer of `trialfleet why` for a waiting job that no slot runs."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from trialfleet.workflows.facts.jobs.job_facts import LONG
from trialfleet.workflows.facts.runs.spending import silence_start
from trialfleet.workflows.formatting import count_text
from trialfleet.workflows.rules.jobs_without_progress import JobTrouble
from trialfleet.workflows.rules.slot_matching import NO_NEGOTIATOR, NOT_STARTED
from trialfleet.workflows.views.why.answer import Answer, Blame, Kind
from trialfleet.workflows.views.why.facts import Queued, RunFacts, Scaling

# Patterns of reasons in the autoscaler's report: AWS's errors, and reasons of the autoscaler. If
# the report has several reasons, the one whose pattern comes first here is shown.
_OF_AWS: tuple[tuple[str, Kind], ...] = (
    (r"RequestLimitExceeded|Throttl|request limit", Kind.THROTTLE),
    (r"MaxSpotInstanceCountExceeded", Kind.SPOT_QUOTA),
    (r"VcpuLimitExceeded|InstanceLimitExceeded", Kind.QUOTA),
    (r"SpotMaxPriceTooLow|more than the ceiling", Kind.SPOT_PRICE),
    (r"Insufficient\w*Capacity|UnfulfillableCapacity|InsufficientFree", Kind.CAPACITY),
    (r"overrides every policy", Kind.POLICY),
    (r"the permission \S+ is denied|permission to call", Kind.PERMISSION),
    (r"credentials|account \d+, but this fleet", Kind.CREDENTIALS),
    (r"no money is left|run's cap", Kind.MONEY),
    (r"the cap is \$|exceed the cap|than the cap of", Kind.PRICE_CAP),
    (r"ask for more than a node has|suits what trials ask", Kind.MATCH),
    (r"is free and has room", Kind.MATCH),
    (r"were never fit for a trial", Kind.UNFIT_NODES),
    (r"the fleet has at most", Kind.MAX_NODES),
    (r"AWS", Kind.AWS),
)
_FIXES: dict[Kind, tuple[Blame, str, str]] = {
    Kind.THROTTLE: (Blame.AWS, "the request is retried soon; if this persists", "fleet status"),
    Kind.SPOT_QUOTA: (Blame.AWS, "request a higher spot quota from AWS", "fleet doctor"),
    Kind.QUOTA: (Blame.AWS, "request a higher quota from AWS", "fleet doctor"),
    Kind.SPOT_PRICE: (Blame.MONEY, "raise fleet.spot.ceiling, or lower spot.share", "fleet plan"),
    Kind.CAPACITY: (
        Blame.AWS,
        "the request is retried automatically; more instance_types, zones or on-demand nodes help",
        "fleet plan",
    ),
    Kind.PERMISSION: (Blame.AWS, "grant the permission", "fleet plan --policy"),
    Kind.POLICY: (Blame.AWS, "ask for a change; to see what else is denied", "fleet doctor"),
    Kind.CREDENTIALS: (Blame.AWS, "provide valid credentials", "fleet doctor"),
    Kind.MONEY: (Blame.MONEY, "raise fleet.price_cap.run for the next run", "fleet plan"),
    Kind.PRICE_CAP: (Blame.MONEY, "raise fleet.price_cap.hour, or wait", "fleet plan"),
    Kind.MATCH: (Blame.USER, "choose larger instance_types, or lower the resources", "fleet plan"),
    Kind.UNFIT_NODES: (Blame.NODE, "see their boot logs and probes", "fleet status"),
    Kind.MAX_NODES: (Blame.PERSON, "wait, or raise fleet.nodes.max", "fleet plan"),
    Kind.AWS: (Blame.AWS, "see AWS's error", "fleet doctor"),
}


def explain_no_progress(trouble: JobTrouble) -> Answer:
    """Return the answer for a trial whose job is evicted repeatedly or is stuck."""
    is_evicted = trouble.kind == "evictions"
    advice = "read the end of its log"
    if is_evicted:
        where = trouble.machine or "the machines"
        advice = f"check {where} and the trainer; the job's log has HTCondor's reasons"
    return Answer(
        kind=Kind.EVICTIONS if is_evicted else Kind.STUCK,
        blame=Blame.NODE if is_evicted else Blame.POOL,
        why=str(trouble),
        advice=advice,
        command=f"tail -n 40 {shlex.quote(trouble.log)}" if trouble.log else "",
    ).with_evidence(trouble.reason, trouble.error)


def explain_wait(run: RunFacts | None, queued: Queued) -> Answer:
    """Return why a job in the queue waits.

    `run` is None for the job of a check (`plan --check`).
    """
    if queued.blocked:
        return _explain_file_transfer(run, queued)
    answer = _in_pool(run, queued)
    may_scale = answer.kind in {Kind.NO_SLOTS, Kind.MATCH, Kind.BUSY, Kind.DRAINING}
    if run is None or not may_scale:
        return answer
    fleets = _explain_fleet(run)
    return fleets.with_evidence(answer.why) if fleets else answer


def _explain_file_transfer(run: RunFacts | None, queued: Queued) -> Answer:
    job = f"job {queued.job}"
    why = f"its job ({job}) has a slot and is receiving the files that jobs share"
    answer = Answer(Kind.SOON, Blame.NOBODY, why)
    answer = answer.with_evidence(f"{job} has waited for files for {queued.seconds:.0f} s")
    faults = run.snapshot.faults if run else ()
    fault = next((each for each in faults if queued.job.startswith(f"{each.job}.")), None)
    if run is None or fault is None:
        return answer
    return replace(
        answer,
        kind=Kind.FILES,
        blame=Blame.POOL,
        why=fault.what,
        advice="the pool's supervisor repairs this within 30 s; to repair it now",
        command=run.resume,
    )


def _in_pool(run: RunFacts | None, queued: Queued) -> Answer:
    found, job = queued.prospects, f"job {queued.job}"

    def answer(kind: Kind, blame: Blame, why: str, advice: str = "", command: str = "") -> Answer:
        since = f"{job} has waited for a slot for {queued.seconds:.0f} s"
        return Answer(kind, blame, why, advice, command, evidence=(since,))

    if found is None:
        why = "its job waits for a slot, but HTCondor's collector does not answer"
        return answer(Kind.POOL_DOWN, Blame.POOL, why, command="trialfleet pool status")
    if not found.slots:
        why = "its job waits for a slot, but the pool has none"
        advice = "start a machine, or find out why there is none"
        return answer(Kind.NO_SLOTS, Blame.POOL, why, advice, "trialfleet pool status")
    if not found.fit:
        advice = "lower the resources, or add such a slot"
        see = run.rerun_command if run else f"condor_q -better-analyze {queued.job}"
        return answer(Kind.MATCH, Blame.USER, str(found), advice, see)
    if queued.draining:
        why = f"the slots that can run it are draining: {queued.draining}"
        advice = "it runs once there is another node; if the draining was a mistake"
        return answer(Kind.DRAINING, Blame.NODE, why, advice, "condor_drain -cancel MACHINE")
    if found.has_only_unwilling_slots:
        command = "condor_status -af:h Name Start"
        advice = "make their START expression accept it"
        return answer(Kind.UNWILLING, Blame.POOL, str(found), advice, command)
    if unassigned := _unassigned(queued):
        return answer(*unassigned)
    others = _jobs(queued)
    are = "are" if found.willing > 1 else "is"
    slots = f"all {found.willing} slots" if found.willing > 1 else "the only slot"
    why = f"{slots} that can run it {are} busy{others}; it waits in the queue"
    if run is None:
        return answer(Kind.BUSY, Blame.NOBODY, why, "to see the running jobs", "condor_q -all")
    return answer(Kind.BUSY, Blame.NOBODY, why, "no action is needed; to watch", run.watch)


def _unassigned(queued: Queued) -> tuple[Kind, Blame, str, str, str] | None:
    """Return the parts of the answer if a slot is free but HTCondor has not assigned it yet.

    Also return them if the pool lacks the daemon that assigns slots. Otherwise return None.
    """
    if not queued.has_negotiator:
        why = f"its job waits for a slot, but {NO_NEGOTIATOR}"
        advice = "HTCondor's master starts it; if a person switched it off"
        return Kind.POOL_DOWN, Blame.POOL, why, advice, "condor_on -negotiator"
    if not queued.free:
        return None
    if queued.seconds > LONG:
        advice = "HTCondor may limit this user's slots, or its schedd's jobs; to see users' slots"
        return Kind.STUCK, Blame.POOL, NOT_STARTED, advice, "condor_userprio -all"
    why = f"a slot is free for its job (job {queued.job}); HTCondor will start it within seconds"
    return Kind.SOON, Blame.NOBODY, why, "", ""


def _jobs(queued: Queued) -> str:
    counts = {"this run": queued.own, "others": queued.foreign}
    parts = [f"{count_text(count, 'job')} of {whose}" for whose, count in counts.items() if count]
    return f" with {' and '.join(parts)}" if parts else ""


# --- the fleet ------------------------------------------------------------------------------------


def _explain_fleet(run: RunFacts) -> Answer | None:
    scaling = run.scaling
    if not scaling.wanted:
        return None
    if silent := _explain_silent_autoscaler(run, scaling):
        return silent
    lines = scaling.lines()
    known = [(kind, line) for line in lines if (kind := kind_of_refusal(line))]
    if not known:
        return _explain_booting(run, scaling)
    kind, line = min(known, key=lambda one: [k for _, k in _OF_AWS].index(one[0]))
    blame, advice, command = _FIXES[kind]
    why, others = f"it waits for a node: {line}", tuple(other for other in lines if other != line)
    fix = f"trialfleet {command} {run.frozen.study_file}"
    return Answer(kind, blame, why, advice, fix, evidence=others)


def kind_of_refusal(line: str) -> Kind | None:
    """Return the kind of reason for which AWS or the fleet's settings refuse nodes.

    `line` is a line of the autoscaler's report. The result is None if it names no reason.
    """
    return next((kind for words, kind in _OF_AWS if re.search(words, line)), None)


def _explain_booting(run: RunFacts, scaling: Scaling) -> Answer | None:
    if not scaling.booting_nodes:
        return None
    why = f"it waits for a node: {scaling.booting_nodes} booting now, joining within some minutes"
    status = f"trialfleet fleet status {run.frozen.study_file}"
    return Answer(Kind.BOOTING, Blame.NOBODY, why, command=status)


def _explain_silent_autoscaler(run: RunFacts, scaling: Scaling) -> Answer | None:
    since = silence_start(scaling.report or {}, run.now)
    state = (scaling.report or {}).get("state")
    if scaling.report is None:
        why = "no node starts: the fleet's autoscaler has not reported yet"
    elif state == "waiting":
        why = "no node starts: another autoscaler of this fleet is running"
    elif state == "ended" or since:
        when = f" since {since:%H:%M} UTC" if since else ""
        why = f"no node starts: the fleet's autoscaler has not reported{when}"
    else:
        return None
    command = f"trialfleet fleet autoscale {run.frozen.study_file} --run {run.frozen.run}"
    advice = "check whether its job runs; to start one by hand"
    return Answer(Kind.AUTOSCALER, Blame.POOL, why, advice, command)
