"""A machine made of a folder and small programs first on PATH: for tests of what runs on nodes."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOKEN = "imds-token"  # the stand-in's session token, not a secret
ROLE = {"AccessKeyId": "AKIDEXAMPLE", "SecretAccessKey": "wJalr/EXAMPLE+KEY", "Token": "se//ss=="}
HANG_UP, SILENCE = 0, -1
SILENT_SECONDS = 1.0
INSTANCE = {
    "meta-data/instance-id": "i-0123456789abcdef0",
    "meta-data/instance-type": "g5.xlarge",
    "meta-data/placement/availability-zone": "eu-west-1a",
    "meta-data/instance-life-cycle": "spot",
    "meta-data/tags/instance/trialfleet:price": "0.4321",
    "meta-data/iam/security-credentials/": "trialfleet-demo",
    "meta-data/iam/security-credentials/trialfleet-demo": json.dumps(ROLE),
}


# A stand-in for `ip`, which would change this machine's own rules: knows only the fence.
IP = """
case "$1 $2" in
  "rule add") touch "$ROOT/fence" ;;
  "route get") test ! -e "$ROOT/fence" && exit 0
    echo "RTNETLINK answers: Permission denied" >&2; exit 2 ;;
esac
"""


@dataclass
class Bench:
    """A machine's root, and its stand-in programs; each call is a line of `calls`.

    A program is a shell script: it gets $ROOT, and has noted its call before its body runs.
    """

    folder: Path

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True)
        self.bin.mkdir()

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def path(self) -> str:
        return f"{self.bin}:/usr/bin:/bin"

    def bare_path(self) -> str:
        """Return a PATH with nothing of this machine's own but what the stand-ins call."""
        for name in ("sh", "cat", "rm", "mkdir", "grep", "test", "touch"):
            (self.bin / name).symlink_to(f"/usr/bin/{name}")
        return str(self.bin)

    def program(self, name: str, body: str = "exit 0") -> None:
        script = (
            f'#!/bin/sh\nROOT="{self.root}"\necho "{name} $*" >> "{self.folder}/calls"\n{body}\n'
        )
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def file(self, path: str, text: str = "") -> Path:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def text(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text()

    @property
    def calls(self) -> list[str]:
        noted = self.folder / "calls"
        return noted.read_text().splitlines() if noted.exists() else []

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "PATH": self.path, "TRIALFLEET_NODE_ROOT": str(self.root), **more}


@dataclass
class ImdsStandIn:
    """A stand-in for an instance's metadata service; `expired` refuses the token once.

    `troubles` come first, one for each request: a status, HANG_UP in the middle of the answer, or
    SILENCE for SILENT_SECONDS.
    """

    paths: dict[str, str] = field(default_factory=lambda: dict(INSTANCE))
    expired: int = 0
    tokens: int = 0
    troubles: list[int] = field(default_factory=list)
    address: str = ""


class _Imds(BaseHTTPRequestHandler):
    stand_in: ImdsStandIn

    def do_PUT(self) -> None:
        if self.troubled():
            return
        self.stand_in.tokens += 1
        wanted = self.path == "/latest/api/token"
        lives = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        self.answer(200 if wanted and lives else 400, TOKEN)

    def do_GET(self) -> None:
        if self.troubled():
            return
        if self.headers.get("X-aws-ec2-metadata-token") != TOKEN or self.stand_in.expired > 0:
            self.stand_in.expired -= 1
            self.answer(401, "")
            return
        found = self.stand_in.paths.get(self.path.removeprefix("/latest/"))
        self.answer(404 if found is None else 200, found or "")

    def troubled(self) -> bool:
        if not self.stand_in.troubles:
            return False
        status = self.stand_in.troubles.pop(0)
        if status == HANG_UP:
            self.send_response(200)
            self.send_header("Content-Length", "99")
            self.end_headers()
        elif status == SILENCE:
            time.sleep(SILENT_SECONDS)
        else:
            self.answer(status, "")
        return True

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_words: object) -> None:
        pass


@contextmanager
def playing_imds(stand_in: ImdsStandIn) -> Iterator[ImdsStandIn]:
    """Serve version 2 of the metadata service on loopback; a request without a token is refused."""
    with serving(type("Imds", (_Imds,), {"stand_in": stand_in})) as address:
        stand_in.address = address
        yield stand_in


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve on loopback, and give the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
