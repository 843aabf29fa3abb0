"""A thousand nodes join within a minute: the load of the manager's HTCondor.

A thousand startds don't fit on one machine, so their ClassAds are simulated and sent to a real
collector. Each node sends its partitionable slot and that slot's dynamic slots, and repeats this
every UPDATE_INTERVAL. The queue has jobs that no slot suits, so the negotiator looks at every slot
in each cycle and claims none. Each variant runs in a new pool. The figures are HTCondor's own
statistics, and the processor time of each daemon.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import platformdirs
import psutil

from tests.pool_settings import configured_pool
from trialfleet.infra.fleet.htcondor import demand
from trialfleet.infra.pool.connection import use
from trialfleet.infra.pool.embedded import Pool

# As the manager and its nodes have it: see templates/condor.
OURS = {"CLASSAD_LIFETIME": "40", "STATISTICS_WINDOW_SECONDS": "60"}
UPDATE_INTERVAL = 10.0
VARIANTS: dict[str, tuple[dict[str, str], float]] = {
    "as it is": ({}, UPDATE_INTERVAL),
    "UPDATE_INTERVAL 20": ({}, 20.0),
    "NEGOTIATOR_INTERVAL 20": (
        {
            "NEGOTIATOR_INTERVAL": "20",
            "NEGOTIATOR_MIN_INTERVAL": "5",
            "NEGOTIATOR_CYCLE_DELAY": "5",
        },
        UPDATE_INTERVAL,
    ),
    "COLLECTOR_QUERY_WORKERS 0": ({"COLLECTOR_QUERY_WORKERS": "0"}, UPDATE_INTERVAL),
}
NEGOTIATION = (
    "LastNegotiationCycleDuration0",
    "LastNegotiationCycleTotalSlots0",
    "RecentDaemonCoreDutyCycle",
)
DAEMONS = ("condor_collector", "condor_negotiator", "condor_schedd")


@dataclass
class Nodes:
    """Simulated nodes, which send their ClassAds from the time when they join.

    Attributes:
        sent: number of ads so far.
        late: the sender's largest delay in seconds; if it is large, the sender was the bottleneck.
    """

    count: int
    slots: int
    join_seconds: float
    interval: float
    template: Any
    sent: int = 0
    late: float = 0.0
    made: dict[int, list[Any]] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)

    def send(self) -> None:
        """Send ads until a stop is requested."""
        import htcondor2

        collector = htcondor2.Collector()
        begun = time.monotonic()
        due = [self.join_seconds * i / self.count for i in range(self.count)]
        sequence = [0] * self.count
        while not self.stop.is_set():
            now = time.monotonic() - begun
            ready = [i for i in range(self.count) if due[i] <= now][:20]
            if not ready:
                time.sleep(0.01)
                continue
            ads = []
            for i in ready:
                self.late = max(self.late, now - due[i])
                due[i] += self.interval
                sequence[i] += 1
                ads += self.ads_of(i, sequence[i])
            collector.advertise(ads, "UPDATE_STARTD_AD")
            self.sent += len(ads)

    def ads_of(self, node: int, sequence: int) -> list[Any]:
        """Return the present ClassAds of a node's slots."""
        now = int(time.time())
        made = self.made.get(node) or [self._new(node, slot) for slot in range(self.slots)]
        self.made[node] = made
        for ad in made:
            ad["UpdateSequenceNumber"], ad["MyCurrentTime"] = sequence, now
        return made

    def _new(self, node: int, slot: int) -> Any:
        import classad2

        name, ad = f"node{node:04}", classad2.ClassAd(str(self.template))
        ad["Name"] = f"slot1@{name}" if slot == 0 else f"slot1_{slot}@{name}"
        ad["Machine"], ad["SlotID"] = name, 1
        ad["MyAddress"] = f"<127.0.0.1:1?addrs=127.0.0.1-1&alias={name}&sock=startd_{node}>"
        ad["TrialfleetFleet"], ad["TrialfleetInstance"] = "f", f"i-{node:017x}"
        ad["SlotType"], ad["PartitionableSlot"] = "Partitionable", slot == 0
        ad["NumDynamicSlots"] = self.slots - 1
        if slot:
            ad["SlotType"], ad["DynamicSlot"] = "Dynamic", True
            ad["State"], ad["Activity"], ad["JobId"] = "Claimed", "Busy", f"9.{node}"
        return ad


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--nodes", type=int, default=1000, help="that join [1000]")
    parser.add_argument("--slots", type=int, default=5, help="of each [5]")
    parser.add_argument("--join", type=float, default=60.0, help="seconds in which they join [60]")
    parser.add_argument("--after", type=float, default=30.0, help="seconds after that [30]")
    parser.add_argument("--jobs", type=int, default=2000, help="that wait, in 20 groups [2000]")
    parser.add_argument("--handshakes", type=int, default=50, help="of new processes [50]")
    parser.add_argument("--only", help="one variant, by its name")
    given = parser.parse_args()
    print(f"{given.nodes} nodes of {given.slots} slots, {given.jobs} jobs wait", flush=True)
    for name, (knobs, interval) in VARIANTS.items():
        if given.only in {None, name}:
            print(f"\n{name}", flush=True)
            measure(given, {**OURS, **knobs}, interval)


def measure(given: argparse.Namespace, knobs: dict[str, str], interval: float) -> None:
    """Let nodes join a new pool and print what its daemons used."""
    base = platformdirs.user_cache_path("trialfleet") / "bench-storm"
    shutil.rmtree(base, ignore_errors=True)
    pool = configured_pool(base / "pool", cpus=1, knobs=knobs)
    pool.up()
    try:
        use(pool.environment())
        import htcondor2

        submit(given.jobs)
        handshake = cost_of_handshakes(pool, given.handshakes)
        template = htcondor2.Collector().query(htcondor2.AdTypes.Startd, "SlotID isnt undefined")[0]
        nodes = Nodes(given.nodes, given.slots, given.join, interval, template)
        thread = threading.Thread(target=nodes.send, daemon=True)
        before_they_came = negotiation()["LastNegotiationCycleDuration0"]
        before = processor_time(pool)
        thread.start()
        begun = time.monotonic()
        cycles, queries = [], []
        while time.monotonic() - begun < given.join + given.after:
            time.sleep(2.0)
            at = time.monotonic()
            found = demand.fleet_machines("f", whole=False)
            queries.append(time.monotonic() - at)
            cycles.append(negotiation())
        wall = time.monotonic() - begun
        used = {name: seconds - before[name] for name, seconds in processor_time(pool).items()}
        sizes = memory(pool)
        collector = htcondor2.Collector().query(htcondor2.AdTypes.Collector)[0]
        nodes.stop.set()
        thread.join(30)
    finally:
        pool.down(grace=2)
        shutil.rmtree(base, ignore_errors=True)
    last = cycles[-5:]
    figure("nodes that the autoscaler's query found", len(found))
    figure("ads sent, a second", nodes.sent / wall)
    figure("… the sender behind its plan at worst, s", nodes.late)
    for name in DAEMONS:
        figure(f"{name}: processor, of one", used[name] / wall)
        figure(f"{name}: memory, MB", sizes[name])
    figure("collector: processor for 1,000 ads, s", 1e3 * used[DAEMONS[0]] / nodes.sent)
    figure("… for the handshake of a new process, s", handshake)
    for name in ("RecentDaemonCoreDutyCycle", "UpdatesTotal", "UpdatesLost"):
        figure(f"collector: {name}", number(collector, name))
    for name in NEGOTIATION:
        figure(f"negotiator: {name}", statistics.median(one[name] for one in last))
    figure("… before the nodes came", before_they_came)
    figure("autoscaler's query of the collector, s", statistics.median(queries))
    figure("… at worst, s", max(queries))


def figure(what: str, value: float) -> None:
    """Print one figure."""
    print(f"  {what:<52} {value:10.3f}", flush=True)


def submit(jobs: int) -> None:
    """Submit jobs that no slot suits, in 20 groups with different requests."""
    import htcondor2

    for group in range(20):
        text = {
            "executable": "/bin/true",
            "request_memory": f"{100 + group}MB",
            "request_disk": "1MB",
            "requirements": 'TARGET.TrialfleetGpuName =?= "none such"',
            "My.TrialfleetRun": '"r1"',
            "My.TrialfleetNode": '"n"',
        }
        if jobs // 20:
            htcondor2.Schedd().submit(htcondor2.Submit(text), count=jobs // 20)
    time.sleep(10)


def negotiation() -> dict[str, float]:
    """Return the negotiator's statistics of its last cycle."""
    import htcondor2

    (ad,) = htcondor2.Collector().query(htcondor2.AdTypes.Negotiator)
    return {name: number(ad, name) for name in NEGOTIATION}


def number(ad: Any, name: str) -> float:
    """Return a number in a ClassAd; NaN if the ad lacks it."""
    value = ad.get(name)
    return float(value) if isinstance(value, int | float) else float("nan")


def cost_of_handshakes(pool: Pool, count: int) -> float:
    """Return the collector's seconds per tool that authenticates again."""
    before = processor_time(pool)["condor_collector"]
    for _ in range(count):
        subprocess.run(["condor_status", "-limit", "1"], check=True, capture_output=True)
    return (processor_time(pool)["condor_collector"] - before) / max(1, count)


def processor_time(pool: Pool) -> dict[str, float]:
    """Return the processor seconds of the pool's daemons and their children."""
    found = dict.fromkeys(DAEMONS, 0.0)
    for one in of_pool(pool):
        times = one.cpu_times()
        found[one.name()] += sum(times[:4])  # the children's, too, that have ended
    return found


def memory(pool: Pool) -> dict[str, float]:
    """Return the memory of the pool's daemons in MB."""
    found = dict.fromkeys(DAEMONS, 0.0)
    for one in of_pool(pool):
        found[one.name()] = max(found[one.name()], one.memory_info().rss / 1e6)
    return found


def of_pool(pool: Pool) -> list[psutil.Process]:
    """Return the processes of the pool's daemons, without workers that they forked."""
    every = {one.pid: psutil.Process(one.pid) for one in pool.processes() if one.name in DAEMONS}
    return [one for one in every.values() if one.ppid() not in every]


if __name__ == "__main__":
    main()
