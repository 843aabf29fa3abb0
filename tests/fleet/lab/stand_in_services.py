"""Imitates how systemd runs services; standard library only."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import time
import uuid
from pathlib import Path

from . import stand_in_units as units

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LOGS = Path("/var/log/services")
VARIABLES = Path("/etc/environment")
NOT_EXECUTED = 203  # systemd's own exit status for a command that can't be run
LEFT_ALONE = {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}  # systemd has the last one ignored


class Service:
    """A unit that was started at least once: a service, or a timer, which never fires here."""

    def __init__(self, unit: units.Unit) -> None:
        self.unit, self.pid, self.state, self.code = unit, 0, "inactive", 0
        self.stopping, self.again, self.restart_at, self.kill_at = False, False, 0.0, 0.0
        self.invocation, self.since = "", 0.0

    @property
    def settled(self) -> bool:
        """True if neither a start nor a stop is in progress."""
        return not (self.pid and (self.stopping or self.state == "activating"))

    def start(self) -> None:
        """Run ExecStartPre and ExecStart in a child."""
        self.stopping, self.restart_at, self.since = False, 0.0, time.monotonic()
        commands = [*self.unit.commands("ExecStartPre"), *self.unit.commands("ExecStart")]
        oneshot = self.unit.first("Service.Type") == "oneshot"
        self.state = "activating" if oneshot else "active"
        if commands:
            self.invocation = uuid.uuid4().hex
            self.pid = spawn(commands, self.environment(), self.unit)

    def environment(self) -> dict[str, str]:
        """Return the variables of the service's processes."""
        own: dict[str, str] = {"PATH": PATH, "LANG": "C.UTF-8", "INVOCATION_ID": self.invocation}
        return own | units.assignments(VARIABLES) | self.unit.environment()

    def stop(self) -> None:
        """Ask the main process to end; if it doesn't, `tick` kills it."""
        self.stopping, self.restart_at = True, 0.0
        if not self.pid:
            self.state = "inactive"
            return
        os.kill(self.pid, getattr(signal, self.unit.first("Service.KillSignal", "SIGTERM")))
        self.kill_at = time.monotonic() + self.unit.seconds("TimeoutStopSec", 90)

    def restart(self) -> None:
        """Stop the service if it runs, and start it once it has ended."""
        if self.pid:
            self.stop()
            self.again = True
        else:
            self.start()

    def ended(self, code: int) -> None:
        """Record the main process's end, and plan a restart if the unit wants one.

        Processes that it left are killed, as systemd does with a service's cgroup.
        """
        self.pid, self.code, self.kill_at = 0, code, 0.0
        kill_invocation(self.invocation)
        restart = self.unit.first("Service.Restart", "no")
        wrong = (
            code and str(code) not in self.unit.first("Service.RestartPreventExitStatus").split()
        )
        if self.again:
            self.again = False
            self.start()
        elif not self.stopping and (restart == "always" or (restart == "on-failure" and wrong)):
            self.state = "activating"
            self.restart_at = time.monotonic() + self.unit.seconds("RestartSec", 0.1)
        elif code and not self.stopping:
            self.state = "failed"
        else:
            self.state = "active" if self.unit.yes("RemainAfterExit") else "inactive"

    def tick(self, now: float) -> None:
        """Do what is due by time: kill, or restart."""
        if self.restart_at and now >= self.restart_at:
            self.start()
        if self.kill_at and now >= self.kill_at and self.pid:
            os.kill(self.pid, signal.SIGKILL)

    def properties(self) -> dict[str, str]:
        """Return what `systemctl show` prints."""
        return {
            "Id": self.unit.name,
            "ActiveState": self.state,
            "ActiveEnterTimestampMonotonic": str(int(self.since * 1e6)),
            "MainPID": str(self.pid),
            "NeedDaemonReload": "no",  # files are read at each start
        }


def spawn(commands: list[list[str]], environment: dict[str, str], unit: units.Unit) -> int:
    """Run command lines one after the other in a child with a new session; return its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            prepare(unit)
            run(commands, environment)
        except BaseException as error:  # noqa: BLE001  a child must never return
            os.write(2, f"{unit.name}: {error}\n".encode())
        finally:
            os._exit(NOT_EXECUTED)
    return pid


def prepare(unit: units.Unit) -> None:
    """Apply the unit's settings to a new process: log, working directory, user."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    # All of them: a lab started in the background inherits an ignored SIGINT.
    for caught in signal.valid_signals() - LEFT_ALONE:
        signal.signal(caught, signal.SIG_DFL)
    log = os.open(LOGS / f"{unit.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    for number, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(source, number)
    os.closerange(3, 1024)
    os.chdir(unit.first("Service.WorkingDirectory", "/"))
    user = unit.first("Service.User")
    if user:
        account = pwd.getpwnam(user)
        os.initgroups(user, account.pw_gid)
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)


def run(commands: list[list[str]], environment: dict[str, str]) -> None:
    """Run commands until one fails; the last one replaces this process."""
    words = [[expanded(word, environment) for word in command] for command in commands]
    for command in words[:-1]:
        if os.spawnve(os.P_WAIT, command[0], command, environment) != 0:  # noqa: S606
            os._exit(1)
    os.execve(words[-1][0], words[-1], environment)  # noqa: S606  no shell is the point


def expanded(word: str, environment: dict[str, str]) -> str:
    """Return a word of a command line with the unit's variables inserted."""
    for name, value in environment.items():
        word = word.replace(f"${{{name}}}", value)
    return word


def kill_invocation(invocation: str) -> None:
    """Kill every process that is left of one start of a service."""
    mark = f"INVOCATION_ID={invocation}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
