"""Twenty nights of daily runs without a person, with ten kinds of trouble, drawn by a seed.

Each region's day ends as it should, each trouble is reported once and is in the views, and nobody's
hand is needed.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from tests.pool.conftest import MakePool
from tests.pool.two_managers import Manager, bucket, let_lapse, trials_of, two_managers
from tests.postgresql import Server, private_server
from tests.storm.disk import fill_disk
from tests.storm.victims import victims
from tests.unit.serve.test_day_metrics import samples
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.facts.journal.journal import Ending, Outcome, latest_outcomes

pytestmark = [pytest.mark.postgres, pytest.mark.thorough, pytest.mark.timeout(7200)]
SEED = 32
FIRST = date(2026, 11, 1)
REGIONS = ("A", "B", "C")
# Faults of a region's data, and a word of the reason why its day then fails.
BAD_DATA = {"broken": "there is no column 'churned'", "missing": "isn't there", "garbage": "rows"}
TROUBLES = [
    *BAD_DATA,
    *("late", "unchanged", "dead channel", "full disk", "kill", "clock", "manager lost"),
]
KILLED = ("daily run", "dagman", "dagman of a region", "schedd", "service")
STUDY: dict[str, Any] = {
    "regions": [*REGIONS],
    "trainer": "tabular",
    "target": "churned",
    "objective": {"metric": "val_auc", "direction": "maximize"},
    "search_space": {"hidden": {"type": "int", "low": 8, "high": 32}},
    "budget": {"trials": 1, "lanes": 1},
    "resources": {"memory": "1GB", "disk": "100MB"},
    "checks": {"rows": "fail"},
    "daily": {"wait_for_data": "3h"},
}
DISK_MB = 256


@dataclass(frozen=True)
class Night:
    """A night, and what goes wrong in it."""

    day: date
    trouble: str
    region: str
    after: float  # seconds after the run is there

    @property
    def time(self) -> str:
        """Of the clock of a manager: on a night without data its wait is over."""
        return "05:31" if self.trouble == "missing" else "02:31"


def nights(seed: int, count: int = 20) -> list[Night]:
    """Draw nights: each trouble as often as any other, garbage once past days tell it."""
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    troubles = (TROUBLES * math.ceil(count / len(TROUBLES)))[:count]
    while {"garbage", "unchanged"} & set(troubles[:5]) or troubles[0] == "clock":
        draw.shuffle(troubles)
    return [
        Night(FIRST + timedelta(days=n), trouble, draw.choice(REGIONS), draw.uniform(0, 8))
        for n, trouble in enumerate(troubles)
    ]


def table(seed: str, rows: int = 400, target: str = "churned") -> str:
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    lines = [f"amount,months,plan,{target}"]
    for _ in range(rows):
        amount, months = draw.gauss(50, 15), draw.randrange(60)
        odds = (amount - 50) / 8 - (months - 30) / 15
        churned = "yes" if draw.random() < 1 / (1 + math.exp(-odds)) else "no"
        lines.append(f"{amount:.2f},{months},{draw.choice('abc')},{churned}")
    return "\n".join(lines) + "\n"


@dataclass
class Place:
    """The setting of the nights."""

    work: Path
    managers: tuple[Manager, Manager]
    server: Server
    trained: dict[str, date] = field(default_factory=dict)  # the last day of each region
    working: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def put(self, night: Night, region: str) -> None:
        """Put a region's data of a night where it is to be, as it is."""
        is_hit = region == night.region
        seed, rows, target = f"{night.day} {region}", 400, "churned"
        if is_hit and night.trouble == "unchanged":
            text = self.file(self.trained[region], region).read_text()
        else:
            rows = 40 if is_hit and night.trouble == "garbage" else rows
            target = "other" if is_hit and night.trouble == "broken" else target
            text = table(seed, rows, target)
        place = self.file(night.day, region)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        written = datetime.combine(night.day, datetime.min.time(), UTC).timestamp() + 3600
        os.utime(place, (written, written))

    def file(self, day: date, region: str) -> Path:
        return self.work / "data" / region / f"{day}.csv"

    @property
    def holder(self) -> Manager:
        """The manager that works on the days."""
        own = {str(manager.runs.root): manager for manager in self.managers}
        return own[holder_folder(self.server)]

    def outcomes(self, day: date) -> dict[str, Outcome]:
        """Return the outcomes of a day's regions, by the journal of the manager at work on it."""
        journal = self.holder.journal
        return {one.region: one for one in latest_outcomes(journal.outcomes(day, day)).values()}

    def heard(self) -> list[dict[str, Any]]:
        heard = self.work / "heard"
        lines = heard.read_text().splitlines() if heard.exists() else []
        return [json.loads(line) for line in lines if line]


def holder_folder(server: Server) -> str:
    with psycopg.connect(server.url().replace("+psycopg", "")) as connection:
        row = connection.execute("SELECT folder FROM trialfleet_leases").fetchone()
    assert row
    return str(row[0])


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    yield from private_server()


@pytest.fixture
def place(
    work: Path, make_pool: MakePool, server: Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    channel = f"test ! -e '{work}/away' && cat >> '{work}/heard' && echo >> '{work}/heard'"
    study = {
        **STUDY,
        "data": f"{work}/data/{{region}}/{{date}}.csv",
        "notify": [{"command": ["sh", "-c", channel]}],
    }
    with bucket(work, monkeypatch), two_managers(work, make_pool, server, **study) as both:
        yield Place(work, both, server)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Fill the disk of a folder to its last byte, where it has a small one of its own."""
    ballast = folder / "ballast"
    fill_disk(ballast)
    yield
    ballast.unlink()


@contextmanager
def small_disks(managers: tuple[Manager, Manager]) -> Iterator[bool]:
    """Give each manager's runs a small disk; whether that is allowed."""
    mounted: list[Path] = []
    try:
        for manager in managers:
            runs = manager.folder / "runs"
            runs.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "trialfleet", str(runs)]
            if subprocess.run(command, check=False, capture_output=True).returncode:
                yield False
                return
            mounted.append(runs)
        yield True
    finally:
        for runs in mounted:
            subprocess.run(["umount", "--lazy", str(runs)], check=False)


def cause(place: Place, night: Night, wait_for: Callable[..., None]) -> None:
    """Let a night's trouble happen, once its run is there."""
    if night.trouble in {*BAD_DATA, "unchanged", "dead channel"}:
        return
    wait_for(lambda: any(manager.run(night.day).exists() for manager in place.managers), 300)
    time.sleep(night.after)
    manager = place.holder
    if night.trouble == "late":
        place.put(night, night.region)
    elif night.trouble == "full disk":
        with full(manager.folder / "runs"):
            time.sleep(15)
    elif night.trouble == "kill":
        kind = KILLED[int(night.after * 100) % len(KILLED)]
        if kind == "daily run":
            place.working[place.managers.index(manager)].kill()
        elif found := victims(manager.pool.condor_config, frozenset({kind})):
            os.kill(found[-1].pid, signal.SIGKILL)
    elif night.trouble == "clock":  # it is set back an hour, and the clock of the days starts it
        number = place.managers.index(manager)
        place.working[number].kill()
        place.working[number].wait()
        assert manager.start(night.day, "01:31").wait(300) == 0, manager.log
    elif night.trouble == "manager lost":
        manager.kill()
        let_lapse(place.server)


def until_morning(place: Place, night: Night) -> None:
    """Start again what was killed, as a manager's clock does, until both have nothing left."""
    deadline = time.monotonic() + 900
    lost = night.trouble == "manager lost"
    dead = [one.poll() not in {None, 0} for one in place.working]
    while any(one.poll() != 0 for one in place.working):
        assert time.monotonic() < deadline, [manager.log for manager in place.managers]
        for number, process in enumerate(place.working):
            if process.poll() not in {None, 0}:
                if lost and dead[number]:
                    if place.working[1 - number].poll() is None:
                        continue
                    place.managers[number].pool.up()  # the machine is back, hours later
                place.working[number] = place.managers[number].start(night.day, night.time)
        time.sleep(1)


def run_night(place: Place, night: Night, wait_for: Callable[..., None]) -> None:
    late = night.trouble in {"late", "missing"}
    for region in REGIONS:
        if not (late and region == night.region):
            place.put(night, region)
    away = place.work / "away"
    if night.trouble == "dead channel":
        away.touch()
    place.working = [manager.start(night.day, night.time) for manager in place.managers]
    cause(place, night, wait_for)
    until_morning(place, night)
    away.unlink(missing_ok=True)


def check_views(place: Place, night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check each manager's views of a day that has ended."""
    for manager in place.managers:
        monkeypatch.chdir(manager.folder)
        done = CliRunner().invoke(main, ["daily", "status", str(manager.file), "--json"])
        assert done.exit_code == 0, done.output
        newest = json.loads(done.output)["days"][0]
        assert newest["date"] == str(night.day)
        assert newest["open"] == 0
        endings = {region: str(one.ending) for region, one in place.outcomes(night.day).items()}
        assert {one["region"]: one["ending"] for one in newest["outcomes"]} == endings
        last = samples([manager.runs])
        in_metrics = {one: last["region_day", "demo", one, endings[one]] for one in REGIONS}
        assert in_metrics == dict.fromkeys(REGIONS, 1), "/metrics"


def test_twenty_nights(
    place: Place, wait_for: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = nights(SEED)
    assert {night.trouble for night in drawn} == set(TROUBLES)
    with small_disks(place.managers) as has_disks:
        for night in drawn:
            if night.trouble == "full disk" and not has_disks:
                continue
            run_night(place, night, wait_for)
            found = place.outcomes(night.day)
            print(night, {region: str(one.ending) for region, one in found.items()})
            assert set(found) == set(REGIONS), night
            for region, one in found.items():
                if region == night.region and night.trouble in BAD_DATA:
                    assert one.ending is Ending.FAILED, night
                    assert BAD_DATA[night.trouble] in one.why, night
                elif region == night.region and night.trouble == "unchanged":
                    assert one.ending is Ending.UNCHANGED, night
                else:
                    assert one.ending in {Ending.PUBLISHED, Ending.KEPT}, (night, one)
                    place.trained[region] = night.day
            check_views(place, night, monkeypatch)
        check_alerts(place, [n for n in drawn if has_disks or n.trouble != "full disk"], wait_for)
    names = Counter(study for study, _ in trials_of(place.server))
    assert set(names.values()) == {1}, "no run is doubled, and each has its one trial"


def check_alerts(place: Place, lived: list[Night], wait_for: Callable[..., None]) -> None:
    def digests() -> list[str]:
        return [one["data"]["date"] for one in place.heard() if one["event"] == "day-done"]

    attempts = Counter(str(one.date) for one in place.holder.journal.attempts())
    wait_for(lambda: Counter(digests()) == attempts, 600)
    heard = place.heard()
    assert set(Counter(one["id"] for one in heard).values()) == {1}
    failed = Counter(
        (one["data"]["date"], one["region"]) for one in heard if one["event"] == "region-failed"
    )
    assert failed == {(str(n.day), n.region): 1 for n in lived if n.trouble in BAD_DATA}
    lost = sum(night.trouble == "manager lost" for night in lived)
    assert sum("took over" in one["title"] for one in heard) == lost
