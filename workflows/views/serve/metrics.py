"""/metrics for Prometheus: the newest run of each study, and the nodes of the pool.

Names and units follow Prometheus' conventions. Labels are study, region and state: as many series
as there are regions, however many runs and trials. `docs/assets/grafana.json` is a dashboard of
them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from trialfleet.infra.pool.machines import State
from trialfleet.workflows.rules.states import RunState, Stage
from trialfleet.workflows.status.run_status import RegionStatus
from trialfleet.workflows.views.serve.gains import gain_of
from trialfleet.workflows.views.serve.live import Snapshot
from trialfleet.workflows.views.serve.nodes import PoolNodes

_FAMILY = re.compile(rb"(# HELP.*\n(?:# (?!HELP|EOF).*\n)*)((?:[^#].*\n)*)")  # head, samples
_EOF = b"# EOF\n"
_NODE_STATES: tuple[State, ...] = ("well", "sick", "draining")


@dataclass
class _Metrics(Collector):
    """Metrics to be written."""

    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        """Return them; one that nothing is known of has no samples."""
        return self.metrics


def exposition(snapshots: Sequence[Snapshot], nodes: PoolNodes, accept: str) -> tuple[bytes, str]:
    """Return the metrics in the form that a scraper accepts, and that form's name.

    What is told of a region is written when it changes.

    Args:
        snapshots: the runs, one of each study.
        nodes: the pool's.
        accept: the scraper's header.
    """
    encode, content_type = choose_encoder(accept)
    whole = encode(_Metrics([*_of_runs(snapshots), _ages(snapshots), *_of_nodes(nodes)]))
    found = _FAMILY.findall(whole) + _written(encode)
    for snapshot in snapshots:
        study = snapshot.look.status.study
        for region in snapshot.look.status.regions:
            figures = region.budget, region.best, gain_of(snapshot, region).value
            counts = _finished(region), _under_way(region)
            told = study, region.name, region.stage, *counts, figures
            name = "metrics", region.slug, accept
            found += snapshot.kept.of(name, told, partial(_written, encode, *told))
    families: dict[bytes, list[bytes]] = defaultdict(list)
    for head, samples in found:
        families[head].append(samples)
    parts = [part for head, samples in families.items() for part in (head, *samples)]
    return b"".join([*parts, _EOF if whole.endswith(_EOF) else b""]), content_type


def _written(encode: Callable[[Collector], bytes], *told: Any) -> list[tuple[bytes, bytes]]:
    """The heads and the samples of what is told of a region."""
    return _FAMILY.findall(encode(_Metrics(_of_region(*told))))


def _of_runs(snapshots: Iterable[Snapshot]) -> Iterator[Metric]:
    state = _gauge("run_state", "1 for the state that the study's newest run is in.", "state")
    info = _gauge("run_info", "The study's newest run: 1, with its id.", "run")
    troubles = _gauge("run_troubles", "What keeps parts of the run from going on.")
    nowhere = _gauge("run_trials_in_trouble", "Trials that get nowhere.")
    lost = _gauge("run_lost_work_ratio", "The part of all executed time that was thrown away.")
    held = _gauge("run_held_jobs", "Jobs that wait for a person.")
    spent = _gauge("run_spent_usd", "What the run's fleet has cost.")
    cap = _gauge("run_cap_usd", "What it may cost.")
    look = _gauge("run_look_seconds", "How long reading the run's state took.")
    for snapshot in snapshots:
        status = snapshot.look.status
        labels = [status.study]
        for each in RunState:
            state.add_metric([*labels, each.value], status.state is each)
        info.add_metric([*labels, status.run], 1)
        troubles.add_metric(labels, len(status.troubles))
        nowhere.add_metric(labels, len(status.job_troubles))
        lost.add_metric(labels, status.work.lost_share)
        held.add_metric(labels, len(status.held))
        look.add_metric(labels, snapshot.seconds)
        if status.money:
            spent.add_metric(labels, status.money.spent)
        if status.money and status.money.cap is not None:
            cap.add_metric(labels, status.money.cap)
    yield from (state, info, troubles, nowhere, lost, held, spent, cap, look)


def _ages(snapshots: Iterable[Snapshot]) -> Metric:
    age = _gauge("model_age_seconds", "Age of the region's model in force.", "region")
    now = datetime.now(UTC)
    for snapshot in snapshots:
        for region in snapshot.look.status.regions:
            champion = snapshot.champions.get(region.slug)
            if champion and champion.as_of:
                seconds = (now - champion.as_of).total_seconds()
                age.add_metric([snapshot.look.status.study, region.name], seconds)
    return age


def _of_region(
    study: str = "",
    name: str = "",
    stage: Stage | None = None,
    finished: Mapping[str, int] = MappingProxyType({}),
    under_way: Mapping[str, int] = MappingProxyType({}),
    figures: Iterable[float | None] = (),
) -> Iterator[Metric]:
    """What is told of a region, its budget, best value and gain last; without it no samples."""
    state = _gauge("region_state", "1 for the state that the region is in.", "region", "state")
    trials = CounterMetricFamily(
        "trialfleet_trials",
        "Trials of the newest run that are over, by what became of them.",
        labels=("study", "region", "state"),
    )
    pending = _gauge("trials_pending", "Trials that are not over.", "region", "state")
    for each in Stage if stage else ():
        state.add_metric([study, name, each.value], stage is each)
    for family, counts in ((trials, finished), (pending, under_way)):
        for word, count in counts.items():
            family.add_metric([study, name, word], count)
    yield from (state, trials, pending)
    for family, figure in zip_longest(
        (
            _gauge("trials_budget", "Trials that the region may run.", "region"),
            _gauge("region_best_value", "The objective's best value so far.", "region"),
            _gauge("region_gain", "How much better that is than what was before.", "region"),
        ),
        figures,
    ):
        if figure is not None:
            family.add_metric([study, name], figure)
        yield family


def _of_nodes(pool: PoolNodes) -> Iterator[Metric]:
    nodes = GaugeMetricFamily("trialfleet_nodes", "Nodes in the pool.", labels=("state",))
    counts = Counter(node.state() for node in pool.nodes)
    for state in _NODE_STATES:
        nodes.add_metric([state], counts[state])
    price = GaugeMetricFamily(
        "trialfleet_nodes_price_usd_per_hour", "Price of all nodes whose price is known."
    )
    price.add_metric([], pool.price)
    jobs = GaugeMetricFamily("trialfleet_nodes_jobs", "Jobs that the nodes run.")
    jobs.add_metric([], sum(len(node.jobs) for node in pool.nodes))
    yield from (nodes, price, jobs)


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"trialfleet_{name}", meaning, labels=("study", *labels))


def _finished(region: RegionStatus) -> dict[str, int]:
    return {
        "complete": region.done,
        "failed": region.failed,
        "pruned": region.pruned,
        "stopped early": region.stopped_early,
    }


def _under_way(region: RegionStatus) -> dict[str, int]:
    return {"running": region.running, "queued": region.queued, "held": region.on_hold}
