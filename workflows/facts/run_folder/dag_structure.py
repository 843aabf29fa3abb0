"""A run's graph of jobs: regions, lanes, and DAG nodes with their trials.

A region's lanes run in parallel, with one trial at a time in each lane. With
`budget.trials_per_job: all`, a lane is one DAG node, and its job trains all trials of the lane.
Otherwise, a lane is a chain of DAG nodes, each with a job that trains some of the lane's trials.

If a region has several chains, they have DAG nodes for about a quarter more trials than the budget
allows. So lanes on faster machines can train more trials. Once the budget is used up, the remaining
DAG nodes are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property

from trialfleet.optimizer.service_client import EXIT_NO_SERVICE
from trialfleet.workflows.facts.run_folder.trial_names import ALL, TrialRange, parse_trial_range
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.study.spec import Study

# Exit codes of the nodes' scripts; region.dag tells DAGMan their meanings.
EXITS = {
    "done": 0,
    "retry": 1,
    "skip": 3,
    "stop": 4,
    "incomplete": 5,  # the report's code if a region lacks a result
    "defer": EXIT_NO_SERVICE,
}
RESTARTS = 10  # replacements of a region's DAGMan before the region fails
NODE_FAULTS = 10  # further attempts of a node after failures that machines caused
PUBLISH_RETRIES = 3  # of the publishing job, after an unexpected error
SLACK = 1.25  # nodes of a lane / its share of the trials


@dataclass(frozen=True, kw_only=True)
class RegionGraph:
    """The DAG nodes of a region's graph."""

    name: str
    slug: str
    lanes: tuple[tuple[str, ...], ...]
    trials: int
    priority: int
    publishes: bool
    gated: bool = False
    gangs: bool = False  # its trainings are gangs, which one more DAG node manages
    trials_per_job: int | None = 1  # None: all of its lane
    length: int = 1  # the maximum number of trials in a lane

    @property
    def best(self) -> str:
        """The DAG node that trains the best settings in full."""
        return f"{self.slug}.best"

    @property
    def gate(self) -> str:
        """The DAG node that measures the new and the current model, if the study has a gate."""
        return f"{self.slug}.gate"

    @property
    def publish(self) -> str:
        """The DAG node that publishes the model."""
        return f"{self.slug}.publish"

    @property
    def tuned_node(self) -> str:
        """The DAG node that ends a region if the study publishes no models; it never has a job."""
        return f"{self.slug}.tuned"

    @property
    def end_nodes(self) -> tuple[str, ...]:
        """The DAG nodes that run after the trials."""
        if not self.publishes:
            return (self.tuned_node,)
        return (self.best, self.gate, self.publish) if self.gated else (self.best, self.publish)

    @property
    def trial_nodes(self) -> list[str]:
        """The DAG nodes with trials, lane by lane."""
        return [node for lane in self.lanes for node in lane]

    def next_trial(self, node: str, begun: Container[str]) -> str | None:
        """Return the first of a DAG node's trials that is not in `begun`; None if there is none."""
        own = parse_trial_range(node)
        last = min(own.last, self.trials)
        names = (own.name(number, self.length) for number in range(own.first, last + 1))
        return next((name for name in names if name not in begun), None)

    def find_node(self, name: str) -> str | None:
        """Return the DAG node `name`, or the DAG node that trains the trial `name`; else None."""
        if name in self._names:
            return name
        nodes = self._nodes_by_lane.get(parse_trial_range(name).lane, ())
        return next((node for node in nodes if parse_trial_range(node).has(name)), None)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset((*self.trial_nodes, *self.end_nodes))

    @cached_property
    def _nodes_by_lane(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for node in self.trial_nodes:
            found.setdefault(parse_trial_range(node).lane, []).append(node)
        return found


@dataclass(frozen=True, kw_only=True)
class StudyGraph:
    """The graph of a run, with all of its regions."""

    regions: tuple[RegionGraph, ...]
    parallel_regions: int | None
    autoscale: str = "off"

    @property
    def node_count(self) -> int:
        """The total number of DAG nodes in the run's graph and in the regions' graphs."""
        own = sum(
            1 + region.gangs + len(region.trial_nodes) + len(region.end_nodes)
            for region in self.regions
        )
        return 2 + (self.autoscale != "off") + own

    @property
    def concurrency(self) -> int:
        """The number of trials that run at the same time if there are enough slots."""
        lanes = sorted((len(region.lanes) for region in self.regions), reverse=True)
        return sum(lanes[: self.parallel_regions])


def build_graph(study: Study) -> StudyGraph:
    """Return the graph of `study`; the study must have all regions and defaults filled in."""
    return StudyGraph(
        regions=tuple(_region_graph(study, name) for name in study.region_table),
        parallel_regions=study.parallel_regions,
        autoscale=autoscale_mode(study),
    )


def autoscale_mode(study: Study) -> str:
    """Return the value of the study's key `fleet.autoscale`; "off" if the study has no fleet."""
    return study.fleet.autoscale if study.fleet else "off"


def _region_graph(study: Study, name: str) -> RegionGraph:
    budget = study.region_budget(name)
    slug = region_slug(name)
    lanes = min(budget.lanes, budget.trials)
    length = _lane_length(budget.trials, lanes, budget.per_job)
    return RegionGraph(
        name=name,
        slug=slug,
        lanes=_lane_nodes(slug, length, lanes, budget.per_job),
        length=length,
        trials_per_job=budget.per_job,
        trials=budget.trials,
        priority=study.region_table[name].priority,
        publishes=study.publishes,
        gated=study.gate is not None,
        gangs=study.region_gang(name) is not None,
    )


def _lane_length(trials: int, lanes: int, per_job: int | None) -> int:
    if per_job is None or lanes == 1:
        return trials
    return min(trials, math.ceil(SLACK * trials / lanes))


def _lane_nodes(
    slug: str, length: int, lanes: int, per_job: int | None
) -> tuple[tuple[str, ...], ...]:
    names = [f"{slug}.l{lane:0{len(str(lanes))}}" for lane in range(1, lanes + 1)]
    if per_job is None:
        return tuple((TrialRange(lane, 1, ALL).node(length),) for lane in names)
    ranges = [(first, first + per_job - 1) for first in range(1, length + 1, per_job)]
    return tuple(
        tuple(TrialRange(lane, first, last).node(length) for first, last in ranges)
        for lane in names
    )
