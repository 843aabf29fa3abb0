"""`trialfleet daily install` on a machine with real systemd: its timer starts days by itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.fleet.lab.debian_image import why_none
from tests.fleet.lab.lab import Lab, Machine
from tests.fleet.lab.project import PROGRAM

LAB = {"real": True, "users": True}
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(bool(why_none()), reason=f"no real machine: {why_none()}"),
    pytest.mark.timeout(900),  # the first one waits for Debian's image
]
USER = "debian"  # cloud-init makes this account
HOME = f"/home/{USER}"
# A command in a unit of its own: logind refuses processes outside the machine's cgroups.
IN_UNIT = ("systemd-run", "--quiet", "--pipe", "--wait", "--collect")
AS_USER = (*IN_UNIT, f"--uid={USER}", "--property=PAMName=sshd", f"--working-directory={HOME}")
FIRES = 60  # seconds, at most, from a timer's moment to the day's end
STUDY: dict[str, Any] = {
    "regions": ["A", "B"],
    "data": "data/{region}/{date}.csv",  # isn't there: the day ends without a pool
    "objective": {"metric": "loss", "direction": "minimize"},
    "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "trainer": {"command": ["true"]},
    "accelerator": "cpu",
}


@dataclass(frozen=True)
class Clock:
    """A study's clock on a machine: the systemd of its user, or the machine's own."""

    machine: Machine
    study: str
    system: bool

    def install(self, at: datetime) -> str:
        """Install it as a person would, for a moment; return what that printed."""
        daily = {"at": f"{at:%H:%M}", "zone": "UTC"}
        text = json.dumps(STUDY | {"name": self.study, "daily": daily})  # JSON is YAML
        self.machine.write(f"{HOME}/{self.study}.yaml", text, user=USER)
        return self.daily("install", *(["--system"] if self.system else []))

    def daily(self, verb: str, *words: str) -> str:
        """Run `trialfleet daily VERB` as its user, by sudo where root has to."""
        line = [str(PROGRAM), "daily", verb, f"{self.study}.yaml", *words]
        needs_root = self.system and verb in {"install", "remove"}
        return self.run(*(["sudo", "--non-interactive", *line] if needs_root else line))

    def run(self, *words: str) -> str:
        """Run a command in a session of the user's; return what it prints."""
        done = self.machine.run([*AS_USER, *words], check=True)
        return done.stdout + done.stderr

    def systemctl(self, *words: str) -> str:
        return self.run("systemctl", *([] if self.system else ["--user"]), *words)

    @property
    def timers(self) -> list[dict[str, Any]]:
        """Our timers, as systemd lists them."""
        listed = json.loads(self.systemctl("list-timers", "--all", "--output=json"))
        return [one for one in listed if one["unit"].startswith(f"trialfleet-daily-{self.study}-")]

    @property
    def outcomes(self) -> list[tuple[str, str, str, str]]:
        """The journal: day, region, ending and why of each of its outcomes."""
        shown = json.loads(self.daily("status", "--json"))
        return [
            (day["date"], one["region"], one["ending"], one["why"])
            for day in shown["days"]
            for one in day["outcomes"]
        ]

    @property
    def left(self) -> str:
        """The traces of the schedule in systemd's folders and lists."""
        folders = ["/etc/systemd", f"{HOME}/.config/systemd", "/var/lib/systemd", f"{HOME}/.local"]
        files = self.machine.run(["find", *folders, "-name", f"*daily-{self.study}-*"]).stdout
        units = self.systemctl("list-units", "--all", "--plain", f"*daily-{self.study}-*")
        known = [line for line in units.splitlines() if "trialfleet-daily" in line]
        return files + "\n".join(known)


@pytest.fixture(scope="module")
def machine(lab: Lab) -> Machine:
    """A user's machine, on which this Python may lie in the home of root."""
    booted = lab.launch(image="learning")
    booted.run("chmod o+x /root", check=True)
    booted.run([*IN_UNIT, "loginctl", "enable-linger", USER], check=True)
    lab.wait_for(lambda: systemd_runs(booted), "the user's systemd")
    return booted


def systemd_runs(machine: Machine) -> bool:
    return machine.run("test -S /run/user/1000/systemd/private").returncode == 0


def next_minute(least: int = 20) -> datetime:
    """Return the first minute that begins after at least this number of seconds."""
    moment = datetime.now(UTC) + timedelta(seconds=least + 60)
    return moment.replace(second=0, microsecond=0)


def missing_data(day: str) -> list[tuple[str, str, str, str]]:
    why = "data of {0} isn't there: {1}/data/{2}/{0}.csv"
    return [(day, region, "failed", why.format(day, HOME, region)) for region in STUDY["regions"]]


def test_the_timer_starts_the_day_and_remove_deletes_the_timer(machine: Machine, lab: Lab) -> None:
    clocks = [Clock(machine, "own", system=False), Clock(machine, "machines", system=True)]
    at = next_minute()
    for clock in clocks:
        assert f"{at:%H:%M} UTC" in clock.install(at)
        (timer,) = clock.timers
        assert timer["next"] == at.timestamp() * 1e6
        assert timer["activates"] == timer["unit"].replace(".timer", ".service")
        assert clock.outcomes == []
    for clock in clocks:
        wait_for_day(lab, clock, until=at)
        (timer,) = clock.timers
        assert at.timestamp() * 1e6 <= timer["last"] < (at.timestamp() + FIRES) * 1e6
        assert timer["next"] == (at + timedelta(days=1)).timestamp() * 1e6
        assert clock.outcomes == missing_data(str(at.date()))
        assert f"started by {HOME if not clock.system else '/etc'}" in clock.daily("status")
        shown = clock.systemctl("show", timer["activates"], "--property=Result,ExecMainStatus,User")
        assert "Result=exit-code\nExecMainStatus=1" in shown  # regions have failed
        assert ("User=debian" in shown) is clock.system
    for clock in clocks:
        assert "removed" in clock.daily("remove")
        assert clock.timers == []
        assert clock.left == ""
        assert "no schedule is installed" in clock.daily("status")
        assert clock.outcomes == missing_data(str(at.date()))  # the journal stays


def test_a_day_missed_while_the_machine_was_off_runs_at_its_next_start(
    machine: Machine, lab: Lab
) -> None:
    clocks = [Clock(machine, "later", system=False), Clock(machine, "late", system=True)]
    at = next_minute()
    for clock in clocks:
        clock.install(at)
    stop(lab, machine)
    assert datetime.now(UTC) < at, "it went off too late to miss anything"
    lab.wait_for(lambda: datetime.now(UTC) > at + timedelta(seconds=1), "the moment", 90)
    lab.aws("ec2", "start_instances", InstanceIds=[machine.id])
    lab.wait_for(lambda: machine.instance()["on"], "the machine on again")
    started = datetime.now(UTC)
    lab.wait_for(lambda: systemd_runs(machine), "the user's systemd")
    for clock in clocks:
        wait_for_day(lab, clock, until=started)
        assert clock.outcomes == missing_data(str(at.date()))
        (timer,) = clock.timers
        assert timer["last"] > at.timestamp() * 1e6
        clock.daily("remove")
        assert clock.left == ""


def wait_for_day(lab: Lab, clock: Clock, until: datetime) -> None:
    seconds = (until - datetime.now(UTC)).total_seconds()
    lab.wait_for(lambda: len(clock.outcomes) == 2, f"{clock.study}'s day", max(0, seconds) + FIRES)


def stop(lab: Lab, machine: Machine) -> None:
    """Have AWS stop a machine, to be started again."""
    lab.aws("ec2", "stop_instances", InstanceIds=[machine.id])
    lab.wait_for(lambda: not machine.instance()["on"], "the machine off")
