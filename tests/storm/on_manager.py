"""On a lab's manager, `python -m tests.storm.on_manager look|audit RUN` prints JSON about a run."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from tests.storm.audit import Audit
from tests.storm.watch import Progress, missing_of_run, seen
from trialfleet import Run


def main(what: str, folder: Path) -> None:
    """Print a run's state and the processes that it lacks, or the audit of the run."""
    run = Run(folder)
    if what == "audit":
        audit = Audit()
        audit.add(run)
        print(json.dumps(audit.to_json()))
        return
    found = seen(run, Progress())
    lacking = [] if found.has_ended else missing_of_run(run)
    print(json.dumps({"seen": asdict(found), "missing": lacking}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
