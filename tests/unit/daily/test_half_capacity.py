"""Days with slots for half of the regions' work: the greatest age of a current model.

Clock and slots are simulated; priorities, graphs, the deadline and `latest` are the project's own.
Regions begin as DAGMan begins them, a trial is asked for when its turn in its lane has come, a slot
takes the waiting job of the highest priority and of those the one that waits longest, and a trial
that waits at the deadline does not begin any more.
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from tests.unit.study.study_texts import MINIMAL, write
from trialfleet.optimizer.budget_and_deadline_rules import Facts, refusal
from trialfleet.workflows.control.daily.staleness import stalest_first
from trialfleet.workflows.control.models.latest import switch_to_newest
from trialfleet.workflows.facts.models.folders import LATEST, model_time, region_models_folder
from trialfleet.workflows.facts.run_folder.dag_structure import RegionGraph, build_graph
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.loading import load_study
from trialfleet.workflows.study.spec import Study

pytestmark = pytest.mark.slow


REGIONS = [f"R{n:02}" for n in range(41)]
DAYS = [date(2026, 11, 1) + timedelta(days=n) for n in range(14)]
SLOTS, TRIALS, LANES = 8, 8, 4
FULL = 3  # trials that take as long as a full training
TWO_THIRDS = 2 / 3

Order = Callable[[Study, datetime], Study]


def is_over(day: RunsDay, now: datetime) -> bool:
    return refusal("trial", Facts(deadline=day.deadline, now=now)) is not None


def first_in_first_out(study: Study, _: datetime) -> Study:
    """Return a run without priorities: regions in the study's order, jobs as submitted."""
    return study


@dataclass
class Region:
    """A region of a day's run, as far as it has come."""

    graph: RegionGraph
    hours: float  # of a trial
    asked: int = 0
    completed: int = 0
    under_way: int = 0  # jobs that wait or run


class Day:
    """A day's run on the slots."""

    def __init__(self, study: Study, day: RunsDay, now: datetime, hours: dict[str, float]) -> None:
        graph = build_graph(study)
        self.now, self._day = now, day
        self.published: list[tuple[datetime, str]] = []
        self._numbers = count()
        self._most = graph.parallel_regions or len(REGIONS)
        self._regions = [Region(region, hours[region.name]) for region in graph.regions]
        self._waiting = sorted(self._regions, key=lambda region: -region.graph.priority)
        self._open = 0
        self._idle: list[tuple[int, int, Region, str]] = []
        self._running: list[tuple[datetime, int, Region, str]] = []

    def run(self) -> None:
        """Bring every region to its end."""
        while self._waiting or self._idle or self._running:
            while self._waiting and self._open < self._most:
                self._begin(self._waiting.pop(0))
            while self._idle and len(self._running) < SLOTS:
                self._start(*heapq.heappop(self._idle))
            if self._running:
                self.now, _, region, kind = heapq.heappop(self._running)
                region.completed += kind == "trial"
                self._job_is_over(region, kind)

    def _begin(self, region: Region) -> None:
        self._open += 1
        for _ in region.graph.lanes:
            self._ask(region)
        self._go_on(region)

    def _ask(self, region: Region) -> None:
        """Run the PRE script of a trial's node."""
        if region.asked < region.graph.trials and not is_over(self._day, self.now):
            region.asked += 1
            self._submit(region, "trial")

    def _submit(self, region: Region, kind: str) -> None:
        region.under_way += 1
        heapq.heappush(self._idle, (-region.graph.priority, next(self._numbers), region, kind))

    def _start(self, _: int, number: int, region: Region, kind: str) -> None:
        if kind == "trial" and is_over(self._day, self.now):
            self._job_is_over(region, kind)
            return
        end = self.now + timedelta(hours=region.hours * (FULL if kind == "full" else 1))
        heapq.heappush(self._running, (end, number, region, kind))

    def _job_is_over(self, region: Region, kind: str) -> None:
        region.under_way -= 1
        if kind == "full":
            self.published.append((self.now, region.graph.name))
            self._open -= 1
        else:
            self._ask(region)
            self._go_on(region)

    def _go_on(self, region: Region) -> None:
        """Submit the next job of a region, once all of its lanes are over."""
        if region.under_way:
            return
        if region.completed:
            self._submit(region, "full")
        else:
            self._open -= 1  # it has failed


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "go.sh").touch()
    return tmp_path / "study.yaml"


def study_of(file: Path, hours: dict[str, float], parallel_regions: int | None) -> Study:
    """Return a study whose deadline leaves its slots the time for half of the work."""
    work = sum(hours.values()) * (TRIALS + FULL)
    text = MINIMAL.replace("[A, NO]", f"[{', '.join(REGIONS)}]")
    text += f"budget: {{trials: {TRIALS}, lanes: {LANES}}}\n"
    text += f"daily: {{at: '02:30', zone: UTC, deadline: {work / 2 / SLOTS * 60:.0f}m}}\n"
    text += f"parallel_regions: {parallel_regions}\n" if parallel_regions else ""
    return load_study(write(file.parent, text))


def oldest(study: Study, hours: dict[str, float], order: Order) -> float:
    """Return the greatest age in days of a current model in two weeks."""
    assert study.daily
    worst, free = timedelta(), datetime.min.replace(tzinfo=UTC)
    begun = study.daily.start_time(DAYS[0])
    latest = dict.fromkeys(REGIONS, begun)  # and from when on a region waits for its first model
    for each in DAYS:
        begins = study.daily.start_time(each)
        day = RunsDay(date=each, deadline=study.daily.deadline_after(begins))
        planned = max(begins, free)
        if is_over(day, planned):  # the day before it took too long
            continue
        run = Day(order(study, planned), day, planned, hours)
        run.run()
        free = run.now
        for moment, region in run.published:
            worst = max(worst, moment - latest[region])
            latest[region] = publish(study, region, day, planned)
    end = study.daily.start_time(DAYS[-1]) + timedelta(days=1)
    return max(worst, *(end - as_of for as_of in latest.values())) / timedelta(days=1)


def publish(study: Study, region: str, day: RunsDay, planned: datetime) -> datetime:
    """Publish a model as a run does; return the newness of the current one."""
    model = region_models_folder(study, region) / str(day.date)
    model.mkdir(parents=True)
    as_of = min(planned, day.end)
    provenance = json.dumps({"run": model.name, "as_of": as_of.isoformat()})
    (model / "provenance.json").write_text(provenance)
    assert switch_to_newest(model, as_of) is None
    found = model_time(model.parent / LATEST)
    assert found == as_of
    return found


@pytest.mark.parametrize("parallel_regions", [4, None])
def test_stalest_first_lowers_the_greatest_age_of_a_model(
    file: Path, parallel_regions: int | None
) -> None:
    chance = random.Random(41)  # noqa: S311 - not for secrets
    hours = {region: chance.uniform(0.1, 1.2) for region in REGIONS}
    ages = {}
    for order in (first_in_first_out, stalest_first):
        folder = file.parent / order.__name__
        folder.mkdir()
        (folder / "go.sh").touch()
        study = study_of(folder / file.name, hours, parallel_regions)
        ages[order] = oldest(study, hours, order)
        print(f"{order.__name__}, parallel_regions {parallel_regions}: {ages[order]:.1f} days")
    assert ages[stalest_first] <= ages[first_in_first_out] * TWO_THIRDS
