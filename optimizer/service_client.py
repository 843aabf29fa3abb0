"""The client that sends a request to a run's optimiser service, and starts the service if needed.

    trialfleet.programs ask-service --folder RUN --start PROGRAM [ARGUMENT...] -- WORD...

The client prints the reply's message, and exits with the reply's exit code. Without a reply, there
are two exit codes:

75  in general (EX_TEMPFAIL of sysexits.h: try again later)
1   if the DAGMan that started the client has ended, or if no client has got a reply for ten
    minutes. But if the cause may be temporary, such as a full disk, the exit code remains 75

DAGMan runs the client before and after every job, so the client must start as fast as Python
itself. Therefore it is one file without slow imports: socket, json and contextlib would take 14 ms.

A request is the content's length in bytes, a newline, and the content: each word followed by a NUL.
A reply is the exit code, a space, the message's length in bytes, a newline, and the message. Both
are in UTF-8. If a service dies before its reply is complete, the client repeats the request. A
repeated request has no further effect.

Before a client starts a service, the client locks the file `service.lock`. The service gets the
locked file as its standard input, and so holds the lock until it ends.
"""

from __future__ import annotations

import errno
import os
import sys
from _socket import AF_UNIX, SO_PEERCRED, SOCK_STREAM, SOL_SOCKET  # the C part of socket
from _socket import socket as Socket  # noqa: N812

TYPE_CHECKING = False  # typing and subprocess are slow to import
if TYPE_CHECKING:
    import subprocess
    from typing import BinaryIO

SOCKET = "service.sock"
LOCK = "service.lock"  # held by the service, and by the client that starts it
LOG = "service.log"
TROUBLE = "service.trouble.json"  # why the service does not answer; absent while it answers
POLL_SECONDS = 0.02
START_SECONDS = 120.0  # until a started service listens, its imports included
SLOW_START_SECONDS = 60.0  # until a note in the run's folder says that it hasn't started
RESTART_SECONDS = 1.0  # before another start, if the last service ended without listening
FAILED_STARTS = 3
REPLY_SECONDS = 600.0
NOTE_SECONDS = 20.0  # without an answer before a client records the silence
ATTEMPTS = 5
PATIENCE_SECONDS = 600.0  # of retries while the service can't be started
EXIT_NO_SERVICE = 75
FULL = {errno.ENOSPC, errno.EDQUOT}  # the disk is full: may be temporary
DYING_SECONDS = 0.1  # a killed process may still accept connections for a moment
LOG_TAIL_BYTES = 2000
USAGE = "usage: ask-service --folder RUN --start PROGRAM [ARGUMENT...] -- WORD..."


class ServiceError(Exception):
    """No service could be started, or none replied. `for_now` is True if this may be temporary."""

    def __init__(self, message: str, *, for_now: bool = False) -> None:
        super().__init__(message)
        self.for_now = for_now


class DagmanEndedError(ServiceError):
    """The DAGMan that started this client has ended, so the client must send no request."""


def request(folder: str, words: list[str], start: list[str]) -> tuple[int, str]:
    """Send `words` to the service of the run's `folder`. Return the reply's exit code and message.

    If no service is running, the command `start` starts one in the background. ServiceError if
    there is no reply. DagmanEndedError if the DAGMan that started this client has ended.
    """
    import time

    parent = os.getppid()
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(DYING_SECONDS * attempt)
        connection = _connect(folder) or _start_and_connect(folder, start)
        try:
            if os.getppid() != parent:  # the next DAGMan sends its own requests and may be ahead
                raise DagmanEndedError("the DAGMan that started this script has ended")
            reply = _exchange_messages(connection, words, folder)
        finally:
            connection.close()
        if reply is not None:
            return reply
    raise ServiceError(
        f"the optimiser's service died {ATTEMPTS} times during a request{_log_tail(folder)}"
    )


def is_served(folder: str) -> bool:
    """Return whether an optimiser's service listens in the run's folder `folder`.

    If permissions prevent the check, the result is True. OSError if the folder can't be opened for
    another reason, for example because it was removed.
    """
    try:
        connection = _connect(folder)
    except ServiceError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and not isinstance(cause, PermissionError | BlockingIOError):
            raise cause from None
        return True  # a full queue: the service is frozen
    if connection:
        connection.close()
    return connection is not None


def _connect(folder: str) -> Socket | None:
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        raise ServiceError(f"can't open the run's folder {folder}: {error.strerror}") from error
    connection = Socket(AF_UNIX, SOCK_STREAM)
    try:
        connection.settimeout(0.0)  # else it would wait while a frozen service's queue is full
        # a socket address holds 107 bytes, a path 4095
        connection.connect(f"/proc/self/fd/{descriptor}/{SOCKET}")
        connection.settimeout(None)
    except BlockingIOError as error:
        connection.close()
        message = "the optimiser's service accepts no connections"  # frozen, and its queue is full
        raise ServiceError(message, for_now=True) from error
    except (FileNotFoundError, ConnectionError):
        connection.close()
        return None
    except OSError as error:
        connection.close()
        where = os.path.join(folder, SOCKET)  # noqa: PTH118
        message = f"can't connect to the optimiser's service at {where}: {error.strerror}"
        raise ServiceError(message) from error
    finally:
        os.close(descriptor)
    return connection


def _exchange_messages(connection: Socket, words: list[str], folder: str) -> tuple[int, str] | None:
    """Send `words` and return the reply, or None if the service ended before a complete reply."""
    content = b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)
    received = b""
    try:
        connection.sendall(b"%d\n%b" % (len(content), content))
        while part := _receive(connection, words, folder):
            received += part
    except OSError:
        return None
    head, _, message = received.partition(b"\n")
    match head.split():
        case [code, length] if int(length) == len(message):
            return int(code), message.decode("utf-8", "replace")
    return None


def _receive(connection: Socket, words: list[str], folder: str) -> bytes:
    """Return the next bytes of a reply, or b"" at its end.

    If the service neither answers nor logs for NOTE_SECONDS, the client records this in `folder`.
    ServiceError after REPLY_SECONDS without a byte.
    """
    connection.settimeout(NOTE_SECONDS)
    silent = 0.0
    while True:
        try:
            return connection.recv(1 << 16)
        except TimeoutError:
            silent += NOTE_SECONDS
        who = f"the optimiser's service (process {_peer_process(connection)})"
        trouble = f"{who} has not answered the request `{' '.join(words[:3])}` for {silent:g} s"
        if silent >= REPLY_SECONDS:
            raise ServiceError(trouble, for_now=True)
        if not _logs(folder):
            _note(folder, trouble, waiting=True)


def _peer_process(connection: Socket) -> int:
    size = 4
    found = connection.getsockopt(SOL_SOCKET, SO_PEERCRED, 3 * size)
    return int.from_bytes(found[:size], sys.byteorder)


def _logs(folder: str) -> bool:
    """Return whether the service wrote to its log in the last NOTE_SECONDS."""
    import time

    try:
        last = os.stat(os.path.join(folder, LOG)).st_mtime  # noqa: PTH116, PTH118
    except OSError:
        return False
    return time.time() - last < NOTE_SECONDS


def _note(folder: str, error: str, *, waiting: bool = False) -> float:
    """Record why no service answers. Return for how many seconds none has answered.

    With `waiting`, this client still waits for an answer. `trialfleet status` ignores a record of a
    waiting client once the service writes to its log. The result is infinite if the record can't
    be written.
    """
    import json
    import time

    path, now = os.path.join(folder, TROUBLE), time.time()  # noqa: PTH118
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            since = min(float(json.load(file)["since"]), now)
    except (OSError, ValueError, TypeError, KeyError):
        since = now
    noted = {"error": error, "waiting": waiting, "time": now, "since": since}
    try:
        with open(temporary, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(noted, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)  # noqa: PTH105
    except OSError:
        _remove(temporary)
        return float("inf")
    return now - since


def _remove(path: str) -> None:
    try:
        os.unlink(path)  # noqa: PTH108
    except OSError:  # contextlib is slow to import
        return


def _start_and_connect(folder: str, start: list[str]) -> Socket:
    import time

    begin = time.monotonic()
    deadline, next_note = begin + START_SECONDS, begin + SLOW_START_SECONDS
    next_start, failed, service = 0.0, 0, None
    while time.monotonic() < deadline:
        if time.monotonic() >= next_note:
            next_note = deadline
            waited = time.monotonic() - begin
            _note(
                folder, f"the optimiser's service has not started for {waited:.0f} s", waiting=True
            )
        if service is None and time.monotonic() >= next_start:
            service = _start(folder, start)
        elif service is not None and service.poll() is not None:
            if code := service.returncode:  # 0: a signal stopped it before it listened
                failed += 1
                message = f"the optimiser's service ended with exit code {code}{_log_tail(folder)}"
                _note(folder, message)
                if failed == FAILED_STARTS:
                    raise ServiceError(message, for_now=code == EXIT_NO_SERVICE)
            service, next_start = None, time.monotonic() + RESTART_SECONDS
        connection = _connect(folder)
        if connection is not None:
            return connection
        time.sleep(POLL_SECONDS)
    raise ServiceError(
        f"the optimiser's service did not start within {START_SECONDS:g} s{_log_tail(folder)}",
        for_now=True,
    )


def _start(folder: str, command: list[str]) -> subprocess.Popen[bytes] | None:
    """Start the service in a new session. Return None if another process holds the lock.

    The service appends its output to the file LOG. ServiceError if the service can't be started.
    """
    import fcntl

    try:
        with (
            open_lock(os.path.join(folder, LOCK)) as lock,  # noqa: PTH118
            open(os.path.join(folder, LOG), "ab") as log,  # noqa: PTH118, PTH123
        ):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            import subprocess  # slow to import; only the client that holds the lock needs it

            return subprocess.Popen(
                command, stdin=lock, stdout=log, stderr=log, start_new_session=True
            )
    except BlockingIOError:
        return None
    except OSError as error:
        message = f"{error.filename or command[0]}: {error.strerror}"
        message = f"can't start the optimiser's service, because of {message}"
        raise ServiceError(message, for_now=error.errno in FULL) from error


# a copy of `files.open_lock`, because `files` imports slowly
def open_lock(path: str | os.PathLike[str]) -> BinaryIO:
    """Open or create a lock file that only its owner can read."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "r+b")


def _log_tail(folder: str) -> str:
    path = os.path.join(folder, LOG)  # noqa: PTH118
    try:
        with open(path, "rb") as log:  # noqa: PTH123
            log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_TAIL_BYTES))
            return f"; the end of {path}:\n{log.read().decode(errors='replace').rstrip()}"
    except OSError:
        return ""


# argparse imports slowly
def _parse(arguments: list[str]) -> tuple[str, list[str], list[str]]:
    """Return the folder, the start command and the words of the request."""
    end = arguments.index("--")
    match arguments[:end]:
        case ["--folder", folder, "--start", _, *_] if arguments[end + 1 :]:
            return folder, arguments[3:end], arguments[end + 1 :]
    raise ValueError(USAGE)


def main() -> int:
    """Run the command line and return the exit code."""
    try:
        folder, start, words = _parse(sys.argv[1:])
    except ValueError:
        sys.stderr.write(USAGE + "\n")
        return 2
    try:
        code, message = request(folder, words, start)
    except ServiceError as error:
        is_asked = not isinstance(error, DagmanEndedError)
        may_pass = is_asked and _note(folder, str(error)) < PATIENCE_SECONDS
        code, message = EXIT_NO_SERVICE if error.for_now or may_pass else 1, f"trialfleet: {error}"
    else:
        _remove(os.path.join(folder, TROUBLE))  # noqa: PTH118
    if message:  # UTF-8 in every locale: DAGMan may run scripts in any
        (sys.stderr if code else sys.stdout).buffer.write(
            message.encode("utf-8", "backslashreplace") + b"\n"
        )
    return code
