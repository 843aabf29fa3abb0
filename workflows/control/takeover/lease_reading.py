"""Reading of the lease on a study's days, which shows the manager that works on them."""

from __future__ import annotations

from pathlib import Path

from trialfleet.errors import OptimizerError
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.lease import Lease
from trialfleet.workflows.study.daily import parse_duration
from trialfleet.workflows.study.loading import load_whole


def read_lease(file: Path, folder: DailyFolder) -> tuple[Lease | None, str]:
    """Update this machine's copy of the journal; return the lease on the days, and an error text.

    The lease is None if only one manager runs the days, if no day has begun, or if the database
    can't be read. In the last case, the text has the error; otherwise it is "".
    """
    study = load_whole(file)
    if study.daily is None or study.daily.takeover_after is None or study.storage is None:
        return None, ""
    from trialfleet.optimizer.run_ownership import this_owner
    from trialfleet.workflows.facts.journal.shared_journal import SharedJournal
    from trialfleet.workflows.facts.journal.shared_rows import SharedRows

    lasts = parse_duration(study.daily.takeover_after)
    try:
        rows = SharedRows(study.storage, study.name, this_owner(folder.root), lasts)
        try:
            SharedJournal(folder.journal, rows).pull()
            return rows.lease(), ""
        finally:
            rows.close()
    except OptimizerError as error:
        return None, str(error)
