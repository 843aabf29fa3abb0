"""The speeds and interruptions of past nodes, by which candidates are compared.

A capacity pool is one instance type in one zone, as spot or on-demand. An interruption costs the
work since the last checkpoint, and the boot of another node. So capacity pools are compared by
their efficiency, the share of a node's hours that is not lost:

    efficiency = 1 / (1 + interruptions per node hour x hours that each costs)

A spot capacity pool's rate of interruptions is estimated from its own nodes and from all pools:

    (rate of all spot capacity pools x OWN_HOURS + interruptions) / (OWN_HOURS + node hours)

OWN_HOURS is the weight of the rate of all spot capacity pools, in node hours. The result is a
posterior mean with a gamma prior. Nodes that ended long ago count less.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from trialfleet.gpu_memory import ec2_gpu_bandwidth
from trialfleet.infra.fleet.spec.machines import Candidate, InstanceType, Pool

# Factor on a pool's expected interruptions for a while after an interruption.
RECENT, RECENT_FACTOR = timedelta(minutes=15), 2.0
VCPU_BANDWIDTH = 3.2  # GB/s; an m6i has 8 channels of DDR4-3200 for 64 vCPUs
BOOT_HOURS = 0.1  # boot time of a replacement for an interrupted node
# The prior of all pools: FIRST_RATE interruptions per node hour, with the weight FIRST_HOURS. The
# rate lies between the bands of AWS's Spot Instance Advisor (5 to 20 % a month: 0.0001 to 0.0003 an
# hour) and published traces of GPU pools (one in 1 to 23 hours). The rate of all pools is the prior
# of each pool, with the weight of OWN_HOURS.
FIRST_RATE, FIRST_HOURS, OWN_HOURS = 0.02, 10.0, 20.0


@dataclass(frozen=True, kw_only=True)
class PoolHistory:
    """The node hours and interruptions of one capacity pool.

    Nodes that ended long ago count less. `last` is the time of the last interruption, or None if
    there was none.
    """

    hours: float = 0.0
    interruptions: float = 0.0
    last: datetime | None = None

    def rate(self, usual: float) -> float:
        """Return the expected interruptions per node hour.

        The fewer node hours this pool has, the nearer the result is to `usual`, the rate of all
        spot pools.
        """
        return (usual * OWN_HOURS + self.interruptions) / (OWN_HOURS + self.hours)


@dataclass(frozen=True, kw_only=True)
class History:
    """The node hours and interruptions of all capacity pools, as known at the time `at`.

    `bandwidths` has the median memory bandwidth of a GPU in GB/s, by instance type.
    """

    pools: Mapping[Pool, PoolHistory] = field(default_factory=dict)
    bandwidths: Mapping[str, float] = field(default_factory=dict)
    at: datetime | None = None

    def apply(self, candidates: Iterable[Candidate], lost_minutes: float) -> list[Candidate]:
        """Return `candidates` with their `speed`, `interruptions` and `efficiency` filled in.

        An interruption costs `lost_minutes` of work, and the boot of a replacement.
        """
        hours = lost_minutes / 60 + BOOT_HOURS
        found = with_speeds(list(candidates), self.bandwidths)
        usual = self.mean_rate
        rates = [self._rate(one, usual) for one in found]
        return [
            replace(one, interruptions=rate, efficiency=1 / (1 + rate * hours))
            for one, rate in zip(found, rates, strict=True)
        ]

    @property
    def mean_rate(self) -> float:
        """Interruptions per node hour of all spot capacity pools together."""
        spot = [known for pool, known in self.pools.items() if pool[2] == "spot"]
        seen = sum(known.interruptions for known in spot)
        return (FIRST_RATE * FIRST_HOURS + seen) / (
            FIRST_HOURS + sum(known.hours for known in spot)
        )

    def _rate(self, one: Candidate, usual: float) -> float:
        if one.lifecycle != "spot":
            return 0.0
        pool = self.pools.get(one.pool, PoolHistory())
        recent = pool.last is not None and self.at is not None and self.at - pool.last < RECENT
        return pool.rate(usual) * (RECENT_FACTOR if recent else 1.0)


def with_speeds(candidates: Sequence[Candidate], measured: Mapping[str, float]) -> list[Candidate]:
    """Return the candidates with their `speed`, a node's memory bandwidth in GB/s.

    `measured` has the bandwidth of one GPU, by instance type. For other types, data sheets count,
    which promise too much: they are multiplied by the median ratio of measurement to data sheet. A
    GPU with neither counts as the slowest of the others.
    """
    types = {one.type.name: one.type for one in candidates}
    sheets = {name: ec2_gpu_bandwidth(kind.gpu, kind.gpu_memory_mb) for name, kind in types.items()}
    shares = [
        measured[name] / sheet for name, sheet in sheets.items() if name in measured and sheet
    ]
    share = statistics.median(shares) if shares else 1.0
    known = {
        name: measured.get(name, sheet * share if sheet else 0.0) for name, sheet in sheets.items()
    }
    slowest = min((speed for speed in known.values() if speed), default=1.0)

    def speed(kind: InstanceType) -> float:
        per_gpu = known[kind.name] or slowest
        return kind.gpus * per_gpu if kind.gpus else kind.vcpus * VCPU_BANDWIDTH

    return [replace(one, speed=speed(one.type)) for one in candidates]
