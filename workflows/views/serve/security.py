"""The access control of the page, which checks each request before anything else is done.

- Only GET and HEAD are allowed, because the page is read-only.
- The Host header must be an IP address, a name of this machine, or a name that --allow-host allows.
  Otherwise a web page of another site could read this page, if the site's name resolves to this
  machine (DNS rebinding).
- On an address that other machines can reach, or with a token file, a token is required. A browser
  sends the token once in the URL, and then in a cookie. Scripts can't read the cookie, and other
  sites can't send the cookie. Programs send the token in the header `Authorization: Bearer TOKEN`.
"""

from __future__ import annotations

import hmac
import ipaddress
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
    """Return whether an address can be reached only from this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_of_this_machine(also: Iterable[str]) -> frozenset[str]:
    """Return this machine's host names and those in `also`, in lower case."""
    names = {"localhost", socket.gethostname(), socket.getfqdn(), *also}
    return frozenset(name.lower().rstrip(".") for name in names)


def read_token(file: Path) -> str:
    """Return the token in `file`.

    Raises InputError if the file can't be read, if other users can read it, or if the token is too
    short or isn't printable ASCII.
    """
    try:
        mode, token = file.stat().st_mode, file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the token can't be read from {str(file)!r}: {error}") from error
    if mode & 0o077:
        raise InputError(
            f"other users can read the token in {str(file)!r} (mode {mode & 0o777:o}); set the "
            "file's mode to 600 with chmod"
        )
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise InputError(
            f"{str(file)!r} must contain one line with a token of {_SHORTEST_TOKEN} or more ASCII "
            f"characters, such as: {secrets.token_urlsafe()}"
        )
    return token


class Guard:
    """The filter that checks every request, and sets the security headers of answers.

    `hosts` are the allowed host names, besides IP addresses. If `token` is None, no token is
    required. Browsers send cookies to all ports of a host, so each page on this machine needs its
    own `cookie` name.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str], token: str | None, cookie: str) -> None:
        self._app, self._hosts, self._token, self._cookie = app, hosts, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket, which is not supported
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
        if request.method not in _METHODS:
            text = "the page is read-only\n"
            return PlainTextResponse(text, 405, {"Allow": ", ".join(_METHODS)})
        if not self._is_ours(request.headers.get("host", "")):
            return PlainTextResponse(
                "unknown host name; to allow it, start `trialfleet serve --allow-host NAME`\n", 421
            )
        if self._token is None:
            return None
        given = parse_qs(request.url.query).get("token")
        if given and self._is_token(given[0]):
            return self._set_cookie(request)
        if self._is_token(request.cookies.get(self._cookie, "")) or self._is_token(
            _bearer_token(request)
        ):
            return None
        return PlainTextResponse(
            "a token is required: open the URL that `trialfleet serve` printed; with --token-file, "
            "add ?token=TOKEN to that URL\n",
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

    def _is_token(self, given: str) -> bool:
        assert self._token is not None, "there is a token to know"
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _set_cookie(self, request: Request) -> Response:
        """Return a page that sets the token's cookie, and leads to the same URL without its query.

        An HTTP redirect would fail after a link from another site, because the browser then doesn't
        send a cookie with SameSite=Strict.
        """
        assert self._token is not None, "there is a token to keep"
        page = render_template("serve/welcome.html.j2", path=request.url.path)
        answer = Response(page, media_type="text/html")
        answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        return answer


def _bearer_token(request: Request) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""
