"""Functions that send alerts by a program, a POST request or a mail.

An error never contains a secret address or a password, because logs and `status` show errors.
"""

from __future__ import annotations

import hashlib
import json
import os
import smtplib
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from email.message import EmailMessage
from email.utils import format_datetime
from http.client import HTTPException
from typing import Any

from trialfleet.workflows.control.notify.slack_message import slack_message
from trialfleet.workflows.control.secret_files import secret
from trialfleet.workflows.facts.journal.event import (
    MOST_SHOWN,
    Event,
    cut_at_a_line,
    omitted_events,
)
from trialfleet.workflows.formatting import in_one_line
from trialfleet.workflows.study.notify import Channel, Mail, Webhook, address_problem

SECONDS = 20.0  # limit for one try
_MOST_TEXT = 100_000  # characters of one event in a mail


class SendError(Exception):
    """A failed try to send events. If `is_final` is True, another try would fail as well."""

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(in_one_line(text))
        self.is_final = is_final


def send(channel: Channel, events: Sequence[Event]) -> None:
    """Send events of one kind in one message. SendError unless all recipients get it.

    Only channels for which `takes_many` is True take several events at once.
    """
    if channel.mail:
        _send_mail(channel.mail, events)
    elif channel.webhook and channel.webhook.shape == "slack":
        _post_webhook(channel.webhook, slack_message(events), events[0])
    else:
        assert len(events) == 1, "a program reads one event at a time"
        if channel.webhook:
            _post_webhook(channel.webhook, events[0].to_json(), events[0])
        else:
            _run(channel.command or [], events[0])


def takes_many(channel: Channel) -> bool:
    """Return whether `send` takes several events of one kind for this channel."""
    return channel.mail is not None or (
        channel.webhook is not None and channel.webhook.shape == "slack"
    )


# -- a program -------------------------------------------------------------------------------------


def _run(command: list[str], event: Event) -> None:
    variables = {
        "TRIALFLEET_EVENT": event.kind,
        "TRIALFLEET_EVENT_ID": event.id,
        "TRIALFLEET_STUDY": event.study,
        "TRIALFLEET_RUN": event.run or "",
        "TRIALFLEET_REGION": event.region or "",
    }
    try:
        done = subprocess.run(
            command,
            input=json.dumps(event.to_json(), ensure_ascii=False),
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except (OSError, ValueError) as error:
        raise SendError(f"{command[0]!r} can't be run: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise SendError(f"{command[0]!r} took longer than {SECONDS:.0f} s") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["without output"]
        raise SendError(f"{command[0]!r} ended with exit code {done.returncode}: {last[0]}")


# -- a webhook -------------------------------------------------------------------------------------


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, because they turn a POST into a GET and send secrets elsewhere."""

    def redirect_request(self, *_given: Any, **_named: Any) -> None:
        return None


def _post_webhook(webhook: Webhook, content: dict[str, Any], event: Event) -> None:
    url = webhook.url or _secret(webhook.url_file, webhook.url_env)
    if problem := address_problem(url):
        raise SendError(f"the content of {webhook.url_file or webhook.url_env} {problem}")
    request = urllib.request.Request(  # noqa: S310 - http or https, as was just checked
        url,
        data=json.dumps(content, ensure_ascii=False).encode(),
        headers={
            "Content-Type": "application/json; charset=utf-8",
            "User-Agent": "trialfleet",
            "Idempotency-Key": event.id,
        },
        method="POST",
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=SECONDS) as answer:
            answer.read(1)
    except urllib.error.HTTPError as error:
        with error:
            # other errors may be corrected: a wrong URL, an unreachable service
            is_final = error.code in {400, 413, 422}
            raise SendError(f"answered {error.code} {error.reason}", is_final=is_final) from None
    except urllib.error.URLError as error:
        raise SendError(f"can't be reached: {error.reason}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise SendError(f"can't be reached: {type(error).__name__}") from None


# -- a mail ----------------------------------------------------------------------------------------


def _send_mail(mail: Mail, events: Sequence[Event]) -> None:
    message = build_message(mail, events)
    password = _secret(mail.password_file, mail.password_env) if mail.user else ""
    try:
        with _connect(mail) as server:
            if mail.encryption == "starttls":
                server.starttls(context=ssl.create_default_context())
            if mail.user:
                server.login(mail.user, password)
            if refused := server.send_message(message):
                raise SendError(f"the server refuses the mail for {', '.join(sorted(refused))}")
    except smtplib.SMTPAuthenticationError as error:
        raise SendError(f"the server refuses the login of {mail.user}") from error
    except smtplib.SMTPResponseException as error:
        reply = error.smtp_error
        text = reply.decode(errors="replace") if isinstance(reply, bytes) else reply
        raise SendError(f"the server answered {error.smtp_code} {text}") from error
    except (smtplib.SMTPException, OSError) as error:
        raise SendError(f"{mail.server} can't be reached: {error}") from error


def _connect(mail: Mail) -> smtplib.SMTP:
    if mail.encryption == "tls":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(mail.host, mail.port, timeout=SECONDS, context=context)
    return smtplib.SMTP(mail.host, mail.port, timeout=SECONDS)


def build_message(mail: Mail, events: Sequence[Event]) -> EmailMessage:
    """Return a mail about events of one kind. The same events get the same Message-ID."""
    first, more = events[0], len(events) - 1
    message = EmailMessage()
    title = first.title + (f" (and {more} more)" if more else "")
    message["Subject"] = in_one_line(f"[trialfleet] {title}")
    message["From"] = mail.sender or mail.to[0]
    message["To"] = ", ".join(mail.to)
    message["Date"] = format_datetime(first.at)
    ids = "".join(event.id for event in events)
    unique = first.id if not more else hashlib.sha256(ids.encode()).hexdigest()[:24]
    message["Message-ID"] = f"<{unique}@trialfleet>"
    parts = [
        "\n".join(filter(None, [event.title, "", cut_at_a_line(event.text, _MOST_TEXT)]))
        for event in events[:MOST_SHOWN]
    ]
    message.set_content("\n\n".join([*parts, *omitted_events(events)]) + "\n")
    return message


# -- what they share -------------------------------------------------------------------------------


def _secret(file: str | None, variable: str | None) -> str:
    try:
        return secret(file, variable)
    except ValueError as error:
        raise SendError(str(error)) from None
