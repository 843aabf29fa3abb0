"""What a plan will run, in words and as data."""

from __future__ import annotations

from typing import Any

from trialfleet.workflows.plan import Plan, shlex_path


def plan_summary(plan: Plan) -> dict[str, Any]:
    """Return what a plan will run as plain data."""
    return {
        "schema": 1,
        "run": plan.run,
        "study": plan.study.name,
        "folder": str(plan.folder.root),
        "regions": [
            {"name": r.name, "slug": r.slug, "trials": r.trials, "lanes": len(r.lanes)}
            for r in plan.graph.regions
        ],
        "trials": sum(r.trials for r in plan.graph.regions),
        "nodes": plan.graph.node_count,
        "files": plan.files,
    }


def plan_text(plan: Plan) -> str:
    """Return what a plan will run in a few lines, and what to type next."""
    regions = plan.graph.regions
    lanes = sum(len(r.lanes) for r in regions)
    trials = sum(r.trials for r in regions)
    names = ", ".join(r.name for r in regions[:6]) + (", …" if len(regions) > 6 else "")
    here = shlex_path(plan.folder.root)
    resources = plan.study.resources
    gpus = f"{resources.gpus} GPU(s), " if plan.study.accelerator == "gpu" else ""
    size = f"{gpus}{resources.cpus} cpu(s), {resources.memory}"
    return "\n".join(
        [
            f"{plan.study.name} {plan.run}",
            f"  regions  {len(regions)}: {names}",
            f"  trials   {trials}, then one full training per region",
            f"  lanes    {lanes}: so many trials at once, given slots of {size}",
            f"  nodes    {plan.graph.node_count}",
            f"  files    {plan.files} in {here}",
            f"next: trialfleet submit {here}   (or condor_submit_dag {here}/study.dag)",
        ]
    )
