"""The causes that are injected, and what `trialfleet why` has to say of each.

Where they are injected: `pool` is a real HTCondor, `aws` the real autoscaler, launcher and status
against moto, with nodes as the collector tells of them. Each is asked about by the name of a
region, a node of its graph, a job or an instance; the true one has to be named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trialfleet.workflows.views.why.answer import Answer, Blame, Kind


@dataclass(frozen=True)
class Cause:
    """A row: what is done, where, and what has to be said of it."""

    where: str
    injected: str
    kind: Kind
    blame: Blame
    says: str = ""  # a regular expression that the line has to contain


P, A = "pool", "aws"
USER, NODE, NOBODY, PERSON, POOL = Blame.USER, Blame.NODE, Blame.NOBODY, Blame.PERSON, Blame.POOL
AWS, MONEY, SPOT = Blame.AWS, Blame.MONEY, Blame.SPOT
K = Kind

CAUSES: dict[str, Cause] = {
    # the trainer, its limits, its data
    "memory": Cause(P, "a trial grows to 600 MB of its 100", K.MEMORY, USER, "of 100 MB"),
    "disk": Cause(P, "a trial writes 200 MB of its 20", K.DISK, USER, r"of 2\d MB"),
    "time": Cause(P, "a trial sleeps for an hour", K.TIME, USER, r"more than 0\.15 min"),
    "input": Cause(P, "a data file is deleted after the plan", K.INPUT, USER, "No such file"),
    "command": Cause(P, "the trainer's command is not found", K.COMMAND, USER, "not found"),
    "crash": Cause(P, "the trainer ends with a traceback", K.CRASH, USER, "ZeroDivisionError"),
    "signal": Cause(P, "the trainer dies of a segmentation fault", K.CRASH, USER, "signal 11"),
    "silent": Cause(P, "the trainer writes no result.json", K.NO_RESULT, USER),
    "garbage": Cause(P, "result.json is not JSON", K.BAD_RESULT, USER, "not JSON"),
    "metric": Cause(P, "the result has another metric", K.BAD_RESULT, USER, "no number 'loss'"),
    "nan": Cause(P, "the metric is NaN", K.NOT_FINITE, USER, "loss is nan"),
    "rejects": Cause(P, "the trainer refuses the parameters", K.REJECTED, USER, "too large"),
    "final": Cause(P, "the full training fails alone", K.CRASH, USER, "full training"),
    "no model": Cause(P, "the full training leaves no model", K.NO_MODEL, USER),
    "failures": Cause(P, "trials fail for different reasons", K.FAILURES, USER),
    # waiting, and acts of persons
    "planned": Cause(P, "a run is planned, not submitted", K.PLANNED, PERSON),
    "lane": Cause(P, "the trial before it in its lane runs", K.LANE, NOBODY, "A.l1.t01"),
    "turn": Cause(P, "parallel_regions is 1", K.TURN, NOBODY, "parallel_regions is 1"),
    "too much memory": Cause(P, "900 GB are asked for", K.MATCH, USER, "memory: needs 900 GB"),
    "requirements": Cause(P, "no slot has that", K.MATCH, USER, "requirements: Nowhere"),
    "unwilling": Cause(P, "the slots' START refuses all jobs", K.UNWILLING, POOL, "START"),
    "no slots": Cause(P, "the pool's startd is shut down", K.NO_SLOTS, POOL),
    "draining": Cause(P, "its only slot is drained", K.DRAINING, NODE, "new disk"),
    "busy": Cause(P, "another job takes the only slot", K.BUSY, NOBODY, r"1 job of others"),
    "held": Cause(P, "a person holds the job", K.HELD, PERSON, "on hold"),
    "job removed": Cause(P, "a person removes a job", K.REMOVED, PERSON, "condor_rm"),
    "region removed": Cause(P, "a person removes a region's DAGMan", K.REMOVED, PERSON),
    "stopped": Cause(P, "a person stops the run", K.STOPPED, PERSON),
    # the manager
    "no negotiator": Cause(P, "the negotiator is off", K.POOL_DOWN, POOL, "negotiator"),
    "pool down": Cause(P, "the pool is taken down", K.POOL_DOWN, POOL),
    "schedd down": Cause(P, "the schedd is stopped", K.SCHEDD_DOWN, POOL),
    "DAGMan held": Cause(P, "a person holds the run's DAGMan", K.DAGMAN_HELD, PERSON),
    "DAGMan gone": Cause(P, "the queue loses the run's DAGMan", K.DAGMAN_GONE, POOL, "no longer"),
    "service": Cause(P, "the service can't open its socket", K.SERVICE, POOL, "exit code 1"),
    "storage": Cause(P, "the storage's file is moved away", K.STORAGE, POOL),
    "disk full": Cause(P, "hardly any room is left", K.DISK_FULL, POOL, "MB are free"),
    "closed": Cause(P, "START_LOCAL_UNIVERSE is false", K.CLOSED, POOL, "START_LOCAL_UNIVERSE"),
    # budget, day, gate
    "hours": Cause(P, "the budget's hours are over", K.BUDGET, NOBODY, "hours is used up"),
    "deadline": Cause(P, "the day's deadline is over", K.DEADLINE, PERSON, "deadline"),
    "missing data": Cause(P, "a day's data aren't there", K.DATA_MISSING, USER, "isn't there"),
    "unchanged data": Cause(P, "a day's data are those before", K.DATA_UNCHANGED, NOBODY),
    "gate kept": Cause(P, "the new model is worse", K.GATE_KEPT, NOBODY, "instead of this one"),
    "gate failed": Cause(P, "mode evaluate crashes", K.GATE_FAILED, USER, "could not be measured"),
    "not latest": Cause(P, "a newer run published before", K.NOT_LATEST, NOBODY, "planned later"),
    "publish": Cause(P, "a file lies where models go", K.PUBLISH, USER, "can't be published"),
    "run's cap": Cause(P, "the autoscaler ends what isn't paid", K.MONEY, MONEY, r"\$60\.00"),
    # AWS
    "capacity": Cause(A, "InsufficientInstanceCapacity", K.CAPACITY, AWS, "no capacity"),
    "throttle": Cause(A, "RequestLimitExceeded", K.THROTTLE, AWS, "RequestLimitExceeded"),
    "quota": Cause(A, "VcpuLimitExceeded", K.QUOTA, AWS, "vCPU limit"),
    "spot quota": Cause(A, "MaxSpotInstanceCountExceeded", K.SPOT_QUOTA, AWS),
    "spot price": Cause(A, "SpotMaxPriceTooLow", K.SPOT_PRICE, MONEY, "ceiling"),
    "permission": Cause(A, "UnauthorizedOperation", K.PERMISSION, AWS, "ec2:RunInstances"),
    "policy": Cause(A, "a service control policy denies", K.POLICY, AWS, "your AWS organization"),
    "price cap": Cause(A, "price_cap.hour is reached", K.PRICE_CAP, MONEY, r"cap is \$"),
    "max nodes": Cause(A, "the fleet has nodes.max", K.MAX_NODES, PERSON, "at most 1 nodes"),
    "autoscaler": Cause(A, "the autoscaler is killed", K.AUTOSCALER, POOL),
    "node booting": Cause(A, "a node was just launched", K.BOOTING, NOBODY),
    # nodes
    "booting": Cause(A, "asked about a node that boots", K.BOOTING, NOBODY, "it is booting"),
    "boot failed": Cause(A, "a node doesn't join in 25 minutes", K.BOOT_FAILED, NODE),
    "sick": Cause(A, "a GPU fails its probe", K.SICK, NODE, "Xid 79"),
    "eats jobs": Cause(A, "three jobs fail within a minute", K.FAILING_JOBS, NODE, "3 jobs failed"),
    "lease": Cause(A, "a lease isn't renewed", K.LEASE, POOL, "without renewal"),
    "spot": Cause(A, "a spot interruption's notice", K.SPOT, SPOT, "spot interruption"),
    "spot ended": Cause(A, "AWS has ended a spot instance", K.SPOT, SPOT, "SpotInstance"),
    "ended": Cause(A, "a person terminates it", K.ENDED, PERSON, "User initiated"),
    "lost": Cause(A, "an instance is forgotten by all", K.LOST, NODE, "neither AWS nor the pool"),
}  # fmt: skip


def named(name: str, answer: Answer) -> None:
    """Assert that an answer names the cause that was injected, in one line."""
    cause = CAUSES[name]
    line = answer.lines()[0]
    assert (answer.kind, answer.blame) == (cause.kind, cause.blame), line
    assert re.search(cause.says, line), line
    assert "\n" not in line
