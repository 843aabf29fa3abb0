"""The delivery of alerts to channels.

Several events of one kind are sent in one message, if the channel can show several. A failed
delivery is tried again for a day, with growing pauses.
"""

from __future__ import annotations

import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from trialfleet.workflows.control.notify.senders import SendError, send, takes_many
from trialfleet.workflows.facts.journal.outbox import Delivery, Outbox, channel_key
from trialfleet.workflows.study.notify import Channel

FIRST_PAUSE, LONGEST_PAUSE = 15.0, 900.0  # seconds between two tries; doubled each time
ABANDON_SECONDS = 24 * 3600.0  # seconds after the first try
LOOK_SECONDS = 5.0  # between two checks of waiting events

log = logging.getLogger(__name__)
Clock = Callable[[], float]  # returns the time in Unix seconds


def deliver_all(outbox: Outbox, channels: Callable[[], Sequence[Channel]]) -> None:
    """Send waiting events until none is left. Several processes may do this at the same time.

    Channels whose secret is missing from this process's environment are left to other processes.
    `channels` is called before each try, because a person may correct the study between two tries.
    """
    while True:
        known = channels()
        elsewhere = {
            channel_key(each)
            for each in known
            if each.secret_variable and each.secret_variable not in os.environ
        }
        with outbox.hold_lock(wait=False) as ours:
            if ours:
                deliver(outbox, known, leave=elsewhere)
        if all(one.channel in elsewhere for one in outbox.waiting_deliveries()):
            return
        time.sleep(LOOK_SECONDS)


def deliver(
    outbox: Outbox,
    channels: Sequence[Channel],
    clock: Clock = time.time,
    *,
    leave: Collection[str] = (),
) -> int:
    """Send the events that are due; return how many deliveries still wait.

    A delivery is the sending of one event to one channel. Deliveries to channels that the study no
    longer has are abandoned. Channels whose `channel_key` is in `leave` are skipped. The caller
    holds `Outbox.hold_lock`.
    """
    by_key = {channel_key(channel): channel for channel in channels}
    waiting = [one for one in outbox.waiting_deliveries() if one.channel not in leave]
    groups: dict[tuple[str, ...], list[Delivery]] = defaultdict(list)
    for one in waiting:
        channel = by_key.get(one.channel)
        if channel is None:
            outbox.abandon([one], "its channel is no longer in the study")
        elif one.due <= clock():
            alone = () if takes_many(channel) else (one.event.id,)
            groups[one.channel, one.event.kind, *alone].append(one)
    broken: dict[str, SendError] = {}
    for key, together in groups.items():
        channel = by_key[key[0]]
        error = broken.get(key[0]) or _send(channel, together)
        if error is None:
            outbox.mark_sent(together)
        elif error.is_final:
            outbox.abandon(together, str(error))
        else:
            broken[key[0]] = error  # else each further event would wait for the same failure
            _put_off(outbox, together, str(error), clock())
    return len(outbox.waiting_deliveries())


def _send(channel: Channel, together: list[Delivery]) -> SendError | None:
    try:
        send(channel, [one.event for one in together])
    except SendError as error:
        log.warning("%s: %s", channel.title, error)
        return error
    log.info("%s: %s", channel.title, "; ".join(one.event.title for one in together))
    return None


def _put_off(outbox: Outbox, together: list[Delivery], error: str, now: float) -> None:
    for one in together:
        if one.first is not None and now - one.first > ABANDON_SECONDS:
            outbox.abandon([one], error)
        else:
            pause = min(FIRST_PAUSE * 2 ** min(one.tries, 10), LONGEST_PAUSE)
            outbox.put_off([one], error, now, now + pause)
