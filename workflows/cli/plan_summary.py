"""What a run will run, in words and as data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from trialfleet.files import typed
from trialfleet.optimizer.startup import first_led
from trialfleet.workflows.plan.folder import RunFolder
from trialfleet.workflows.plan.graph import RegionGraph, graph_of
from trialfleet.workflows.plan.outlook import Outlook
from trialfleet.workflows.plan.table_summary import table_lines, tables_of
from trialfleet.workflows.run.run import Run
from trialfleet.workflows.study.sections import Resources
from trialfleet.workflows.study.spec import Study, Trainer

_MODEL = re.compile(r"""\bfinal\b|\bmodel/|/model\b|\.model\b|["']model["']""")
_NO_MODEL = (
    "no file of the trainer mentions mode final or a folder model/, where a full training must "
    "leave its model; publish: none tunes without one"
)


def plan_summary(run: Run, outlook: Outlook | None = None) -> dict[str, Any]:
    """Return what a planned run will run as plain data, and what the pool has for it."""
    graph = graph_of(run.study)
    tables = tables_of(RunFolder(run.folder), [r.name for r in graph.regions])
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
                "model_leads_from": _first_led(run.study, r),
                **({"table": tables[r.name]} if r.name in tables else {}),
            }
            for r in graph.regions
        ],
        "trials": sum(r.trials for r in graph.regions),
        "dag_nodes": graph.node_count,
        "accelerator": run.study.accelerator,
        "python": run.study.python,
        "notes": list(run.notes),
        "pool": outlook.to_json() if outlook else None,
        "files": sum(1 for path in run.folder.rglob("*") if path.is_file()),
    }


def plan_text(run: Run, outlook: Outlook | None = None) -> str:
    """Return what a planned run will run, and what the pool has for it, in a few lines."""
    summary, study, here = plan_summary(run), run.study, typed(run.folder)
    regions = summary["regions"]
    names = ", ".join(r["name"] for r in regions[:6]) + (", …" if len(regions) > 6 else "")
    gpus = f"{_gpus(study.resources)}, " if study.accelerator == "gpu" else ""
    size = f"{gpus}{study.resources.cpus} cpu(s), {study.resources.memory}"
    lanes = sum(r["lanes"] for r in regions)
    return "\n".join(
        [
            f"{study.name} {run.run_id}",
            f"  regions  {len(regions)}: {names}",
            f"  trials   {summary['trials']}, {_then(study)}",
            f"  lanes    {lanes}: so many trials at once, given slots of {size}",
            f"  model    {_model(summary['regions'])}",
            f"  graph    {summary['dag_nodes']} DAG nodes",
            f"  files    {summary['files']} in {here}",
            *([f"  note     {_NO_MODEL}"] if _seems_without_model(run) else []),
            *(_labelled(*note.split(": ", 1)) for note in run.notes),
            *(_labelled("pool", line) for line in (outlook.lines() if outlook else ())),
            *table_lines({r["name"]: r["table"] for r in regions if "table" in r}),
        ]
    )


def _seems_without_model(run: Run) -> bool:
    """Whether nothing in the trainer tells a full training from a trial; only where all is text."""
    trainer = run.study.trainer
    if not run.study.publishes or not isinstance(trainer, Trainer) or not trainer.files:
        return False
    code = RunFolder(run.folder).code
    try:
        texts = [(code / Path(file).name).read_text() for file in trainer.files]
    except (OSError, UnicodeError):  # a folder, or a program: nobody knows what is in it
        return False
    return not any(_MODEL.search(text) for text in [*texts, " ".join(trainer.command)])


def _then(study: Study) -> str:
    if study.publishes:
        return "then one full training per region"
    return "and no full training: publish: none"


def _first_led(study: Study, region: RegionGraph) -> int | None:
    startup = study.budget_of(region.name).startup
    return first_led(startup, region.trials, len(region.lanes))


def _model(regions: list[dict[str, Any]]) -> str:
    """From which trial on the model of the sampler leads."""
    first = [r["model_leads_from"] for r in regions if r["model_leads_from"]]
    never = [r["name"] for r in regions if not r["model_leads_from"]]
    if not first:
        return "leads no trial: all are start-up; give more trials, fewer lanes or startup_trials"
    least, most = min(first), max(first)
    span = f"{least}" if least == most else f"{least} to {most}, by region,"
    but = f"; no trial of {', '.join(never[:6])}{', …' if len(never) > 6 else ''}" if never else ""
    return f"leads from trial {span} of a region on; those before explore the space{but}"


def _labelled(label: str, text: str) -> str:
    return f"  {label:<8} {text}"


def _gpus(resources: Resources) -> str:
    shares = resources.trials_per_gpu
    if shares > 1:
        return f"1/{shares} GPU (on nodes whose TrialfleetTrialsPerGpu is {shares})"
    return f"{resources.gpus} GPU(s)"
