"""The output of a trial that `trialfleet logs` shows, with new lines while the trial runs.

While the trial runs, the command shows the output that the agent on the node has sent so far. After
the trial's end, it shows the whole output.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trialfleet import untrusted_files
from trialfleet.workflows.facts.jobs.job_log import is_executing
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.rules.states import TrialState

Say = Callable[[str], None]
_TAIL = 1 << 18  # bytes in which the last lines are looked for
_POLL, _LOOK = 0.5, 5.0  # seconds between two reads of new output, and of the trial's state
NOTHING = "has printed nothing"
_WAITS = {None, TrialState.QUEUED, TrialState.HELD, TrialState.UNKNOWN}


@dataclass
class _Stream:
    """A trial's standard output or standard error, and how much of it was shown.

    Attributes:
        live: the file with the output so far. Its first line, `head`, names the trial.
        kept: the file with the whole output, which exists once the trial has ended.
        lines: how many of the last lines are shown at first.
    """

    live: Path
    kept: Path
    head: bytes
    lines: int
    say: Say
    shown: int | None = None
    _was_kept: bool = False
    _half: bytes = field(default=b"", repr=False)

    def show(self, *, is_kept: bool) -> None:
        """Show new lines of the file `kept` if `is_kept` is true, otherwise of the file `live`.

        A last line without a line break is shown only if `is_kept` is true.
        """
        path, begin = (self.kept, 0) if is_kept else (self.live, len(self.head))
        try:
            with untrusted_files.open_regular(path) as file:
                if not is_kept and file.read(begin) != self.head:  # of another trial of the job
                    return
                size = os.fstat(file.fileno()).st_size - begin
                if (self._was_kept != is_kept and self._was_kept) or size < (self.shown or 0):
                    self.shown, self._half = 0, b""  # another attempt
                start = max(0, size - _TAIL) if self.shown is None else self.shown
                file.seek(begin + start)
                new = file.read(size - start)
        except OSError:
            return
        if self.shown is None:
            new = b"".join(new.splitlines(keepends=True)[-self.lines :])
        self.shown, self._was_kept = size, is_kept
        *whole, self._half = (self._half + new).replace(b"\r", b"\n").split(b"\n")
        if is_kept and self._half:
            whole, self._half = [*whole, self._half], b""
        for line in whole:
            self.say(line.decode(errors="replace"))


class TrialOutput:
    """Prints a trial's output.

    Args:
        lines: how many of the last lines of each stream are shown at first.
        place: the folder of the trial, the full training or the gate.
        state: a function that returns the trial's state, or None if the trial has not started. For
            a full training or a gate, the function always returns None.
        says: two functions that print a line, of standard output and of standard error.
    """

    def __init__(
        self, place: TrialFolder, lines: int, state: Callable[[], TrialState | None], *says: Say
    ) -> None:
        self._place, self._state = place, state
        files = (place.printed_out, place.out), (place.printed_err, place.err)
        self._streams: Sequence[_Stream] = [
            _Stream(live, kept, place.printed_head, lines, say)
            for (live, kept), say in zip(files, says, strict=True)
        ]

    def show(self) -> str:
        """Show the last lines of the output.

        Return a message if there is no output, otherwise "".
        """
        state = self._state()
        is_over = self._has_ended() or (state is not None and state.is_finished)
        self._show(is_kept=self._has_ended())
        if is_over:
            self._show_rest()
        if self._has_shown():
            return ""
        if is_over:
            return NOTHING
        return "waits" if self._waits(state) else "has printed nothing yet"

    def follow(self, note: Say) -> None:
        """Show output until the trial or its run ends.

        `note` prints messages about the trial.
        """
        looked, said, state = -_LOOK, "", None
        while True:
            is_kept, now = self._has_ended(), time.monotonic()
            if is_kept or now - looked >= _LOOK:
                state, looked = self._state(), now
            self._show(is_kept=is_kept)
            if state is TrialState.INTERRUPTED:
                note("its run has ended")
                return
            if is_kept if state is None else state.is_finished:
                self._show_rest()
                if not self._has_shown():
                    note(NOTHING)
                return
            words = "waits" if self._waits(state) and not is_kept else ""
            if words and words != said and not self._has_shown():
                note(words)
            said = words
            time.sleep(_POLL if not is_kept else _LOOK)

    def _show_rest(self) -> None:
        """Show the rest of an ended trial's output.

        If the trial's files did not arrive from the node, the trial's folder may have the output
        of an earlier attempt. That output is shown only if no other output was shown.
        """
        if self._has_ended() or not self._has_shown():
            self._show(is_kept=True)

    def _waits(self, state: TrialState | None) -> bool:
        return state in _WAITS and not (state is None and is_executing(self._place))

    def _has_shown(self) -> bool:
        return any(stream.shown for stream in self._streams)

    def _show(self, *, is_kept: bool) -> None:
        for stream in self._streams:
            stream.show(is_kept=is_kept)

    def _has_ended(self) -> bool:
        return os.path.lexists(self._place.ended)
