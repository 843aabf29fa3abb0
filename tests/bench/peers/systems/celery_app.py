"""The Celery application: one task, which trains once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_init

from tests.bench.peers.workload import train

SOCKET = os.environ["PEERS_REDIS"]  # a path

app = Celery("peers", broker=f"redis+socket://{SOCKET}", backend=f"redis+socket://{SOCKET}")
# Its documentation's advice for tasks that may be done twice but not be lost.
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True
app.conf.worker_prefetch_multiplier = 1
app.conf.broker_transport_options = {"visibility_timeout": 60}
app.conf.result_expires = None
app.conf.broker_connection_retry_on_startup = True


@worker_init.connect  # type: ignore[untyped-decorator]
def import_trainer(**_: object) -> None:
    """Import the trainer before the workers are forked, so that they share the import."""
    from trialfleet.nodes.tabular import train as trainer

    del trainer


@app.task(name="train")  # type: ignore[untyped-decorator]
def train_task(folder: str, region: str, trial: str, params: dict[str, Any]) -> float:
    """Train once, in a worker."""
    return train(Path(folder), region, trial, params)
