"""Which HTCondor a command talks to: an embedded pool, the environment's, or the machine's own."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from trialfleet.errors import PoolError
from trialfleet.infra.pool import status as pool_status
from trialfleet.infra.pool.embedded import FOLDER_VARIABLE, Pool, default_folder
from trialfleet.infra.pool.environment import surroundings

_put: set[str] = set()  # what `use` set CONDOR_CONFIG to where no person had: no error names it


def connect(folder: Path | str | None = None) -> dict[str, str]:
    """Return CONDOR_CONFIG and PATH of the HTCondor that a command talks to.

    The given embedded pool; else what CONDOR_CONFIG in the environment names; else the embedded
    pool in the default folder if it is up; else the machine's own HTCondor if its schedd answers.

    Raises:
        PoolError: there is none, or the embedded pool that is meant is down.
    """
    configured = os.environ.get("CONDOR_CONFIG", os.devnull)
    if folder is None and configured != os.devnull:  # htcondor2 itself sets that one
        return named_by_environment(configured)
    pool = Pool(folder)
    if pool.is_up():
        return pool.environment()
    machine = None if folder is not None else machines_own()
    if machine is None:
        where = f"the pool in {pool.folder} is not up"
        raise PoolError(f"{where}: start it by `trialfleet pool up`")
    return machine


def named_by_environment(configured: str) -> dict[str, str]:
    """Return CONDOR_CONFIG as it is; refuse an embedded pool's that is down."""
    chosen = {"CONDOR_CONFIG": configured, "PATH": os.environ.get("PATH", os.defpath)}
    folder = Path(configured).parent
    if not (folder / "pool.json").is_file():
        return chosen
    pool = Pool(folder)
    if pool.is_up():
        return pool.environment()
    is_default = pool.folder == default_folder().expanduser().resolve()
    other = "" if is_default else f"{FOLDER_VARIABLE}={shlex.quote(str(pool.folder))} "
    where = f"the pool in {pool.folder} is not up"
    if configured not in _put:
        where = f"CONDOR_CONFIG names the pool in {pool.folder}, which is not up"
    raise PoolError(f"{where}: start it by `{other}trialfleet pool up`")


def machines_own() -> dict[str, str] | None:
    """Return PATH for the machine's own HTCondor, or None if no schedd of it answers."""
    environment = surroundings()
    environment.pop("CONDOR_CONFIG", None)
    if pool_status.look_at_queue(environment) is None:
        return None
    return {"PATH": environment.get("PATH", os.defpath)}


def use(environment: Mapping[str, str]) -> None:
    """Put `connect()`'s answer into this process, also where htcondor2 is imported already."""
    config = environment.get("CONDOR_CONFIG")
    if config is None:  # the machine's own: HTCondor knows where it is
        os.environ.pop("CONDOR_CONFIG", None)
    elif os.environ.get("CONDOR_CONFIG") != config:
        _put.add(config)
    os.environ.update(environment)
    bindings = sys.modules.get("htcondor2")
    if bindings is not None:
        bindings.reload_config()
