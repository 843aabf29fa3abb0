"""The program `publish FOLDER SLUG`, a local-universe job that publishes a region's model.

Once the model is published, another execution changes nothing. The exit code is 0, or the code that
ends the region's DAG. After an unexpected error, the exit code is different, and DAGMan starts the
job again, up to `PUBLISH_RETRIES` times.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trialfleet import untrusted_files
from trialfleet.errors import InputError
from trialfleet.files import write_json
from trialfleet.optimizer.service_client import FULL
from trialfleet.workflows.control.models.publication import publish
from trialfleet.workflows.control.plan.input_provenance import training_provenance
from trialfleet.workflows.control.scripts import gate_job
from trialfleet.workflows.facts.dagman.failing_scripts import (
    note_failure,
    note_success,
    one_line_message,
)
from trialfleet.workflows.facts.disk_space import retry_while_disk_full
from trialfleet.workflows.facts.models.listing import drift_text
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS, PUBLISH_RETRIES
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder
from trialfleet.workflows.status.status_reader import open_run
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.views.output import say


def publish_region(folder: RunFolder, slug: str) -> int:
    """Publish a region's model; return the job's exit code.

    If the model can't be published, the reason is stored in the region's folder, and the exit code
    ends the region's DAG. OSError if the disk is full.
    """
    files = folder.region(slug)
    if files.published.exists():  # a person may have switched `latest` since
        print(f"{slug}: already published")
        return EXITS["done"]
    try:
        frozen = load_frozen(folder.study)
        if not untrusted_files.file_size(files.best.trained_on):  # not noted by a previous attempt
            noted = training_provenance(folder, slug, frozen.study)
            untrusted_files.write_json(files.best.trained_on, noted)
        found = gate_job.verdict(frozen, files, slug)
        published = publish(frozen, slug, files.best, found)
    except (InputError, OSError) as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        return _stopped(files, slug, str(error))
    record = published.record
    if drifted := found and drift_text(published.path.parent, found.champion_run):
        record["drift"] = drifted
    write_json(files.published, record)
    if found:
        passed = "passed" if published.awaits_approval else "promoted"
        print(f"{slug}: {passed if found.promoted else 'kept'}: {found.why}")
    lines = [f"{slug}: published {published.path}", published.not_latest, published.removed]
    print(*filter(None, lines), sep="\n")
    return EXITS["done"]


def _stopped(files: RegionFolder, slug: str, why: str) -> int:
    reason = f"the model can't be published: {why}"
    write_json(files.stopped, {"reason": reason})
    print(f"{slug}: failed: {reason}")
    return EXITS["stop"]


def main() -> None:
    """Publish a region's model."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("slug", help="the name of the region's folder")
    arguments = parser.parse_args()
    folder, slug = open_run(arguments.run), arguments.slug
    files, node = folder.region(slug), f"{slug}.publish"
    try:
        code = retry_while_disk_full(lambda: publish_region(folder, slug), say)
    except Exception as error:
        if (
            note_failure(files.failing, node, "publish", one_line_message(error))
            < PUBLISH_RETRIES + 1
        ):
            raise
        code = _stopped(files, slug, one_line_message(error))
    else:
        note_success(files.failing, node)
    sys.exit(code)
