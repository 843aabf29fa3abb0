"""The optimiser's service alone: agents' messages are files, so no HTCondor is needed.

    OMP_NUM_THREADS=1 python -m tests.bench.lanes.service --lanes 20 --turns 2000 [--profile 40]

Each turn, an agent reports that its trial has ended and asks for another. The bench prints
processor time and wall time of an answer, fsyncs included.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import logging
import pstats
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import platformdirs

from tests.bench.lanes.study import lanes_study
from trialfleet import plan
from trialfleet.nodes.job import pack_and_unpack
from trialfleet.workflows.control.scripts.script_requests import ScriptRequests
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder

_LOG = """\
000 (001.000.000) {at} Job submitted from host: <127.0.0.1:1>
...
001 (001.000.000) {at} Job executing on host: <127.0.0.1:1>
	SlotName: slot1_1@here
...
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--regions", type=int, default=50)
    parser.add_argument("--lanes", type=int, default=20, help="of each region [20]")
    parser.add_argument("--turns", type=int, default=2000, help="answers in all [2000]")
    parser.add_argument("--trials", type=int, default=10_000, help="a region's budget [10000]")
    parser.add_argument("--model", action="store_true", help="let the model choose, as it does")
    parser.add_argument(
        "--profile", type=int, default=0, help="also print this number of functions"
    )
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    base = platformdirs.user_cache_path("trialfleet") / "bench-service"
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    try:
        measured(base, given)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def measured(base: Path, given: argparse.Namespace) -> None:
    """Write messages as agents do, and print the time of the answers."""
    study = lanes_study(
        base, given.regions, given.lanes, trials=given.trials, has_model=given.model
    )
    run = plan(study, run="service", out=base / "run")
    folder = RunFolder(run.folder)
    scripts = ScriptRequests(folder)
    slugs = sorted(path.name for path in folder.regions.iterdir())
    lanes = [(slug, lane.name) for slug in slugs for lane in folder.region(slug).trials.iterdir()]
    for slug, node in lanes:
        reply = scripts.handle(["ask", slug, node])
        assert reply.exit_code == 0, reply
        begin_log(folder.region(slug).trial(node))
    settle(scripts)
    walls, processor = [], 0.0
    with profiled(given.profile):
        for turn in range(given.turns):
            slug, node = lanes[turn % len(lanes)]
            tell(folder.region(slug).trial(node), turn // len(lanes) + 1)
            began, cpu = time.perf_counter(), time.process_time()
            scripts.handle_events()
            walls.append(time.perf_counter() - began)
            processor += time.process_time() - cpu
            if given.model:
                cpu = time.process_time()
                settle(scripts)
                processor += time.process_time() - cpu
    ends = sum(scripts._studies.get_study(slug).trials()[0].state.is_finished() for slug in slugs)
    assert ends or given.turns < len(lanes), "no result was recorded"
    walls = sorted(walls)
    within = {share: 1e3 * walls[int(share * len(walls))] for share in (0.5, 0.9, 0.99)}
    print(
        f"{given.regions} regions x {given.lanes} lanes, {given.turns} answers: "
        f"{1e3 * processor / given.turns:.1f} ms of a processor each; "
        f"median {within[0.5]:.1f} ms, 90 % in {within[0.9]:.1f}, 99 % in {within[0.99]:.1f}"
    )


def begin_log(place: TrialFolder) -> None:
    """Write the event log of a job that runs."""
    at = datetime.now().isoformat(" ", "milliseconds")
    place.log.write_text(_LOG.format(at=at))


def settle(scripts: ScriptRequests) -> None:
    """Let the service do its work between two requests: it computes the next suggestion."""
    while scripts.idle():
        pass


def tell(place: TrialFolder, turn: int) -> None:
    """Act as a job's agent: ask for the first trial, or bring a result and ask for another."""
    order = json.loads(place.order.read_bytes())
    if order["do"] == "ask":
        _say(place, turn, say="ask")
        return
    assert order["do"] == "train", order
    beside = place.words.parent / "left"
    beside.mkdir(exist_ok=True)
    result = {"schema": 1, "status": "complete", "metrics": {"loss": random.random()}}  # noqa: S311
    (beside / "result.json").write_text(json.dumps(result))
    (beside / "progress.jsonl").write_text('{"step": 1, "metrics": {"loss": 0.5}}\n')
    for name in ("out", "err"):
        (beside / name).touch()
    package = place.words / f"{order['name']}.result.tar"
    with package.with_suffix(".part").open("wb") as file:
        pack_and_unpack.pack(("result.json", "progress.jsonl", "out", "err"), beside, file.write)
    package.with_suffix(".part").replace(package)
    ended = {"trial": order["name"], "code": 0, "wants": True, "over": None}
    _say(place, turn, say="ended", seconds=1.0, cpu_seconds=1.0, memory_mb=10.0, **ended)


def _say(place: TrialFolder, turn: int, **words: object) -> None:
    """Write an agent's message."""
    said = {"schema": 1, "job": "1.0", "starts": 1, "token": "9f31c2aa", "turn": turn}
    said |= {**words, "time": time.time()}
    part = place.said.with_name("agent.json.part")
    part.write_text(json.dumps(said))
    part.replace(place.said)


@contextmanager
def profiled(functions: int) -> Iterator[None]:
    """Print the time in the block by function, for `functions` functions; nothing for 0."""
    if not functions:
        yield
        return
    profile = cProfile.Profile(time.process_time)
    with profile:
        yield
    pstats.Stats(profile).sort_stats("cumulative").print_stats(functions)


if __name__ == "__main__":
    main()
