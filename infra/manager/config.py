"""The manager's HTCondor configuration, as text.

Pure: the same settings give the same bytes. What comes from outside is checked here, so that no
value can become a line of its own, or name somebody whom a token could name too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trialfleet.errors import InputError
from trialfleet.infra.pool.joining import NODE_IDENTITY, PORT, TRUST_DOMAIN
from trialfleet.render import render_template

KEY = "trialfleet"  # the file in HTCondor's folder of keys that signs the nodes' tokens
OWN_ADDRESS = "$(IP_ADDRESS)"  # HTCondor's word for the address of the machine it runs on
USER_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,31}", re.IGNORECASE)
ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
RESERVED_USERS = {  # and why none of them can run studies
    "root": "HTCondor runs no jobs of root",
    "condor": "it is the account of HTCondor's daemons",
    NODE_IDENTITY: "a node's token gives that name, and would be allowed what the user is",
}


@dataclass(frozen=True, kw_only=True)
class ManagerSettings:
    """What a manager is configured by.

    Attributes:
        user: the account that runs studies; it may do everything in the pool.
        address: host name or address by which nodes find this machine; empty: its own address.
        forwarded: True when `address` isn't the machine's own but leads to it, as a public
            address of EC2 does; the daemons then name it to the nodes.
        port: the one port that all daemons share.

    Raises:
        InputError: one of them can't be used.
    """

    user: str
    address: str = ""
    forwarded: bool = False
    port: int = PORT

    def __post_init__(self) -> None:
        check_user(self.user)
        if self.address and not ADDRESS.fullmatch(self.address):
            raise InputError(
                f"the manager's address must be a host name or an IPv4 address, not"
                f" {self.address!r}; its port is {self.port}"
            )
        if self.forwarded and not self.address:
            raise InputError("a forwarded manager needs the address that leads to it")
        if not 1 <= self.port <= 65_535:
            raise InputError(f"the manager's port must be from 1 to 65535, not {self.port}")


def check_user(user: str) -> None:
    """Raise InputError unless `user` can be the one who runs studies."""
    if not USER_NAME.fullmatch(user):
        raise InputError(f"{user!r} is not the name of an account; name one by --user")
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
