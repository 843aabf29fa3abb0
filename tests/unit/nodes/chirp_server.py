"""Answers of a job's starter and shadow to chirp, from a folder in place of an access point."""

from __future__ import annotations

import socketserver
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

COOKIE = "open-sesame"
MISSING, NOT_AUTHENTICATED, EMPTY, NO_SPACE, REFUSED = -3, -1, -5, -6, -17


class ChirpServer(socketserver.ThreadingTCPServer):
    """Serves a folder on a free port of this machine.

    Attributes:
        folder: what paths are relative to.
        is_away: no request is answered.
        is_full: writes are refused.
        room: number of bytes that one write takes.
        kills: requests of which HTCondor's starter would have died.
        refused: the name of requests that are answered with an error.
        attributes: of the job's ad, as it set them.
        on_rename: is called with the new name of a file that was renamed.
        address: host, port and cookie.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.folder, self.is_full, self.is_away = folder, False, False
        self.room, self.refused, self.kills = 1 << 30, "", 0
        self.on_rename: Callable[[str], None] = lambda _name: None
        self.attributes: dict[str, str] = {}
        self.address = ("127.0.0.1", int(self.server_address[1]), COOKIE)

    def write_config(self, sandbox: Path) -> Path:
        """Write the file that $_CONDOR_CHIRP_CONFIG is to name, as a starter does."""
        config = sandbox / ".chirp.config"
        config.write_text(" ".join(map(str, self.address)) + "\n")
        return config


class _Connection(socketserver.StreamRequestHandler):
    server: ChirpServer

    def handle(self) -> None:
        self._files: dict[int, IO[bytes]] = {}
        self._is_known = False
        while line := self.rfile.readline():
            name, *words = (part.replace("\0", " ") for part in _split(line.decode()))
            try:
                self._answer(name, words)
            except FileNotFoundError:
                self._say(MISSING)
            except ConnectionAbortedError:
                break
        for file in self._files.values():
            file.close()

    def _say(self, number: int, data: bytes = b"") -> None:
        self.wfile.write(f"{number}\n".encode() + data)

    def _answer(self, name: str, words: list[str]) -> Any:
        if self.server.is_away:
            raise ConnectionAbortedError
        if name in {"write", "pwrite"} and words[1] == "0":
            self.server.kills += 1
            raise ConnectionAbortedError("HTCondor's starter dies of a write of 0 bytes")
        if name == "cookie":
            self._is_known = words == [COOKIE]
        if not self._is_known:
            return self._say(NOT_AUTHENTICATED)
        if name == self.server.refused:
            if name == "pwrite":
                self.rfile.read(int(words[1]))
            return self._say(REFUSED)
        return getattr(self, f"_{name}")(*words)

    def _cookie(self, _cookie: str) -> None:
        self._say(0)

    def _getfile(self, path: str) -> None:
        content = (self.server.folder / path).read_bytes()
        self._say(len(content) or EMPTY, content)

    def _open(self, path: str, flags: str, _mode: str) -> None:
        file = self.server.folder / path
        if "c" in flags:
            file.touch()
        mode = "wb" if "t" in flags else "r+b" if "w" in flags else "rb"
        number = max(self._files, default=2) + 1  # a heartbeat may be written during an upload
        self._files[number] = file.open(mode)
        self._say(number, b"1 2 3 4 5 6 7 8 9 10 11 12 13\n")

    def _read(self, opened: str, length: str) -> None:
        content = self._files[int(opened)].read(int(length))
        self._say(len(content), content)

    def _write(self, opened: str, length: str) -> None:
        content = self.rfile.read(int(length))
        if self.server.is_full:
            return self._say(NO_SPACE)
        return self._say(self._files[int(opened)].write(content))

    def _pwrite(self, opened: str, length: str, offset: str) -> None:
        content = self.rfile.read(int(length))[: self.server.room]
        self._files[int(opened)].seek(int(offset))
        self._say(self._files[int(opened)].write(content))

    def _fsync(self, _opened: str) -> None:
        self._say(0)

    def _close(self, opened: str) -> None:
        self._files.pop(int(opened)).close()
        self._say(0)

    def _set_job_attr_delayed(self, name: str, value: str) -> None:
        self.server.attributes[name] = value
        self._say(0)

    def _rename(self, path: str, to: str) -> None:
        (self.server.folder / path).replace(self.server.folder / to)
        self.server.on_rename(to)
        self._say(0)


def _split(line: str) -> list[str]:
    return line.rstrip("\n").replace("\\ ", "\0").split(" ")
