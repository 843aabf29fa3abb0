"""`trialfleet why` for the page: asked once for each subject that stands still, and kept.

An answer takes some tenths of a second, a hundred times what the rest of a page takes. So one
drawing asks for two at most; what has no answer yet gets it at the next.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path

from trialfleet.errors import TrialfleetError
from trialfleet.workflows.views.why.answer import Answer
from trialfleet.workflows.views.why.explain import why

AT_ONCE = 2  # answers that one drawing waits for
MOST = 1_000  # that are kept

Ask = Callable[[str, str], Answer]


class Answers:
    """Keeps answers for as long as what they are about looks the same."""

    def __init__(self, ask: Ask = why) -> None:
        self._ask = ask
        self._known: dict[Hashable, Answer | None] = {}
        self._left = 0

    def begin(self) -> None:
        """Let another drawing ask."""
        self._left = AT_ONCE

    def of(self, word: str, run: Path, seen: Hashable) -> Answer | None:
        """Return why something stands where it stands; None where that isn't known yet.

        Args:
            word: a region, or a node of its graph.
            run: the folder of its run.
            seen: how it looks; another look of it is asked for anew.
        """
        key = (run, word, seen)
        if key not in self._known:
            if not self._left:
                return None
            self._left -= 1
            if len(self._known) >= MOST:
                self._known.clear()
            try:
                self._known[key] = self._ask(word, str(run))
            except (TrialfleetError, OSError):  # what the status says is shown in its place
                self._known[key] = None
        return self._known[key]
