"""The clock where systemd runs: a timer, and the service that it starts."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trialfleet.errors import InputError, PoolError
from trialfleet.files import write_atomic
from trialfleet.infra.manager.actions import run_command
from trialfleet.render import render_template
from trialfleet.workflows.journal.folder import DailyFolder
from trialfleet.workflows.study.daily import Daily

Say = Callable[[str], None]
_SYSTEM, _SYSTEM_STATE = Path("/etc/systemd/system"), Path("/var/lib/systemd")


@dataclass(frozen=True)
class Units:
    """The units of a study's clock, of the user's systemd or of the machine's.

    Attributes:
        name: without its ending; two studies of one name in two folders have two.
        place: the folder of the units.
        system: whether they are the machine's.
        run: runs a command and returns what it prints; a test names another.
    """

    name: str
    place: Path
    system: bool
    run: Callable[[list[str]], str] = run_command

    @staticmethod
    def of(study: str, folder: DailyFolder, *, system: bool) -> Units:
        """Return the units of a study whose runs lie in a folder."""
        which = hashlib.sha256(str(folder.root).encode()).hexdigest()[:8]
        home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        place = _SYSTEM if system else home / "systemd" / "user"
        return Units(f"trialfleet-daily-{study}-{which}", place, system)

    @property
    def timer(self) -> Path:
        """The timer's file."""
        return self.place / f"{self.name}.timer"

    @property
    def service(self) -> Path:
        """The service's file."""
        return self.place / f"{self.name}.service"

    @property
    def are_there(self) -> bool:
        """Whether the clock is installed."""
        return self.timer.exists()

    def can_be_used(self) -> bool:
        """Whether this systemd runs."""
        try:
            self.run(self._systemctl("show-environment"))
        except PoolError:
            return False
        return True

    def install(self, study: str, daily: Daily, start: Path, owner: str) -> None:
        """Write the units and start the timer, now and at each start of the machine.

        Args:
            study: the study's name.
            daily: when its days begin.
            start: the program that the service runs.
            owner: the account that runs it, where the units are the machine's.

        Raises:
            InputError: this account may not write there.
            PoolError: systemd refuses.
        """
        texts = {
            self.service: render_template(
                "daily/daily.service.j2",
                study=study,
                start=start,
                user=owner if self.system else "",
            ),
            self.timer: render_template(
                "daily/daily.timer.j2",
                study=study,
                calendar=calendar(daily),
                catches_up=daily.missed != "none",
                service=self.service.name,
            ),
        }
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            for path, text in texts.items():
                write_atomic(path, text)
        except PermissionError as error:
            raise InputError(f"{error.filename!r}: only root may write there") from error
        self.run(self._systemctl("daemon-reload"))
        self.run(self._systemctl("enable", "--now", self.timer.name))
        self.run(self._systemctl("restart", self.timer.name))  # it was there with another time

    def remove(self) -> bool:
        """Stop the timer and remove the units; a day that runs goes on. Tells if there were any."""
        there = [path for path in (self.timer, self.service) if path.exists()]
        if not there:
            return False
        if self.timer in there:
            self.run(self._systemctl("disable", "--now", self.timer.name))
            self._last_fired.unlink(missing_ok=True)  # one that is installed later missed nothing
        for path in there:
            path.unlink()
        self.run(self._systemctl("daemon-reload"))
        with suppress(PoolError):  # it is none of systemd's units any more, unless its day failed
            self.run(self._systemctl("reset-failed", self.service.name))
        return True

    @property
    def _last_fired(self) -> Path:
        """Where systemd notes when the timer last fired; `systemctl clean` would need D-Bus."""
        data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
        folder = _SYSTEM_STATE if self.system else data / "systemd"
        return folder / "timers" / f"stamp-{self.timer.name}"

    def _systemctl(self, *words: str) -> list[str]:
        return ["systemctl", *([] if self.system else ["--user"]), *words]


def calendar(daily: Daily) -> str:
    """Return when days begin, as systemd's OnCalendar has it."""
    return f"*-*-* {daily.time:%H:%M}:00{' ' + daily.zone if daily.zone else ''}"


def explained(daily: Daily, run: Callable[[list[str]], str] = run_command) -> str:
    """Return what systemd makes of when days begin; empty where it isn't there to say."""
    if shutil.which("systemd-analyze") is None:
        return ""
    try:
        return run(["systemd-analyze", "calendar", calendar(daily)]).rstrip()
    except PoolError:
        return ""


def lingers(run: Callable[[list[str]], str] = run_command) -> bool:
    """Tell whether the user's systemd runs while nobody is logged in."""
    try:
        asked = ["loginctl", "show-user", str(os.getuid()), "--property=Linger", "--value"]
        return run(asked).strip() == "yes"
    except PoolError:
        return False
