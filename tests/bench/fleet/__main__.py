"""Time of an autoscaler's step with a thousand nodes and 20,000 jobs: `make bench-fleet`.

Each part is compared with a plain way to do the same on the same machine, within a minute. AWS's
answers are recorded from moto and repeated, so that their time is what boto3 takes to read them.
The queue is a real schedd's, with real idle jobs.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import classad2
from moto.core.botocore_stubber import BotocoreStubber

from tests.bench.fleet.boot_storm import submit
from tests.bench.printing import line, seconds
from tests.fleet.mock_aws.nodes_at_hand import LIMITS, NOW, ONE_GPU, ROOM, ago, dynamic_ad, slot_ad
from tests.fleet.mock_aws.small_world import World
from tests.fleet.scaling.test_thousand_nodes import three_regions
from tests.pool_settings import configured_pool
from trialfleet.classads import plain_attributes
from trialfleet.infra.fleet.htcondor import demand as pool_demand
from trialfleet.infra.fleet.htcondor.demand import Demand, Group
from trialfleet.infra.fleet.instances import node_lease
from trialfleet.infra.fleet.instances.regions import Regions
from trialfleet.infra.fleet.scaling import autoscaler, cost_record
from trialfleet.infra.fleet.scaling.autoscaler_costs import CostLedger
from trialfleet.infra.fleet.scaling.instance_costs import Ledger
from trialfleet.infra.fleet.scaling.known_nodes import KnownNodes
from trialfleet.infra.fleet.scaling.scaling_decision import decide, unmatched_trials
from trialfleet.infra.fleet.spec.machines import Instance
from trialfleet.infra.pool import schedd
from trialfleet.infra.pool.connection import use
from trialfleet.infra.pool.machines import Machine, parse_machines

ALL_ATTRIBUTES = sorted({*pool_demand.GANG_ATTRIBUTES, *pool_demand.NAMES})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--nodes", type=int, default=999, help="in three AWS regions [999]")
    parser.add_argument("--jobs", type=int, default=20_000, help="that wait [20000]")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-fleet-"))
    pool = configured_pool(folder / "pool", cpus=1, knobs={"START": "False"})
    try:
        pool.up()
        use(pool.environment())
        submit(given.jobs)
        bench_queue()
        with three_regions(given.nodes // 3) as here:
            bench_steps(here, given.jobs)
    finally:
        pool.down(grace=2)
        shutil.rmtree(folder, ignore_errors=True)


# --- The queue ------------------------------------------------------------------------------------


def bench_queue() -> None:
    """Time the count of idle jobs by the schedd's groups, and by an ad for each job."""

    def by_groups() -> Demand:
        return pool_demand.read_pool("f", named=False).demand

    def by_jobs() -> Demand:
        ads = schedd.query(pool_demand.TRIALS, ALL_ATTRIBUTES, pool_demand.AS_TEXT)
        return pool_demand.read_demand(ads)

    assert by_groups().waiting_trials == by_jobs().waiting_trials
    what = f"queue: {by_groups().waiting_trials} jobs in {len(by_groups().idle)} groups"
    line(what, seconds(by_groups), seconds(by_jobs, 3), "s", "an ad for each job")


# --- A step ---------------------------------------------------------------------------------------


def bench_steps(here: World, jobs: int) -> None:
    """Time steps of an autoscaler, and their parts."""
    nodes = here.living()
    slots = [ad for node in nodes for ad in slots_of(node)]
    uncut = [ad for ad in slots if ad["SlotType"] == "Partitionable"]

    def machines(ads: Sequence[Any]) -> tuple[Machine, ...]:
        return parse_machines(plain_attributes(ad) for ad in ads)

    line(
        f"collector: ads of {len(uncut)} nodes read",
        seconds(lambda: machines(uncut)),
        seconds(lambda: machines(slots)),
        "s",
        "those of their jobs' slots, too",
    )
    bench_decision(nodes, machines(uncut), jobs)
    bench_record(here, nodes)

    def look(_fleet: str, _run: str) -> pool_demand.PoolView:
        demand = pool_demand.read_pool("none", named=False).demand
        return pool_demand.PoolView(nodes=machines(uncut), demand=demand)

    here.connections = lambda: replace(World.connections(here), read_run=look)  # type: ignore[method-assign]
    scaler = here.autoscaler("")
    for _ in range(2):
        scaler.step()
    timed_step(here, scaler.step, "a quiet step")
    here.later(minutes=40)
    timed_step(here, scaler.step, "a step that renews leases")


def slots_of(node: Instance) -> Iterator[Any]:
    """Yield the ClassAds of a full node's slots, as HTCondor's bindings return them."""
    yield classad2.ClassAd(slot_ad(node.id, NumDynamicSlots=4, GPUs=0))
    for i in range(1, 5):
        name = f"slot1_{i}@{node.id}"
        yield classad2.ClassAd(dynamic_ad(node.id, f"{node.id}.{i}", Name=name))


def bench_decision(nodes: Sequence[Instance], machines: Sequence[Machine], jobs: int) -> None:
    """Time the decision on launches and drains, against a search for a slot for each job."""
    joined = KnownNodes(ago(600)).nodes(nodes, machines, {}, ROOM, NOW)
    limits = replace(LIMITS, max_nodes=len(nodes) + 100)

    def groups(jobs: int) -> tuple[Group, ...]:
        needs = [replace(ONE_GPU, memory_mb=4_000 + i) for i in range(20)]
        return tuple(Group(need=need, jobs=jobs // 20, since=ago(9)) for need in needs)

    def ours(jobs: int) -> None:
        demand = Demand(idle=groups(jobs))
        unmatched_trials(demand, joined, limits, NOW)
        decide(demand, joined, limits, NOW)

    def job_by_job(jobs: int) -> None:
        rooms = [node.machine.free for node in joined if node.machine]
        for group in groups(jobs):
            for _ in range(group.jobs):
                found = next((i for i, r in enumerate(rooms) if r.count_fitting(group.need)), None)
                if found is None:
                    rooms.append(ROOM)
                    found = len(rooms) - 1
                rooms[found] = rooms[found].subtract(group.need)

    few = jobs // 10  # as many as can be looked at one by one
    plain_way = seconds(lambda: job_by_job(few), 1)
    what = f"decision: {few} jobs, {len(joined)} full nodes"
    line(what, seconds(lambda: ours(few)), plain_way, "s", "one look at each job")
    print(f"decision: {jobs} jobs{'':33} {seconds(lambda: ours(jobs)):8.3f} s")


def bench_record(here: World, nodes: Sequence[Instance]) -> None:
    """Time the record of costs: a check that changes nothing, and a write."""
    record = Ledger().add_listing(nodes, here.now)

    def written() -> None:
        cost_record.save(here.account.aws, here.fleet, record)

    def looked() -> None:
        assert record.add_listing(nodes, here.now) == record

    line("record: looked through", seconds(looked), seconds(written), "s", "written each time")


def timed_step(here: World, step: Callable[[], object], what: str) -> None:
    """Do a step; print the seconds of its parts, and the number of its calls."""
    parts: dict[str, float] = {}
    here.account.faults.calls.clear()
    with kept_answers(), spans(parts):
        step()  # whose answers are kept
        here.account.faults.calls.clear()
        parts.clear()
        begin = time.perf_counter()
        step()
        parts["all"] = time.perf_counter() - begin
    print(f"{what}: {parts['all']:.3f} s, calls: {dict(Counter(here.account.faults.calls))}")
    for name, took in parts.items():
        print(f"    {name:<34} {took:8.3f} s   {took / parts['all']:6.1%}")


PARTS: dict[str, tuple[Any, str]] = {
    "AWS's lists, and leases": (Regions, "list_instances"),
    "leases alone": (node_lease, "renew"),
    "queue and collector": (autoscaler.Autoscaler, "_read_pool"),
    "decision: trials that match no node": (autoscaler, "unmatched_trials"),
    "decision": (autoscaler, "decide"),
    "record of costs": (CostLedger, "note"),
    "record of costs, for the report": (CostLedger, "lifetimes"),
}


@contextmanager
def spans(parts: dict[str, float]) -> Iterator[None]:
    """Add up the seconds of a step's parts, including parts that run in parallel."""
    lock = threading.Lock()

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timing(*args: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*args, **options)
            finally:
                with lock:
                    parts[name] = parts.get(name, 0.0) + time.perf_counter() - begin

        return timing

    with ExitStack() as patches:
        for name, (owner, attribute) in PARTS.items():
            own = timed(name, getattr(owner, attribute))
            patches.enter_context(mock.patch.object(owner, attribute, own))
        yield


@contextmanager
def kept_answers() -> Iterator[None]:
    """Repeat moto's first answer to each list of instances, because moto writes one slowly."""
    kept: dict[str, Any] = {}
    ask = BotocoreStubber.__call__

    def answer(stubber: Any, event_name: str, request: Any, **options: Any) -> Any:
        if not event_name.endswith("DescribeInstances"):
            return ask(stubber, event_name, request, **options)
        if request.url not in kept:
            kept[request.url] = ask(stubber, event_name, request, **options)
            _ = kept[request.url].content  # which can be read only once
        return kept[request.url]

    with mock.patch.object(BotocoreStubber, "__call__", answer):
        yield


if __name__ == "__main__":
    main()
