"""Calls HTCondor's tools on a node, for example to read its state or to drain it.

Only `in_collector` and `bandwidths` need the manager. The address of the startd, HTCondor's daemon
here, is in a file on this machine. The tools run as root. The startd recognises root by HTCondor's
authentication method FS.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from trialfleet import slots
from trialfleet.classads import from_json
from trialfleet.nodes.bootstrap.configuration import OFFLINE
from trialfleet.nodes.bootstrap.host import Host, StepError
from trialfleet.nodes.node_agent.decisions import HEALTHY, SICK, Startd, sick_gpus
from trialfleet.nodes.node_agent.history import ATTRIBUTES, Failure, failures
from trialfleet.nodes.probe import privileged_readings

TIMEOUT = 5.0  # seconds for one tool, which usually takes 20 ms
HISTORY_LENGTH = 50  # number of latest jobs to check
PROC = Path("/proc")
STATUS = ("condor_status", "-json")
LOOKED_AT = ("Name", "Draining", "DrainReason", "DaemonStartTime", HEALTHY, SICK)

log = logging.getLogger(__name__)


class Condor:
    """This machine's HTCondor.

    Its tools read the configuration file that $CONDOR_CONFIG names. If this variable is not set,
    they read HTCondor's default file.
    """

    def __init__(self) -> None:
        self._history_read = 0
        self._history_problem = ""
        self._failures: tuple[Failure, ...] = ()
        self._bandwidths: dict[str, tuple[float, ...]] = {}
        self._values: dict[str, str] = {}
        self._name = self._instance = ""

    def read_startd(self) -> Startd | None:
        """Return the state of this machine's startd, or None if the startd doesn't answer."""
        wanted = ",".join((*LOOKED_AT, *slots.ATTRIBUTES, privileged_readings.INSTANCE))
        try:
            ads = query([*STATUS, "-direct", self._address(), "-attributes", wanted])
        except StepError:
            return None
        if not ads:
            return None
        self._name = min((slot.get("Name", "") for slot in ads), key=len)
        self._instance = ads[0].get(privileged_readings.INSTANCE, "")
        draining = next((slot for slot in ads if slot.get("Draining")), None)
        return Startd(
            held=sum(map(slots.is_held, ads)),
            draining=None if draining is None else draining.get("DrainReason", ""),
            started=float(ads[0].get("DaemonStartTime", 0)),
            sick=sick_gpus(ads[0]),
        )

    def in_collector(self) -> bool:
        """Return whether the pool's manager lists this machine.

        Call `read_startd` first, which finds the machine's name. If the manager doesn't answer,
        return False.
        """
        wanted = ["-constraint", f'Name == "{self._name}"', "-attributes", "Name"]
        try:
            return bool(self._name and query([*STATUS, *wanted]))
        except StepError:
            return False

    def drain(self, reason: str, *, only_idle: bool = False) -> None:
        """Ask the startd to take no more jobs, and to evict its jobs. These may save checkpoints.

        The startd's ClassAd then shows `reason` as DrainReason. With `only_idle`, the request fails
        if a job holds a slot. Raise StepError if the request fails.
        """
        condition = ["-check", slots.IS_FREE] if only_idle else []
        run("condor_drain", "-graceful", "-reason", reason, *condition, self._address())

    def take_offline(self, gpus: Sequence[str]) -> None:
        """Let jobs use all GPUs except `gpus`. Raise StepError if that fails."""
        # If the list has several folders, the last one is the machine's own; others are packages'.
        folders = self._value("LOCAL_CONFIG_DIR").replace(",", " ").split()
        if not folders:
            raise StepError("HTCondor's configuration lacks LOCAL_CONFIG_DIR")
        file = Path(folders[-1]) / PurePath(OFFLINE).name
        setting = f"OFFLINE_MACHINE_RESOURCE_GPUS = {', '.join(gpus)}\n"
        try:
            Host(Path("/")).write(str(file), setting)
            run("condor_reconfig", "-addr", self._address())
        except OSError as error:
            raise StepError(f"{file}: {error}") from error

    def bandwidths(self) -> dict[str, tuple[float, ...]]:
        """Return one memory bandwidth, in GB/s, for each other machine, by GPU model.

        If the manager can't be reached, return the last known values.
        """
        with suppress(StepError):
            self._bandwidths = privileged_readings.bandwidths(
                query(privileged_readings.QUERY), besides=self._instance
            )
        return self._bandwidths

    def failures(self) -> tuple[Failure, ...]:
        """Return the latest jobs that failed here.

        If the startd's history can't be read, return the result of the previous call. The log then
        has the reason, once.
        """
        try:
            written = Path(self._value("STARTD_HISTORY")).stat().st_mtime_ns
            if written != self._history_read:
                limit = ["-limit", str(HISTORY_LENGTH), "-attributes", ",".join(ATTRIBUTES)]
                ads = query(["condor_history", "-startd", "-json", *limit])
                self._failures, self._history_read = failures(ads), written
            problem = ""
        except FileNotFoundError:  # no job has ended yet
            problem = ""
        except (StepError, OSError) as error:
            problem = f"it can't be read which jobs failed here, so failures don't count: {error}"
        if problem and problem != self._history_problem:
            log.warning("%s", problem)
        self._history_problem = problem
        return self._failures

    def starter_lives(self) -> bool:
        """Return whether a job runs here: its parent process is a `condor_starter`."""
        names = (Host(Path("/")).read(str(path)).strip() for path in PROC.glob("[0-9]*/comm"))
        return "condor_starter" in names

    def _address(self) -> str:
        file = Path(self._value("STARTD_ADDRESS_FILE"))
        try:
            return file.read_text(encoding="utf-8").splitlines()[0]
        except (OSError, IndexError) as error:
            raise StepError(f"the startd's address can't be read: {error}") from error

    def _value(self, name: str) -> str:
        if name not in self._values:
            self._values[name] = run("condor_config_val", name).strip()
        return self._values[name]


def query(command: Sequence[str]) -> list[dict[str, Any]]:
    """Return the ClassAds that a tool prints. Raise StepError if it fails or prints no JSON."""
    text = run(*command).strip()
    try:
        return from_json(text)
    except ValueError as error:
        raise StepError(f"{command[0]} did not print JSON: {text[:200]}") from error


def run(*command: str) -> str:
    """Run an HTCondor tool and return its output. Raise StepError if it fails or takes too long."""
    return Host().run(*command, seconds=TIMEOUT)
