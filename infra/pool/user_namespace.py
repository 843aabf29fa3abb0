"""The account with which a pool's daemons run: the user's own, or another one for root.

HTCondor refuses root's jobs. So root's daemons run in a user namespace, in which they appear to run
as an ordinary account. Outside of the namespace, their files belong to root. The account must not
be the kernel's overflow uid (`nobody`), which represents all unmapped users. Otherwise any other
user could act as the pool's owner, and run jobs as root. Functions raise PoolError if no account is
usable, if the user has no name in /etc/passwd, or if user namespaces are forbidden.
"""

from __future__ import annotations

import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path

from trialfleet.errors import PoolError
from trialfleet.infra.pool.processes import run_captured

OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")
PREFERRED = ("condor", "daemon")


@dataclass(frozen=True)
class Identity:
    """The account of a pool's daemons.

    `account` is the name of the account that the daemons see. `prefix` is the beginning of the
    command that starts the daemons. For root, it opens a user namespace. Otherwise it is empty.
    """

    account: str
    prefix: tuple[str, ...] = ()

    @property
    def root(self) -> bool:
        """True if root owns the pool, so that the daemons run in a user namespace."""
        return bool(self.prefix)


def identity() -> Identity:
    """Return the account with which this user's daemons run."""
    if os.geteuid() != 0:
        return Identity(user_name(os.geteuid()))
    account = mapped_account()
    ids = (f"--map-user={account.pw_uid}", f"--map-group={account.pw_gid}")
    chosen = Identity(account.pw_name, ("unshare", "--user", *ids, "--"))
    refuse_where_forbidden(chosen)
    return chosen


def user_name(uid: int) -> str:
    """Return the name of the account `uid`, by which HTCondor knows the pool's owner."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise PoolError(
            f"user id {uid} has no name on this machine (/etc/passwd), and HTCondor needs a name:"
            " add an account with this id"
        ) from None


def mapped_account() -> pwd.struct_passwd:
    """Return the ordinary account that HTCondor sees in place of root."""
    try:
        overflow = int(OVERFLOW_UID.read_text())
    except (OSError, ValueError):
        overflow = 65534
    usable = [entry for entry in pwd.getpwall() if entry.pw_uid not in {0, overflow}]
    usable.sort(key=lambda entry: (entry.pw_name not in PREFERRED, entry.pw_uid))
    if not usable:
        raise PoolError(
            "HTCondor does not run root's jobs, and this machine has no accounts other than 'root' "
            "and 'nobody': create a user, and run trialfleet as that user"
        )
    return usable[0]


def refuse_where_forbidden(chosen: Identity) -> None:
    """Raise PoolError if root can't use the user namespace of `chosen` on this machine."""
    if shutil.which("unshare") is None:
        raise PoolError(
            "HTCondor does not run root's jobs, and the program `unshare`, by which root can be "
            "another user, is missing: install the package util-linux, or run trialfleet as a "
            "plain user"
        )
    trial = run_captured([*chosen.prefix, "true"])
    if trial.returncode != 0:
        reason = " ".join(trial.stderr.split()) or f"unshare exited with code {trial.returncode}"
        raise PoolError(
            "HTCondor does not run root's jobs, and root can't have a user namespace here "
            f"({reason}): run trialfleet as a plain user"
        )
