"""The program `report FOLDER`: the last DAG node of a run, executed even if other nodes failed."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from trialfleet.errors import TrialfleetError
from trialfleet.files import replace_file, write_atomic
from trialfleet.workflows.facts.dagman.failing_scripts import note_result
from trialfleet.workflows.facts.disk_space import retry_while_disk_full
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.status.status_reader import open_run
from trialfleet.workflows.views.output import say
from trialfleet.workflows.views.report.page import render_page
from trialfleet.workflows.views.report.report_reader import read_report
from trialfleet.workflows.views.report.report_types import Report


def write_report(folder: RunFolder, finished: datetime | None) -> Report:
    """Write a run's report as HTML and JSON. `finished` is None before the run's end.

    OptimizerError if the trial database can't be read; an existing report then stays unchanged.
    """
    report = read_report(folder, finished)
    with replace_file(folder.report_data, mode=0o644) as file:
        file.writelines(report.json_parts())
    write_atomic(folder.report_page, render_page(report))
    return report


def main() -> None:
    """Write the report; exit with 0 if every region has the result that the study requires."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("run", type=Path, help="the run's folder")
    arguments = parser.parse_args()
    try:
        folder = open_run(arguments.run)
        with note_result(folder.failing, "report"):
            report = retry_while_disk_full(lambda: write_report(folder, datetime.now(UTC)), say)
    except TrialfleetError as error:
        sys.exit(str(error))
    incomplete = [region.name for region in report.regions if not region.stage.is_good]
    worse = [region.name for region in report.regions if region.worse is not None]
    message = f"report written; not done: {', '.join(incomplete) or 'none'}"
    print(message + (f"; tuned is worse than default: {', '.join(worse)}" if worse else ""))
    sys.exit(EXITS["incomplete"] if incomplete else EXITS["done"])
