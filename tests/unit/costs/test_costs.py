"""Costs of jobs and nodes: the arithmetic, the nodes' time without a job, and the sums."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import MakeRun
from trialfleet.files import write_json
from trialfleet.infra.fleet.scaling.instance_costs import Ledger, Lifetime
from trialfleet.infra.fleet.scaling.last_report import default_report
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.workflows.facts.jobs.slot_price import slot_price
from trialfleet.workflows.formatting import usd
from trialfleet.workflows.rules.cost_sums import BY, CostItem, Kind, add, sums
from trialfleet.workflows.rules.node_costs import add_node_costs
from trialfleet.workflows.status.costs.bill import BilledRun, reported_lifetimes
from trialfleet.workflows.status.costs.run_costs import _lifetimes

MORNING = datetime(2026, 11, 22, 6, tzinfo=UTC)
NEAR = 1e-9


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


class Resources(NamedTuple):
    gpus: float
    cpus: float
    memory: float


def share(slot: Resources, node: Resources) -> float:
    """Return a slot's share of the price of its node."""
    ad = {"GPUs": slot.gpus, "Cpus": slot.cpus, "Memory": slot.memory}
    ad |= {"TotalGPUs": node.gpus, "TotalCpus": node.cpus, "TotalMemory": node.memory}
    found = slot_price(ad, 1.0)
    assert found is not None
    return found


NODE = Resources(gpus=4, cpus=16, memory=64000)


@st.composite
def nodes_and_slots(draw: st.DrawFn) -> tuple[Resources, list[Resources]]:
    """Return a node that is divided into slots, which all have GPUs or all have none."""
    with_gpus = draw(st.booleans())
    count = draw(st.integers(1, 8))
    gpus = [draw(st.integers(1, 4)) if with_gpus else 0 for _ in range(count)]
    cpus = [draw(st.integers(1, 64)) for _ in range(count)]
    memory = [draw(st.integers(1, 500_000)) for _ in range(count)]
    left = [draw(st.integers(0, 100)) for _ in range(3)]
    node = Resources(
        gpus=sum(gpus) + left[0], cpus=sum(cpus) + left[1], memory=sum(memory) + left[2]
    )
    parts = zip(gpus, cpus, memory, strict=True)
    return node, [Resources(gpus=g, cpus=c, memory=m) for g, c, m in parts]


@given(nodes_and_slots())
def test_the_slots_of_a_node_pay_no_more_than_the_node(
    divided: tuple[Resources, list[Resources]],
) -> None:
    node, slots = divided
    shares = [share(slot, node) for slot in slots]
    assert all(0 < one <= 1 for one in shares)
    assert sum(shares) <= 1 + NEAR


@given(nodes_and_slots())
def test_a_slot_as_large_as_its_node_pays_its_full_price(
    divided: tuple[Resources, list[Resources]],
) -> None:
    assert share(divided[0], divided[0]) == 1


def test_a_slot_with_gpus_pays_by_its_gpus_only() -> None:
    assert share(Resources(gpus=1, cpus=1, memory=100), NODE) == 0.25
    assert share(Resources(gpus=1, cpus=16, memory=64000), NODE) == 0.25
    assert share(Resources(gpus=0, cpus=4, memory=32000), NODE) == (0.25 + 0.5) / 2
    # two trials on each of two GPUs: HTCondor counts four
    assert share(Resources(gpus=1, cpus=2, memory=100), NODE) == 0.25


def test_the_price_of_a_slot_is_that_of_its_node_or_the_studys() -> None:
    ad = {"GPUs": 2, "Cpus": 1, "Memory": 128, "TotalGPUs": 4, "TotalCpus": 16.0}
    ad |= {"TotalMemory": 64000}
    assert slot_price(ad) is None
    assert slot_price(ad, 3.0) == 1.5
    assert slot_price({**ad, "TrialfleetPricePerHour": 1.0}, 3.0) == 0.5
    assert slot_price({**ad, "TrialfleetPricePerHour": "dear"}, 3.0) == 1.5
    assert slot_price({"TrialfleetPricePerHour": 1.0}) is None
    assert slot_price({**ad, "TrialfleetPricePerHour": True}, 3.0) == 1.5


def test_items_without_any_known_price_have_no_sum() -> None:
    unknown, known = add([job(None), job(None)]), add([job(None), job(100)])
    assert (unknown.usd, unknown.work, unknown.unpriced_hours) == (None, None, 2 / 60)
    assert unknown.to_json()["usd"] is None
    assert (known.usd, known.work, known.lost) == (1.0, 1.0, 0.0)
    assert add([]).usd == 0.0
    lost = add([replace(job(None), kind=Kind.FAILED)])
    assert (lost.usd, lost.work, lost.lost, lost.idle) == (None, None, None, None)
    assert add([replace(job(100), kind=Kind.FAILED)]).work == 0.0


# -- nodes -----------------------------------------------------------------------------------------


def job(cents: float | None, instance: str | None = "i-1", **more: str) -> CostItem:
    known = None if cents is None else cents / 100
    place = {"study": "s", "run": "r", "day": "2026-11-22", "region": "A", **more}
    return CostItem(kind=Kind.TRIAL, seconds=60, usd=known, instance=instance, **place)


lives = st.builds(
    lambda price, boot, life: Lifetime(
        type="t",
        price=price,
        launched=MORNING,
        joined=None if boot is None else MORNING + hours(min(boot, life)),
        ended=MORNING + hours(life),
    ),
    st.floats(0.01, 40),
    st.none() | st.floats(0, 2),
    st.floats(0, 30),
)
jobs = st.builds(
    job,
    st.none() | st.floats(0, 500),
    st.sampled_from(["i-1", "i-2"]),
    region=st.sampled_from("AB"),
    run=st.sampled_from(["r", "q"]),
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["i-1", "i-2", "i-3"]), lives), st.lists(jobs, max_size=9))
def test_items_of_nodes_add_up_to_the_ledger(
    lifetimes: dict[str, Lifetime], items: list[CostItem]
) -> None:
    now = MORNING + hours(40)
    found = add_node_costs(items, lifetimes, now)
    on_nodes = [item for item in found if item.instance in lifetimes]
    assert add(on_nodes).usd == pytest.approx(Ledger(lifetimes=lifetimes).cost(now))
    assert all(item.usd is None or item.usd >= 0 for item in found)
    elsewhere = [item for item in items if item.instance not in lifetimes]
    assert [item for item in found if item.instance not in lifetimes] == elsewhere


def test_boot_and_idle_time_is_charged_to_the_users_of_the_node() -> None:
    life = Lifetime(
        type="t",
        price=1.0,
        launched=MORNING,
        joined=MORNING + hours(0.1),
        ended=MORNING + hours(1),
    )
    items = add_node_costs([job(20), job(40, region="B")], {"i-1": life}, MORNING + hours(2))
    found = {(one.key["region"], one.key["kind"]): one.usd for one in sums(items, BY)}
    others = {
        ("A", "boot"): 1 / 30,
        ("B", "boot"): 2 / 30,
        ("A", "idle"): 0.1,
        ("B", "idle"): 0.2,
    }
    assert found == pytest.approx({("A", "trials"): 0.2, ("B", "trials"): 0.4, **others})


def test_an_unused_node_is_charged_to_the_run_that_requested_it() -> None:
    life = Lifetime(type="t", price=1.0, launched=MORNING, ended=MORNING + hours(1), run="r")
    (item,) = add_node_costs([], {"i-1": life}, MORNING + hours(2))
    assert (item.run, item.kind, item.usd, item.seconds) == ("r", "boot", 1.0, 3600)


def test_a_node_without_a_recorded_end_ends_with_its_lease() -> None:
    life = Lifetime(
        type="t",
        price=1.0,
        launched=MORNING,
        joined=MORNING,
        expires=MORNING + hours(1),
    )
    (item,) = add_node_costs([], {"i-1": life}, MORNING + hours(9))
    assert (item.kind, item.usd) == ("idle", 1.0)
    (item,) = add_node_costs([], {"i-1": life}, MORNING + hours(0.5))
    assert item.usd == 0.5


def write_report(file: Path, hour: float, ended: float | None = None) -> Path:
    """Write an autoscaler's report on one node."""
    life = Lifetime(
        type="t",
        price=1.0,
        launched=MORNING,
        ended=None if ended is None else MORNING + hours(ended),
    )
    step = {"at": MORNING + hours(hour), "instances": {"i-1": life}}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"step": step})
    return file


@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_the_newest_report_of_a_node_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    fleet = Fleet(name="f", aws_regions=["eu-west-1"])
    files = [tmp_path / "new.json", tmp_path / "old.json", default_report("f")]
    for file, (at, ended) in zip(
        files, [((1, None), (2.5, None), (3, 2.75))[place] for place in order], strict=True
    ):
        write_report(file, at, ended)
    (tmp_path / "damaged.json").write_text('{"step": {"at": 7, "instances": {"i-1": 3}}}')
    found = reported_lifetimes(fleet, [tmp_path / "damaged.json", *files[:2]])
    assert found["i-1"].ended == MORNING + hours(2.75)


def test_reports_on_another_fleets_nodes_replace_no_newer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_run: MakeRun
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    one, other = (
        Fleet(name=name, aws_regions=["eu-west-1"], ami="ami-0123456789abcdef0") for name in "fg"
    )
    run = make_run()
    billed = BilledRun.open(Path(run.folder))
    study = billed.frozen.study.model_copy(update={"fleet": one})
    billed = replace(billed, frozen=billed.frozen.model_copy(update={"study": study}))
    write_report(billed.folder.fleet_state, 1)
    write_report(default_report("f"), 3, 2.75)
    found, notices = _lifetimes([billed], [one, other], MORNING)
    assert found["i-1"].ended == MORNING + hours(2.75)
    assert len(notices) == 2, "AWS is not at hand"


# -- sums ------------------------------------------------------------------------------------------


@given(st.lists(jobs, max_size=9), st.permutations(BY))
def test_groups_add_up_to_the_total(items: list[CostItem], order: list[str]) -> None:
    for count in range(len(order)):
        groups = sums(items, order[:count])
        assert sum(one.usd or 0.0 for one in groups) == pytest.approx(add(items).usd or 0.0)
        assert sum(one.hours for one in groups) == pytest.approx(add(items).hours)


def test_an_unknown_cost_counts_as_unpriced_hours() -> None:
    found = add([job(None), job(10)])
    assert (found.usd, found.hours, found.unpriced_hours) == (0.1, 2 / 60, 1 / 60)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, ""),
        (0, "0.00"),
        (1e-9, "<0.0001"),
        (0.00009, "<0.0001"),
        (0.0001, "0.0001"),
        (0.01234, "0.0123"),
        (1.005, "1.00"),
        (12345.678, "12,345.68"),
    ],
)
def test_small_and_large_amounts_are_formatted(amount: float | None, text: str) -> None:
    assert usd(amount) == text


def test_a_small_amount_is_never_shown_as_zero() -> None:
    assert [usd(amount, 2) for amount in (0.0, 0.004, 0.01, 1.5)] == [
        "0.00",
        "<0.01",
        "0.01",
        "1.50",
    ]
    assert usd(0.0, 4) == "0.0000"
