"""The embedded pool, one user's private HTCondor on this machine: its start, state and end."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import platformdirs

from trialfleet import programs
from trialfleet.errors import InputError, PoolError
from trialfleet.files import lock_file, read_json, unless_damaged, write_atomic, write_json
from trialfleet.infra.pool import config as pool_config
from trialfleet.infra.pool import processes, signing
from trialfleet.infra.pool import status as pool_status
from trialfleet.infra.pool.htcondor_installation import (
    MASTER,
    Installation,
    Progress,
    extended_path,
    find_htcondor,
    inherited_environment,
    say_nothing,
)
from trialfleet.infra.pool.joining import TRUST_DOMAIN
from trialfleet.infra.pool.processes import Process, wait_until
from trialfleet.infra.pool.status import PoolStatus
from trialfleet.infra.pool.user_namespace import Identity, identity
from trialfleet.render import render_template

FOLDER_VARIABLE = "TRIALFLEET_POOL"
KEY = "POOL"  # HTCondor's default signing key
SUBFOLDERS = ("log", "lock", "run", "spool", "passwords.d", "tokens.d")
LOGS = {  # a daemon's log file
    "condor_master": "MasterLog",
    "condor_collector": "CollectorLog",
    "condor_negotiator": "NegotiatorLog",
    "condor_schedd": "SchedLog",
    "condor_startd": "StartLog",
}
PORTS = (20000, 32000)
TAIL = 15  # lines of a log in an error
POLL = 0.1  # seconds between polls of a starting pool
GRACE = 60.0  # seconds in which jobs may save a checkpoint when the pool is stopped
KILL_SECONDS = 10.0  # time limit for the kernel to remove processes after SIGKILL


def default_folder() -> Path:
    """Return $TRIALFLEET_POOL or, if it is not set, `pool` in the user's state folder."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    return Path(chosen) if chosen else platformdirs.user_state_path("trialfleet") / "pool"


def embedded_folder(config: str) -> Path | None:
    """Return the folder of the embedded pool that has the configuration file `config`, or None."""
    folder = Path(config).parent
    return folder if config and (folder / "pool.json").is_file() else None


def meant_folder() -> Path:
    """Return the folder of the pool that a command acts on.

    It is $TRIALFLEET_POOL if that is set. Otherwise, it is the folder of the embedded pool that
    CONDOR_CONFIG names. If CONDOR_CONFIG names none, it is the default folder.
    """
    named = "" if os.environ.get(FOLDER_VARIABLE) else os.environ.get("CONDOR_CONFIG", "")
    return embedded_folder(named) or default_folder()


class Pool:
    """One embedded pool, identified by its folder. Several processes may use it at a time."""

    def __init__(self, folder: Path | str | None = None) -> None:
        """Set the pool's folder, by default `default_folder()`, and start nothing.

        InputError if `folder` is in the home of an unknown user, or is or lies below a file.
        """
        self.folder = _resolved(folder or default_folder())
        present = next(filter(os.path.exists, (self.folder, *self.folder.parents)))
        if not present.is_dir():
            raise InputError(
                f"the pool's folder {self.folder}: {present} is not a folder; name an existing or "
                f"new folder with --folder or ${FOLDER_VARIABLE}"
            )

    @property
    def condor_config(self) -> Path:
        """The pool's configuration file: the value of CONDOR_CONFIG for HTCondor's tools."""
        return self.folder / pool_config.FILE

    def up(self, progress: Progress = say_nothing, *, seconds: float = 60.0) -> PoolStatus:
        """Start the pool unless it is up, and return its status once it takes jobs.

        HTCondor is unpacked if the machine has none. If an earlier start left processes that don't
        answer within `seconds`, or that lack a condor_master, they are first ended as by `down`.
        The new daemons must answer within `seconds`.

        Raises:
            InputError: the folder can't be made or used.
            PoolError: HTCondor can't be unpacked or started, or an old process does not end. If
                HTCondor does not start, the message has the end of a log.
        """
        installation, who = find_htcondor(progress), identity()
        found = shutil.which("apptainer")
        apptainer = Path(found).absolute() if found else None
        text = pool_config.render(self.folder, installation, who, free_port(), apptainer)
        with self._lock():
            if self.is_up() and (running := self._wait_until_ready(seconds)).state == "up":
                progress(f"the pool in {self.folder} is already up")
                return running
            self._clean(progress)
            self._write(text, installation, who)
            progress(f"starting HTCondor {installation.version} in {self.folder}")
            self._start(installation, who)
            status = self._wait_until_ready(seconds)
            if status.state != "up":  # leave nothing running
                reason = self._failure_text(status, seconds)
                self._kill()
                raise PoolError(reason)
            return status

    def down(self, progress: Progress = say_nothing, *, grace: float = GRACE) -> None:
        """End every process of the pool, but keep its job queue. Do nothing if the pool is down.

        Jobs get SIGTERM, so that they can save a checkpoint. After `grace` seconds all processes
        are killed. PoolError if a process survives.
        """
        if not self.folder.is_dir():
            return
        with self._lock():
            self._end(progress, grace)

    def status(self) -> PoolStatus:
        """Return the pool's status, even if the pool is down or was never up."""
        installation = self._known_installation()
        known = PoolStatus(
            state="down",
            folder=self.folder,
            condor_config=self.condor_config,
            version=installation.version if installation else "",
        )
        members = self.processes()
        if not members:
            return known
        environment = self._tools_environment()
        daemons, machines = pool_status.daemons_and_machines(environment)
        queue = pool_status.look_at_queue(environment) if daemons else None
        master = self._find_master(members)
        silent = pool_status.silent_daemons(daemons, machines, queue)
        if not master:
            silent.insert(0, MASTER)
        return replace(
            known,
            state="failing" if silent else "up",
            silent={name: self.folder / "log" / LOGS[name] for name in silent},
            master=master.pid if master else 0,
            daemons=((MASTER,) if master else ()) + daemons,
            machines=machines,
            **vars(queue or pool_status.Queue()),
        )

    def is_up(self) -> bool:
        """Return whether the pool's condor_master lives. No daemon is asked, so this is fast."""
        return self.master() is not None

    def master(self) -> Process | None:
        """Return the process of the pool's condor_master, or None if there is none."""
        return self._find_master(self.processes())

    def processes(self) -> list[Process]:
        """Return every process of the pool, daemons and jobs, sorted by process number."""
        config = str(self.condor_config)
        return processes.pool_processes(
            processes.list_processes(), mark=pool_config.MARK, config=config
        )

    def environment(self) -> dict[str, str]:
        """Return CONDOR_CONFIG and PATH for programs that use this pool.

        PoolError if the pool was never up. The methods whose names begin with `shell` raise
        this error, too.
        """
        installation = self._known_installation()
        if installation is None:
            raise PoolError(
                f"there is no pool in {self.folder}: start it by `{self.command('up')}`"
            )
        path = extended_path(os.environ.get("PATH", os.defpath), installation)
        return {"CONDOR_CONFIG": str(self.condor_config), "PATH": path}

    def command(self, word: str) -> str:
        """Return the shell command `trialfleet pool WORD` that acts on this pool."""
        is_default = self.folder == _resolved(default_folder())
        other = "" if is_default else f"{FOLDER_VARIABLE}={shlex.quote(str(self.folder))} "
        return f"{other}trialfleet pool {word}"

    def shell_environment(self) -> dict[str, str]:
        """Return the variables of a shell in which all commands use this pool."""
        return {**self.environment(), FOLDER_VARIABLE: str(self.folder)}

    def shell_exports(self) -> str:
        """Return lines for a shell's `eval`, after which the shell's commands use this pool."""
        chosen = self.shell_environment().items()
        return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in chosen)

    def shell(self) -> NoReturn:
        """Replace this process by the user's shell, with the variables of `shell_environment`."""
        program = os.environ.get("SHELL") or "/bin/sh"
        sys.stdout.flush()
        os.execvpe(program, [program], {**os.environ, **self.shell_environment()})  # noqa: S606

    # --- Parts of up and down -------------------------------------------------------------------

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock of the pool's folder. The kernel releases it if this process dies."""
        with ExitStack() as held:
            try:
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                held.enter_context(lock_file(self.folder / "up.lock", wait=True))
            except OSError as error:
                raise _folder_error(self.folder, error) from error
            yield

    def _clean(self, progress: Progress) -> None:
        if self.is_up():
            progress(f"the pool in {self.folder} does not answer")
        elif self.processes():
            progress("ending processes that a dead pool left")
        self._end(progress, GRACE)
        for stale in (*self.folder.glob("log/.*address*"), *self.folder.glob("spool/.*address*")):
            stale.unlink(missing_ok=True)

    def _write(self, text: str, installation: Installation, who: Identity) -> None:
        modes = dict.fromkeys(SUBFOLDERS, 0o700) | {"execute": 0o755}  # as the startd requires
        for name, mode in modes.items():
            try:
                (self.folder / name).mkdir(exist_ok=True, mode=mode)
            except OSError as error:
                raise _folder_error(self.folder / name, error) from error
        write_atomic(self.condor_config, text)
        script = render_template(
            "condor/supervise.j2",
            folder=self.folder,
            command=programs.command("supervise", "--state", str(self.folder)),
        )
        write_atomic(self.folder / "supervise", script, mode=0o755)
        record = {"release": str(installation.release), "version": installation.version}
        write_json(self.folder / "pool.json", {**record, "unpacked": installation.unpacked})
        # The token authenticates the owner to a daemon that doesn't know its own address. The
        # method FS compares the address that the caller used with the daemon's address. The master
        # has no address for up to a minute after the death of the shared port's daemon.
        key = self.folder / "passwords.d" / KEY
        if not key.exists():
            write_atomic(key, signing.new_key(), mode=0o600)
        command = signing.token_command(f"{who.account}@{TRUST_DOMAIN}", KEY)
        try:
            token = signing.sign_token(command, self._tools_environment())
        except PoolError as error:
            advice = f"remove {key}, and `{self.command('up')}` makes another"
            raise PoolError(f"{error}; {advice}") from None
        write_atomic(self.folder / "tokens.d" / "owner", f"{token}\n", mode=0o600)

    def _start(self, installation: Installation, who: Identity) -> None:
        environment = self._tools_environment() | {pool_config.MARK: str(self.condor_config)}
        output_file = self.folder / "log" / "start.out"
        with output_file.open("w") as output:
            done = subprocess.run(
                [*who.prefix, installation.sbin / MASTER],
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                check=False,
            )
        if done.returncode != 0:
            raise PoolError(f"{MASTER} exited with code {done.returncode}; {tail(output_file)}")

    def _wait_until_ready(self, seconds: float) -> PoolStatus:
        """Return the pool's status once the pool takes jobs or is down, or after `seconds`."""
        latest = self.status()

        def settled() -> bool:
            nonlocal latest
            latest = self.status()
            return latest.state != "failing"

        wait_until(settled, seconds=seconds, poll=POLL)
        return latest

    def _failure_text(self, status: PoolStatus, seconds: float) -> str:
        if status.state == "down":
            return f"{MASTER} ended by itself; {tail(self.folder / 'log' / 'MasterLog')}"
        what = f"{', '.join(status.silent)} did not answer within {seconds:.0f} s"
        log = next(iter(status.silent.values()))
        return f"the pool in {self.folder} did not start: {what}; {tail(log)}"

    def _end(self, progress: Progress, grace: float) -> None:
        """Stop the pool, and kill what still runs after `grace` seconds."""
        master = self.master()
        if master is not None:
            progress(f"stopping the pool in {self.folder}")
            processes.send(master, signal.SIGTERM)
            wait_until(lambda: processes.read(master.pid) is None, seconds=grace)
        self._kill()

    def _kill(self) -> None:
        """Kill every process of the pool, condor_master first, because it would restart others."""

        def gone() -> bool:
            left = self.processes()
            for process in sorted(left, key=lambda process: process.name != MASTER):
                processes.send(process, signal.SIGKILL)
            return not left

        if not wait_until(gone, seconds=KILL_SECONDS):
            left = ", ".join(f"{process.name} ({process.pid})" for process in self.processes())
            raise PoolError(f"the pool in {self.folder} can't be stopped: {left} did not exit")

    def _find_master(self, members: list[Process]) -> Process | None:
        config = str(self.condor_config)
        masters = (member for member in members if member.name == MASTER)
        return next((one for one in masters if one.has(pool_config.MARK, config)), None)

    def _tools_environment(self) -> dict[str, str]:
        return inherited_environment() | self.environment()

    def _known_installation(self) -> Installation | None:
        record = unless_damaged(lambda: read_json(self.folder / "pool.json"), None)
        if record is None:
            return None
        return Installation(Path(record["release"]), record["version"], record["unpacked"])


def _resolved(folder: Path | str) -> Path:
    try:
        return Path(folder).expanduser().resolve()
    except RuntimeError as error:
        raise InputError(f"the pool's folder {folder} can't be used: {error}") from error


def _folder_error(folder: Path, error: OSError) -> InputError:
    return InputError(f"the pool's folder {folder} can't be used: {error.strerror}")


def tail(log: Path) -> str:
    """Return the path and the last lines of a log, for an error message."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-TAIL:]
    except OSError:
        lines = []
    return f"the end of {log}:\n" + "\n".join(f"  {line}" for line in lines or ["(empty)"])


def free_port() -> int:
    """Return a free port, outside of the kernel's usual range for outgoing connections.

    Otherwise an outgoing connection could take the port while the pool restarts.
    """
    while True:
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", random.randrange(*PORTS)))  # noqa: S311 - no secret
            port: int = tried.getsockname()[1]
            return port
