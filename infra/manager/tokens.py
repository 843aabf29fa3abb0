"""The token with which a node authenticates to the pool: its rights, lifetime and renewal.

HTCondor signs it with a key that only root on the manager can read, for the identity
`node@TRUST_DOMAIN`, which may only advertise a node and query the pool. Functions raise PoolError
if a token can't be made, read or used.
"""

from __future__ import annotations

import base64
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from trialfleet.errors import PoolError
from trialfleet.files import write_atomic
from trialfleet.infra.manager.config import KEY
from trialfleet.infra.pool import signing
from trialfleet.infra.pool.joining import NODE_IDENTITY, TRUST_DOMAIN

TOKEN_FILE = Path("/etc/trialfleet/node.token")
TOKEN_MODE = 0o640  # root's, readable by the group of the user who runs studies
FOLDER_MODE = 0o2750  # new files in it get that group
TOKEN_VARIABLE = "TRIALFLEET_NODE_TOKEN"  # noqa: S105  the name of a variable, not a token
LIFETIME_DAYS = 30  # renewed weekly, so that a new node's token is valid for three more weeks
RIGHTS = ("ADVERTISE_STARTD", "ADVERTISE_MASTER", "READ")
MAKE = "`sudo trialfleet manager token` on the manager makes a new one"


def command() -> list[str]:
    """Return the command that prints a new token for nodes."""
    seconds = round(timedelta(days=LIFETIME_DAYS).total_seconds())
    rights = [word for right in RIGHTS for word in ("-authz", right)]
    limits = [*rights, "-lifetime", str(seconds)]
    return signing.token_command(f"{NODE_IDENTITY}@{TRUST_DOMAIN}", KEY, limits)


def create() -> str:
    """Return a new token for nodes. Only root can call this, because only root reads the key."""
    try:
        return signing.sign_token(command())
    except PoolError as error:
        raise PoolError(
            f"{error}. Only root can make a token for nodes, and only on a manager installed by"
            " `sudo trialfleet manager install`"
        ) from None


def expiry(token: str) -> datetime:
    """Return when a token expires, in UTC. The token's signature is not checked."""
    try:
        _, payload, _ = token.strip().split(".")
        padded = payload + "=" * (-len(payload) % 4)
        return datetime.fromtimestamp(json.loads(base64.urlsafe_b64decode(padded))["exp"], UTC)
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        raise PoolError(f"this is not an HTCondor token with an expiry; {MAKE}") from None


def read_node_token() -> str:
    """Return the nodes' token from the file that TOKEN_VARIABLE names, by default TOKEN_FILE."""
    path = Path(os.environ.get(TOKEN_VARIABLE) or TOKEN_FILE)
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise PoolError(
            f"the nodes' token {path} can't be read ({reason}): {MAKE}, for the account"
            f" that `trialfleet manager install --user` named; to use another file, set"
            f" {TOKEN_VARIABLE}"
        ) from error
    try:
        ends = expiry(token)
    except PoolError as error:
        raise PoolError(f"{path}: {error}") from None
    if ends <= datetime.now(UTC):
        raise PoolError(f"the nodes' token {path} expired on {ends:%Y-%m-%d %H:%M} UTC; {MAKE}")
    return token


def renew() -> datetime:
    """Replace the nodes' token on this manager, and return when the new one expires."""
    if not TOKEN_FILE.parent.is_dir():
        raise PoolError(
            f"{TOKEN_FILE.parent} doesn't exist: `sudo trialfleet manager install` makes it"
        )
    token = create()
    try:
        write(token, TOKEN_FILE)
    except OSError as error:
        raise PoolError(f"the nodes' token can't be written: {error}") from error
    return expiry(token)


def write(token: str, path: Path) -> None:
    """Replace the file of the nodes' token. OSError if that fails.

    The file gets the group of its folder, so that the user who runs studies can read the file.
    """
    write_atomic(path, f"{token}\n", mode=TOKEN_MODE)
    path.chmod(TOKEN_MODE)  # the caller's umask may have removed bits
