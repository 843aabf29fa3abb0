"""What a plan tells of how fast a gang of the reference trainer will be: by a model, not by trial.

The compute of a step are its products: of each weight of a layer and each row one on the way
forward and two on the way back, a multiplication and an addition each. How many a second nobody has
measured on the machines to come, so it is assumed, and told: `make bench-ranks-scaling` found 25 to
70 Gflop/s of a core, the more the wider the layers. What ranks don't share out is the optimiser's
way through all weights, and launches before it: of a core as that found them, of a GPU assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trialfleet.workflows.gang.scaling import Step, summed
from trialfleet.workflows.gang.traffic import ETHERNET_10, ETHERNET_100, gradient_bytes

if TYPE_CHECKING:
    from trialfleet.nodes.tabular.settings import Settings
    from trialfleet.workflows.study.spec import Study

_FLOPS = 6  # of a weight and a row
_LINKS = {10: ETHERNET_10, 100: ETHERNET_100}  # by Gbit/s


@dataclass(frozen=True)
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


def step_of(study: Study, settings: Settings, weights: int, embeddings: int) -> Step:
    """Return a step of a network, as the model has it.

    Args:
        study: says what a machine has.
        settings: of the trainer.
        weights: how many numbers the network has.
        embeddings: how many of them are of categorical values, which need no product.
    """
    one, resources = _processor(study), study.resources
    many = 1 if study.accelerator == "gpu" else resources.cpus  # each GPU has a rank
    products = _FLOPS * (weights - embeddings) * settings.batch_size
    return Step(
        rows=settings.batch_size,
        compute=products / (one.flops * many),
        overhead=one.step + one.weight * weights,
        traffic=summed(gradient_bytes(weights, settings.wire)),
        local_steps=settings.local_steps,
    )


def speed_lines(study: Study, region: str, ranks: int, step: Step) -> list[str]:
    """Return how a region's ranks compare with one, and how many would be fastest."""
    ten, hundred = found = speeds(step, ranks)
    gain = (
        f"{ten['speedup']:.2g} times the rows per second of one {_on(ten)}, "
        f"{hundred['speedup']:.2g} times {_on(hundred)}"
    )
    rate = f"at an assumed {_processor(study).words}"
    return [
        f"  gangs    {region}: {ranks} ranks train {gain}, {rate}",
        f"  gangs    {region}: {'; '.join(map(_best, found))}",
    ]


def speeds(step: Step, ranks: int) -> list[dict[str, Any]]:
    """Return the same as plain data, by link."""
    return [
        {
            "gbits": gbits,
            "rows_per_second": step.rows_per_second(ranks, link),
            "speedup": step.speedup(ranks, link),
            "best_ranks": (best := step.best(link)),
            "best_speedup": step.speedup(best, link),
        }
        for gbits, link in _LINKS.items()
    ]


def _best(speed: dict[str, Any]) -> str:
    if (ranks := speed["best_ranks"]) == 1:
        return f"{_on(speed)} one rank is fastest"
    return f"{_on(speed)} {ranks} ranks are best, {speed['best_speedup']:.2g} times"


def _on(speed: dict[str, Any]) -> str:
    return f"on {speed['gbits']} Gbit/s"


def _processor(study: Study) -> _Processor:
    return _GPU if study.accelerator == "gpu" else _CORE
