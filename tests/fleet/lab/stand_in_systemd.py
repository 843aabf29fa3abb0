"""Imitates systemd: first process of a machine, and its `systemctl` and `shutdown`.

Machines without cgroups of their own can't run the real one. This one reads the same unit files,
starts, restarts and stops services, accepts a scheduled shutdown, and ends by switching the machine
off. Called by a command's name, such as `systemctl`, it sends the command to the running one.
Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from . import stand_in_nvidia
from . import stand_in_units as units
from .stand_in_services import LOGS, VARIABLES, Service

SOCKET = Path("/run/systemd/stand-in")
SCHEDULED = Path("/run/systemd/shutdown/scheduled")
CLOUD_INIT = "lab.stand_in_cloud_init"
STOP_SECONDS = 30.0  # of a machine that goes off, for its services
POWER = {"poweroff": "poweroff", "halt": "poweroff", "reboot": "reboot"}
ACTIONS = ("start", "stop", "restart", "try-restart", "reload", "kill")
Answer = tuple[int, str]  # exit code, output
Waiting = Callable[[], "Answer | None"]  # the answer, once there is one


class Manager:
    """The first process: one loop over requests, children that end, and time."""

    def __init__(self) -> None:
        self.services: dict[str, Service] = {}
        self.waiting: list[tuple[socket.socket, Waiting]] = []
        self.scheduled: tuple[float, str] | None = None  # time and kind
        self.power, self.off_at = "", 0.0
        self.listener = socket.socket(socket.AF_UNIX)
        self.woken, self.wake = socket.socketpair()

    def run(self) -> None:
        """Boot, then serve until the machine is off."""
        self.wake.setblocking(False)  # noqa: FBT003  its own signature
        signal.set_wakeup_fd(self.wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.switch_off("poweroff"))  # the power button
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for folder in (SOCKET.parent, LOGS, SCHEDULED.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self.listener.bind(str(SOCKET))
        self.listener.listen(64)
        self.boot()
        while not self.off():
            self.turn()
        self.end()

    def boot(self) -> None:
        """Load drivers, start enabled services, then run cloud-init."""
        stand_in_nvidia.at_boot()
        for name in units.enabled():
            self.do("start", name)
        cloud_init = units.Unit("cloud-init.service")
        cloud_init.settings["Service.ExecStart"] = [f"{sys.executable} -m {CLOUD_INIT}"]
        cloud_init.settings["Service.Environment"] = [f"PYTHONPATH={os.environ['PYTHONPATH']}"]
        cloud_init.settings["Service.Type"] = ["oneshot"]
        self.services[cloud_init.name] = Service(cloud_init)
        self.services[cloud_init.name].start()

    def turn(self) -> None:
        """Wait for an event, at most half a second, and handle it."""
        ready, _, _ = select.select([self.listener, self.woken], [], [], 0.5)
        if self.woken in ready:
            self.woken.recv(4096)
        self.reap()
        if self.listener in ready:
            self.accept()
        now = time.monotonic()
        for service in list(self.services.values()):
            service.tick(now)
        if self.scheduled and now >= self.scheduled[0]:
            self.switch_off(self.scheduled[1])
        self.answer()

    def reap(self) -> None:
        """Collect every child that has ended, the machine's orphans included."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                for service in self.services.values():
                    if service.pid == pid:
                        service.ended(os.waitstatus_to_exitcode(status))

    def accept(self) -> None:
        """Read one request: a JSON list of words."""
        connection, _ = self.listener.accept()
        words = json.loads(connection.makefile().readline())
        try:
            self.waiting.append((connection, self.request(words)))
        except units.NoUnitError as error:
            self.waiting.append((connection, immediately(5, str(error))))

    def answer(self) -> None:
        """Send the answers to requests that are finished."""
        still = []
        for connection, done in self.waiting:
            output = done()
            if output is None:
                still.append((connection, done))
                continue
            with connection, contextlib.suppress(OSError):
                connection.sendall(json.dumps(output).encode() + b"\n")
        self.waiting = still

    def request(self, words: list[str]) -> Waiting:
        """Begin what a request asks; NoUnitError if a unit is missing."""
        verb, rest = words[0], words[1:]
        names = [units.full(word) for word in rest if not word.startswith("-")]
        if verb == "shutdown":
            return immediately(*self.shutdown(rest))
        if verb in POWER:
            self.switch_off(POWER[verb])
            return immediately(0)
        if verb in {"enable", "disable"}:
            for name in names:
                getattr(units, verb)(name)
            if "--now" not in rest:
                return immediately(0)
            verb = "start" if verb == "enable" else "stop"
        if verb in ACTIONS:
            for name in names:
                self.do(verb, name)
            return lambda: self.settled(names)
        return immediately(*self.answer_to(verb, names, rest))

    def do(self, verb: str, name: str) -> None:
        """Read a unit's files again, and begin to start, stop, restart, reload or kill it."""
        unit = units.read(name)
        service = self.services.setdefault(unit.name, Service(unit))
        service.unit = unit
        if verb == "start" and not service.pid:
            service.start()
        elif verb == "stop":
            service.stop()
        elif verb == "restart" or (verb == "try-restart" and service.pid):
            service.restart()
        elif verb in {"reload", "kill"} and service.pid:
            os.kill(service.pid, signal.SIGHUP if verb == "reload" else signal.SIGTERM)

    def settled(self, names: list[str]) -> Answer | None:
        """Return the answer once the start or stop of all units is over, else None."""
        chosen = [self.services[name] for name in names]
        if not all(service.settled for service in chosen):
            return None
        bad = [service.unit.name for service in chosen if service.state == "failed"]
        return (1, f"Job for {bad[0]} failed.") if bad else (0, "")

    def answer_to(self, verb: str, names: list[str], rest: list[str]) -> Answer:
        """Return the answer to a command that needs no waiting."""
        states = [self.state(name) for name in names]
        if verb in {"is-active", "is-failed"}:
            text = "" if {"-q", "--quiet"} & set(rest) else "\n".join(states)
            yes = verb.removeprefix("is-") in states
            return (0 if yes else 3), text
        if verb == "is-enabled":
            found = [bool(units.enabled(name)) for name in names]
            return (0 if all(found) else 1), "\n".join(("disabled", "enabled")[x] for x in found)
        if verb == "show":
            return 0, self.shown(names, rest)
        if verb in {"status", "list-units"}:
            lines = [f"{n}: {s.state}, pid {s.pid}" for n, s in sorted(self.services.items())]
            return (0 if "active" in states or not names else 3), "\n".join(lines)
        if verb in {"daemon-reload", "reset-failed"}:
            return 0, ""
        return 1, f"this stand-in knows no `systemctl {verb}`"

    def state(self, name: str) -> str:
        """Return a unit's state; D-Bus, whose part this stand-in plays, is always active."""
        if name == "dbus.service":
            return "active"
        return self.services[name].state if name in self.services else "inactive"

    def shown(self, names: list[str], rest: list[str]) -> str:
        """Return properties of units, as `systemctl show --property=A,B --value` prints them."""
        wanted = ",".join(w.partition("=")[2] for w in rest if w.startswith("--property="))
        parts = []
        for name in names:
            service = self.services.get(name) or Service(units.read(name))
            known = service.properties()
            chosen = {key: known.get(key, "") for key in (wanted.split(",") if wanted else known)}
            plain = "--value" in rest
            parts.append("\n".join(v if plain else f"{k}={v}" for k, v in chosen.items()))
        return "\n\n".join(parts)

    def shutdown(self, words: list[str]) -> Answer:
        """Schedule, cancel or begin a shutdown."""
        if "-c" in words:
            self.scheduled = None
            SCHEDULED.unlink(missing_ok=True)
            return 0, ""
        kind = "reboot" if {"-r", "--reboot"} & set(words) else "poweroff"
        when = next((word for word in words if not word.startswith("-")), "+1")
        minute = float(units.assignments(VARIABLES).get("LAB_SECONDS_PER_MINUTE", "60"))
        seconds = 0.0 if when == "now" else float(when) * minute
        if seconds == 0:
            self.switch_off(kind)
            return 0, ""
        self.scheduled = (time.monotonic() + seconds, kind)
        moment = int((time.time() + seconds) * 1e6)
        SCHEDULED.write_text(f"USEC={moment}\nWARN_WALL=1\nMODE={kind}\n")
        return 0, f"Shutdown scheduled in {seconds:g} s, use 'shutdown -c' to cancel."

    def switch_off(self, kind: str) -> None:
        """Begin to stop everything."""
        if not self.power:
            self.power, self.scheduled = kind, None
            self.off_at = time.monotonic() + STOP_SECONDS
            print(f"systemd (stand-in): {kind}", flush=True)
            for service in self.services.values():
                service.stop()

    def off(self) -> bool:
        """Return whether every service has ended, or had its time to end."""
        running = any(service.pid for service in self.services.values())
        return bool(self.power) and (not running or time.monotonic() > self.off_at)

    def end(self) -> None:
        """Kill all processes that are left; then the machine is off, or boots again."""
        kill_all()
        if self.power == "poweroff":
            sys.exit(0)
        # -xdev: if the repository is a folder in /tmp, it is mounted there.
        words = ["find", "/run", "/tmp", "-xdev", "-mindepth", "1", "-delete"]
        subprocess.run(words, stderr=subprocess.DEVNULL, check=False)
        Path("/run/lock").mkdir()
        os.execv(sys.executable, [sys.executable, "-m", "lab.stand_in_systemd"])  # noqa: S606


def immediately(code: int, text: str = "") -> Waiting:
    """Return an answer that needs no waiting."""
    return lambda: (code, text)


def kill_all() -> None:
    """End every other process of the machine: by SIGTERM, then by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.01)
            except ChildProcessError:
                return


def ask(words: list[str]) -> int:
    """Send a command to the machine's first process and print the answer; return its exit code."""
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(ConnectionError):
        connection.connect(str(SOCKET))
        connection.sendall(json.dumps(words).encode() + b"\n")
        line = connection.makefile().readline()
        if line:
            code, text = json.loads(line)
            print(text, end="\n" if text else "")
            return int(code)
    print("systemd (stand-in): the machine is going off", file=sys.stderr)
    return 1


def asked(words: list[str]) -> list[str]:
    """Return a command line in one form: the verb first, then names and flags."""
    name, *rest = words
    if name != "systemctl":
        return [name, *rest]
    verbs = [word for word in rest if not word.startswith("-")] or ["list-units"]
    return [*verbs, *(word for word in rest if word.startswith("-"))]


if __name__ == "__main__":
    if os.getpid() == 1:
        Manager().run()
    sys.exit(ask(asked(sys.argv[1:])))
