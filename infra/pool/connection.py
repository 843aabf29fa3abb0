"""The HTCondor that a command uses: CONDOR_CONFIG's, an embedded pool, or the machine's own."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping
from typing import Any

from trialfleet.errors import PoolError
from trialfleet.infra.pool import status as pool_status
from trialfleet.infra.pool.embedded import FOLDER_VARIABLE, Pool, embedded_folder
from trialfleet.infra.pool.htcondor_installation import inherited_environment

_kept_seconds = 0.0  # seconds for which the answer is cached; see `cache_connection`
_found: tuple[float, dict[str, str] | PoolError] | None = None
_put: set[str] = set()  # values of CONDOR_CONFIG set by `use`, not by a person: errors omit them


def connect() -> dict[str, str]:
    """Return CONDOR_CONFIG and PATH of the HTCondor that a command uses.

    The command uses the first of these:

    - the HTCondor that CONDOR_CONFIG names, if that variable is set
    - the default embedded pool, if it is up
    - the machine's own HTCondor. For this one, only PATH is returned.

    PoolError if this HTCondor does not run. This is not checked if CONDOR_CONFIG names an HTCondor
    that is not an embedded pool.
    """
    if not _kept_seconds:
        return _find_configuration()
    global _found  # noqa: PLW0603 - a process talks to one pool
    if _found is None or time.monotonic() - _found[0] > _kept_seconds:
        try:
            answer: dict[str, str] | PoolError = _find_configuration()
        except PoolError as error:
            answer = error
        _found = time.monotonic(), answer
    if isinstance(_found[1], PoolError):
        raise PoolError(str(_found[1]))
    return _found[1]


def cache_connection(seconds: float) -> None:
    """Let `connect()` reuse its result or error for `seconds`, because each search takes time.

    A pool that starts meanwhile is not found. If the pool ends meanwhile, queries of it fail.
    """
    global _kept_seconds  # noqa: PLW0603 - a process talks to one pool
    _kept_seconds = seconds


def _find_configuration() -> dict[str, str]:
    configured = named_configuration()
    of_config = embedded_folder(configured)
    if configured and of_config is None:
        return {"CONDOR_CONFIG": configured, "PATH": os.environ.get("PATH", os.defpath)}
    pool = Pool(of_config)
    if pool.is_up():
        return pool.environment()
    if not configured and (own := machines_own()):
        return own
    where = f"the pool in {pool.folder} is not up"
    if configured and configured not in _put:
        where = f"CONDOR_CONFIG names the pool in {pool.folder}, which is not up"
    raise PoolError(f"{where}: start it by `{pool.command('up')}`")


def start_command() -> str:
    """Return the shell command that starts the embedded pool that `connect()` looks for."""
    return Pool(embedded_folder(named_configuration())).command("up")


def export_command(pool: Pool) -> str:
    """Return the shell command after which other commands find `pool`, or "" if none is needed."""
    configured = named_configuration()
    if configured == str(pool.condor_config):
        return ""
    folder = shlex.quote(str(pool.folder))
    if configured:  # CONDOR_CONFIG takes precedence over the other variable
        return f'eval "$(trialfleet pool env --folder {folder})"'
    is_found = pool.folder == Pool().folder
    return "" if is_found else f"export {FOLDER_VARIABLE}={folder}"


def named_configuration() -> str:
    """Return the user's CONDOR_CONFIG, or "" if the user has not set it.

    The value /dev/null does not count, because the package htcondor2 sets it.
    """
    configured = os.environ.get("CONDOR_CONFIG", "")
    return "" if configured == os.devnull else configured


def tools_hint() -> str:
    """Return a hint to use `trialfleet pool shell`, or "" if HTCondor's tools work without it."""
    config = os.environ.get("CONDOR_CONFIG", "")
    is_embedded = config in _put and embedded_folder(config) is not None
    return "   (in: trialfleet pool shell)" if is_embedded else ""


def machines_own() -> dict[str, str] | None:
    """Return PATH for the machine's own HTCondor, or None if its schedd does not answer."""
    environment = inherited_environment()
    environment.pop("CONDOR_CONFIG", None)
    if pool_status.look_at_queue(environment) is None:
        return None
    return {"PATH": environment.get("PATH", os.defpath)}


def use(environment: Mapping[str, str]) -> None:
    """Apply the result of `connect()` to this process, even if htcondor2 is already imported."""
    config = environment.get("CONDOR_CONFIG")
    if config is None:  # the machine's own: HTCondor finds its configuration
        os.environ.pop("CONDOR_CONFIG", None)
    elif os.environ.get("CONDOR_CONFIG") != config:
        _put.add(config)
    os.environ.update(environment)
    bindings = sys.modules.get("htcondor2")
    if bindings is not None:
        bindings.reload_config()


class NoAddressError(PoolError):
    """The schedd has no address yet. After a start, this can last a minute."""


def local_schedd() -> Any:
    """Return htcondor2's client of this machine's schedd, in the pool that `use` selected.

    NoAddressError if the schedd has no address yet. HTCondorException if there is none.
    """
    import htcondor2

    try:
        return htcondor2.Schedd()
    except KeyError:
        raise NoAddressError(
            "HTCondor's schedd has no address yet: wait a minute, and try again"
        ) from None
