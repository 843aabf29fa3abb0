"""The report of a run: one page for people, one JSON file for programs, one table for a terminal.

report = build_report(source)       # reads the studies; everything after this is pure
render_page(report)                 # report.html: one file, no network
report.to_json()                    # report.json
summary_table(report)               # what the command line prints at the end of a run
"""

from trialfleet.workflows.report.model import (
    Comparison,
    Failure,
    Importance,
    ParameterRange,
    RegionReport,
    Report,
    Setting,
    Trial,
)
from trialfleet.workflows.report.page import render_page
from trialfleet.workflows.report.reading import build_report, report_of_trials
from trialfleet.workflows.report.source import RegionSource, ReportSource
from trialfleet.workflows.report.summary import fitted_summary, summary_table

__all__ = [
    "Comparison",
    "Failure",
    "Importance",
    "ParameterRange",
    "RegionReport",
    "RegionSource",
    "Report",
    "ReportSource",
    "Setting",
    "Trial",
    "build_report",
    "fitted_summary",
    "render_page",
    "report_of_trials",
    "summary_table",
]
