"""The Unix accounts of jobs, one for each HTCondor slot, which protect jobs from each other.

An account has no password and no shell. Its home folder keeps caches, such as compiled code, for
the slot's next job. There are SLOTS accounts, usually more than a node has slots. In a slot with a
higher number, a job runs as `nobody`.
"""

from __future__ import annotations

import os
import shutil

from trialfleet.nodes.bootstrap.host import Host, StepError

HOMES = "/var/lib/trialfleet/home"
LIST = "/etc/sysusers.d/trialfleet.conf"
# More than the cores of a node, because slots that only hold common files have numbers, too.
SLOTS = 400
FILES = "trialfleet-files"  # owner of the files that HTCondor sends to a node once for all jobs
FIRST_ID = 60_706  # no distribution assigns this user id and the next 477
NOBODY_ID = 65_534  # user and group of `nobody`; the group's name differs between distributions


def name(slot: int) -> str:
    """Return the name of a slot's account."""
    return f"trialfleet-slot{slot}"


NUMBERS = {FILES: FIRST_ID} | {name(slot): FIRST_ID + slot for slot in range(1, SLOTS + 1)}


def make(host: Host) -> None:
    """Make all accounts and their homes. Raise StepError if one can't get its fixed user id."""
    lines = (f"u {name} {uid}:{NOBODY_ID} - {HOMES}/{name}\n" for name, uid in NUMBERS.items())
    host.write(LIST, "".join(lines))
    host.run("systemd-sysusers", f"--root={host.root}", str(host.place(LIST)))
    made = _read_accounts(host)
    for account, number in NUMBERS.items():
        if made.get(account) != number:
            own = f"has the user id {made[account]}" if account in made else "is missing"
            raise StepError(
                f"the account {account} {own}, but must have the user id {number}: "
                f"use an AMI without an account {account} and without a user id {number}"
            )
    _make_homes(host)


def settings() -> str:
    """Return the lines of HTCondor's configuration that give each slot its account.

    The account in `SLOT1_USER` runs no jobs. It is for slots that only hold common files.
    """
    slots = (f"SLOT1_{slot}_USER = {name(slot)}\n" for slot in range(1, SLOTS + 1))
    return f"SLOT1_USER = {FILES}\n" + "".join(slots)


def _read_accounts(host: Host) -> dict[str, int]:
    entries = (line.split(":") for line in host.read("/etc/passwd").splitlines())
    return {entry[0]: int(entry[2]) for entry in entries if len(entry) > 2}


def _make_homes(host: Host) -> None:
    folder = host.place(HOMES)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    for account, number in NUMBERS.items():
        home = host.place(f"{HOMES}/{account}")
        home.mkdir(mode=0o700, exist_ok=True)
        if os.geteuid() == 0:
            shutil.chown(home, number)
