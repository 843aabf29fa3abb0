"""The `notify:` list of a study: the channels of alerts, and the events that each one sends."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from trialfleet.files import shell_quoted
from trialfleet.sections import (
    OneLine,
    Pattern,
    Refused,
    Section,
    check_not_empty,
)
from trialfleet.workflows.study.checks import Command, wrap_in_list
from trialfleet.workflows.study.paths import (
    Keys,
    Problem,
    UnusableStudyError,
    make_files_absolute,
    named_program,
)

EventKind = Literal[
    "region-failed",
    "champion-kept",
    "awaits-approval",
    "drift",
    "budget-80",
    "budget-spent",
    "fleet-short",
    "sick-gpu",
    "attention",
    "run-done",
    "day-done",
]
KINDS: tuple[EventKind, ...] = get_args(EventKind)
SECRET_URLS = ("hooks.slack.com", "discord.com", "webhook.office.com")  # their paths are secrets
_ADDRESS = r"[^\s@<>,;:\"()\[\]\\]+@[^\s@<>,;:\"()\[\]\\]+"
_SERVER = r"[A-Za-z0-9._-]+(:[0-9]{1,5})?"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_PORTS = {465: "tls", 587: "starttls"}


def check_public_url(value: Any, instead: str) -> str:
    """Return the URL `value` if it has no password. Errors omit it, because it may be a secret.

    For a URL with a password, the error ends with what to do `instead`.
    """
    problem = address_problem(value)
    if not problem and urlsplit(value).username is not None:
        problem = f"contains a password; {instead}"
    if not problem and (host := urlsplit(value).hostname or "").endswith(SECRET_URLS):
        problem = f"a URL of {host} is a secret; {instead}"
    if problem:
        raise PydanticCustomError("secret_url", "{text}", {"text": problem})
    return str(value)


_check_url = partial(check_public_url, instead="put the URL into a file, and give url_file")


def address_problem(value: Any) -> str:
    """Return what is wrong with the URL `value`; "" if nothing is.

    The text omits the URL, which may be secret.
    """
    wanted = "must be a URL such as https://example.org/hook"
    if not isinstance(value, str) or not value.isprintable() or " " in value:
        return wanted
    try:
        parts = urlsplit(value)
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return wanted
    return "" if parts.scheme in {"http", "https"} and has_host else wanted


Variable = Annotated[
    str, Pattern(_VARIABLE, "the name of an environment variable, such as SLACK_URL")
]
Address = Annotated[str, Pattern(_ADDRESS, "a mail address such as team@example.org")]
Addresses = Annotated[
    list[Address],
    AfterValidator(check_not_empty),
    BeforeValidator(wrap_in_list, json_schema_input_type=str | list[str]),
]
EventKinds = Annotated[
    list[EventKind],
    AfterValidator(check_not_empty),
    BeforeValidator(wrap_in_list, json_schema_input_type=EventKind | list[EventKind]),
]


class Webhook(Section):
    """An HTTP POST for each event."""

    url: Annotated[str, BeforeValidator(_check_url)] | None = Field(
        None,
        repr=False,
        description="The URL, if it is not secret. It is stored in the run's folder.",
    )
    url_file: OneLine | None = Field(None, description="A file on the access point with the URL.")
    url_env: Variable | None = Field(
        None,
        description="An environment variable with the URL, set for the process that sends the "
        "alert.",
    )
    shape: Literal["json", "slack"] = Field(
        "json", description="json: the event, as in docs/alerts.md; slack: the text of a message."
    )

    def problems(self) -> Iterator[Refused]:
        """Yield a problem unless exactly one URL is given."""
        if sum(each is not None for each in (self.url, self.url_file, self.url_env)) != 1:
            yield (), "needs exactly one of url, url_file and url_env", {}


class Mail(Section):
    """A mail for each event, by SMTP."""

    to: Addresses = Field(description="Receivers.")
    sender: Address | None = Field(None, description="Sender (default: the first of to).")
    server: Annotated[
        str,
        Pattern(_SERVER, "a host and a port, such as smtp.example.org:587"),
    ] = Field("localhost:25", description="The SMTP server, and its port (default: 25).")
    security: Literal["tls", "starttls", "none"] | None = Field(
        None,
        description="Encryption (default: tls for port 465, starttls for port 587, otherwise "
        "none).",
    )
    user: OneLine | None = Field(None, description="User name, if the server requires a login.")
    password_file: OneLine | None = Field(None, description="A file with the password.")
    password_env: Variable | None = Field(
        None, description="An environment variable with the password."
    )

    def problems(self) -> Iterator[Refused]:
        """Yield what is wrong with the login, the port or the encryption."""
        passwords = sum(each is not None for each in (self.password_file, self.password_env))
        if passwords != (self.user is not None):
            yield (), "needs user and either password_file or password_env", {}
        if not 0 < self.port < 65536:
            yield ("server",), "must have a port from 1 to 65535", self.server
        if self.user and self.encryption == "none" and self.host not in {"localhost", "127.0.0.1"}:
            text = "'none' would send the password unencrypted; use 'tls' or 'starttls'"
            yield ("security",), text, "none"

    @property
    def host(self) -> str:
        """The SMTP server's host name."""
        return self.server.partition(":")[0]

    @property
    def port(self) -> int:
        """The SMTP server's port."""
        return int(self.server.partition(":")[2] or 25)

    @property
    def encryption(self) -> str:
        """The encryption of the SMTP connection: "tls", "starttls" or "none"."""
        return self.security or _PORTS.get(self.port, "none")


class Channel(Section):
    """One channel of alerts: a command, a webhook or a mail, and its events."""

    command: Command | None = Field(
        None, description="A program on the access point; it reads the event as JSON from stdin."
    )
    webhook: Webhook | None = None
    mail: Mail | None = None
    events: EventKinds | None = Field(
        None, description="Events to send (default: all; with daily: all except run-done)."
    )

    def problems(self) -> Iterator[Refused]:
        """Yield a problem unless exactly one way is given."""
        if sum(each is not None for each in (self.command, self.webhook, self.mail)) != 1:
            yield (), "needs exactly one of command, webhook and mail", {}

    @property
    def title(self) -> str:
        """The channel's name in messages, without secrets."""
        if self.webhook:
            host = urlsplit(self.webhook.url).hostname if self.webhook.url else ""
            return f"webhook {host or self.webhook.url_file or '$' + (self.webhook.url_env or '')}"
        if self.mail:
            return f"mail to {', '.join(self.mail.to)}"
        return f"command {(self.command or [''])[0]}"

    @property
    def secret_variable(self) -> str | None:
        """The environment variable with the channel's URL or password; None if there is none."""
        if self.webhook:
            return self.webhook.url_env
        return self.mail.password_env if self.mail else None

    def wanted_kinds(self, *, is_daily: bool) -> tuple[EventKind, ...]:
        """Return the kinds of events to send: by default all, but for daily runs not `run-done`."""
        if self.events is not None:
            return tuple(self.events)
        return tuple(kind for kind in KINDS if not (is_daily and kind == "run-done"))

    def resolve(self, folder: Path, keys: Keys) -> Channel:
        """Return the channel with absolute paths. UnusableStudyError if a file can't be used."""
        update: dict[str, Any] = {}
        if self.command:
            program = named_program(self.command[0], folder)
            if not shutil.which(program):
                raise UnusableStudyError(
                    Problem(
                        (*keys, "command", 0),
                        _not_executable_reason(self.command[0], Path(program)),
                    )
                )
            update["command"] = [program, *self.command[1:]]
        for way, name in (("webhook", "url_file"), ("mail", "password_file")):
            if (part := getattr(self, way)) is not None:
                update[way] = make_files_absolute(part, (name,), folder, (*keys, way))
        return self.model_copy(update=update)


def _not_executable_reason(program: str, path: Path) -> str:
    why = f"{program!r} is not an executable program"
    if "/" not in program or not path.is_file():
        return why
    return f"{why}: the file exists without execute permission; chmod +x {shell_quoted(path)}"
