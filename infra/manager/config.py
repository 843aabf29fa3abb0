"""The manager's HTCondor configuration, as text, and the accounts that can't run studies.

The same settings always give the same bytes. The account that runs studies can't have the name
`node`, because the nodes' token has this name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trialfleet.errors import InputError
from trialfleet.infra.pool.joining import NODE_IDENTITY, PORT, TRUST_DOMAIN
from trialfleet.render import render_template

KEY = "trialfleet"  # the file in HTCondor's folder of keys that signs the nodes' tokens
OWN_ADDRESS = "$(IP_ADDRESS)"  # HTCondor's macro for the address of its machine
USER_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,31}", re.IGNORECASE)
ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
RESERVED_USERS = {  # with the reason why they can't run studies
    "root": "HTCondor runs no jobs of root",
    "condor": "it is the account of HTCondor's daemons",
    NODE_IDENTITY: "a node's token has that name, and would get the user's permissions",
}


@dataclass(frozen=True, kw_only=True)
class ManagerSettings:
    """The settings of a manager's configuration. InputError if one is invalid.

    Attributes:
        user: the account that runs studies. It has all permissions in the pool.
        address: the host name or IPv4 address at which nodes reach this machine. If empty, it is
            the machine's own address.
        forwarded: True if no interface of this machine has `address`, for example because it is a
            public address that EC2 forwards. Nodes then use `address`, but the manager's daemons
            reach each other at the machine's own address.
        port: the one port that all daemons share.
    """

    user: str
    address: str = ""
    forwarded: bool = False
    port: int = PORT

    def __post_init__(self) -> None:
        check_user(self.user)
        if self.address and not ADDRESS.fullmatch(self.address):
            raise InputError(
                f"the manager's address is {self.address!r}; it must be a host name or an IPv4"
                f" address, without the port ({self.port})"
            )


def check_user(user: str) -> None:
    """Raise InputError unless the account `user` can run studies."""
    if not USER_NAME.fullmatch(user):
        raise InputError(
            f"{user!r} can't be the name of an account: it must begin with a letter or _, and have"
            " at most 32 letters, digits, dots, - and _; name another account with --user"
        )
    if user in RESERVED_USERS:
        raise InputError(f"studies can't run as {user}: {RESERVED_USERS[user]}; use another --user")


def render(settings: ManagerSettings) -> str:
    """Return the text of the manager's configuration file."""
    return render_template(
        "condor/manager.conf.j2",
        user=settings.user,
        address=settings.address or OWN_ADDRESS,
        own_address=OWN_ADDRESS,
        forwarded=settings.forwarded,
        port=settings.port,
        domain=TRUST_DOMAIN,
        node=NODE_IDENTITY,
        key=KEY,
    )
