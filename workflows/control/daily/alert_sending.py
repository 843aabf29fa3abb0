"""The sending of alerts about days, by a thread of `trialfleet daily` and by an HTCondor job.

The job sends the alerts that the thread could not deliver. It runs in the local universe (on this
machine), so HTCondor restarts it if it dies.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from trialfleet.classads import JobStatus
from trialfleet.errors import InputError, PoolError, TrialfleetError
from trialfleet.files import shell_quoted, write_atomic
from trialfleet.infra.pool import schedd
from trialfleet.render import classad_string, render_template
from trialfleet.workflows.control.daily.start_script import start_text
from trialfleet.workflows.control.notify.delivery import LOOK_SECONDS, deliver
from trialfleet.workflows.control.notify.senders import SECONDS
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.outbox import Outbox
from trialfleet.workflows.study.notify import Channel

log = logging.getLogger(__name__)


class Sender(threading.Thread):
    """A thread that sends the waiting alerts of `outbox` while a command does its work."""

    def __init__(self, outbox: Outbox, channels: Sequence[Channel]) -> None:
        super().__init__(name="alerts", daemon=True)
        self.outbox, self._channels = outbox, channels
        self._ends = threading.Event()

    def run(self) -> None:
        """Try to send alerts until none waits. Once `finish` was called, try only once more."""
        while True:
            is_last = self._ends.is_set()
            try:
                with self.outbox.hold_lock(wait=False) as ours:
                    is_last |= ours and not deliver(self.outbox, self._channels)
            except TrialfleetError as error:
                log.warning("alerts: %s", error)
            except OSError as error:  # such as a missing folder; the end of the command tries again
                log.info("alerts: %s", error)
                return
            if is_last:
                return
            self._ends.wait(LOOK_SECONDS)

    def finish(self) -> None:
        """Let the thread try once more, and wait at most `SECONDS` seconds for its end."""
        self._ends.set()
        self.join(SECONDS)


def _keep_sending(study: str, file: Path, folder: DailyFolder) -> str:
    """Return the id of the job that sends waiting alerts. Submit it if it isn't in the queue."""
    text = start_text(folder, study, "notify", "send", file.absolute())
    ours = f"TrialfleetAlerts =?= {classad_string(folder.root)}"
    there = f"{ours} && JobStatus != {JobStatus.REMOVED}"
    if previous := schedd.query(there, ["ClusterId"]):
        return f"{previous[0]['ClusterId']}.0"
    write_atomic(folder.send, text, mode=0o755)
    description = render_template("submit/send.sub.j2", study=study, folder=folder)
    return job_queue.submit_job(description)


def send_remaining(outbox: Outbox, study: str, file: Path, folder: DailyFolder) -> str:
    """Let an HTCondor job send waiting alerts. Return a message about them, or "" if none waits."""
    waiting = len(outbox.waiting_deliveries())
    if not waiting:
        return ""
    line = f"alerts: {waiting} not delivered: trialfleet notify list {shell_quoted(file)}"
    try:
        return f"{line}; HTCondor's job {_keep_sending(study, file, folder)} retries"
    except (PoolError, InputError) as error:
        return (
            f"{line}; the next `trialfleet daily run` retries. A job that retries earlier could "
            f"not be submitted: {error}"
        )
