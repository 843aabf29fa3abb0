"""A node's settings, which its user data carries."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from trialfleet.nodes.bootstrap.host import HOME, Host, StepError

SCHEMA = 1
FILE = f"{HOME}/settings.json"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A node's settings; nothing of them is secret."""

    fleet: str  # the fleet's name
    run: str  # the run that the node was asked for; empty without one
    home: str  # the AWS region of bucket and token
    bucket: str  # the fleet's bucket
    bundle: str  # key of the bundle in it
    bundle_sha256: str  # what the bundle must hash to, in hex
    log_prefix: str  # what the key of a node's log begins with
    token_parameter: str  # name of the SSM parameter that holds the pool's token
    manager: str  # HOST:PORT of the pool's central manager
    condor_version: str  # the manager's HTCondor
    idle_minutes: float  # an idle node goes after so long; 0: never
    boot_minutes: int  # a node that hasn't joined after so long shuts itself down
    endpoint_url: str = ""  # where AWS's services are; empty: at their own places
    image: bool = False  # prepare this machine for an image of nodes, and don't join

    @classmethod
    def of(cls, table: dict[str, Any]) -> Settings:
        """Return the settings of the user data's table; StepError where it isn't one."""
        if table.get("schema") != SCHEMA:
            raise StepError(f"settings of schema {table.get('schema')!r}, not {SCHEMA}")
        names = {field.name for field in fields(cls)}
        missing = sorted(names - set(table) - {"endpoint_url", "image"})
        if missing:
            raise StepError(f"the settings lack {', '.join(missing)}")
        return cls(**{name: table[name] for name in names & set(table)})


def read(host: Host) -> Settings:
    """Return the settings that the user data left on this machine; StepError without them."""
    text = host.read(FILE)
    if not text:
        raise StepError(f"there are no settings at {FILE}: did the user data run?")
    try:
        return Settings.of(json.loads(text))
    except ValueError as error:
        raise StepError(f"{FILE} is no JSON: {error}") from error
