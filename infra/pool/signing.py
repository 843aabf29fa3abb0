"""HTCondor's signed tokens, and the keys that sign them."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping, Sequence

from trialfleet.errors import PoolError
from trialfleet.infra.pool.processes import run_captured

PROGRAM = "condor_token_create"


def new_key() -> bytes:
    """Return a new key for signing tokens: the content of a file in HTCondor's folder of keys."""
    return secrets.token_bytes(64)


def token_command(identity: str, key: str, arguments: Sequence[str] = ()) -> list[str]:
    """Return the command that prints a new token for `identity`, which is NAME@DOMAIN.

    `key` is a file's name in HTCondor's folder of keys. `arguments` may limit the permissions.
    """
    return [PROGRAM, "-identity", identity, "-key", key, *arguments]


def sign_token(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run `command`, made by `token_command`, and return the token that it prints.

    `environment` has the command's environment variables. None means those of this process.
    PoolError if the program or the key is missing, or if this user may not read the key.
    """
    path = environment.get("PATH") if environment else None
    program = shutil.which(command[0], path=path)
    if program is None:
        raise PoolError(f"{command[0]} is not on PATH")
    done = run_captured([program, *command[1:]], env=environment)
    token = done.stdout.strip()
    if done.returncode != 0 or not token:
        reason = " ".join((done.stderr or done.stdout).split()) or "it printed nothing"
        raise PoolError(f"{command[0]} did not make a token ({reason})")
    return token
