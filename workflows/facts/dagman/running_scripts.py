"""PRE and POST scripts that still run, each with the time of its last sign of progress."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trialfleet import untrusted_files
from trialfleet.classads import JobStatus
from trialfleet.workflows.facts.dagman.files import read_node_status
from trialfleet.workflows.facts.dagman.job_queue import QueuedRun, is_dagman
from trialfleet.workflows.facts.run_folder.dag_structure import RegionGraph
from trialfleet.workflows.facts.run_folder.folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class ScriptFacts:
    """A DAG node's PRE or POST script that has not ended.

    `since` is the time of the last sign of progress, in Unix seconds. Three things are signs: the
    region's DAGMan starts, a script of the region writes to its log, or the DAG node's job has an
    event.
    """

    region: str
    node: str
    script: str
    since: float
    log: str = ""


def script_facts(
    folder: RunFolder, regions: Iterable[RegionGraph], queued: QueuedRun | None
) -> Iterator[ScriptFacts]:
    """Yield one running script of each region in which scripts run.

    One per region is enough: all scripts wait for the optimiser's service, so if one hangs, all do.
    Yield nothing if `queued` is None.
    """
    dagmans = {
        ad.get("TrialfleetRegion"): ad
        for ad in (queued.ads if queued else ())
        if is_dagman(ad) and ad["JobStatus"] == JobStatus.RUNNING
    }
    for region in regions:
        ad = dagmans.get(region.slug, {})
        if not (ad.get("DAG_NodesPrerun") or ad.get("DAG_NodesPostrun")):
            continue
        files = folder.region(region.slug)
        nodes = read_node_status(files.dag_files.node_status)
        waiting = [(name, node) for name, node in nodes.items() if node.in_pre or node.in_post]
        for name, node in waiting[:1]:
            logs = (files.scripts_log, files.node_folder(name).log)
            ended = (untrusted_files.file_stamp(log)[1] / 1e9 for log in logs)
            yield ScriptFacts(
                region=region.slug,
                node=name,
                script="PRE" if node.in_pre else "POST",
                since=max(float(ad["EnteredCurrentStatus"]), *ended),
                log=str(files.scripts_log),
            )
