"""`trialfleet serve` as people start it, on a free port, and a client that asks it."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

TRIALFLEET = Path(sys.executable).with_name("trialfleet")


@dataclass(frozen=True)
class Answer:
    """The server's answer."""

    status: int
    headers: Mapping[str, str]
    text: str


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    url: str
    process: int

    def ask(self, path: str, method: str = "GET", *, host: str = "", **headers: str) -> Answer:
        """Ask for a path as it is, percent signs, dots and all."""
        place = urlsplit(self.url)
        connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=60)
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or place.netloc)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        sent_headers = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, sent_headers, text)

    def seen(self, path: str = "/") -> str:
        """Return the version of a page that the browser would ask about next."""
        found = re.search(r"\?seen=(\w+)", self.ask(path).text)
        assert found, "the page asks for nothing"
        return found[1]


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Server]:
    """Serve the runs below a folder for as long as the context lasts."""
    started = subprocess.Popen(
        [TRIALFLEET, "serve", "--port", "0", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        text=True,
    )
    with started:
        try:
            assert started.stdout is not None
            lines = iter(started.stdout.readline, "")  # HTCondor says what it misses first
            found = next(filter(None, (re.match(r"(http://\S+)", line) for line in lines)), None)
            assert found, "the page did not start"
            yield Server(found[1], started.pid)
        finally:
            started.kill()
