"""Where a run's studies are stored, and under which names."""

from __future__ import annotations

from trialfleet.workflows.folder import RunFolder
from trialfleet.workflows.study import Study


def storage_url(folder: RunFolder, study: Study) -> str:
    """Return the RDB URL of a run's studies: the study's own, or a file in the run's folder."""
    from trialfleet.optimizer.storage import sqlite_url

    return study.storage or sqlite_url(folder.database)


def study_name(study: Study, run: str, region: str) -> str:
    """Return the name of a region's Optuna study: unique among all runs that share a storage."""
    return f"{study.name}/{run}/{region}"
