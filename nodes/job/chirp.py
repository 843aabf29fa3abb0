"""What a job says to its access point while it runs: HTCondor's chirp, by the standard library.

Paths are relative to the job's folder on the access point. (htcondor2.htchirp needs HTCondor's
package on the node, and never ends where a connection does in the midst of a file.)

    with closing(Channel.take().chirp()) as chirp:
        text = chirp.read("roster.json")
        chirp.write("step", b"3")
        chirp.put(Path("state.tar"), "state.part")
        chirp.rename("state.part", "state.tar")
"""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

TIMEOUT = 10.0  # seconds for each exchange; one with an access point that is away takes as long
REFUSED = -2  # the answer where the job may not go, and where a file's folder is gone
MISSING = -3  # the answer for a file that isn't there
EMPTY = -5  # what getfile answers for an empty file, and for one that is too large for it
_LONGEST_ANSWER = 5120  # bytes
BLOCK = 1 << 20  # bytes of an exchange, at most


class ChirpError(OSError):
    """The access point refuses, or does not answer as it should.

    Attributes:
        code: its answer, below 0; the protocol's own errors are listed in HTCondor's
            chirp_protocol.h.
    """

    def __init__(self, request: str, code: int) -> None:
        super().__init__(f"chirp: {request.split(' ', maxsplit=1)[0]} was answered {code}")
        self.code = code


class Chirp:
    """A connection to the job's access point, made anew after each failure. For one thread.

    What can't be done (a file is missing, the access point refuses or is away) raises OSError.

    Args:
        host, port: where the job's own starter listens.
        cookie: proves that this is the job.
    """

    def __init__(self, host: str, port: int, cookie: str) -> None:
        self._where, self._cookie = (host, port), cookie
        self._socket: socket.socket | None = None
        self._received = b""

    def close(self) -> None:
        """Drop the connection; the next exchange makes another."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._received = None, b""

    def read(self, remote: str) -> bytes | None:
        """Return what a small file on the access point holds; None where it is missing."""
        try:
            length = self._ask(f"getfile {_word(remote)}")
        except ChirpError as error:
            if error.code == MISSING:
                return None
            if error.code == EMPTY:
                return b"".join(self.blocks(remote))
            raise
        return b"".join(self._data(length))

    def fetch(self, remote: str, local: Path, meanwhile: Callable[[], None] | None = None) -> None:
        """Copy a file of the access point into this machine's `local`; `meanwhile` as for `put`."""
        with local.open("wb") as file:
            for block in self.blocks(remote):
                file.write(block)
                if meanwhile:
                    meanwhile()

    def blocks(self, remote: str) -> Generator[bytes]:
        """Yield what a file on the access point holds, block by block."""
        with self._opened(remote, "r") as opened:
            while block := b"".join(self._data(self._ask(f"read {opened} {BLOCK}"))):
                yield block

    def put(self, local: Path, remote: str, meanwhile: Callable[[], None] | None = None) -> None:
        """Copy a file of this machine to the access point, over one of that name.

        It is there in part while this goes on: put it under another name and `rename` it.
        `meanwhile` is called between blocks, and may use this connection.
        """
        with self.sending(remote) as send, local.open("rb") as file:
            while block := file.read(BLOCK):
                send(block)
                if meanwhile:
                    meanwhile()

    @contextmanager
    def sending(self, remote: str) -> Iterator[Callable[[bytes], None]]:
        """Give what adds to a file on the access point, made anew; on its disk after the block."""
        with self._opened(remote, "wct") as opened:
            connection = self._socket

            def send(block: bytes) -> None:
                if self._socket is not connection:  # the number is another's in the next one
                    raise OSError("chirp: the connection has ended")
                self._write(opened, block)

            yield send
            self._ask(f"fsync {opened}")

    def write(self, remote: str, content: bytes) -> None:
        """Make a small file on the access point hold `content`, whoever reads it meanwhile."""
        part = f"{remote}.part"
        with self._opened(part, "wct") as opened:
            self._write(opened, content)
        self.rename(part, remote)

    def write_at(self, remote: str, content: bytes, offset: int) -> None:
        """Write into a file on the access point; at offset 0, in place of all that it held."""
        with self._opened(remote, "wc" if offset else "wct") as opened:
            written = self._send("pwrite", opened, content, f" {offset}")
            if written < len(content):  # its disk is full
                raise OSError(f"{remote}: {written} of {len(content)} bytes were written")

    def rename(self, remote: str, to: str) -> None:
        """Give a file on the access point another name, in one step."""
        self._ask(f"rename {_word(remote)} {_word(to)}")

    def set_attribute(self, name: str, value: str) -> None:
        """Give the job's ad, within seconds, an attribute Chirp…: an expression without blanks."""
        self._ask(f"set_job_attr_delayed {name} {_word(value)}")

    # Inside

    @contextmanager
    def _opened(self, remote: str, flags: str) -> Iterator[int]:
        """Open a file there; a failure drops the connection, and with it the open file."""
        opened = self._ask(f"open {_word(remote)} {flags} {0o644}")
        try:
            self._line()  # what `stat` would say of it
            yield opened
            self._ask(f"close {opened}")
        except BaseException:
            self.close()
            raise

    def _write(self, opened: int, block: bytes) -> None:
        """Write all of a block: one exchange, so that the starter serves others in between."""
        while block:
            written = self._send("write", opened, block)
            if not written:
                raise OSError(f"chirp: none of {len(block)} bytes were written")
            block = block[written:]

    def _send(self, request: str, opened: int, content: bytes, where: str = "") -> int:
        """Write to an open file there; return the number of bytes that were written.

        Nothing is sent where there is nothing to write: a write of 0 bytes kills the starter. A
        refused `putfile` breaks its connection to the shadow, so no request of ours is one.
        (docs/htcondor-findings.md)
        """
        if not content:
            return 0
        return self._ask(f"{request} {opened} {len(content)}{where}", content)

    def _ask(self, request: str, data: bytes = b"") -> int:
        """Send a request, and what belongs to it; return its answer, a number from 0."""
        try:
            self._connected().sendall(f"{request}\n".encode() + data)
            code = self._answer()
        except OSError:
            self.close()
            raise
        if code < 0:
            raise ChirpError(request, code)
        return code

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection(self._where, timeout=TIMEOUT)
            try:
                self._ask(f"cookie {self._cookie}")
            except OSError:
                self.close()
                raise
        return self._socket

    def _answer(self) -> int:
        line = self._line()
        try:
            return int(line)
        except ValueError as error:
            raise OSError(f"chirp: {line[:80]!r} is no answer") from error

    def _line(self) -> bytes:
        while b"\n" not in self._received:
            if len(self._received) > _LONGEST_ANSWER:
                raise OSError("chirp: an answer without an end")
            self._received += self._receive(_LONGEST_ANSWER)
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _data(self, length: int) -> Iterator[bytes]:
        """What follows an answer, block by block; a failure closes the connection."""
        try:
            while length:
                block = self._received[:length] or self._receive(min(length, BLOCK))
                self._received = self._received[len(block) :]
                length -= len(block)
                yield block
        except OSError:
            self.close()
            raise

    def _receive(self, most: int) -> bytes:
        block = self._connected().recv(most)
        if not block:
            raise OSError("chirp: the connection has ended")
        return block


def _word(text: str) -> str:
    """`text` as one word of a request."""
    for plain, escaped in (("\\", "\\\\"), (" ", "\\ "), ("\n", "\\n"), ("\t", "\\t")):
        text = text.replace(plain, escaped)
    return text
