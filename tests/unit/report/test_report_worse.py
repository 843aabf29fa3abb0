"""What a report says can be done about a published model that is worse than the default one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.report.report_studies import DEFAULTS, Fleet, only, trial

PUBLISHED = Path("/models/s/A/r2")


@pytest.mark.parametrize(
    ("facts", "step", "command"),
    [
        ({}, None, None),
        ({"published": PUBLISHED}, None, None),  # moved away since
        (
            {"published": PUBLISHED, "in_force": PUBLISHED, "previous": Path("/models/s/A/r1")},
            "Its model is the region's latest. To go back to run r1's:",
            "trialfleet promote /models/s/A/r1",
        ),
        (
            {"published": PUBLISHED, "in_force": PUBLISHED},
            "To publish a model of the default settings, run the study with budget: {trials: 1}",
            None,
        ),
        (
            {"published": PUBLISHED, "in_force": Path("/models/s/A/r3")},
            "The region's latest model is not this one but run r3's.",
            None,
        ),
    ],
)
def test_the_next_step_on_a_worse_model_is_what_can_be_done_about_it(
    fleet: Fleet, facts: dict[str, Any], step: str | None, command: str | None
) -> None:
    metrics = [{"test": 0.71}, {"test": 0.7}]
    trials = [
        trial(DEFAULTS, value, at=at, baseline=at == 0, metrics=metrics[at])
        for at, value in enumerate([0.5, 0.6])
    ]
    region = only(fleet.report(fleet.region("A", trials, **facts)))
    assert (step or "") in (region.next_step or "")
    assert (region.next_step is None, region.next_command) == (step is None, command)
    better = only(fleet.report(fleet.region("A", trials[:1], **facts)))
    assert (better.next_step, better.next_command) == (None, None)
