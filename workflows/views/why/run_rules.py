"""The answer of `trialfleet why` for a blocked run, by the first rule that applies."""

from __future__ import annotations

from collections.abc import Sequence

from trialfleet.workflows.facts.dagman.failing_scripts import DATA_UNREADABLE, FailingScript
from trialfleet.workflows.facts.dagman.job_queue import HeldJob
from trialfleet.workflows.rules.states import RunState
from trialfleet.workflows.status.run_faults import Fault, Remedy
from trialfleet.workflows.views.why.answer import Answer, Blame, Kind
from trialfleet.workflows.views.why.facts import RunFacts


def explain_blocked(
    run: RunFacts, faults: Sequence[Fault], failing: Sequence[FailingScript] = ()
) -> Answer | None:
    """Return the answer if a run, a region or a DAG node can't progress, otherwise None."""
    return (
        _explain_planned(run)
        or _stopped(run)
        or _explain_unreachable(run)
        or _explain_no_space(run)
        or owned_elsewhere(run)
        or _explain_held(run)
        or _explain_dagman(run, faults)
        or _storage(run)
        or _explain_scripts(run, failing)
        or _service(run)
        or _explain_closed(run)
    )


def _explain_planned(run: RunFacts) -> Answer | None:
    if run.state is not RunState.PLANNED:
        return None
    why = "the run is planned, but was not submitted"
    return Answer(Kind.PLANNED, Blame.PERSON, why, command=f"trialfleet submit {run.name}")


def _stopped(run: RunFacts) -> Answer | None:
    if run.state is not RunState.STOPPED:
        return None
    why = run.stopped_by or "a person stopped it"
    return Answer(Kind.STOPPED, Blame.PERSON, why, command=run.resume)


def _explain_unreachable(run: RunFacts) -> Answer | None:
    if run.htcondor == "pool-down":
        why = "HTCondor is not running; the run continues once the pool is up"
        answer = Answer(Kind.POOL_DOWN, Blame.POOL, why, command=run.pool_up)
    elif run.htcondor == "schedd-down":
        why = "HTCondor runs, but its schedd, which has the job queue, does not answer"
        advice = "its master restarts it automatically; if this persists"
        status = "trialfleet pool status"
        answer = Answer(Kind.SCHEDD_DOWN, Blame.POOL, why, advice, status)
    else:
        return None
    return answer.with_evidence(run.snapshot.queue_away)


def _explain_no_space(run: RunFacts) -> Answer | None:
    return _disk_full(run, run.snapshot.no_space) if run.snapshot.no_space else None


def _disk_full(run: RunFacts, why: str) -> Answer:
    advice = "free disk space; the run then continues by itself"
    return Answer(Kind.DISK_FULL, Blame.POOL, why, advice, f"df -h {run.name}")


def _explain_held(run: RunFacts) -> Answer | None:
    """Return the answer if the run's DAGMan or a service is on hold, otherwise None."""
    if run.snapshot.queued and run.snapshot.queued.root_held:
        why = f"its DAGMan is on hold: {run.snapshot.queued.root_held}"
        return Answer(Kind.DAGMAN_HELD, Blame.PERSON, why, command=run.resume)
    regions = [region.slug for region in run.snapshot.status.regions]
    held = (job for job in run.snapshot.status.held if not any(map(job.is_of, regions)))
    return next((explain_held(job) for job in held), None)


def explain_held(held: HeldJob) -> Answer:
    """Return the answer for a job on hold."""
    return Answer(Kind.HELD, Blame.PERSON, str(held), command=f"condor_release {held.job}")


def _explain_dagman(run: RunFacts, faults: Sequence[Fault]) -> Answer | None:
    fault = next((f for f in faults if f.is_sure and f.node is None), None)
    if fault is None:
        return None
    if fault.remedy is Remedy.NONE:
        return Answer(Kind.DAGMAN_HELD, Blame.PERSON, str(fault), command=run.resume)
    advice = (
        "if a supervisor runs (trialfleet supervise), it repairs this within a minute; to repair "
        "it now"
    )
    kind = Kind.SERVICE if fault.remedy is Remedy.SERVE else Kind.DAGMAN_GONE
    return Answer(kind, Blame.POOL, str(fault), advice, run.resume)


def owned_elsewhere(run: RunFacts) -> Answer | None:
    """Return the answer if another manager is known to own the run, otherwise None."""
    if not run.owner:
        return None
    why = f"the run belongs to another manager: {run.owner}"
    advice = "if that manager is lost"
    return Answer(Kind.OTHER_MANAGER, Blame.PERSON, why, advice, f"trialfleet takeover {run.name}")


def _storage(run: RunFacts) -> Answer | None:
    if not run.snapshot.storage_away:
        return None
    why = f"the optimiser's storage can't be used: {run.snapshot.storage_away}"
    advice = "restore it; the run then continues by itself"
    return Answer(Kind.STORAGE, Blame.POOL, why, advice=advice)


def _service(run: RunFacts) -> Answer | None:
    if not run.snapshot.service_away:
        return None
    log = f"tail {run.name}/service.log"
    advice = (
        "requests are repeated automatically; if this persists, end the service's process, so that "
        "it is started again; to see its log"
    )
    return Answer(Kind.SERVICE, Blame.POOL, run.snapshot.service_away, advice, log)


def _explain_scripts(run: RunFacts, failing: Sequence[FailingScript]) -> Answer | None:
    script = min(failing, key=lambda script: script.cause != "error", default=None)
    if script is None:
        return None
    since = script.since.astimezone()
    sentence = f"{script} (failures in a row: {script.times}, since {since:%H:%M:%S})"
    by_itself = "the run then continues by itself"
    if script.cause == "space":
        return _disk_full(run, sentence)
    if script.cause == "storage":
        return Answer(Kind.STORAGE, Blame.POOL, sentence, f"restore the storage; {by_itself}")
    if script.error.startswith(DATA_UNREADABLE):
        return Answer(Kind.DATA_MISSING, Blame.USER, sentence, f"restore the data; {by_itself}")
    log = f"tail {run.name}/service.log"
    advice = f"remove the cause; {by_itself}; to see the log"
    return Answer(Kind.SCRIPT, Blame.POOL, sentence, advice, log)


def _explain_closed(run: RunFacts) -> Answer | None:
    if not run.closed:
        return None
    see = "condor_config_val -dump START_"
    advice = "make HTCondor's configuration start them"
    return Answer(Kind.CLOSED, Blame.POOL, run.closed[0], advice, see).with_evidence(
        *run.closed[1:]
    )
