"""What keeps a whole run from going on, the first that is true: pool, DAGMan, service, storage."""

from __future__ import annotations

from collections.abc import Callable

from trialfleet.workflows.dagman.health import Remedy
from trialfleet.workflows.status.states import RunState
from trialfleet.workflows.why.answer import Answer, Blame, Kind
from trialfleet.workflows.why.facts import RunFacts, Script

_DEFER, _FAILED = 75, 1  # exit codes of a node's script: come back later; it could not be asked
_NO_SPACE = "no space for"
_FOR_ROOM = "waits for room on the disk"
_OTHER_DAGMAN = "another DAGMan runs this region"
_CHECKSUMS = "waits for the checksums"


def blocked(run: RunFacts, script: Script | None = None) -> Answer | None:
    """Return what keeps a run, or one of its regions, from going on; None if nothing does.

    Args:
        run: the run.
        script: the last word of a region's scripts, if that was no success.
    """
    rules: tuple[Callable[[], Answer | None], ...] = (
        lambda: _planned(run),
        lambda: _stopped(run),
        lambda: _away(run),
        lambda: _no_space(run),
        lambda: _dagman(run),
        lambda: _storage(run),
        lambda: _scripts(run, script) if script else None,
        lambda: _closed(run),
    )
    return next((answer for rule in rules if (answer := rule())), None)


def _answer(
    run: RunFacts, kind: Kind, blame: Blame, why: str, *, advice: str = "", command: str = ""
) -> Answer:
    return Answer(
        subject=f"{run.study}/{run.run}",
        kind=kind,
        blame=blame,
        why=why,
        advice=advice,
        command=command,
    )


def _planned(run: RunFacts) -> Answer | None:
    if run.state is not RunState.PLANNED:
        return None
    why = "its run is planned, and was never submitted"
    submit = f"trialfleet submit {run.name}"
    return _answer(run, Kind.PLANNED, Blame.PERSON, why, command=submit)


def _stopped(run: RunFacts) -> Answer | None:
    if run.state is not RunState.STOPPED:
        return None
    why = "a person stopped its run"
    return _answer(run, Kind.STOPPED, Blame.PERSON, why, command=run.resume)


def _away(run: RunFacts) -> Answer | None:
    if run.htcondor == "pool-down":
        why = "HTCondor is not running, so nothing of the run goes on; it does once the pool is up"
        answer = _answer(run, Kind.POOL_DOWN, Blame.POOL, why, command=run.pool_up)
    elif run.htcondor == "schedd-down":
        why = "HTCondor runs, and its schedd, which has the job queue, does not answer"
        advice = "its master starts it again by itself; if this stays"
        status = "trialfleet pool status"
        answer = _answer(run, Kind.SCHEDD_DOWN, Blame.POOL, why, advice=advice, command=status)
    else:
        return None
    return answer.with_evidence(run.away)


def _no_space(run: RunFacts) -> Answer | None:
    if not run.no_space:
        return None
    advice = "make room there; the run then goes on by itself"
    see = f"df -h {run.name}"
    return _answer(run, Kind.DISK_FULL, Blame.POOL, run.no_space, advice=advice, command=see)


def _dagman(run: RunFacts) -> Answer | None:
    if run.root_held:
        why = f"its DAGMan is on hold: {run.root_held}"
        return _answer(run, Kind.DAGMAN_HELD, Blame.PERSON, why, command=run.resume)
    fault = next((fault for fault in run.faults if fault.is_sure), None)
    if fault is None:
        return None
    if fault.remedy is Remedy.NONE:
        return _answer(run, Kind.DAGMAN_HELD, Blame.PERSON, str(fault), command=run.resume)
    by_itself = "the pool's supervisor mends that within a minute; to do it now"
    nobody = "no supervisor is at work here (trialfleet supervise)"
    advice = {True: by_itself, False: nobody, None: ""}[run.is_supervised]
    return _answer(run, Kind.DAGMAN_GONE, Blame.POOL, str(fault), advice=advice, command=run.resume)


def _storage(run: RunFacts) -> Answer | None:
    if run.owner:
        why = f"the run belongs to another manager: {run.owner}"
        advice = "if that one is gone for good"
        take = f"trialfleet takeover {run.name}"
        return _answer(run, Kind.OTHER_MANAGER, Blame.PERSON, why, advice=advice, command=take)
    if not run.storage_away:
        return None
    why = f"the optimiser's storage can't be used: {run.storage_away}"
    advice = "bring it back; the run then goes on by itself"
    return _answer(run, Kind.STORAGE, Blame.POOL, why, advice=advice)


def _scripts(run: RunFacts, script: Script) -> Answer | None:
    """What a node's script couldn't do: it waits for the service, its storage, or room."""
    words, sentence = script.words, f"{script.node}: {script.words}"
    if script.code not in {_DEFER, _FAILED} or _OTHER_DAGMAN in words or _CHECKSUMS in words:
        return None
    if _NO_SPACE in words or _FOR_ROOM in words:
        advice = "make room there; the run then goes on by itself"
        see = f"df -h {run.name}"
        return _answer(run, Kind.DISK_FULL, Blame.POOL, sentence, advice=advice, command=see)
    if "owned by" in words or "another manager" in words:
        take = f"trialfleet takeover {run.name}"
        return _answer(run, Kind.OTHER_MANAGER, Blame.PERSON, words, command=take)
    if "storage" in words:
        advice = "bring it back; the run then goes on by itself"
        return _answer(run, Kind.STORAGE, Blame.POOL, words, advice=advice)
    if "service" in words or "folder of a run" in words:
        why = f"the optimiser's service can't be reached: {words}"
        log = f"tail {run.name}/service.log"
        return _answer(run, Kind.SERVICE, Blame.POOL, why, advice="see why", command=log)
    return None


def _closed(run: RunFacts) -> Answer | None:
    if not run.closed:
        return None
    see = "condor_config_val -dump START_"
    advice = "let HTCondor's configuration start them"
    return _answer(
        run, Kind.CLOSED, Blame.POOL, run.closed[0], advice=advice, command=see
    ).with_evidence(*run.closed[1:])
