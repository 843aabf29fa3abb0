"""Ctrl-C: the command prints what happens to the run and ends at once, with exit code 130.

The handler raises no KeyboardInterrupt, because that could come between two imports, in a
destructor (which ignores it), or in a callback of HTCondor's C++ bindings (which then crash). The
process ends without the interpreter's shutdown, because threads may still run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 130  # as a shell reports a program that Ctrl-C ended
SHOW_CURSOR = b"\x1b[?25h"  # a live table hides it


_words = ""
_pressed: threading.Event | None = None


def answer_from_the_start() -> None:
    """Let Ctrl-C end this process from now on, unless the parent process made it ignore SIGINT."""
    submits = sys.argv[1:2] and sys.argv[1] in {"run", "submit", "resume"}
    set_message("nothing was submitted" if submits else "interrupted")
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _exit)


def set_message(words: str) -> None:
    """Set the message that Ctrl-C prints."""
    global _words  # noqa: PLW0603 - a process has one Ctrl-C
    _words = words


def _exit(_number: int, _frame: FrameType | None) -> None:
    """End the process by system calls alone, because Ctrl-C may have interrupted a print."""
    text = f"\n{_words}\n".encode()
    try:
        os.write(1, SHOW_CURSOR + text if os.isatty(1) else text)
    finally:
        os._exit(EXIT_CODE)


def stop_if_pressed() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed in the current `delay_ctrl_c` block.

    Long steps in the block call this. The delayed Ctrl-C is still handled when the block ends.
    """
    if _pressed and (_pressed.is_set() or signal.SIGINT in signal.sigpending()):
        raise KeyboardInterrupt


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Let SIGTERM and SIGINT call `handler` during the block.

    Outside the main thread, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {each: signal.signal(each, handler) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler_before in previous.items():
            signal.signal(number, handler_before)


@contextmanager
def delay_ctrl_c() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block.

    HTCondor's bindings crash if a Python function raises while they call it. A call that a signal
    interrupts may submit a job and still fail.
    """
    if threading.current_thread() is not threading.main_thread():  # only that one handles signals
        yield
        return
    global _pressed  # noqa: PLW0603 - as there is one Ctrl-C
    pressed = threading.Event()  # another thread may take the signal, which this thread blocks
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
