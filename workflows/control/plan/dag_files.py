"""The text files of a run: DAG files, submit files, DAGMan's configuration, and shell scripts.

The same study, run id, folder and time always give the same texts.
"""

from __future__ import annotations

import sys
from pathlib import Path

from trialfleet import nodes
from trialfleet.nodes import tabular
from trialfleet.programs import command
from trialfleet.render import render_template
from trialfleet.workflows.facts.run_folder.dag_structure import (
    EXITS,
    NODE_FAULTS,
    PUBLISH_RETRIES,
    RESTARTS,
    RegionGraph,
    StudyGraph,
)
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.study.frozen import FrozenStudy, dump_frozen
from trialfleet.workflows.study.spec import Study, Trainer
from trialfleet.workflows.study.trainer_command import PYTHONS


def render_files(folder: RunFolder, frozen: FrozenStudy, graph: StudyGraph) -> dict[Path, str]:
    """Return the texts of a run's files, by path relative to the run's folder. Write nothing."""
    submits = [folder.optimizer_submit, folder.publish_submit, folder.report_submit]
    submits += [folder.fleet_submit] if graph.autoscale != "off" else []
    submits += [folder.gang_submit] if frozen.study.has_gangs else []
    texts = {
        folder.study: dump_frozen(frozen),
        folder.dag: _study_dag(folder, frozen, graph),
        folder.study_config: render_template("dag/dagman.conf.j2", whole_graph=True),
        folder.region_config: render_template("dag/dagman.conf.j2", whole_graph=False),
        folder.client: _client(folder),
        folder.agent: _agent_text(frozen.study),
    }
    for file in submits:
        template = f"submit/{file.name}.j2"
        texts[file] = render_template(template, run=frozen.run, root=folder.root)
    for region in graph.regions:
        texts[folder.region(region.slug).dag] = _region_dag(folder, frozen, region)
    return {path.relative_to(folder.root): text for path, text in texts.items()}


def _agent_text(study: Study) -> str:
    """Return the shell script that starts the agent, which runs a job's trials on a node."""
    python = study.python or PYTHONS[0]
    return render_template(
        "run/agent.j2",
        command=trainer_command(study),
        image=study.image,
        # the first folder on a trial's PATH
        python_folder=str(Path(python).parent) if "/" in python else "",
        python=python,
        agent=nodes.AGENT,
        ranks=study.has_gangs,
    )


def _study_dag(folder: RunFolder, frozen: FrozenStudy, graph: StudyGraph) -> str:
    return render_template(
        "dag/study.dag.j2",
        run=frozen.run,
        study=frozen.study.name,
        folder=folder,
        graph=graph,
        exits=EXITS,
        restarts=RESTARTS,
    )


def _region_dag(folder: RunFolder, frozen: FrozenStudy, region: RegionGraph) -> str:
    return render_template(
        "dag/region.dag.j2",
        run=frozen.run,
        folder=folder,
        files=folder.region(region.slug),
        region=region,
        exits=EXITS,
        attempts=frozen.study.retries + NODE_FAULTS,
        jobs=_jobs_of_node(frozen.study, region),
        publish_retries=PUBLISH_RETRIES,
    )


def _jobs_of_node(study: Study, region: RegionGraph) -> int:
    """Return how many jobs DAGMan may run one after the other for a DAG node."""
    each = study.retries + NODE_FAULTS
    per_job = min(region.trials_per_job or region.trials, region.trials)
    return each if per_job == 1 else (each + 1) * per_job


def _client(folder: RunFolder) -> str:
    root = str(folder.root)
    return render_template(
        "run/client.j2",
        python=sys.executable,
        folder=root,
        ask=command("ask-service", "--folder", root, "--start", *command("serve", root)),
        service_log=folder.service_log,
        gang_log=folder.gang_log,
    )


def trainer_command(study: Study) -> list[str]:
    """Return the command that starts the trainer in its working folder on the node."""
    ours = ["python3", tabular.FILES[0]]
    words = study.trainer.command if isinstance(study.trainer, Trainer) else ours
    return [study.python, *words[1:]] if study.python and words[0] in PYTHONS else words
