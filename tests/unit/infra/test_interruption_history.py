"""History of pools of capacity: speeds, interruptions, and their effect on a price."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fleet.mock_aws.moto_account import candidate
from trialfleet.gpu_memory import ec2_gpu_bandwidth
from trialfleet.infra.fleet.choice import interruption_history
from trialfleet.infra.fleet.choice.interruption_history import RECENT, History
from trialfleet.infra.fleet.scaling.instance_costs import HALF_LIFE, Lifetime, learn_history
from trialfleet.infra.fleet.spec.machines import Candidate

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
A, B = candidate("eu-west-1a"), candidate("eu-west-1b")
FIXED = replace(A, lifecycle="on-demand", price=1.0)


def node_record(
    pool: Candidate, hours: float, *, ago: timedelta = RECENT, interrupted: bool = False
) -> Lifetime:
    end = NOW - ago
    begin = end - timedelta(hours=hours)
    return life(pool, begin, end, taken_back=end if interrupted else None)


def life(pool: Candidate, launched: datetime, ended: datetime, **more: Any) -> Lifetime:
    kind, zone, lifecycle = pool.pool
    where: dict[str, Any] = {"type": kind, "zone": zone, "lifecycle": lifecycle, "price": None}
    return Lifetime(launched=launched, ended=ended, **where, **more)


def rate(history: History, pool: Candidate) -> float:
    [found] = history.apply([pool], 10)
    return found.interruptions


def test_a_pool_with_frequent_interruptions_is_worth_less() -> None:
    history = learn_history(
        [*[node_record(A, 2, interrupted=True)] * 20, *[node_record(B, 2)] * 20], NOW
    )
    shaky, calm = history.apply([A, B], lost_minutes=30)
    assert shaky.interruptions > 4 * calm.interruptions
    assert shaky.cost > 1.1 * calm.cost
    assert calm.efficiency < 1


def test_interruptions_that_lose_more_work_lower_the_efficiency() -> None:
    history = learn_history([node_record(A, 2, interrupted=True)] * 20, NOW)
    [little] = history.apply([A], lost_minutes=0)
    [much] = history.apply([A], lost_minutes=240)
    assert much.efficiency < 0.5 < little.efficiency


def test_a_new_pool_is_expected_to_be_as_the_others() -> None:
    history = learn_history([node_record(A, 2, interrupted=True)] * 500, NOW)
    assert rate(history, B) == pytest.approx(0.5, rel=0.1)
    assert rate(learn_history([], NOW), B) == interruption_history.FIRST_RATE


def test_old_days_count_less() -> None:
    taken, calm = [node_record(A, 2, interrupted=True)] * 9, [node_record(B, 2)] * 50
    long_ago = [node_record(A, 2, ago=RECENT + 6 * HALF_LIFE, interrupted=True)] * 9
    assert rate(learn_history([*taken, *calm], NOW), A) > 3 * rate(
        learn_history([*long_ago, *calm], NOW), A
    )


def test_a_pool_that_has_just_taken_a_node_back_is_expected_to_take_more() -> None:
    just, before = timedelta(minutes=1), RECENT + timedelta(minutes=1)
    recent = rate(learn_history([node_record(A, 2, ago=just, interrupted=True)], NOW), A)
    assert recent > 1.9 * rate(
        learn_history([node_record(A, 2, ago=before, interrupted=True)], NOW), A
    )


def test_on_demand_is_never_taken_back() -> None:
    [found] = learn_history([node_record(FIXED, 2, interrupted=True)], NOW).apply([FIXED], 60)
    assert (found.interruptions, found.efficiency) == (0.0, 1.0)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.01, 50), st.booleans()), max_size=20))
def test_every_pool_keeps_a_positive_worth(lives: list[tuple[bool, float, bool]]) -> None:
    records = [node_record(A if a else B, hours, interrupted=taken) for a, hours, taken in lives]
    for one in learn_history(records, NOW).apply([A, B, FIXED], 60):
        assert 0 < one.efficiency <= 1
        assert one.cost > 0


# --- Speed ----------------------------------------------------------------------------------------


def kind(name: str, gpu: str, memory_mb: int = 16_384, gpus: int = 1) -> Candidate:
    own = replace(A.type, name=name, gpu=gpu, gpu_memory_mb=memory_mb, gpus=gpus)
    return replace(A, type=own)


def speeds(candidates: list[Candidate], measured: dict[str, float] | None = None) -> list[float]:
    return [one.speed for one in History(bandwidths=measured or {}).apply(candidates, 10)]


def test_a_gpu_is_as_fast_as_its_memory() -> None:
    t4, a10g = kind("g4dn.xlarge", "T4"), kind("g5.xlarge", "A10G")
    assert speeds([t4, a10g]) == [320, 600]
    assert speeds([t4, kind("g5.12xlarge", "A10G", gpus=4)]) == [320, 2_400]


def test_a_measured_type_counts_by_its_bandwidth_and_scales_the_others() -> None:
    t4, a10g = kind("g4dn.xlarge", "T4"), kind("g5.xlarge", "A10G")
    assert speeds([t4, a10g], {"g5.xlarge": 480}) == pytest.approx([256, 480])


def test_a_gpu_without_a_data_sheet_counts_as_the_slowest() -> None:
    assert speeds([kind("g4dn.xlarge", "T4"), kind("x1.large", "Z99")]) == [320, 320]
    assert speeds([kind("x1.large", "Z99")]) == [1]


def test_without_gpus_processors_count() -> None:
    plain = kind("m5.large", "", 0, gpus=0)
    assert speeds([plain]) == [4 * 3.2]
    assert speeds([plain, kind("g4dn.xlarge", "T4")]) == [4 * 3.2, 320]


@pytest.mark.parametrize(
    ("name", "memory_mb", "expected"),
    [
        ("T4", 16_384, 320),
        ("T4g", 16_384, 320),
        ("L4", 22_888, 300),
        ("A100", 40_960, 1_555),
        ("A100", 81_920, 2_039),
        ("H100", 81_920, 3_350),
        ("RTX PRO Server 6000", 98_304, 1_597),
        ("RTX PRO 4500", 32_768, None),
        ("", 0, None),
    ],
)
def test_ec2s_names_of_gpus_are_known(name: str, memory_mb: int, expected: float | None) -> None:
    assert ec2_gpu_bandwidth(name, memory_mb) == expected


@pytest.mark.parametrize("ahead", [timedelta(days=2), timedelta(days=400), timedelta(days=36_500)])
def test_records_from_a_clock_ahead_count_as_present_ones(ahead: timedelta) -> None:
    calm = [node_record(B, 2)] * 20
    wrong = learn_history([node_record(A, 2, ago=-ahead, interrupted=True), *calm], NOW)
    right = learn_history([node_record(A, 2, ago=timedelta(0), interrupted=True), *calm], NOW)
    assert rate(wrong, A) == pytest.approx(rate(right, A), rel=0.2)
    assert rate(wrong, B) == pytest.approx(rate(right, B), rel=0.2)


def test_a_life_that_ended_before_it_began_has_no_hours() -> None:
    odd = life(A, NOW, NOW - timedelta(days=9))
    assert rate(learn_history([odd], NOW), A) == interruption_history.FIRST_RATE


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), -5.0, 0.0])
def test_an_impossible_bandwidth_is_not_learned(figure: float) -> None:
    odd = life(A, NOW, NOW, bandwidth=figure)
    assert learn_history([odd], NOW).bandwidths == {}
