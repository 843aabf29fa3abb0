from __future__ import annotations

import pytest

from trialfleet.infra.fleet.spec.limits import UNBOUNDED, affordable_nodes, run_cap_reached


@pytest.mark.parametrize(
    ("cap", "used", "price", "nodes"),
    [
        (None, 9.0, 1.0, UNBOUNDED),
        (0.3, 0.0, 0.1, 3),
        (1.0, 0.7, 0.1, 3),
        (1.0, 0.75, 0.1, 2),
        (1.0, 1.0, 0.1, 0),
        (0.3, 0.1 + 0.2, 0.1, 0),
        (1.0, 1.01, 0.1, -1),
        (1.0, 0.5, 0.0, UNBOUNDED),
        (1.0, 1.01, 0.0, -1),
    ],
)
def test_a_cap_limits_the_number_of_nodes(
    cap: float | None, used: float, price: float, nodes: int
) -> None:
    assert affordable_nodes(cap, used, price) == nodes


def test_a_runs_cap_is_reached_once_all_of_it_is_spent() -> None:
    assert run_cap_reached(None, 9.0) == run_cap_reached(5.0, 4.99) == ""
    assert run_cap_reached(5.0, 5.0) == "the run's cap of $5.00 is reached: $5.00 is spent"
