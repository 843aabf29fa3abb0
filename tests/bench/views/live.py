"""Measure the processor time of the live page of a running run: part of `make bench-views`.

A run with running trials is written (`stored.py`). HTCondor's queue is imitated, because one
machine hasn't two thousand slots. Before the page reads the run again, some trials end, others
begin and some report, as they would within two seconds. Processor time is that of this process.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import chdir, closing, contextmanager
from datetime import datetime
from itertools import cycle
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import Any
from unittest.mock import patch

from starlette.types import ASGIApp, Message

from tests.bench.views.stored import begin_words, report, stored_run, trial_id
from trialfleet import Run
from trialfleet.infra.pool import schedd
from trialfleet.optimizer.service_client import SOCKET
from trialfleet.workflows.facts.run_folder.dag_structure import RegionGraph, build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.views.serve.app import Pages, application
from trialfleet.workflows.views.serve.live_runs import LiveRun, NodeReader, PoolNodes
from trialfleet.workflows.views.serve.runs import Runs

LOOKS = 12
EVERY = 2.0  # seconds from look to look
TOLD, REPORTED = 12, 120  # trials, before each look
READERS = 2


def main(place: Path, regions: int, trials: int) -> None:
    """Measure and print."""
    run = _GoingRun(stored_run(place, regions, trials, goes_on=True), trials)
    with (
        run.in_queue(),
        patch.object(NodeReader, "read", lambda _: PoolNodes()),
        patch.object(LiveRun, "_job_states", lambda _: None),
        patch.object(LiveRun, "snapshot", lambda live: live._snapshot),  # without a second reader
    ):
        asyncio.run(_measure(run))


async def _measure(run: _GoingRun) -> None:
    pages = Pages(Runs(run.folder.root))
    live = pages.live.get_run(run.folder)
    app = application(pages, hosts=frozenset(), token=None, cookie="")
    costs: dict[str, list[float]] = defaultdict(list)
    for _ in range(LOOKS + 1):
        looked, began = time.monotonic(), time.process_time()
        live._look_for_change()
        live._snapshot = snapshot = live.read()
        costs["look"].append(time.process_time() - began)
        began = time.process_time()
        for _ in range(READERS):
            await _ask(app, "/", b"seen=previous")
        costs[f"{READERS} readers"].append(time.process_time() - began)
        began = time.process_time()
        await _ask(app, "/metrics")
        costs["/metrics"].append(time.process_time() - began)
        run.goes_on()
        await asyncio.sleep(max(0.0, EVERY - (time.monotonic() - looked)))
    running = sum(region.running for region in snapshot.run.status.regions)
    print(f"  {running:,} trials run; before each look, {TOLD} are recorded and {REPORTED} report")
    for name, (first, *others) in costs.items():
        usual, most = statistics.mean(others), max(others)
        print(f"  {name:12} {usual:7.3f} s of CPU, at most {most:.3f}, the first {first:.3f}")


async def _ask(app: ASGIApp, path: str, query: bytes = b"") -> None:
    """Send a request as a browser does."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"accept-encoding", b"gzip")]
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
    await app({**scope, "query_string": query}, receive, send)
    assert sent[0]["status"] == 200, sent


class _GoingRun:
    """Imitates a running run: writes the files of its jobs and its optimiser's service."""

    def __init__(self, run: Run, trials: int) -> None:
        self.run, self.folder, self._trials = run, RunFolder(run.folder), trials
        self.regions = build_graph(run.study).regions
        self._began = time.time() - 20
        self._running = {region.slug: self._first(region, trials) for region in self.regions}
        self._trials_to_record, self._reports = (
            cycle(range(len(self.regions))),
            cycle(range(len(self.regions))),
        )
        self._step = 1
        self._turn = 0
        self._dagmen()

    @staticmethod
    def _first(region: RegionGraph, trials: int) -> list[tuple[int, str]]:
        """Return number and name of the trials that a region's lanes train at first."""
        over, lanes = trials * 3 // 5, len(region.lanes)
        numbers = range(over, over + lanes)
        return [
            (number, f"{region.lanes[number % lanes][0]}.t{number // lanes + 1:02}")
            for number in numbers
        ]

    def goes_on(self) -> None:
        """Let some trials end, others begin, and some report."""
        self._dagmen(every=3)
        with closing(sqlite3.connect(self.folder.database)) as database:
            for _ in range(TOLD):
                self._record_trial(database, next(self._trials_to_record))
            database.commit()
        self._step += 1
        for _ in range(REPORTED):
            region = self.regions[next(self._reports)]
            _, name = self._running[region.slug][0]
            report(self.folder.region(region.slug), name, self._step)

    def _record_trial(self, database: sqlite3.Connection, at: int) -> None:
        """Finish a region's trial and begin the next one of the same lane."""
        region, now = self.regions[at], datetime.now()
        files, running = self.folder.region(region.slug), self._running[region.slug]
        number, name = running.pop(0)
        key, started = trial_id(at + 1, number), self._began - 60
        notes = {"metrics": {"val_auc": 0.75, "test_auc": 0.7}, "job": _noted(started)}
        _note(database, key, notes)
        database.execute(
            "INSERT INTO trial_values (trial_id, objective, value, value_type)"
            " VALUES (?, 0, 0.75, 'FINITE')",
            (key,),
        )
        database.execute(
            "UPDATE trials SET state = 'COMPLETE', datetime_complete = ? WHERE trial_id = ?",
            (str(now), key),
        )
        number = max(number, *(each for each, _ in running)) + 1
        lane, _, turn = name.rpartition(".t")
        following = f"{lane}.t{int(turn) + 1:02}"
        with files.trial(name).log.open("a") as log:
            for words in (f"{name} ends code=0 cpu=51.5 memory=231.0", f"{following} begins"):
                text = now.isoformat(" ", "milliseconds")
                log.write(f"008 (013.000.000) {text} trialfleet: {words}\n...\n")
        running.append((number, following))
        key = trial_id(at + 1, number)
        database.execute(
            "INSERT INTO trials (trial_id, number, study_id, state, datetime_start)"
            " VALUES (?, ?, ?, 'RUNNING', ?)",
            (key, number, at + 1, str(now)),
        )
        _note(database, key, {"node": following, "params": {}})
        begin_words(files, following, {})

    def _dagmen(self, every: int = 1) -> None:
        """Write the node status file of one in `every` DAGMans; each DAGMan does so every 5 s."""
        self._turn = self._turn + 1
        whole = {region.slug: 3 for region in self.regions}
        self.folder.dag_files.node_status.write_text(_node_status(whole))
        for region in self.regions[self._turn % every :: every]:
            nodes = dict.fromkeys(region.trial_nodes, 3) | dict.fromkeys(region.end_nodes, 0)
            files = self.folder.region(region.slug).dag_files
            files.node_status.write_text(_node_status(nodes))

    @contextmanager
    def in_queue(self) -> Iterator[None]:
        """Imitate the queue in the block: a DAGMan per region, a job per lane, and a service."""
        ads = self._ads()
        with (
            patch.object(schedd, "query", lambda *_: [dict(ad) for ad in ads]),
            closing(socket(AF_UNIX, SOCK_STREAM)) as service,
            chdir(self.folder.root),
        ):
            service.bind(SOCKET)
            service.listen(1000)
            yield

    def _ads(self) -> list[dict[str, Any]]:
        common: dict[str, Any] = {"ProcId": 0, "JobStatus": 2, "EnteredCurrentStatus": self._began,
                  "TrialfleetFolder": str(self.folder.root), "NumShadowStarts": 1,
                  "JobCurrentStartExecutingDate": self._began}  # fmt: skip
        ads: list[dict[str, Any]] = [{**common, "ClusterId": 1, "JobUniverse": 7}]
        job = 1
        for region in self.regions:
            job += 1
            dagman = job
            own = {**common, "TrialfleetRegion": region.slug}
            ads.append({**own, "ClusterId": dagman, "JobUniverse": 7, "DAGManJobId": 1,
                        "DAGNodeName": region.slug})  # fmt: skip
            for node in region.trial_nodes:
                job += 1
                ads.append({**own, "ClusterId": job, "JobUniverse": 5, "DAGManJobId": dagman,
                            "DAGNodeName": node, "TrialfleetNode": node, "DiskUsage": 1024,
                            "RemoteHost": f"slot1_1@node-{job % 40}.fleet"})  # fmt: skip
        return ads


def _note(database: sqlite3.Connection, key: int, notes: dict[str, Any]) -> None:
    """Store a trial's attributes in the study."""
    database.executemany(
        "INSERT INTO trial_user_attributes (trial_id, key, value_json) VALUES (?, ?, ?)",
        [(key, name, json.dumps(content)) for name, content in notes.items()],
    )


def _noted(started: float) -> dict[str, Any]:
    """Return the attributes that the study stores of a trial's job."""
    stay = {"machine": "node-1.fleet", "instance": None, "began": started, "ended": started + 55,
            "end": "done", "usd": 0.01, "saved": None}  # fmt: skip
    return {"started": started, "ended": started + 55, "wall_seconds": 55.0,
            "machine": "node-1.fleet", "slot": "slot1_1@node-1.fleet", "usd": 0.01,
            "lost_usd": 0.0, "stays": [stay]}  # fmt: skip


def _node_status(nodes: dict[str, int]) -> str:
    """Return the text of DAGMan's node status file."""
    return "".join(
        f'[\n  Type = "NodeStatus";\n  Node = "{node}";\n  NodeStatus = {status};\n'
        '  StatusDetails = "";\n  RetryCount = 0;\n  JobProcsQueued = 1;\n  JobProcsHeld = 0;\n]\n'
        for node, status in nodes.items()
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
