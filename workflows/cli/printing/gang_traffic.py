"""What a plan tells of gangs of the reference trainer: what ranks hold, send and gain.

How fast they will be is told by a model, not by trial. The compute of a step are its products: of
each weight of a layer and each row one on the way forward and two on the way back, a multiplication
and an addition each. How many a second nobody has measured on the machines to come, so it is
assumed, and told: `make bench-ranks-scaling` found 25 to 70 Gflop/s of a core, the more the wider
the layers. What ranks don't share out is the optimiser's way through all weights, and launches
before it: of a core as that found them, of a GPU assumed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trialfleet.nodes.tabular.settings import STATE_BYTES, STATE_SHARE, Settings
from trialfleet.workflows.gang.scaling import Step, summed
from trialfleet.workflows.gang.traffic import (
    ETHERNET_10,
    ETHERNET_100,
    gradient_bytes,
    sent_bytes,
    sharded_bytes,
    weights_of,
)

if TYPE_CHECKING:
    from trialfleet.optimizer.parameters import Scalar
    from trialfleet.workflows.study.spec import Study

_PAGE = "docs/large-models.md"
_OFFLOADED = {"embeddings": "the embeddings", "all": "all of it"}
_FLOPS = 6  # of a weight and a row
_LINKS = {10: ETHERNET_10, 100: ETHERNET_100}  # by Gbit/s


@dataclasses.dataclass(frozen=True)
class _Processor:
    """A core, or a GPU.

    Attributes:
        flops: a second.
        step: seconds of a step of nothing.
        weight: seconds that the optimiser takes for a weight.
        words: the rate, as it is told.
    """

    flops: float
    step: float
    weight: float
    words: str


_CORE = _Processor(flops=30e9, step=3e-4, weight=5e-9, words="30 Gflop/s a core")
_GPU = _Processor(flops=10e12, step=1e-4, weight=6e-11, words="10 Tflop/s a GPU")


def gang_lines(study: Study, tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return some lines of the region whose ranks send most; none where nothing is known of it."""
    if not (gangs := _gangs(study, tables)):
        return []
    gang = max(gangs, key=lambda each: each.sent)
    seconds = gang.sent / ETHERNET_10.bandwidth
    words = (
        f"each of {gang.ranks} ranks holds {gang.held()} and sends up to {gang.sent / 1e6:.3g} MB "
        f"{gang.often()}, {1000 * seconds:.2g} ms of 10 Gbit/s; {_PAGE} says when that pays"
    )
    step = gang.step(study)
    speed = _speed_lines(study, gang, step) if step else []
    return [f"  gangs    {gang.region}: {words}", *speed]


def gangs_summary(study: Study, tables: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the same of each region, as plain data; arguments as above."""
    return [
        {
            "region": gang.region,
            "ranks": gang.ranks,
            "sent_bytes": gang.sent,
            "speeds": _speeds(gang, step) if (step := gang.step(study)) else None,
        }
        for gang in _gangs(study, tables)
    ]


def _gangs(study: Study, tables: Mapping[str, Mapping[str, Any]]) -> list[_Gang]:
    if study.trainer != "tabular":
        return []
    per_node = study.resources.whole_gpus if study.accelerator == "gpu" else 1
    return [
        _Gang.of(study, name, table, nodes.max * per_node)
        for name, table in tables.items()
        if (nodes := study.nodes_of(name)) and nodes.max > 1
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Gang:
    """The ranks of a region, with the largest network that its search space allows.

    Attributes:
        ranks: how many there are at most.
        weights: how many numbers it has.
        embeddings: how many of them are of categorical values.
        memory: bytes that a rank has; None where only its GPU knows.
    """

    region: str
    ranks: int
    settings: Settings
    weights: int
    embeddings: int
    memory: float | None

    @staticmethod
    def of(study: Study, region: str, table: Mapping[str, Any], ranks: int) -> _Gang:
        settings = largest(study, region)
        vocabularies, classes = [*table["categorical"].values()], len(table.get("classes") or ())
        outputs = classes if classes > 2 else 1
        described = dataclasses.asdict(settings)
        return _Gang(
            region=region,
            ranks=ranks,
            settings=settings,
            weights=weights_of(len(table["numeric"]), vocabularies, outputs, described),
            embeddings=sum(size + 1 for size in vocabularies) * settings.embedding,
            memory=study.resources.memory_bytes if study.accelerator == "cpu" else None,
        )

    @property
    def is_sharded(self) -> bool:
        """Whether each rank holds a part; with GPUs that nobody has seen yet, it doesn't."""
        return self.settings.shards(self.weights, math.inf if self.memory is None else self.memory)

    @property
    def sent(self) -> float:
        """The bytes that each rank sends when they meet."""
        wire = self.settings.wire
        if self.is_sharded:  # what travels of the embeddings is the batch's
            return sharded_bytes(self.weights - self.embeddings, wire, self.ranks)
        return sent_bytes(gradient_bytes(self.weights, wire), self.ranks)

    def step(self, study: Study) -> Step | None:
        """What the model of compute and link takes; None of a shared-out network.

        That is done for memory, and what else it takes than sending isn't known well enough.
        """
        if self.is_sharded:
            return None
        one, rows = _processor(study), self.settings.batch_size
        many = 1 if study.accelerator == "gpu" else study.resources.cpus  # each GPU has a rank
        products = _FLOPS * (self.weights - self.embeddings) * rows  # embeddings need none
        return Step(
            rows=rows,
            compute=products / (one.flops * many),
            overhead=one.step + one.weight * self.weights,
            traffic=summed(gradient_bytes(self.weights, self.settings.wire)),
            local_steps=self.settings.local_steps,
        )

    def often(self) -> str:
        """How often they meet."""
        if (steps := self.settings.local_steps) > 1:
            return f"every {steps} steps"
        return "each step" + (", beside the embeddings of its batch" if self.is_sharded else "")

    def held(self) -> str:
        """What each rank holds of the model."""
        state = self.weights * STATE_BYTES / 1e6
        if self.is_sharded:
            part = f"its part of the model, up to {state / self.ranks:.3g} of {state:.3g} MB"
        else:
            part = f"all of the model, up to {state:.3g} MB"
        if self.settings.offload in _OFFLOADED:
            return f"{part}, {_OFFLOADED[self.settings.offload]} in main memory,"
        if self.memory is not None:
            return part
        choices, chosen = [], self.settings  # of GPUs that nobody has seen yet
        if chosen.parallel == "auto" and chosen.local_steps == 1 and not self.is_sharded:
            choices += [f"or its part, on GPUs with less than {state / STATE_SHARE:.3g} MB"]
        if (choices or self.is_sharded) and chosen.offload == "auto":
            least = state / STATE_SHARE / self.ranks
            choices += [f"with less than {least:.3g} MB the embeddings lie in main memory"]
        return f"{part} ({'; '.join(choices)})" if choices else part


def _speeds(gang: _Gang, step: Step) -> list[dict[str, Any]]:
    """How a region's ranks compare with one, and how many would be fastest, by link."""
    return [
        {
            "gbits": gbits,
            "rows_per_second": step.rows_per_second(gang.ranks, link),
            "speedup": step.speedup(gang.ranks, link),
            "best_ranks": (best := step.best(link)),
            "best_speedup": step.speedup(best, link),
        }
        for gbits, link in _LINKS.items()
    ]


def _speed_lines(study: Study, gang: _Gang, step: Step) -> list[str]:
    """The same in words."""
    ten, hundred = found = _speeds(gang, step)
    gain = (
        f"{ten['speedup']:.2g} times the rows per second of one {_on(ten)}, "
        f"{hundred['speedup']:.2g} times {_on(hundred)}"
    )
    rate = f"at an assumed {_processor(study).words}"
    return [
        f"  gangs    {gang.region}: {gang.ranks} ranks train {gain}, {rate}",
        f"  gangs    {gang.region}: {'; '.join(map(_best, found))}",
    ]


def _best(speed: dict[str, Any]) -> str:
    if (ranks := speed["best_ranks"]) == 1:
        return f"{_on(speed)} one rank is fastest"
    return f"{_on(speed)} {ranks} ranks are best, {speed['best_speedup']:.2g} times"


def _on(speed: dict[str, Any]) -> str:
    return f"on {speed['gbits']} Gbit/s"


def _processor(study: Study) -> _Processor:
    return _GPU if study.accelerator == "gpu" else _CORE


def largest(study: Study, region: str) -> Settings:
    """Return a region's settings with the widest and deepest network that it may have."""
    space = study.space_of(region)
    values: dict[str, Scalar] = space.complete(space.defaults())
    for name in ("hidden", "layers", "embedding"):
        if high := getattr(space.parameters.get(name), "high", None):
            values[name] = high
    return Settings.of(values)
