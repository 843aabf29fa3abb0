"""What a model is told of trials: results, smaller being better; the worst for failed ones."""

from __future__ import annotations

from collections.abc import Sequence

from optuna.trial import FrozenTrial


def losses(trials: Sequence[FrozenTrial], *, maximize: bool) -> list[float]:
    """Return each trial's value, turned round where a large one is good.

    A trial without a value failed: it has the worst of the others, or a model would propose its
    point again.

    Args:
        trials: complete and failed ones, at least one of them complete.
        maximize: whether a large value is good.
    """
    sign = -1.0 if maximize else 1.0
    worst = max(sign * trial.value for trial in trials if trial.value is not None)
    return [worst if trial.value is None else sign * trial.value for trial in trials]
