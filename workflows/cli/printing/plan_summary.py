"""The summary of a planned run, as text and as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trialfleet.files import shell_quoted
from trialfleet.optimizer.sampling.names import OWN, Sampler
from trialfleet.optimizer.sampling.startup_count import first_model_trial
from trialfleet.optimizer.sampling.warm_start import PreviousTask, read_previous
from trialfleet.optimizer.stopping import FLOOR
from trialfleet.workflows.cli.printing.plan_warnings import plan_warnings
from trialfleet.workflows.control.plan.pool_check import PoolCheck
from trialfleet.workflows.control.plan.table_summary import checks_lines, gate_lines, table_lines
from trialfleet.workflows.control.run.plan_estimate import estimate, estimate_cost
from trialfleet.workflows.control.run.run import Run
from trialfleet.workflows.facts.run_folder.dag_structure import autoscale_mode, build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.run_folder.table_findings import read_checks, read_description
from trialfleet.workflows.formatting import count_text, duration, rough_duration, usd
from trialfleet.workflows.rules.gate_decision import gate_rule
from trialfleet.workflows.study.sections import Resources
from trialfleet.workflows.study.spec import Study

_NO_TRAINING = "without a full training (publish: none)"


def plan_summary(run: Run, pool_check: PoolCheck | None = None) -> dict[str, Any]:
    """Return the summary of a planned run as plain data.

    With `pool_check`, the summary says whether the pool can run the trials.
    """
    graph = build_graph(run.study)
    folder = RunFolder(run.folder)
    previous = read_previous(folder.previous_results)
    found = pool_check.prospects if pool_check else None
    most = _parallel_trainings(run.study, found.concurrency) if found else 0
    expected = estimate(run.study, min(graph.concurrency, most))
    return {
        "schema": 1,
        "run": run.run_id,
        "study": run.study.name,
        "folder": str(run.folder),
        "regions": [
            {
                "name": r.name,
                "slug": r.slug,
                "trials": r.trials,
                "lanes": len(r.lanes),
                "model_leads_from": first_model_trial(
                    run.study.region_budget(r.name).startup_count,
                    r.trials,
                    len(r.lanes),
                    has_previous=bool(previous),
                ),
                **({"table": table} if (table := read_description(folder.region(r.slug))) else {}),
                **({"checks": checks} if (checks := read_checks(folder.region(r.slug))) else {}),
            }
            for r in graph.regions
        ],
        "trials": sum(r.trials for r in graph.regions),
        "at_once": graph.concurrency,
        "expected": asdict(expected) if expected else None,
        "cost": _cost(run.study),
        "dag_nodes": graph.node_count,
        "learns_from": _previous_run_counts(previous),
        "accelerator": run.study.accelerator,
        "python": run.study.python,
        "image": run.study.image,
        "notes": list(run.notes),
        "pool": pool_check.to_json() if pool_check else None,
        "files": sum(1 for path in run.folder.rglob("*") if path.is_file()),
    }


def plan_text(run: Run, pool_check: PoolCheck | None = None) -> str:
    """Return the summary of a planned run in a few lines, with the data of `plan_summary`."""
    summary, study, here = plan_summary(run, pool_check), run.study, shell_quoted(run.folder)
    regions, expected, lessons = summary["regions"], summary["expected"], summary["learns_from"]
    names = ", ".join(r["name"] for r in regions[:6]) + (", …" if len(regions) > 6 else "")
    then = "then one full training per region" if study.publishes else _NO_TRAINING
    lines = [
        ("regions", f"{len(regions)}: {names}"),
        ("trials", f"{summary['trials']}, {then}"),
        ("at once", _concurrency(study, summary["at_once"], pool_check)),
        ("time", _time(expected, summary["trials"], len(regions)) if expected else ""),
        ("cost", _cost_text(summary["cost"]) if summary["cost"] else ""),
        ("model", _model(regions, study.sampler, has_previous=bool(lessons))),
        *(("learns", lesson) for lesson in _previous_run_lines(lessons)),
        ("graph", f"{summary['dag_nodes']} DAG nodes (jobs and their steps)"),
        ("files", f"{summary['files']} in {here}{_relative_to_text(run.folder)}"),
        ("image", study.image or ""),
        ("gate", _gate(study) if study.gate else ""),
        ("stops", _early_stopping(study)),
        *(("note", note) for note in plan_warnings(run)),
        *(note.split(": ", 1) for note in run.notes),
        *(("pool", line) for line in (pool_check.lines() if pool_check else ())),
    ]
    tables = {r["name"]: r["table"] for r in regions if "table" in r}
    return "\n".join(
        [
            f"{study.name} {run.run_id}",
            *(f"  {label:<8} {text}" for label, text in lines if text),
            *table_lines(tables),
            *checks_lines({r["name"]: r["checks"] for r in regions if "checks" in r}),
            *gate_lines(study, tables),
        ]
    )


def _relative_to_text(folder: Path) -> str:
    here = Path.cwd()
    return f", relative to {here}" if folder.is_relative_to(here) else ""


def _gate(study: Study) -> str:
    rule = gate_rule(study)
    allowed = f", at most {rule.tolerance:g} worse" if rule.tolerance else ""
    is_manual = study.gate is not None and study.gate.approve
    asks = "; models that pass wait for trialfleet promote" if is_manual else ""
    return f"compares each new model with the current one by {rule.metric}{allowed}{asks}"


def _early_stopping(study: Study) -> str:
    if (rule := study.early_stopping) is None:
        return ""
    trials = max(study.region_budget(region).trials for region in study.region_table)
    if trials <= rule.startup_trials:
        which = f"all {trials} trials" if trials > 1 else "the only trial"
        return (
            f"no trial early: {which} of a region must complete first "
            f"(early_stopping.startup_trials: {rule.startup_trials})"
        )
    least = f"step {rule.min_steps}" if rule.min_steps else f"{FLOOR:.0%} of its steps"
    return (
        f"a trial early if it will end worse than its region's best with {rule.confidence:.0%} "
        f"confidence: from {least}, after {rule.startup_trials} complete trials; at most "
        f"{rule.max_stopped:.0%} of a region's trials"
    )


def _previous_run_counts(previous: Iterable[PreviousTask]) -> list[dict[str, Any]]:
    runs: dict[str, list[PreviousTask]] = {}
    for task in previous:
        runs.setdefault(task.name.removesuffix(f"/{task.region}"), []).append(task)
    return [
        {"run": run, "regions": len(tasks), "trials": sum(len(task.losses) for task in tasks)}
        for run, tasks in runs.items()
    ]


def _concurrency(study: Study, lanes: int, pool_check: PoolCheck | None) -> str:
    gpus = f"{_gpus(study.resources)}, " if study.accelerator == "gpu" else ""
    size = f"{gpus}{study.resources.cpus} cpu(s), {study.resources.memory}"
    if gangs := [nodes for name in study.region_table if (nodes := study.region_gang(name))]:
        least = min(nodes.min for nodes in gangs) if len(gangs) == len(study.region_table) else 1
        size = f"{least} to {max(nodes.max for nodes in gangs)} slots of {size}"
    text = f"up to {lanes} trial(s), each on {size}"
    found = pool_check.prospects if pool_check else None
    if found is None or not found.slots:
        return text
    most = _parallel_trainings(study, found.concurrency)
    if most >= lanes:
        return f"{text}; this pool has slots for all of them"
    return f"{text}; this pool runs {most or 'none'} in parallel"


def _parallel_trainings(study: Study, jobs: int) -> int:
    nodes = (study.region_gang(name) for name in study.region_table)
    return jobs // max(each.min if each else 1 for each in nodes)


def _time(expected: dict[str, Any], trials: int, regions: int) -> str:
    full, gate = expected["full_seconds"], expected["gate_seconds"]
    parts = [_count_and_duration(trials, "trial", expected["trial_seconds"])]
    parts += [_count_and_duration(regions, "full training", full)] if full is not None else []
    parts += [_count_and_duration(regions, "gate", gate)] if gate is not None else []
    known, runs = expected["based_on"], expected["runs"]
    return (
        f"about {rough_duration(expected['seconds'])}, without waits for slots: "
        f"{', '.join(parts)}, {expected['concurrency']} in parallel; "
        f"based on {count_text(known, 'trial')} of {count_text(runs, 'previous run')}"
    )


def _count_and_duration(count: int, what: str, seconds: float) -> str:
    return f"{count_text(count, what)} of {duration(seconds)}"


def _cost(study: Study) -> dict[str, Any] | None:
    found, (most, key) = estimate_cost(study), _cost_bound(study) or (None, None)
    if found is None and most is None:
        return None
    return {**(asdict(found) if found else {"usd": None}), "at_most": most, "bounded_by": key}


def _cost_bound(study: Study) -> tuple[float, str] | None:
    budgets = [study.region_budget(name) for name in study.region_table]
    of_regions = [budget.usd for budget in budgets if budget.usd is not None]
    cap = study.fleet.price_cap.run if study.fleet and autoscale_mode(study) != "off" else None
    bounds = [
        (study.budget.usd_per_run, "budget.usd_per_run"),
        (study.budget.usd_per_day, "budget.usd_per_day"),
        (cap, "fleet.price_cap.run"),
        (sum(of_regions) if len(of_regions) == len(budgets) else None, "budget.usd of all regions"),
    ]
    return min(((usd, key) for usd, key in bounds if usd is not None), default=None)


def _cost_text(cost: dict[str, Any]) -> str:
    most = f"{usd(cost['at_most'])} USD by {cost['bounded_by']}" if cost["bounded_by"] else ""
    if cost["usd"] is None:
        return f"at most {most}; there is no previous run to estimate it from"
    full = f", a full training {usd(cost['full'])}" if cost["full"] is not None else ""
    gate = f", a gate {usd(cost['gate'])}" if cost["gate"] is not None else ""
    nodes = cost["overhead"]
    more = f", plus {nodes:.0%} for boot and idle time" if nodes else ""
    known = (
        f"a trial costs {usd(cost['trial'])}{full}{gate}{more}, based on {cost['based_on']} "
        "of previous runs"
    )
    ends = f"; at most {most}" if most else ""
    return f"about {usd(cost['usd'])} USD: {known}{ends}"


def _previous_run_lines(runs: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"from {each['run']}: {each['trials']} trials of {each['regions']} region(s)"
        for each in runs
    ]
    return [*lines[:-1], f"{lines[-1]}; to turn this off: learn_from: []"] if lines else []


def _model(regions: list[dict[str, Any]], sampler: Sampler, *, has_previous: bool) -> str:
    chooser = "the optimiser's model" if sampler == OWN else sampler
    before = "good settings of previous runs" if has_previous else "space-filling start-up points"
    first = [r["model_leads_from"] for r in regions if r["model_leads_from"]]
    never = [r["name"] for r in regions if not r["model_leads_from"]]
    if not first:
        return (
            f"{chooser} chooses no trial: all are space-filling start-up points; give "
            "more trials, fewer lanes or fewer startup_trials"
        )
    least, most = min(first), max(first)
    span = f"{least}" if least == most else f"{least} to {most} (depending on the region)"
    but = f"; never in {', '.join(never[:6])}{', …' if len(never) > 6 else ''}" if never else ""
    return f"from trial {span} of a region on, {chooser} chooses; before that, {before}{but}"


def _gpus(resources: Resources) -> str:
    shares = resources.trials_per_gpu
    if shares > 1:
        return f"1/{shares} GPU (on nodes whose TrialfleetTrialsPerGpu is {shares})"
    return f"{resources.gpus} GPU(s)"
