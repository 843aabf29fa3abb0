"""A client of chirp, HTCondor's protocol by which a job reaches files of its access point.

Paths are relative to the job's folder on the access point. HTCondor's own client, `htchirp`, needs
HTCondor's package on the node, and hangs if a connection ends in the middle of a file.
"""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

TIMEOUT = 10.0  # seconds for each exchange; then the access point counts as unreachable
REFUSED = -2  # the answer for a forbidden path, or if the file's folder is gone
MISSING = -3  # the answer for a missing file
EMPTY = -5  # getfile's answer for an empty file, or for a file that is too large for getfile
_LONGEST_ANSWER = 5120  # bytes
BLOCK = 1 << 20  # maximum bytes of file content in one exchange


class TransferError(OSError):
    """A transfer failed outside of this machine, so it may succeed later."""


class ChirpError(TransferError):
    """The access point refused a request. `code` is an error code from chirp_protocol.h."""

    def __init__(self, request: str, code: int) -> None:
        name = request.split(" ", maxsplit=1)[0]
        super().__init__(f"chirp: the request {name} failed with code {code}")
        self.code = code


class Chirp:
    """A connection to the job's access point.

    After a failure, the next request connects again. Only one thread may use the connection.
    Methods raise TransferError if the access point refuses a request or is unreachable. For a
    missing file, `blocks` and `rename` raise TransferError, too.
    """

    def __init__(self, host: str, port: int, cookie: str) -> None:
        self._where, self._cookie = (host, port), cookie
        self._socket: socket.socket | None = None
        self._received = b""

    def close(self) -> None:
        """Close the connection. The next request connects again."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._received = None, b""

    def read(self, remote: str) -> bytes | None:
        """Return the content of a small file on the access point, or None if it is missing."""
        try:
            length = self._ask(f"getfile {_word(remote)}")
        except ChirpError as error:
            if error.code == MISSING:
                return None
            if error.code == EMPTY:
                return b"".join(self.blocks(remote))
            raise
        return b"".join(self._data(length))

    def blocks(self, remote: str) -> Generator[bytes]:
        """Yield the content of a file on the access point, block by block."""
        with self._open_remote(remote, "r") as opened:
            while block := b"".join(self._data(self._ask(f"read {opened} {BLOCK}"))):
                yield block

    @contextmanager
    def open_upload(self, remote: str) -> Iterator[Callable[[bytes], None]]:
        """Let a `with` block write a file on the access point.

        The file is empty at first. The block gets a function that appends bytes. When the block
        ends without an error, the file is synced to disk. Until then it is incomplete, so use a
        temporary name and then `rename`. The block may also use this connection.
        """
        with self._open_remote(remote, "wct") as opened:
            connection = self._socket

            def send(block: bytes) -> None:
                if self._socket is not connection:  # a new connection has other file numbers
                    raise TransferError("chirp: the connection has ended")
                self._write(opened, block)

            yield send
            self._ask(f"fsync {opened}")

    def write(self, remote: str, content: bytes) -> None:
        """Replace a small file on the access point. Readers never see an incomplete file."""
        part = f"{remote}.part"
        with self._open_remote(part, "wct") as opened:
            self._write(opened, content)
        self.rename(part, remote)

    def write_at(self, remote: str, content: bytes, offset: int) -> None:
        """Write `content` into a file on the access point, beginning at the byte `offset`.

        If `offset` is 0, the file's previous content is removed first.
        """
        with self._open_remote(remote, "wc" if offset else "wct") as opened:
            written = self._send("pwrite", opened, content, f" {offset}")
            if written < len(content):  # the access point's disk is full
                raise TransferError(
                    f"chirp: the access point wrote only {written} of {len(content)} bytes of "
                    f"{remote}; its disk may be full"
                )

    def rename(self, remote: str, target: str) -> None:
        """Rename a file on the access point, atomically."""
        self._ask(f"rename {_word(remote)} {_word(target)}")

    def set_attribute(self, name: str, value: str) -> None:
        """Set an attribute of the job to the ClassAd expression `value`.

        HTCondor only allows names that begin with Chirp. The access point gets the value after
        seconds or minutes.
        """
        self._ask(f"set_job_attr_delayed {name} {_word(value)}")

    # Inside

    @contextmanager
    def _open_remote(self, remote: str, flags: str) -> Iterator[int]:
        opened = self._ask(f"open {_word(remote)} {flags} {0o644}")
        try:
            self._line()  # the file's `stat`
            yield opened
            self._ask(f"close {opened}")
        except BaseException:
            self.close()
            raise

    def _write(self, opened: int, block: bytes) -> None:
        while block:
            written = self._send("write", opened, block)
            if not written:
                raise TransferError(
                    f"chirp: the access point wrote none of {len(block)} bytes; its disk may be "
                    "full"
                )
            block = block[written:]

    def _send(self, request: str, opened: int, content: bytes, where: str = "") -> int:
        """Write `content` to the open remote file `opened`, and return the number of bytes written.

        `request` is "write" or "pwrite". For "pwrite", `where` is a space and the offset.
        """
        # A write of 0 bytes would kill HTCondor's starter (the process that runs the job). If the
        # access point refuses `putfile`, the starter loses its connection, so `putfile` isn't used
        # (docs/htcondor-findings.md).
        if not content:
            return 0
        return self._ask(f"{request} {opened} {len(content)}{where}", content)

    def _ask(self, request: str, data: bytes = b"") -> int:
        try:
            with _reaching():
                self._connect().sendall(f"{request}\n".encode() + data)
            code = self._answer()
        except OSError:
            self.close()
            raise
        if code < 0:
            raise ChirpError(request, code)
        return code

    def _connect(self) -> socket.socket:
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
            raise TransferError(f"chirp: invalid answer {line[:80]!r}") from error

    def _line(self) -> bytes:
        while b"\n" not in self._received:
            if len(self._received) > _LONGEST_ANSWER:
                raise TransferError(f"chirp: an answer is longer than {_LONGEST_ANSWER} bytes")
            self._received += self._receive(_LONGEST_ANSWER)
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _data(self, length: int) -> Iterator[bytes]:
        try:
            while length:
                block = self._received[:length] or self._receive(min(length, BLOCK))
                self._received = self._received[len(block) :]
                length -= len(block)
                yield block
        except OSError:
            self.close()
            raise

    def _receive(self, max_bytes: int) -> bytes:
        with _reaching():
            block = self._connect().recv(max_bytes)
        if not block:
            raise TransferError("chirp: the connection has ended")
        return block


@contextmanager
def _reaching() -> Iterator[None]:
    """Raise TransferError in place of a socket's OSError."""
    try:
        yield
    except TransferError:
        raise
    except OSError as error:
        raise TransferError(*error.args) from error


def _word(text: str) -> str:
    for plain, escaped in (("\\", "\\\\"), (" ", "\\ "), ("\n", "\\n"), ("\t", "\\t")):
        text = text.replace(plain, escaped)
    return text
