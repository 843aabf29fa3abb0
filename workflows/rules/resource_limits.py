"""Messages about trials that exceeded a limit of memory, disk, time or files."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trialfleet.nodes.job.messages import Order
from trialfleet.nodes.job.pack_and_unpack import MOST_MEMBERS
from trialfleet.workflows.facts.jobs.agent_messages import ReportedEnd

# Codes of holds that another attempt with the same parameters would meet again: a limit of the
# submit file (periodic_hold), memory, and the two time limits that a person may set in a submit
# file. The codes are from HTCondor's manual, "Hold Reason Codes".
BY_SUBMIT_FILE, BY_CGROUP, TOO_LONG_A_JOB, TOO_LONG_AN_ATTEMPT = 3, 34, 46, 47
CODES = frozenset({BY_SUBMIT_FILE, BY_CGROUP, TOO_LONG_A_JOB, TOO_LONG_AN_ATTEMPT})

MEMORY, DISK, TIME = "resources.memory", "resources.disk", "trainer.minutes"
KEYS = (MEMORY, DISK, TIME)  # of a study

_OURS = {"over its memory:": MEMORY, "over its disk:": DISK}
_LIMIT = re.compile(r"limit of (\d+) megabytes")
_USED = re.compile(r"usage: (\d+) megabytes")


def over_limit(code: int | None, reason: str, places: Mapping[str, str]) -> str:
    """Return why a job is on hold, from HTCondor's `code` and `reason` for the hold.

    If the job exceeded its memory or disk, the text also names the study's key to raise, and the
    key's `FILE:LINE` if `places` has it.
    """
    if code == BY_CGROUP:
        limit, used = _LIMIT.search(reason), _USED.search(reason)
        how = f"used {used[1]} MB of {limit[1]} MB" if limit and used else reason
        return _limit_advice(MEMORY, f"over its memory: {how}", places)
    ours = (key for words, key in _OURS.items() if reason.startswith(words))
    key = next(ours, None) if code == BY_SUBMIT_FILE else None
    return _limit_advice(key, reason, places) if key else reason


def over_by_agent(
    ended: ReportedEnd, order: Order | None, places: Mapping[str, str], *, has_result: bool
) -> str:
    """Return the message about a trial that its agent ended because of an exceeded limit.

    `order` has the trial's limits, or is None if unknown. `has_result` says whether result.json is
    complete: then a trial over its time had finished its work, but did not exit. For most limits,
    the message names the study's key to raise, and the key's `FILE:LINE` if `places` has it.
    """
    if ended.over == "disk":
        words = "over its disk: the files that it left exceed the limit"
        return _limit_advice(DISK, words, places)
    if ended.over == "files":
        return (
            f"over its files: it left more than {MOST_MEMBERS:,} files and folders; make the "
            "trainer put them into fewer files, such as an archive"
        )
    if ended.over == "memory":
        most = (order.memory_mb if order else None) or 0
        used = f"used {ended.memory_mb or 0:.0f} MB of {most:.0f} MB"
        words = f"over its memory: {used} when it was ended, and may need more"
        return _limit_advice(MEMORY, words, places)
    seconds = (order.seconds if order else None) or 0
    words = f"over its time: ran for more than {seconds / 60:g} min"
    if not has_result:
        return _limit_advice(TIME, words, places)
    return (
        f"{words} although its result.json is complete; make the trainer end its threads and child "
        f"processes, so that it can exit, or {_raise_advice(TIME, places)}"
    )


def _limit_advice(key: str, words: str, places: Mapping[str, str]) -> str:
    return f"{words}; {_raise_advice(key, places)}"


def _raise_advice(key: str, places: Mapping[str, str]) -> str:
    return f"raise {key} in {places.get(key, 'the study')}"
