"""A node's settings, which its user data has written to a file."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from trialfleet.nodes.bootstrap.host import HOME, Host, StepError

FILE = f"{HOME}/settings.json"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A node's settings. None of them is a secret.

    The settings file has further settings, which only the node's user-data program uses.
    """

    home: str  # the AWS region of bucket and token
    bucket: str  # the fleet's bucket
    log_prefix: str  # the key of a node's log in the bucket begins with this
    token_parameter: str  # name of the SSM parameter with the pool's token
    manager: str  # HOST:PORT of the pool's central manager
    condor_version: str  # version of the manager's HTCondor
    idle_minutes: float  # idle time after which a node leaves; 0: never
    boot_minutes: int  # time after which a node that hasn't joined shuts itself down
    endpoint_url: str = ""  # endpoint of AWS's services; empty: AWS's own
    image: bool = False  # prepare this machine for an image of nodes, and don't join

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Settings:
        """Return the settings in `table`, which may have others, too."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: table[name] for name in names & set(table)})


def read(host: Host) -> Settings:
    """Return the settings in the file. Raise StepError if the file is missing.

    The user data writes the file atomically, and is of the same release as this program.
    """
    text = host.read(FILE)
    if not text:
        raise StepError(f"the file {FILE} is missing: the user data did not write it")
    return Settings.from_table(json.loads(text))
