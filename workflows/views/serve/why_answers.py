"""`trialfleet why` for the page: asked once for each subject that stands still, and kept.

An answer takes some tenths of a second, a hundred times what the rest of a page takes. So one
drawing asks for two at most; what has no answer yet gets it at the next.
"""

from __future__ import annotations

from collections.abc import Callable

from trialfleet.errors import TrialfleetError
from trialfleet.workflows.views.serve.live import Kept
from trialfleet.workflows.views.why.answer import Answer
from trialfleet.workflows.views.why.explain import why

AT_ONCE = 2  # answers that one drawing waits for


class Answers:
    """Tells one drawing why something stands where it stands.

    Args:
        kept: what was made of the run so far.
        run: its folder.
    """

    def __init__(self, kept: Kept, run: str, ask: Callable[[str, str], Answer] = why) -> None:
        self._kept, self._run, self._ask, self._left = kept, run, ask, AT_ONCE

    def of(self, word: str, seen: object) -> Answer | None:
        """Return why a region, or a node of its graph, stands; None where that isn't known yet.

        It is asked for anew when what was `seen` of it is another.
        """
        name = "why", word
        if not self._left and not self._kept.has(name, seen):
            return None
        return self._kept.of(name, seen, lambda: self._asked(word))

    def _asked(self, word: str) -> Answer | None:
        self._left -= 1
        try:
            return self._ask(word, self._run)
        except (TrialfleetError, OSError):  # what the status says is shown in its place
            return None
