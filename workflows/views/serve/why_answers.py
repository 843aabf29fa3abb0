"""Answers of `trialfleet why` on the page, for regions and DAG nodes with a problem.

An answer takes tenths of a second, a hundred times as long as the rest of a page. So answers are
cached. Each rendering of a page computes at most `AT_ONCE` new answers, and later renderings
compute the others.
"""

from __future__ import annotations

from collections.abc import Callable

from trialfleet.errors import TrialfleetError
from trialfleet.workflows.views.serve.live_runs import Kept
from trialfleet.workflows.views.why.answer import Answer
from trialfleet.workflows.views.why.explain import explain

AT_ONCE = 2  # answers computed by one rendering


class Answers:
    """The answers that one rendering of a page shows; `run` is the run's folder."""

    def __init__(self, kept: Kept, run: str, ask: Callable[[str, str], Answer] = explain) -> None:
        self._kept, self._run, self._ask, self._left = kept, run, ask, AT_ONCE

    def find(self, word: str, seen: object) -> Answer | None:
        """Return the answer for a region or DAG node.

        The result is None if this rendering has already computed `AT_ONCE` other answers, or if
        computing this answer failed. `seen` is what the page shows of the region or DAG node; when
        `seen` changes, the answer is computed again.
        """
        name = "why", word
        if not self._left and not self._kept.has(name, seen):
            return None
        return self._kept.get(name, seen, lambda: self._ask_once(word))

    def _ask_once(self, word: str) -> Answer | None:
        self._left -= 1
        try:
            return self._ask(word, self._run)
        except (TrialfleetError, OSError):  # the page then shows the status
            return None
