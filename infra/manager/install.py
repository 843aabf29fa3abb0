"""Installation of a pool's manager on a fresh Debian or Ubuntu machine.

Each step can be repeated. So the installation can be run again after a crash, or to change a
setting. It then makes a new token for nodes, keeps the key that signs tokens, and restarts HTCondor
only if the configuration has changed.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from socket import AF_INET

import psutil

from trialfleet import programs
from trialfleet.errors import InputError, PoolError
from trialfleet.files import write_atomic
from trialfleet.infra.manager import apt_repository, config, tokens
from trialfleet.infra.manager.actions import (
    Action,
    Run,
    command,
    file,
    folder,
    perform_all,
    run_command,
    write,
)
from trialfleet.infra.manager.config import ManagerSettings
from trialfleet.infra.pool import signing
from trialfleet.infra.pool import status as pool_status
from trialfleet.infra.pool.htcondor_installation import (
    LEAST,
    Progress,
    inherited_environment,
    usable_installation,
)
from trialfleet.infra.pool.joining import PORT
from trialfleet.infra.pool.processes import wait_until
from trialfleet.render import render_template

CONFIG_NAME = "50-trialfleet-manager.conf"
SERVICE = "condor"
ROOT_GROUP = 0
DAEMONS = {"condor_collector", "condor_negotiator", "condor_schedd"}
TIMER = "trialfleet-token.timer"
RENEWAL = "trialfleet-token.service"
SUPERVISOR = "trialfleet-supervisor.service"
KEEPALIVE = {"tcp_keepalive_intvl": 5, "tcp_keepalive_probes": 3}  # seconds; unanswered probes
ANSWER_SECONDS = 60.0  # time limit for the daemons' answer after a start


@dataclass(frozen=True)
class InstallTarget:
    """The machine to change. Tests set another root folder and another way to run commands."""

    root: Path = Path("/")
    run: Run = run_command
    installed: Callable[[], object | None] = usable_installation
    key: Callable[[], bytes] = apt_repository.fetch_key
    seconds: float = ANSWER_SECONDS

    def local_path(self, path: str | Path) -> Path:
        """Return the target machine's file `path` as a path on this machine."""
        return self.root / str(path).lstrip("/")


def build_settings(
    user: str | None = None, address: str | None = None, port: int = PORT
) -> ManagerSettings:
    """Return the settings of this machine as a manager. InputError if one is invalid.

    The default user is sudo's caller. If `address` is not an IPv4 address of this
    machine, a NAT or a load balancer is assumed to forward it to this machine.
    """
    chosen = user or os.environ.get("SUDO_USER") or ""
    if not chosen:
        raise InputError("the account that runs studies is unknown: name it with --user")
    forwarded = bool(address) and not is_own_address(str(address))
    return ManagerSettings(user=chosen, address=address or "", forwarded=forwarded, port=port)


def is_own_address(address: str) -> bool:
    """Return whether `address` is an IPv4 address of one of this machine's interfaces."""
    interfaces = psutil.net_if_addrs().values()
    return any(
        one.family == AF_INET and address == one.address
        for interface in interfaces
        for one in interface
    )


def install(
    settings: ManagerSettings,
    *,
    dry_run: bool = False,
    progress: Progress = print,
    target: InstallTarget | None = None,
) -> None:
    """Make this machine a manager. With `dry_run` only report the steps.

    InputError if the user has no account here. PoolError if the caller isn't root, the machine
    can't be a manager, or a step fails.
    """
    target, user = target or InstallTarget(), settings.user
    try:
        group = pwd.getpwnam(user).pw_gid
    except KeyError:
        raise InputError(f"there is no account {user!r} here; name one with --user") from None
    if not dry_run:
        refuse_where_impossible(target)
    perform_all(actions(settings, target, group), progress, dry_run=dry_run)
    if not dry_run:
        wait_for_answer(target)
        where = settings.address or "this machine's address"
        progress(f"the manager is up: {user} runs studies, nodes join at {where}")


def refuse_where_impossible(target: InstallTarget) -> None:
    """Raise PoolError, before any change, if a later step is sure to fail."""
    if os.geteuid() != 0:
        raise PoolError("only root can install a manager: `sudo trialfleet manager install`")
    if shutil.which("systemctl") is None:
        raise PoolError("a manager needs systemd, and this machine has no systemctl")
    if target.installed() is None:
        apt_repository.refuse_unsupported(
            apt_repository.distribution(target.local_path("/etc/os-release"))
        )


def actions(settings: ManagerSettings, target: InstallTarget, group: int) -> Iterator[Action]:
    """Yield all actions that make a machine a manager, in order.

    `group` is the id of the group that may read the nodes' token.
    """
    yield from packages(target)
    yield from configuration(settings, target)
    yield from token_actions(target, group)
    yield supervisor(settings, target)
    yield from services(target)


def packages(target: InstallTarget) -> Iterator[Action]:
    """Yield the actions that install HTCondor from its repository, if it is missing or too old."""
    if target.installed() is not None:
        return
    found = apt_repository.distribution(target.local_path("/etc/os-release"))
    keyring = target.local_path("/etc/apt/keyrings/htcondor.asc")
    yield Action(
        f"fetch the key {apt_repository.KEY_URL} into {keyring}",
        lambda: write(keyring, target.key()),
        keyring.is_file,
    )
    sources = target.local_path("/etc/apt/sources.list.d/htcondor.list")
    yield file(sources, apt_repository.source(found, Path("/etc/apt/keyrings/htcondor.asc")))
    yield command(["apt-get", "-qq", "update"], target.run)
    yield command(["apt-get", "-qq", "-y", "install", "condor"], target.run)
    yield Action(f"check that this is HTCondor {LEAST} or newer", lambda: refuse_old(target))


def refuse_old(target: InstallTarget) -> None:
    """Raise PoolError unless the HTCondor that apt has installed is new enough."""
    if target.installed() is None:
        raise PoolError(
            f"apt did not install HTCondor {LEAST} or newer: `apt-cache policy condor` shows why"
            " (apt may prefer another source)"
        )


def configuration(settings: ManagerSettings, target: InstallTarget) -> Iterator[Action]:
    """Yield the actions that configure HTCondor and the kernel's probes of idle connections."""
    keys = target.local_path("/etc/condor/passwords.d")
    yield folder(keys, mode=0o700, group=ROOT_GROUP)
    key = keys / config.KEY
    yield Action(
        f"make the key that signs tokens, {key}",
        lambda: write_atomic(key, signing.new_key(), mode=0o600),
        key.is_file,
    )
    yield file(target.local_path("/etc/condor/config.d") / CONFIG_NAME, config.render(settings))
    sysctl = target.local_path("/etc/sysctl.d/60-trialfleet.conf")
    yield file(sysctl, render_template("manager/sysctl.conf.j2", values=KEEPALIVE))
    yield command(["sysctl", "--quiet", f"--load={sysctl}"], target.run)


def token_actions(target: InstallTarget, group: int) -> Iterator[Action]:
    """Yield the actions that make the token with which nodes join, and that renew it weekly."""
    path = target.local_path(tokens.TOKEN_FILE)
    yield folder(path.parent, mode=tokens.FOLDER_MODE, group=group)
    yield Action(
        f"make the nodes' token, {path}, for {tokens.LIFETIME_DAYS} days",
        lambda: tokens.write(target.run(tokens.command()).strip(), path),
    )
    program = shutil.which(signing.PROGRAM) or f"/usr/bin/{signing.PROGRAM}"
    service = render_template(
        "manager/trialfleet-token.service.j2",
        command=shlex.join([program, *tokens.command()[1:]]),
        beside=tokens.TOKEN_FILE.with_name(f".{tokens.TOKEN_FILE.name}.new"),
        file=tokens.TOKEN_FILE,
        mode=f"{tokens.TOKEN_MODE:04o}",
    )
    timer = render_template("manager/trialfleet-token.timer.j2", days=tokens.LIFETIME_DAYS)
    yield file(target.local_path("/etc/systemd/system") / RENEWAL, service)
    yield file(target.local_path("/etc/systemd/system") / TIMER, timer)


def supervisor(settings: ManagerSettings, target: InstallTarget) -> Action:
    """Return the action that installs a systemd unit for the supervisor, which repairs runs."""
    program = shlex.join(programs.command("supervise"))
    values = {"user": settings.user, "command": program, "state": "trialfleet-supervisor"}
    text = render_template("manager/trialfleet-supervisor.service.j2", **values)
    return file(target.local_path("/etc/systemd/system") / SUPERVISOR, text)


def services(target: InstallTarget) -> Iterator[Action]:
    """Yield actions that start HTCondor, the token's timer and the supervisor, now and at boot."""
    written = target.local_path("/etc/condor/config.d") / CONFIG_NAME
    yield command(["systemctl", "daemon-reload"], target.run)
    yield command(["systemctl", "enable", "--now", TIMER], target.run)
    yield command(["systemctl", "enable", SERVICE], target.run)
    restart = command(["systemctl", "restart", SERVICE], target.run)
    yield replace(restart, is_done=lambda: is_running_since(target, written))
    yield command(["systemctl", "enable", "--now", SUPERVISOR], target.run)


def is_running_since(target: InstallTarget, configuration: Path) -> bool:
    """Return whether HTCondor was started after the file `configuration` was written."""
    asked = ["systemctl", "show", SERVICE, "--property=ActiveState,ActiveEnterTimestampMonotonic"]
    try:
        lines = target.run(asked).splitlines()
    except PoolError:
        return False
    answers = dict(line.split("=", 1) for line in lines if "=" in line)
    if answers.get("ActiveState") != "active" or not configuration.is_file():
        return False
    microseconds = int(answers.get("ActiveEnterTimestampMonotonic") or 0)
    started = time.time() - time.monotonic() + microseconds / 1e6
    return started >= configuration.stat().st_mtime


def wait_for_answer(target: InstallTarget) -> None:
    """Wait until all of HTCondor's daemons answer. PoolError after `target.seconds`."""
    environment = inherited_environment()
    environment.pop("CONDOR_CONFIG", None)
    silent: set[str] = set()

    def answer() -> bool:
        nonlocal silent
        silent = DAEMONS - set(pool_status.daemons_and_machines(environment)[0])
        return not silent and pool_status.look_at_queue(environment) is not None

    if not wait_until(answer, seconds=target.seconds, poll=0.5):
        raise PoolError(
            f"{', '.join(sorted(silent)) or 'the job queue'} did not answer within"
            f" {target.seconds:.0f} s: see `journalctl -u {SERVICE}` and /var/log/condor"
        )
