"""The optimiser's service of a run: one process and one thread, which serves one request at a time.

The service listens on a Unix socket in the run's folder, and holds an exclusive lock on a file
there. So a run has at most one service, and only that service writes the run's trials. The service
may be killed at any moment. The kernel then releases the lock, and the next client starts another
service. `service_client` describes the protocol.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trialfleet.ctrl_c import handle_signals
from trialfleet.errors import OptimizerError, TrialfleetError
from trialfleet.optimizer.service_client import EXIT_NO_SERVICE, LOCK, SOCKET, open_lock
from trialfleet.restart_after_update import Updates
from trialfleet.wall_clock import log_in_utc

LARGEST_HEAD = 7  # digits of a request's length
LARGEST_REQUEST = 1 << 20  # bytes
SILENT_SECONDS = 60.0  # after which a client without a request is disconnected
SEND_SECONDS = 5.0  # after which a client that does not read its reply is disconnected
QUIET_SECONDS = 0.1  # without a request before background work: requests come in bursts
TICK_SECONDS = 1.0  # between checks of the clock, of the socket's file and for signals
BACKLOG = 4096
STDIN = 0  # file descriptor
SINGLE_THREADED = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reply:
    """The message that the client prints, and the exit code with which it ends."""

    exit_code: int
    message: str = ""


class Handler(Protocol):
    """The service's work: it answers requests and jobs' messages, and works in the background.

    One thread calls all methods.
    """

    def handle(self, words: list[str]) -> Reply:
        """Answer a request. A repeated request must have no further effect."""

    def idle(self) -> bool:
        """Do one piece of background work. Return whether more work may be left."""

    def is_due(self) -> bool:
        """Return whether there is background work to do now. Called every second."""

    def is_watching(self) -> bool:
        """Return whether the service must keep running after the idle timeout."""

    @property
    def descriptor(self) -> int | None:
        """A file descriptor, readable when jobs have sent messages. None if jobs send none."""

    def handle_events(self) -> None:
        """Handle the messages of jobs. A repeated message must have no further effect."""


def serve(
    folder: Path,
    make_handler: Callable[[], Handler],
    *,
    idle_timeout: float | None,
    wait_for_lock: bool,
) -> None:
    """Run the service of the run's `folder` until a signal arrives or the service is idle.

    The service is idle after `idle_timeout` seconds without a request or a message of a job. It is
    never idle if `idle_timeout` is None, or while `Handler.is_watching` returns True. The service
    also ends if its socket's file is removed. After an update of trialfleet, the process restarts
    itself.

    Call `serve` from the main thread of a separate process, because `serve` handles SIGTERM and
    SIGINT. It logs to stderr. `make_handler` is called only once the lock is held, because it may
    import slowly. If another service holds the lock, `serve` waits for the lock if `wait_for_lock`
    is true, and otherwise returns at once.

    Raises:
        OSError: the folder is missing or not writable.
        SystemExit: with exit code 75 (try again later), if `make_handler` raised an OptimizerError;
            with exit code 0, if a signal arrived before the service listened.
    """
    log_in_utc("%(process)d %(levelname)s %(message)s")
    # more threads do not help the sampler; set before numpy and torch load
    for name in SINGLE_THREADED:
        os.environ.setdefault(name, "1")
    updates, stop = Updates(), _Stop()
    with handle_signals(stop), _lock_folder(folder, wait=wait_for_lock) as is_locked:
        if not is_locked:
            return
        log.info("starting in %s", folder)
        try:
            handler = make_handler()
        except OptimizerError as error:  # the storage is unreachable: the client may ask later
            log.error("%s", error)  # noqa: TRY400 - the message is enough
            sys.exit(EXIT_NO_SERVICE)
        with _listen(folder) as listener:
            stop.is_graceful = True
            log.info("listening")
            loop = _Loop(folder, handler, stop, updates, idle_timeout)
            asyncio.run(loop.run(listener))


@dataclass
class _Stop:
    requested: bool = False
    is_graceful: bool = False  # before the service listens no request is in progress

    def __call__(self, number: int, frame: object) -> None:
        del frame
        log.info("%s: ending", signal.Signals(number).name)
        self.requested = True
        if not self.is_graceful:
            raise SystemExit(0)


@contextmanager
def _lock_folder(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Lock the lock file in `folder` during the block. Yield whether this process has the lock."""
    with open_lock(folder / LOCK) as file:
        is_handed_over = os.path.sameopenfile(STDIN, file.fileno())
        try:
            fcntl.flock(
                STDIN if is_handed_over else file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)
            )
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def _listen(folder: Path) -> Iterator[socket.socket]:
    """Listen on a socket in `folder` that only this user can connect to."""
    path = folder / SOCKET
    path.unlink(missing_ok=True)  # the lock is held: no other service listens on it
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        # a socket address holds 107 bytes, a path 4095
        listener.bind(f"/proc/self/fd/{descriptor}/{SOCKET}")
    finally:
        os.umask(mask)
        os.close(descriptor)
    with listener:
        listener.settimeout(0)
        listener.listen(BACKLOG)
        ours = _inode(path)
        try:
            yield listener
        finally:
            if ours and _inode(path) == ours:
                path.unlink(missing_ok=True)


def _inode(path: Path) -> int:
    """Return the number of the file, or 0 if it can't be read."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


class _Loop:
    def __init__(
        self,
        folder: Path,
        handler: Handler,
        stop: _Stop,
        updates: Updates,
        idle_timeout: float | None,
    ) -> None:
        self._path = folder / SOCKET
        self._inode = _inode(self._path)
        self._handler = handler
        self._stop = stop
        self._idle_timeout = idle_timeout
        self._may_work = True
        self._last_request = time.monotonic()
        self._heard = asyncio.Event()
        self._requests: deque[tuple[asyncio.StreamWriter, list[str]]] = deque()
        self._updates = updates

    async def run(self, listener: socket.socket) -> None:
        """Serve requests until a signal, the idle timeout, or the loss of the socket's file.

        Clients that get no reply repeat their requests to the next service.
        """
        if (descriptor := self._handler.descriptor) is not None:
            asyncio.get_running_loop().add_reader(descriptor, self._notice)
        # start_unix_server of Python 3.13 looks for the socket's file, whose path has gone
        server = await asyncio.start_server(self._receive, sock=listener, backlog=BACKLOG)
        while await self._turn():
            pass
        server.close()

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._heard.set()
        received, words = b"", None
        try:
            async with asyncio.timeout(SILENT_SECONDS):
                while words is None and (part := await reader.read(1 << 16)):
                    received += part
                    words = _parse(received)
        except OSError:  # the client is silent or gone
            words = None
        except ValueError as error:
            await _send(writer, Reply(1, f"invalid request: {error}"))
            return
        if words is None:
            writer.close()
        else:
            self._requests.append((writer, words))
            self._heard.set()

    async def _turn(self) -> bool:
        """Wait, then serve a request or do background work. Return whether to continue."""
        with suppress(TimeoutError):
            pause = QUIET_SECONDS if self._may_work else TICK_SECONDS
            async with asyncio.timeout(0 if self._requests else pause):
                await self._heard.wait()
        heard = self._heard.is_set()
        self._heard.clear()
        if self._stop.requested:
            return False
        self._updates.follow()  # clients that wait for a reply ask again
        if self._requests:
            await self._serve(*self._requests.popleft())
            self._may_work = True
        elif self._may_work and not heard:
            self._may_work = self._work(self._handler.idle)
        elif not heard:
            self._may_work = self._work(self._handler.is_due)
            if self._is_unused():
                return False
        return self._is_reachable()

    def _is_unused(self) -> bool:
        idle = time.monotonic() - self._last_request
        if self._idle_timeout is None or idle < self._idle_timeout or self._handler.is_watching():
            return False
        log.info("no request for %.0f s: ending", idle)
        return True

    def _is_reachable(self) -> bool:
        if self._inode and _inode(self._path) == self._inode:
            return True
        log.warning("%s is gone: ending, so that a client can start another service", self._path)
        return False

    async def _serve(self, writer: asyncio.StreamWriter, words: list[str]) -> None:
        if _has_left(writer):  # timed out, or killed with its DAGMan: another client will ask
            log.info("%s: ignored, because the client is gone", json.dumps(words))
            writer.close()
            return
        begin = time.monotonic()
        reply = self._reply(words)
        self._last_request = time.monotonic()
        milliseconds = 1000 * (self._last_request - begin)
        log.info("%s: exit code %d, %.0f ms", json.dumps(words), reply.exit_code, milliseconds)
        await _send(writer, reply)

    def _reply(self, words: list[str]) -> Reply:
        try:
            return self._handler.handle(words)
        except TrialfleetError as error:
            log.warning("%s: %s", json.dumps(words), error)
            return Reply(1, str(error))
        except Exception as error:  # an error in one request must not end the service
            log.exception("%s", json.dumps(words))
            return Reply(1, f"{type(error).__name__}: {error} (see the traceback in service.log)")

    def _notice(self) -> None:
        self._last_request, self._may_work = time.monotonic(), True
        self._heard.set()
        try:
            self._handler.handle_events()
        except Exception:  # the work stays due
            log.exception("can't handle a job's message")

    def _work(self, background_work: Callable[[], bool]) -> bool:
        try:
            return background_work()
        except Exception:
            log.exception("the background work failed")
            return False


def _parse(received: bytes) -> list[str] | None:
    """Return a request's words, or None if bytes are missing. ValueError for an invalid request."""
    head, newline, content = received.partition(b"\n")
    if len(head) > LARGEST_HEAD or not (head or b"0").isdigit():
        raise ValueError("the first line must be the length of the content in bytes")
    if not newline:
        return None
    length = int(head or b"0")
    if not 0 < length <= LARGEST_REQUEST or len(content) > length:
        right = f"the length of the content in bytes, from 1 to {LARGEST_REQUEST}"
        raise ValueError(f"the first line must be {right}, not {length}")
    if len(content) < length:
        return None
    if not content.endswith(b"\0"):
        raise ValueError("each word must end with a NUL character")
    return [word.decode("utf-8", "surrogateescape") for word in content[:-1].split(b"\0")]


def _has_left(writer: asyncio.StreamWriter) -> bool:
    """Return whether the client has closed the whole connection, not only its sending side."""
    descriptor = writer.get_extra_info("socket").fileno()
    poll = select.poll()
    if descriptor >= 0:
        poll.register(descriptor, 0)  # a hang-up is always reported
    return descriptor < 0 or bool(poll.poll(0))


async def _send(writer: asyncio.StreamWriter, reply: Reply) -> None:
    message = reply.message.encode("utf-8", "backslashreplace")
    try:
        async with asyncio.timeout(SEND_SECONDS):
            writer.write(b"%d %d\n%b" % (reply.exit_code, len(message), message))
            writer.close()
            await writer.wait_closed()
    except OSError as error:  # the client will ask again
        log.warning("a client did not receive the whole reply: %r", error)
        writer.transport.abort()
