"""The daily schedule with systemd: a timer unit, and the service unit that it starts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import platformdirs

from trialfleet.errors import InputError, PoolError
from trialfleet.files import write_atomic
from trialfleet.infra.manager.actions import run_command
from trialfleet.render import render_template
from trialfleet.workflows.control.daily.missed_days import timer_hours_and_minutes
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.study.daily import Daily

_STOPPED, _NOT_ENABLED = {"inactive", "failed", "deactivating"}, {"disabled", "masked"}
_SYSTEM, _SYSTEM_STATE = Path("/etc/systemd/system"), Path("/var/lib/systemd")


@dataclass(frozen=True)
class Units:
    """The systemd units of a study's schedule: a timer and the service that it starts.

    If `system` is True, the units belong to the machine's systemd, otherwise to the user's. `name`
    is the name of both units, without a suffix. `place` is the folder of the unit files.
    """

    name: str
    place: Path
    system: bool
    run: Callable[[list[str]], str] = run_command

    @staticmethod
    def for_study(study: str, folder: DailyFolder, *, system: bool) -> Units:
        """Return the units for a study whose days are in `folder`. They needn't be installed."""
        which = hashlib.sha256(str(folder.root).encode()).hexdigest()[:8]
        place = _SYSTEM if system else platformdirs.user_config_path("systemd") / "user"
        return Units(f"trialfleet-daily-{study}-{which}", place, system)

    @property
    def timer(self) -> Path:
        """The timer's unit file."""
        return self.place / f"{self.name}.timer"

    @property
    def service(self) -> Path:
        """The service's unit file."""
        return self.place / f"{self.name}.service"

    @property
    def output(self) -> str:
        """The command that shows what the service has printed."""
        return " ".join(
            ["journalctl", *([] if self.system else ["--user"]), "-u", self.service.name]
        )

    def can_be_used(self) -> bool:
        """Return whether the systemd that these units belong to is running."""
        try:
            self.run(self._systemctl_command("show-environment"))
        except PoolError:
            return False
        return True

    def install(self, study: str, daily: Daily, start: Path, owner: str) -> None:
        """Write the unit files, and start the timer now and after each reboot.

        The machine's systemd runs the program `start` as the account `owner`. A user's systemd
        ignores `owner`. InputError if the caller may not write the unit files. PoolError if systemd
        refuses the units.
        """
        hours, minutes = timer_hours_and_minutes(daily, datetime.now(UTC), UTC)
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
                hours=hours,
                minutes=minutes,
                catches_up=daily.missed != "none",
                service=self.service.name,
            ),
        }
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            for path, text in texts.items():
                write_atomic(path, text)
        except PermissionError as error:
            raise InputError(
                f"you may not write {error.filename!r}; with --system, run this command with sudo"
            ) from error
        self.run(self._systemctl_command("daemon-reload"))
        self.run(self._systemctl_command("enable", "--now", self.timer.name))
        # A timer that was already running may have an old start time.
        self.run(self._systemctl_command("restart", self.timer.name))

    def remove(self) -> bool:
        """Stop the timer and remove the unit files, and return whether any existed.

        A day that has started continues.
        """
        there = [path for path in (self.timer, self.service) if path.exists()]
        if not there:
            return False
        if self.timer in there:
            self.run(self._systemctl_command("disable", "--now", self.timer.name))
            self._last_fired.unlink(missing_ok=True)  # else a later timer would start a missed day
        for path in there:
            path.unlink()
        self.run(self._systemctl_command("daemon-reload"))
        with suppress(PoolError):  # it only succeeds if the last day failed
            self.run(self._systemctl_command("reset-failed", self.service.name))
        return True

    def find_fault(self) -> str:
        """Return why the installed timer does not start each day, and the command that corrects it.

        Return "" if nothing is wrong, or if systemd can't be asked.
        """
        asked = ["show", "--property=ActiveState,UnitFileState", self.timer.name]
        try:
            lines = self.run(self._systemctl_command(*asked)).splitlines()
        except PoolError:
            return ""
        found = dict(line.split("=", 1) for line in lines if "=" in line)
        if (state := found.get("ActiveState")) in _STOPPED:
            wrong = f"is {state}"
        elif (state := found.get("UnitFileState")) in _NOT_ENABLED:
            wrong = f"is {state}, so no day starts after a reboot"
        else:
            return ""
        words = self._systemctl_command("enable", "--now", self.timer.name)
        command = " ".join(["sudo", *words] if self.system else words)
        return f"{self.timer}, which starts it, {wrong}: {command}"

    @property
    def _last_fired(self) -> Path:
        folder = _SYSTEM_STATE if self.system else platformdirs.user_data_path("systemd")
        return folder / "timers" / f"stamp-{self.timer.name}"

    def _systemctl_command(self, *words: str) -> list[str]:
        return ["systemctl", *([] if self.system else ["--user"]), *words]


def is_lingering() -> bool:
    """Return whether the user's systemd keeps running while the user is not logged in."""
    try:
        asked = ["loginctl", "show-user", str(os.getuid()), "--property=Linger", "--value"]
        return run_command(asked).strip() == "yes"
    except PoolError:
        return False
