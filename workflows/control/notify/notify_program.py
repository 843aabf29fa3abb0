"""The program `notify FOLDER`, which sends the alerts about a run's events.

The supervisor restarts the program until the run is over and each alert is sent or abandoned.
"""

from __future__ import annotations

import time

from trialfleet.errors import InputError
from trialfleet.workflows.control.dagman.alert_and_export_processes import be_watcher
from trialfleet.workflows.control.notify.delivery import LOOK_SECONDS, deliver
from trialfleet.workflows.control.notify.run_alerts import RunEvents
from trialfleet.workflows.facts.journal.outbox import Outbox
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.run_storage import is_taken_over
from trialfleet.workflows.study.frozen import load_frozen


def watch(folder: RunFolder) -> None:
    """Send the alerts about a run's events until the run has ended and no alert waits.

    Return at once if another process already sends them, or if the study has no alerts. InputError
    if the folder is no run's folder, TrialfleetError if the outbox can't be used.
    """
    frozen = load_frozen(folder.study)
    study = frozen.study
    if not study.notify:
        return
    outbox = Outbox(folder.alerts)
    with outbox.hold_lock(wait=False) as ours:
        if not ours:
            return
        events = RunEvents(folder)
        while True:
            try:
                new = [event for event in events.poll() if not outbox.has(event.id)]
                if new and not is_taken_over(frozen, folder):
                    outbox.put(new, study.notify, is_daily=study.daily is not None)
            except InputError:
                if not folder.study.exists():  # the run was removed
                    return
                raise
            waiting = deliver(outbox, study.notify)
            if events.is_over and not waiting:
                return
            time.sleep(LOOK_SECONDS)


def main() -> None:
    """Send alerts about a run's events until the run is over."""
    be_watcher(watch, main.__doc__)
