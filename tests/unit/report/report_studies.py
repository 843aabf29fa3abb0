"""Regions' trials as the optimiser leaves them, and the reports of them."""

from __future__ import annotations

import base64
import json
import random
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from trialfleet.objective import Direction, best
from trialfleet.optimizer.parameters import CategoricalParameter, FloatParameter, IntParameter
from trialfleet.optimizer.space import Tunable
from trialfleet.optimizer.stored_trials import StoredTrial, TrialState
from trialfleet.workflows.facts.jobs.executions import ExecutionEnd
from trialfleet.workflows.facts.jobs.job_log import PricedExecution
from trialfleet.workflows.rules import states
from trialfleet.workflows.rules.states import RunState, Stage
from trialfleet.workflows.status.run_trials import Trial, build_trial
from trialfleet.workflows.status.status_types import RegionStatus
from trialfleet.workflows.views.report.page import render_page
from trialfleet.workflows.views.report.report_numbers import (
    RegionFacts,
    build_report,
    teacher_weights,
    trial_span,
)
from trialfleet.workflows.views.report.report_types import RegionReport, Report, RunSummary

START = datetime(2026, 11, 20, 2, 0)  # Optuna's times have no zone
SPACE: dict[str, Tunable] = {
    "rate": FloatParameter(type="float", low=1e-4, high=1e-1, log=True),
    "layers": IntParameter(type="int", low=1, high=4),
    "solver": CategoricalParameter(type="categorical", choices=["adam", "sgd"]),
    # meant only where solver is sgd
    "momentum": FloatParameter(type="float", low=0.0, high=0.9),
}
DEFAULTS: dict[str, Any] = {"rate": 1e-3, "layers": 2, "solver": "adam"}


def trial(
    params: Mapping[str, Any],
    value: float | None,
    /,
    *,
    state: TrialState | None = None,
    at: int = 0,
    reports: Mapping[int, float] | None = None,
    **notes: Any,
) -> StoredTrial:
    """Return a trial as the optimiser leaves it: failed where `value` is None."""
    if state is None:
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
    start = START + timedelta(seconds=at)
    return StoredTrial(
        number=at,
        state=state,
        value=value,
        datetime_start=start,
        datetime_complete=start + timedelta(seconds=10) if state.is_finished() else None,
        intermediate_values=dict(reports or {}),
        user_attrs={
            "node": f"R.l0.t{at:02}",
            "params": dict(params),
            "seed": at,
            "attempts": 1,
            **notes,
        },
    )


def tuned_trials(count: int, direction: str = "maximize", metric: str = "auc") -> list[StoredTrial]:
    """`count` trials in which the learning rate decides: 0.01 is best. One in ten fails."""
    rng = random.Random(1)  # noqa: S311
    trials = []
    for at in range(count):
        params: dict[str, Any] = dict(DEFAULTS) if at == 0 else some_params(rng)
        distance = abs(10 * params["rate"] - 0.1) + 0.001 * rng.random()
        value = 0.8 - distance if direction == "maximize" else distance
        failed = at % 10 == 5
        notes: dict[str, Any] = {"baseline": at == 0, "seconds": 2.5, "device": "cpu"}
        if failed:
            notes["error"] = "exit code 64: can't be trained"
        else:
            notes["metrics"] = {metric: value, "test": value - 0.01}
        trials.append(trial(params, None if failed else value, at=at, **notes))
    return trials


def attributes_of(trial: StoredTrial) -> dict[str, Any]:
    """Return the attributes of a made trial, to be changed."""
    assert isinstance(trial.user_attrs, dict)
    return trial.user_attrs


def ran(trials: Sequence[StoredTrial], slots: int = 3, begin: float = 0.0) -> list[StoredTrial]:
    """Return the trials after jobs of a minute each on a few slots, with a learning curve each."""
    for at, each in enumerate(trials):
        start = START.replace(tzinfo=UTC).timestamp() + begin + 60.0 * (at // slots)
        attributes_of(each)["job"] = {
            "started": start, "ended": start + 55, "wall_seconds": 55.0, "last_wall_seconds": 55.0,
            "cpu_seconds": 170.0, "memory_mb": 900.0, "machine": "node-1",
            "slot": f"slot1_{at % slots + 1}@node-1",
        }  # fmt: skip
        if each.value is not None:
            each.intermediate_values.update({n: each.value - 0.1 / n for n in range(1, 11)})
    return list(trials)


def many_regions(regions: int, trials: int) -> Report:
    """Return a report of many regions, whose trials differ only where they failed or wait."""
    done = ran(tuned_trials(trials))
    made = []
    for at in range(regions):
        name = f"R{at:02}"
        if at == 7:
            made.append(region_facts(name, []))
        elif at % 10 == 9:
            made.append(
                region_facts(name, [trial(DEFAULTS, None, error="no data")], stage=Stage.FAILED)
            )
        else:
            facts: dict[str, Any] = {"published": f"/models/{name}/r", "final": {"test": 0.8}}
            made.append(region_facts(name, done, budget=trials, **facts))
    return report_of(*made)


def some_params(rng: random.Random) -> dict[str, Any]:
    """Return random settings; momentum only if the solver is sgd."""
    solver = rng.choice(["adam", "sgd"])
    params: dict[str, Any] = {
        "rate": 10 ** rng.uniform(-4, -1),
        "layers": rng.randint(1, 4),
        "solver": solver,
    }
    return params | ({"momentum": rng.uniform(0, 0.9)} if solver == "sgd" else {})


def region_facts(
    name: str,
    trials: Sequence[StoredTrial],
    /,
    *,
    unfinished: Mapping[str, states.TrialState] | None = None,
    stays: Mapping[int, Sequence[Any]] | None = None,
    **facts: Any,
) -> RegionFacts:
    """Return a region of which nothing is known but its name, its trials and `facts`."""
    made = tuple(
        build_trial(name, each, unfinished or {}, (stays or {}).get(each.number) or stay_of(each))
        for each in trials
    )
    known = {field.name for field in fields(RegionFacts)}
    own = {key: facts.pop(key) for key in known & facts.keys()}
    default: dict[str, Any] = {
        "study_name": f"s/r/{name}",
        "parameters": dict(SPACE),
        "defaults": DEFAULTS,
        "taught": teacher_weights(trials),
        "span": trial_span(trials),
    }
    status = _status(name, [each.state for each in made], facts)
    return RegionFacts(status=status, trials=made, **(default | own))


def stay_of(trial: StoredTrial) -> list[PricedExecution]:
    """Return the only execution of a trial's job, if the job has run."""
    job = trial.user_attrs.get("job") or {}
    if "started" not in job:
        return []
    stay = PricedExecution(
        machine=job["machine"], instance=None, began=job["started"],
        ended=job["ended"], end=ExecutionEnd.DONE, usd=None,
    )  # fmt: skip
    return [stay]


def _status(
    name: str,
    trials: Iterable[states.TrialState],
    facts: Mapping[str, Any],
) -> RegionStatus:
    count = Counter(trials)
    stage = Stage.PUBLISHED if facts.get("published") else Stage.TUNING
    known: dict[str, Any] = {
        "slug": name, "state": RunState.RUNNING, "stage": stage,
        "done": count[states.TrialState.COMPLETE], "failed": count[states.TrialState.FAILED],
        "pruned": count[states.TrialState.PRUNED],
        "stopped_early": count[states.TrialState.STOPPED_EARLY],
        "running": count[states.TrialState.RUNNING], "queued": 0, "on_hold": 0, "interrupted": 0,
        "budget": 40, "best": None, "best_trial": None, "seconds_left": None,
        "reason": None, "published": None,
    }  # fmt: skip
    return RegionStatus(name=name, **(known | dict(facts)))


def report_of(*regions: RegionFacts, **facts: Any) -> Report:
    """Return the report of a run of `regions`."""
    known: dict[str, Any] = {
        "study": "flights",
        "run": "r",
        "metric": "auc",
        "direction": "maximize",
        "report_metric": "test",
        "created": datetime(2026, 11, 20, 2, 0, tzinfo=UTC),
        "finished": datetime(2026, 11, 20, 3, 1, tzinfo=UTC),
    }
    known |= facts
    with_best = [
        replace(
            each, status=replace(each.status, best_trial=_best_of(each.trials, known["direction"]))
        )
        for each in regions
    ]
    apart = {key: known.pop(key) for key in ("active", "stops") if key in known}
    root = known.pop("root", Path("/runs/r"))
    head = RunSummary(**({"report_direction": known["direction"]} | known))
    return build_report(head, with_best, root=root, **apart)


def _best_of(trials: Iterable[Trial], direction: Direction) -> int | None:
    chosen = best(trials, direction, lambda each: each.value)
    return chosen.trial if chosen else None


def blocks_of(page: str) -> list[dict[str, Any]]:
    """Return a page's compressed blocks: of all regions together, then of each."""
    found = re.search(r'id="packed">([^<]*)<', page)
    assert found
    lines = zlib.decompress(base64.b64decode(found[1])).decode().splitlines()
    return [json.loads(line) for line in lines]


def text_of(report: Report) -> str:
    """Return the page of a report, each region opened."""
    page = render_page(report)
    return page + "".join(block.get("html", "") for block in blocks_of(page))


def two_regions() -> Report:
    """JFK with 30 trials, published; one named like markup with 12."""
    trials = tuned_trials(30)
    return report_of(
        region_facts("JFK", trials, budget=30, published="/models/JFK/r", final={"test": 0.81}),
        region_facts("[red]LGA", trials[:12], slug="LGA", budget=12),
    )


def only(report: Report) -> RegionReport:
    """Return the report's one region."""
    (region,) = report.regions
    return region
