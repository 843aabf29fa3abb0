"""A run's scripts of a small study, and the event log of a job."""

from __future__ import annotations

import pytest

from tests.conftest import MakeRun
from tests.unit.scripts import Scripts

JOB_LOG = """\
000 ({job:03}.000.000) 2026-11-22 07:00:00 Job submitted from host: <127.0.0.1:1>
...
001 ({job:03}.000.000) 2026-11-22 07:00:01.500 Job executing on host: <127.0.0.1:1>
\tSlotName: slot1_1@node-1
...
012 ({job:03}.000.000) 2026-11-22 07:00:05 Job was held.
\tby a person
\tCode 1 Subcode 0
...
"""


@pytest.fixture
def scripts(make_run: MakeRun) -> Scripts:
    return Scripts(make_run(budget={"trials": 3, "lanes": 1, "startup_trials": 3}))
