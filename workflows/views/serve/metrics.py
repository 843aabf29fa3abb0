"""Metrics for Prometheus about each study's newest run and daily runs, and about nodes.

The number of time series grows with the regions, not with runs or trials. Metrics of daily runs
include regions that the newest run lacks. `docs/assets/` has a Grafana dashboard and alert rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from trialfleet.infra.pool.machines import State
from trialfleet.workflows.facts.journal.journal import Ending
from trialfleet.workflows.facts.journal.last_days import StudyDays
from trialfleet.workflows.rules.states import RunState, Stage
from trialfleet.workflows.status.status_types import RegionStatus, RunStatus
from trialfleet.workflows.views.serve.gains import read_gain
from trialfleet.workflows.views.serve.live_runs import PoolNodes, Snapshot

_NODE_STATES: tuple[State, ...] = ("well", "sick", "draining")
_OF_RUNS: tuple[tuple[str, str, Callable[[RunStatus], float | None]], ...] = (
    ("run_troubles", "Number of faults that block parts of the run.", lambda s: len(s.troubles)),
    ("run_trials_in_trouble", "Number of trials without progress.", lambda s: len(s.job_troubles)),
    (
        "run_lost_work_ratio",
        "Part of all execution time that was lost.",
        lambda s: s.work.lost_share,
    ),
    ("run_held_jobs", "Number of jobs on hold.", lambda s: len(s.held)),
    ("run_spent_usd", "Cost of the run's fleet; without a fleet, of its jobs.", lambda s: s.usd),
    ("run_cap_usd", "Maximum cost of the run.", lambda s: s.money.cap if s.money else None),
)


def exposition(
    snapshots: Iterable[Snapshot],
    days: Iterable[StudyDays],
    nodes: PoolNodes,
    accept: str,
    unreadable: Iterable[tuple[str, str]] = (),
) -> tuple[bytes, str]:
    """Return the metrics as text, and the content type of the text.

    `snapshots` has one snapshot per study. `accept` is the request's header Accept, which chooses
    the format. `unreadable` has the studies of which something can't be read, and what it is.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Metrics(list(snapshots), list(days), nodes, list(unreadable)))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Metrics(Collector):
    def __init__(
        self,
        snapshots: list[Snapshot],
        days: list[StudyDays],
        nodes: PoolNodes,
        unreadable: list[tuple[str, str]],
    ) -> None:
        self._snapshots, self._days, self._nodes = snapshots, days, nodes
        self._unreadable = {
            *unreadable,
            *((one.study, "study") for one in days if one.lacks_study),
            *((one.study, "models") for one in days if one.lacks_models),
            *((one.run.status.study, what) for one in snapshots for what in _away(one)),
            *([("", "nodes")] if nodes.notice else ()),
        }

    def collect(self) -> Iterator[Metric]:
        yield self._missing()
        yield from self._run_metrics()
        yield from self._region_metrics()
        yield from self._day_metrics()
        yield self._ages()
        yield self._approvals()
        yield from self._node_metrics()

    def _missing(self) -> Metric:
        text = "1 if something can't be read, so that other metrics are missing or old."
        gauge = _gauge("unreadable", text, "what")
        for study, what in sorted(self._unreadable):
            gauge.add_metric([study, what], 1)
        return gauge

    def _run_metrics(self) -> Iterator[Metric]:
        state = _gauge("run_state", "1 for the present state of the study's newest run.", "state")
        info = _gauge("run_info", "The id of the study's newest run, with value 1.", "run")
        reading = _gauge("run_look_seconds", "Seconds to read the run's state.")
        for snapshot in self._snapshots:
            status = snapshot.run.status
            for each in RunState:
                state.add_metric([status.study, each.value], status.state is each)
            info.add_metric([status.study, status.run], 1)
            reading.add_metric([status.study], snapshot.seconds)
        yield from (state, info, reading)
        for name, meaning, value in _OF_RUNS:
            gauge = _gauge(name, meaning)
            for snapshot in self._snapshots:
                status = snapshot.run.status
                if (found := value(status)) is not None:
                    gauge.add_metric([status.study], found)
            yield gauge

    def _region_metrics(self) -> Iterator[Metric]:
        state = _gauge("region_state", "1 for the present state of the region.", "region", "state")
        labels = ("study", "region", "state")
        text = "Ended trials of the newest run, by state."
        trials = CounterMetricFamily("trialfleet_trials", text, labels=labels)
        text = "Number of trials that have not ended."
        pending = _gauge("trials_pending", text, "region", "state")
        budget = _gauge("trials_budget", "Maximum number of trials of the region.", "region")
        best = _gauge("region_best_value", "Best value of the objective so far.", "region")
        text = "Gain of the best settings over the current model or the default settings."
        gain = _gauge("region_gain", text, "region")
        for snapshot in self._snapshots:
            for region in snapshot.run.status.regions:
                own = [snapshot.run.status.study, region.name]
                for stage in Stage:
                    state.add_metric([*own, stage.value], region.stage is stage)
                for word, count in {
                    "complete": region.done,
                    "failed": region.failed,
                    "pruned": region.pruned,
                    "stopped early": region.stopped_early,
                }.items():
                    trials.add_metric([*own, word], count)
                waits = {"running": region.running, "queued": region.queued, "held": region.on_hold}
                for word, count in waits.items():
                    pending.add_metric([*own, word], count)
                budget.add_metric(own, region.budget)
                for gauge, value in (best, region.best), (gain, read_gain(snapshot, region).value):
                    if value is not None:
                        gauge.add_metric(own, value)
        yield from (state, trials, pending, budget, best, gain)

    def _day_metrics(self) -> Iterator[Metric]:
        ended = _gauge(
            "region_day", "1 for the outcome of the region's last day.", "region", "outcome"
        )
        failed = _gauge(
            "region_failed_days", "Number of failed days in a row up to the last day.", "region"
        )
        missed = _gauge("missed_days", "Number of missed days since the last day that started.")
        end = _gauge("day_end_timestamp_seconds", "When the study's last finished day ended.")
        now = datetime.now(UTC)
        for days in self._days:
            for region, last in days.regions.items():
                for each in Ending:
                    own = [days.study, region, each.value]
                    ended.add_metric(own, last.ending is each)
                failed.add_metric([days.study, region], last.failed)
            if days.daily:
                missed.add_metric([days.study], max(0, (days.daily.due_day(now) - days.begun).days))
            if days.ended:
                end.add_metric([days.study], days.ended.timestamp())
        yield from (ended, failed, missed, end)

    def _ages(self) -> Metric:
        def made(snapshot: Snapshot, region: RegionStatus) -> datetime | None:
            champion = snapshot.champions.get(region.slug)
            return champion.as_of if champion else None

        text = "Age of the region's current model."
        return self._seconds_since("model_age_seconds", text, lambda days: days.models, made)

    def _approvals(self) -> Metric:
        def since(_: Snapshot, region: RegionStatus) -> datetime | None:
            waits = region.awaits_approval
            return datetime.fromisoformat(waits) if waits else None

        text = "Time that a model of the region has waited for trialfleet promote."
        return self._seconds_since("approval_wait_seconds", text, lambda days: days.awaiting, since)

    def _seconds_since(
        self,
        name: str,
        text: str,
        of_days: Callable[[StudyDays], Mapping[str, datetime]],
        of_region: Callable[[Snapshot, RegionStatus], datetime | None],
    ) -> Metric:
        """Return a metric with each region's seconds since an event.

        `of_days` returns when the event happened in the daily runs, by region. `of_region` returns
        when it happened in the newest run, or None. If both are known, the newest run counts.
        """
        found = {
            (days.study, region): moment
            for days in self._days
            for region, moment in of_days(days).items()
        }
        for snapshot in self._snapshots:
            status = snapshot.run.status
            for region in status.regions:
                if moment := of_region(snapshot, region):
                    found[status.study, region.name] = moment
        gauge = _gauge(name, text, "region")
        now = datetime.now(UTC)
        for own, moment in found.items():
            gauge.add_metric(own, (now - moment).total_seconds())
        return gauge

    def _node_metrics(self) -> Iterator[Metric]:
        nodes = GaugeMetricFamily(
            "trialfleet_nodes", "Number of nodes in the pool.", labels=("state",)
        )
        price = GaugeMetricFamily(
            "trialfleet_nodes_price_usd_per_hour", "Sum of the known prices of the nodes."
        )
        jobs = GaugeMetricFamily("trialfleet_nodes_jobs", "Number of jobs that run on the nodes.")
        if not self._nodes.notice:  # else the nodes are unknown, which is not 0
            counts = Counter(node.state() for node in self._nodes.nodes)
            for state in _NODE_STATES:
                nodes.add_metric([state], counts[state])
            price.add_metric([], self._nodes.price)
            jobs.add_metric([], sum(len(node.jobs) for node in self._nodes.nodes))
        yield from (nodes, price, jobs)


def _away(snapshot: Snapshot) -> Iterator[str]:
    """Yield which sources of a run can't be read. An ended run no longer needs the queue."""
    if snapshot.run.storage_away:
        yield "trials"
    if snapshot.run.queue_away and not snapshot.run.status.ended:
        yield "queue"
    if any(champion.as_of is None for champion in snapshot.champions.values()):
        yield "models"


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"trialfleet_{name}", meaning, labels=("study", *labels))
