"""`python daily_program.py STUDY NOW [FROM TO]`: a day's run, or a backfill, at a time of its own.

For tests that kill it: what `trialfleet daily run` and `backfill --only missing` do.
"""

from __future__ import annotations

import sys
from datetime import date, datetime
from pathlib import Path

from trialfleet.workflows.control.daily import day_loop as days_module
from trialfleet.workflows.control.daily.day_loop import Days

days_module.BATCH_SECONDS = 2.0  # tests wait less for data that comes late
file, now, *between = sys.argv[1:]
days = Days(Path(file), clock=lambda: datetime.fromisoformat(now))
if between:
    first, last = map(date.fromisoformat, between)
    days.backfill(first, last, only_missing=True)
else:
    days.run()
days.finish_telling()
