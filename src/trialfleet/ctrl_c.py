"""Ctrl-C: the command says what becomes of the run and ends at once, with exit code 130.

Nothing is raised. A KeyboardInterrupt comes up in whatever Python code runs next: between two
imports, in a destructor that swallows it, in what HTCondor's C++ bindings call back. Nor does the
interpreter shut down beneath threads that still run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 130  # what shells give a program that Ctrl-C ended
SHOW_CURSOR = b"\x1b[?25h"  # a live table hides it


_words = ""
_pressed: threading.Event | None = None


def answer_from_the_start() -> None:
    """From now on, end at Ctrl-C; it stays ignored if whoever started this process said so."""
    submits = sys.argv[1:2] and sys.argv[1] in {"run", "submit", "resume"}
    say("nothing was submitted" if submits else "interrupted")
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)


def say(words: str) -> None:
    """Set what is said at Ctrl-C."""
    global _words  # noqa: PLW0603 - a process has one Ctrl-C
    _words = words


def _leave(_number: int, _frame: FrameType | None) -> None:
    """End the process; by system calls alone, for this may be the middle of a print."""
    text = f"\n{_words}\n".encode()
    try:
        os.write(1, SHOW_CURSOR + text if os.isatty(1) else text)
    finally:
        os._exit(EXIT_CODE)


def stop_if_pressed() -> None:
    """End a postponed step that takes long, and leaves nothing when it is cut, at Ctrl-C.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed, and is answered when the postponing block ends.
    """
    if _pressed and (_pressed.is_set() or signal.SIGINT in signal.sigpending()):
        raise KeyboardInterrupt


@contextmanager
def taken_by(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Have SIGTERM and SIGINT call a handler in the block, where this thread may take signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {
        number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler_before in previous.items():
            signal.signal(number, handler_before)


@contextmanager
def postponed() -> Iterator[None]:
    """Answer Ctrl-C after this block, whoever handles it: a step that must not be cut.

    A call of HTCondor's bindings is one: they crash when Python code that they call raises, and
    fail, with the job submitted or not, when a signal cuts off what they wait for.
    """
    if threading.current_thread() is not threading.main_thread():  # no signal is handled there
        yield
        return
    global _pressed  # noqa: PLW0603 - as there is one Ctrl-C
    pressed = threading.Event()  # where another thread took the signal, which this one blocks
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    previous = signal.signal(signal.SIGINT, lambda *_: pressed.set())
    _pressed = None if previous is signal.SIG_IGN else pressed
    try:
        yield
    finally:
        _pressed = None
        signal.signal(signal.SIGINT, previous)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if pressed.is_set():
            signal.raise_signal(signal.SIGINT)
