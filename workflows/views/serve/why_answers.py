"""The answers of `trialfleet why` for the page, computed once for each stalled subject.

An answer takes tenths of a second, a hundred times as long as the rest of a page. So one rendering
computes at most two answers; the next renderings compute the others.
"""

from __future__ import annotations

from collections.abc import Callable

from trialfleet.errors import TrialfleetError
from trialfleet.workflows.views.serve.live import Kept
from trialfleet.workflows.views.why.answer import Answer
from trialfleet.workflows.views.why.explain import why

AT_ONCE = 2  # answers computed by one rendering


class Answers:
    """The answers of `trialfleet why` for one rendering.

    Args:
        kept: the cache of the run.
        run: the run's folder.
        ask: the function that computes an answer.
    """

    def __init__(self, kept: Kept, run: str, ask: Callable[[str, str], Answer] = why) -> None:
        self._kept, self._run, self._ask, self._left = kept, run, ask, AT_ONCE

    def answer_to(self, word: str, seen: object) -> Answer | None:
        """Return the reason for a region's or DAG node's state; None if it is not computed yet.

        The reason is computed again when `seen`, the visible state of the subject, changes.
        """
        name = "why", word
        if not self._left and not self._kept.has(name, seen):
            return None
        return self._kept.get(name, seen, lambda: self._asked(word))

    def _asked(self, word: str) -> Answer | None:
        self._left -= 1
        try:
            return self._ask(word, self._run)
        except (TrialfleetError, OSError):  # the page then shows the status
            return None
