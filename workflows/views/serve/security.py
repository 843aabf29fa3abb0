"""Who may see the page, and what a browser may do with it: checked before anything else is.

- GET and HEAD alone: nothing can be changed from here.
- The Host header must name this machine: else a web page from elsewhere, whose name was made to
  lead here (DNS rebinding), could read along. A number is no name, so numbers are let pass.
- Beyond the loopback a token is asked for, and wherever one was given. It comes once in the address
  and then in a cookie that no script reads and no other site sends; programs send it as Bearer.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import socket
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trialfleet.errors import InputError
from trialfleet.render import render_template

_OF_PLOTS = "'sha256-jSYQUrW7J0b3jPqhZP9C2Xh1PyJKHKXd4s0fpGGKrww='"  # each plot's style element
POLICY = (
    f"default-src 'none'; script-src 'self'; style-src 'self' {_OF_PLOTS}; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_SHORTEST_TOKEN = 16  # characters
_METHODS = ("GET", "HEAD")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_of_this_machine(also: Iterable[str] = ()) -> frozenset[str]:
    """Return the names by which a browser may ask for the page, in lower case."""
    names = {"localhost", socket.gethostname(), socket.getfqdn(), *also}
    return frozenset(name.lower().rstrip(".") for name in names)


def read_token(file: Path) -> str:
    """Return the token in a file.

    Raises:
        InputError: the file can't be read, others than its owner can read it, or it is too short.
    """
    try:
        mode, token = file.stat().st_mode, file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the token can't be read from {str(file)!r}: {error}") from error
    if mode & 0o077:
        raise InputError(
            f"others can read the token in {str(file)!r} (mode {mode & 0o777:o}); chmod 600 it"
        )
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise InputError(
            f"{str(file)!r} must hold a token of {_SHORTEST_TOKEN} or more plain characters in one "
            f"line, such as: {secrets.token_urlsafe()}"
        )
    return token


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(32)


class Guard:
    """Lets requests through to the page that may see it, and tells browsers what it may do.

    Args:
        app: what answers them.
        hosts: the names of this machine that are let pass beside numbers.
        token: what a reader has to know; None: nothing.
        cookie: the cookie's name; cookies know no ports, so two pages need two names.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str], token: str | None, cookie: str) -> None:
        self._app, self._hosts, self._token, self._cookie = app, hosts, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket, which nothing here speaks
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Content-Security-Policy", POLICY)
                headers.setdefault("Cache-Control", "no-store")
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._refusal(Request(scope))
        await (answer or self._app)(scope, receive, sent)

    def _refusal(self, request: Request) -> Response | None:
        """What a request gets that isn't let through."""
        if request.method not in _METHODS:
            text = "the page shows, and changes nothing\n"
            return PlainTextResponse(text, 405, {"Allow": ", ".join(_METHODS)})
        if not self._is_ours(request.headers.get("host", "")):
            return PlainTextResponse("no such host here; see `trialfleet serve --help`\n", 421)
        if self._token is None:
            return None
        given = parse_qs(request.url.query).get("token")
        if given and self._knows(given[0]):
            return self._welcome(request)
        if self._knows(request.cookies.get(self._cookie, "")) or self._knows(_bearer(request)):
            return None
        return PlainTextResponse(
            "open the page by the address that `trialfleet serve` printed: it has a token in it\n",
            401,
            {"WWW-Authenticate": "Bearer"},
        )

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.rstrip(".") in self._hosts
        return True

    def _knows(self, given: str) -> bool:
        assert self._token is not None, "there is a token to know"
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _welcome(self, request: Request) -> Response:
        """Keep the token in a cookie and leave the address that has it.

        Not by a redirect: where a link on another site led here, the browser would send no strict
        cookie along with that.
        """
        assert self._token is not None, "there is a token to keep"
        page = render_template("serve/welcome.html.j2", path=request.url.path)
        answer = Response(page, media_type="text/html")
        answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        return answer


def _bearer(request: Request) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def cookie_name(port: int) -> str:
    """Return the name of the cookie of the page at a port."""
    return f"trialfleet-{port}-{os.getuid()}"
