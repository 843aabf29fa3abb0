"""The kinds of processes that a run needs, and how to find them among the pool's processes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.processes import is_program
from trialfleet.infra.pool.config import MARK

PROC = Path("/proc")
AMBUSH_SECONDS = 2.0  # for a process to show up that lives for a moment only
POLL = 0.003  # seconds; a script's client lives for ten
TRAINERS = frozenset({"trainer.py", "moody.py"})
STAYING = "stays"  # a word of the command line of such a trainer


@dataclass(frozen=True)
class Victim:
    """A process of the pool.

    Attributes:
        kind: a name of `KINDS`.
        pid: its process id.
    """

    kind: str
    pid: int


Matches = Callable[[list[str], str], bool]


def _program(name: str) -> Matches:
    return lambda words, _: Path(words[0]).name == name


def _dagman(*, of_region: bool) -> Matches:
    def matches(words: list[str], cwd: str) -> bool:
        return any("condor_dagman" in word for word in words) and of_region == ("/regions/" in cwd)

    return matches


def _argument(text: str) -> Matches:
    return lambda words, _: any(text in word for word in words[1:])


def _ours(name: str) -> Matches:
    return lambda words, _: is_program(words, name)


def _trainer(*, stays: bool) -> Matches:
    def matches(words: list[str], _: str) -> bool:
        scripts = {Path(word).name for word in words[1:]}
        return not scripts.isdisjoint(TRAINERS) and (STAYING in scripts) == stays

    return matches


KINDS: dict[str, Matches] = {
    "dagman": _dagman(of_region=False),
    "dagman of a region": _dagman(of_region=True),
    "master": _program("condor_master"),
    "collector": _program("condor_collector"),
    "negotiator": _program("condor_negotiator"),
    "schedd": _program("condor_schedd"),
    "startd": _program("condor_startd"),
    "shared port": _program("condor_shared_port"),
    "procd": _program("condor_procd"),
    "shadow": _program("condor_shadow"),
    "starter": _program("condor_starter"),
    "supervisor": _ours("supervise"),
    "service": _ours("serve"),
    "publish": _ours("publish"),
    "report": _ours("report"),
    "script": _ours("ask-service"),
    "agent": _argument("agent.pyz"),  # whose words name the trainer's command, too
    "staying trainer": _trainer(stays=True),
    "trainer": _trainer(stays=False),
}
FLEET_KINDS = KINDS | {
    "autoscaler": _ours("autoscale"),
    "machine's agent": _argument("trialfleet.nodes.node_agent"),
}
IN_JOBS = frozenset({"agent", "trainer", "staying trainer"})
JOB = re.compile(r"\d+\.\d+")
SHORT_LIVED = frozenset({"publish", "report", "script"})


def victims(config: Path, kinds: frozenset[str] | None = None) -> list[Victim]:
    """Return the processes of a pool, by pid.

    Args:
        config: the pool's configuration file.
        kinds: the kinds to look for; all by default.
    """
    return list(_among(_pids(), config, frozenset(KINDS) if kinds is None else kinds))


def catch(config: Path, kind: str, seconds: float = AMBUSH_SECONDS) -> list[Victim]:
    """Return the processes of a kind; if the kind is short-lived, wait for one."""
    deadline = time.monotonic() + seconds
    while True:
        found = victims(config, frozenset({kind}))
        if found or kind not in SHORT_LIVED or time.monotonic() > deadline:
            return found
        time.sleep(POLL)


def job_of(victim: Victim) -> str | None:
    """Return the id of a process's HTCondor job, such as 12.0; None if it belongs to none."""
    folder = PROC / str(victim.pid)
    try:
        if victim.kind == "shadow":
            words = (folder / "cmdline").read_text().split("\0")
            return next((word for word in words if JOB.fullmatch(word)), None)
        if victim.kind == "starter":
            children = (folder / "task" / str(victim.pid) / "children").read_text().split()
            return next((_job_in(PROC / child) for child in children), "")
        return _job_in(folder) if victim.kind in IN_JOBS else None
    except OSError:
        return ""


def _job_in(process: Path) -> str:
    """Return the job in whose sandbox a process works; empty if that can't be read."""
    here = (process / "cwd").readlink()
    for place in (here, *here.parents[:2]):
        if (ad := place / ".job.ad").exists():
            numbers = dict(re.findall(r"^(ClusterId|ProcId) = (\d+)", ad.read_text(), re.MULTILINE))
            return f"{numbers['ClusterId']}.{numbers['ProcId']}"
    return ""


def _pids() -> list[int]:
    return sorted(int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal())


def _among(pids: list[int], config: Path, kinds: frozenset[str]) -> Iterator[Victim]:
    marks = {f"CONDOR_CONFIG={config}".encode(), f"{MARK}={config}".encode()}
    for pid in pids:
        folder = PROC / str(pid)
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            if not words or not (kind := _kind(words, folder, kinds)):
                continue
            if marks.isdisjoint((folder / "environ").read_bytes().split(b"\0")):
                continue
        except OSError:
            continue  # it has just ended
        yield Victim(kind, pid)


def _kind(words: list[str], folder: Path, kinds: frozenset[str]) -> str | None:
    cwd = str((folder / "cwd").readlink()) if any("condor_dagman" in word for word in words) else ""
    return kind_of(words, cwd, {kind: KINDS[kind] for kind in KINDS if kind in kinds})


def kind_of(words: list[str], cwd: str, kinds: Mapping[str, Matches] = KINDS) -> str | None:
    """Return the kind of a process; None if it is of no kind.

    Args:
        words: the process's command line.
        cwd: the folder where it works.
        kinds: the possible kinds.
    """
    return next((kind for kind, matches in kinds.items() if matches(words, cwd)), None)
