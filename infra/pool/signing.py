"""Tokens that HTCondor signs, and the keys it signs them by."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping, Sequence

from trialfleet.errors import PoolError
from trialfleet.infra.pool.processes import captured

PROGRAM = "condor_token_create"


def new_key() -> bytes:
    """Return a key to sign tokens by, as HTCondor keeps one in its folder of keys."""
    return secrets.token_bytes(64)


def token_command(identity: str, key: str, arguments: Sequence[str] = ()) -> list[str]:
    """Return the command that prints a new token, which names `NAME@DOMAIN`.

    `key` is the file in HTCondor's folder of keys that signs it. Arguments may limit what the token
    allows.
    """
    return [PROGRAM, "-identity", identity, "-key", key, *arguments]


def signed(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Return the token that a `token_command` prints; `environment` names the HTCondor that signs.

    Raises:
        PoolError: the program or the key is missing, or may not be read by this user.
    """
    path = environment.get("PATH") if environment else None
    program = shutil.which(command[0], path=path)
    if program is None:
        raise PoolError(f"{command[0]} is not on PATH")
    done = captured([program, *command[1:]], env=environment)
    token = done.stdout.strip()
    if done.returncode != 0 or not token:
        reason = " ".join((done.stderr or done.stdout).split()) or "it printed nothing"
        raise PoolError(f"{command[0]} makes no token ({reason})")
    return token
