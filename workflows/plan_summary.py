"""What a run will run, in words and as data."""

from __future__ import annotations

from typing import Any

from trialfleet.files import typed
from trialfleet.workflows.graph import graph_of
from trialfleet.workflows.run import Run
from trialfleet.workflows.study_sections import Resources


def plan_summary(run: Run) -> dict[str, Any]:
    """Return what a planned run will run as plain data."""
    graph = graph_of(run.study)
    return {
        "schema": 1,
        "run": run.run_id,
        "study": run.study.name,
        "folder": str(run.folder),
        "regions": [
            {"name": r.name, "slug": r.slug, "trials": r.trials, "lanes": len(r.lanes)}
            for r in graph.regions
        ],
        "trials": sum(r.trials for r in graph.regions),
        "nodes": graph.node_count,
        "files": sum(1 for path in run.folder.rglob("*") if path.is_file()),
    }


def plan_text(run: Run) -> str:
    """Return what a planned run will run in a few lines, and what to type next."""
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
            f"  trials   {summary['trials']}, then one full training per region",
            f"  lanes    {lanes}: so many trials at once, given slots of {size}",
            f"  nodes    {summary['nodes']}",
            f"  files    {summary['files']} in {here}",
        ]
    )


def _gpus(resources: Resources) -> str:
    shares = resources.trials_per_gpu
    if shares > 1:
        return f"1/{shares} GPU (on nodes whose TrialfleetTrialsPerGpu is {shares})"
    return f"{resources.gpus} GPU(s)"
