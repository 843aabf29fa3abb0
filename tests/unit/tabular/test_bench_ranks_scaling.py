"""The model of compute and link: its limits, and two published systems that it has to predict.

docs/large-models.md says what is known of both, and where it was read; what isn't known is
assumed here, over a range, and the model has to come within 30 % of the published speedup anywhere
in it.
"""

from __future__ import annotations

import itertools
import re
from math import sqrt
from pathlib import Path

import pytest

from tests.bench.ranks.step_model import Link, Step, Traffic, summed

# Bandwidths are the links' own; the 50 µs of TCP within a zone are assumed.
ETHERNET_10 = Link(bandwidth=1.25e9, latency=50e-6)
ETHERNET_100 = Link(bandwidth=12.5e9, latency=50e-6)
BACKWARD = 2 / 3  # of the compute
ETHERNET_40 = Link(bandwidth=5e9, latency=50e-6)
# By an MPI past the kernel a message took 1.93 µs on 40 Gbit/s, and 37.2 of the 40 arrived
# (J. Squyres, "MPI over 40Gb Ethernet", blogs.cisco.com); the like is assumed of InfiniBand.
INFINIBAND_FDR = Link(bandwidth=7e9, latency=2e-6)
EFA_400 = Link(bandwidth=50e9, latency=50e-6)  # a p4d's


def borders(sent: float, messages: float) -> Traffic:
    """Return the traffic of ranks that each compute a part of the network.

    At a part's borders activations and their gradients, `sent` bytes, go in `messages`, one
    after the other.
    """
    return Traffic(sent=lambda _: sent, messages=lambda _: messages)


PAGE = (Path(__file__).parents[3] / "docs/large-models.md").read_text(encoding="utf-8")
ALL = range(1, 65)
TRAFFICS = [summed(4e7), borders(3e6, 48)]

# GeePS: 13 times the images per second on 16 machines, each with a batch of its own

GEEPS, GEEPS_MACHINES = 13.0, 16
K20 = 4.29 / 3.52  # times as long as a K40, by their peaks
NETWORKS = {  # weights, images a machine, seconds of an image on a K40
    "GoogLeNet": (13.38e6, 32, 1.6888 / 128),
    "CaffeNet": (60.97e6, 256, 19.2 / 5120),
}
ETHERNET_1 = Link(bandwidth=0.125e9, latency=50e-6)


def geeps(network: str = "GoogLeNet", overlap: float = 0.0) -> Step:
    weights, images, seconds = NETWORKS[network]
    compute = images * seconds * K20
    return Step(
        rows=images, compute=compute, traffic=summed(4 * weights), overlap=overlap, grows=True
    )


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("overlap", [0.0, BACKWARD])
@pytest.mark.parametrize("link", [ETHERNET_10, ETHERNET_40])
def test_the_model_predicts_the_speedup_of_geeps(network: str, overlap: float, link: Link) -> None:
    found = geeps(network, overlap).speedup(GEEPS_MACHINES, link)
    assert found == pytest.approx(GEEPS, rel=0.3)


def test_the_model_predicts_less_speedup_of_geeps_on_a_slow_network() -> None:
    for network, overlap in itertools.product(NETWORKS, (0.0, BACKWARD)):
        assert geeps(network, overlap).speedup(GEEPS_MACHINES, ETHERNET_1) < 0.7 * GEEPS


# COTS HPC: 47 times on 64 GPUs, four to a machine with one adapter, each with a part of the network

COTS, COTS_GPUS = 47.0, 64
COTS_WEIGHTS = 11.2e9
GTX_680 = 3.09e12  # flop/s at its peak
QUARTER = Link(INFINIBAND_FDR.bandwidth / 4, INFINIBAND_FDR.latency)
FIELD, STAGES = 18, 3  # of the network before, which it is taken to be a larger one of


def cots(share: float = 1 / 3, side: int = 200, decoders: int = 1, images: int = 100) -> Step:
    """Return a GPU's square of the picture in each stage, and what it needs of its neighbours'.

    Args:
        share: of the GPU's peak that it reaches.
        side: units of a stage along one side of the picture.
        decoders: 2: weights back to the inputs count among the network's.
        images: of a batch.
    """
    maps = sqrt(COTS_WEIGHTS / (STAGES * side**2 * FIELD**2 * decoders))
    own = side / sqrt(COTS_GPUS)
    others = (own + FIELD - 1) ** 2 - own**2
    sent = STAGES * 2 * others * maps * 4 * images  # forward and back, float32
    compute = 6 * COTS_WEIGHTS / COTS_GPUS * images / (share * GTX_680)
    return Step(rows=images, compute=compute, traffic=borders(sent, STAGES * 2 * 8), grows=True)


@pytest.mark.parametrize("share", [0.17, 1 / 3, 0.6])
@pytest.mark.parametrize("side", [100, 200])
@pytest.mark.parametrize("decoders", [1, 2])
@pytest.mark.parametrize("images", [32, 1000])
def test_the_model_predicts_the_speedup_of_cots_hpc(
    share: float, side: int, decoders: int, images: int
) -> None:
    found = cots(share, side, decoders, images).speedup(COTS_GPUS, QUARTER)
    assert found == pytest.approx(COTS, rel=0.3)


def test_cots_hpc_is_neither_a_straight_line_nor_data_parallel() -> None:
    assert COTS_GPUS > 1.3 * COTS
    alike = Step(rows=100, compute=cots().compute, traffic=summed(4 * COTS_WEIGHTS), grows=True)
    assert alike.speedup(COTS_GPUS, QUARTER) < 1


# Limits


@pytest.mark.parametrize("traffic", TRAFFICS)
@pytest.mark.parametrize("grows", [False, True])
def test_one_rank_has_a_speedup_of_1(traffic: Traffic, grows: bool) -> None:
    step = Step(rows=100, compute=0.5, overhead=0.1, traffic=traffic, grows=grows)
    assert step.speedup(1, ETHERNET_10) == 1
    assert step.seconds(1, ETHERNET_10) == pytest.approx(0.6)
    assert step.rows_per_second(1, ETHERNET_10) == pytest.approx(100 / 0.6)


@pytest.mark.parametrize("traffic", TRAFFICS)
def test_where_sending_takes_no_time_only_the_overhead_bounds(traffic: Traffic) -> None:
    free = Link(bandwidth=float("inf"), latency=0.0)
    for ranks in ALL:
        step = Step(rows=100, compute=0.5, traffic=traffic)
        assert step.speedup(ranks, free) == pytest.approx(ranks)
        slowed = Step(rows=100, compute=0.5, overhead=0.1, traffic=traffic)
        assert slowed.speedup(ranks, free) == pytest.approx(0.6 / (0.1 + 0.5 / ranks))
        grown = Step(rows=100, compute=0.5, overhead=0.1, traffic=traffic, grows=True)
        assert grown.speedup(ranks, free) == pytest.approx(ranks)


@pytest.mark.parametrize("traffic", TRAFFICS)
def test_more_bandwidth_and_less_latency_are_never_worse(traffic: Traffic) -> None:
    step = Step(rows=100, compute=0.5, traffic=traffic)
    links = [Link(1e8 * 2**power, 50e-6) for power in range(12)]
    for ranks in ALL[1:]:
        speeds = [step.rows_per_second(ranks, link) for link in links]
        assert speeds == sorted(speeds)
        assert speeds[0] < speeds[-1]
        assert step.seconds(ranks, Link(1e9, 1e-6)) < step.seconds(ranks, Link(1e9, 1e-3))


def test_local_steps_and_overlap_reduce_the_time_of_a_step() -> None:
    plain = Step(rows=1, compute=0.04, traffic=summed(4e7))
    local = Step(rows=1, compute=0.04, traffic=summed(4e7), local_steps=64)
    beside = Step(rows=1, compute=0.04, traffic=summed(4e7), overlap=BACKWARD)
    waiting = plain.seconds(4, ETHERNET_10) - 0.01
    assert local.seconds(4, ETHERNET_10) == pytest.approx(0.01 + waiting / 64)
    assert beside.seconds(4, ETHERNET_10) == pytest.approx(0.01 + waiting - 0.01 * BACKWARD)
    assert beside.seconds(4, EFA_400) == pytest.approx(0.01)  # all of it hidden


# The page

LARGE = Step(rows=8192, compute=0.04, traffic=summed(4e7))
MEASURED = Step(rows=1024, compute=97.07e-3, overhead=5.0e-3, traffic=summed(4 * 1_084_417))
ROWS = {
    "GoogLeNet as GeePS trained it, 40 Gbit/s": (geeps(), ETHERNET_40),
    "the same over 10 Gbit/s": (geeps(), ETHERNET_10),
    "COTS HPC's neural network, 56 Gbit/s for 4 GPUs": (cots(), QUARTER),
    "two layers of 1,024 units, one CPU core a machine": (
        MEASURED,
        ETHERNET_10,
    ),
    "a neural network of 10 million weights": (LARGE, ETHERNET_10),
    "the same neural network over 100 Gbit/s": (LARGE, ETHERNET_100),
    "the same neural network over EFA's 400 Gbit/s": (LARGE, EFA_400),
    "the same neural network with `local_steps: 64`": (
        Step(rows=8192, compute=0.04, traffic=summed(4e7), local_steps=64),
        ETHERNET_10,
    ),
    "a transformer of 1 billion weights, 100 Gbit/s": (
        Step(rows=1, compute=1.0, traffic=summed(4e9), grows=True),
        ETHERNET_100,
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_documented_table_of_machines_matches_the_model(row: str) -> None:
    step, link = ROWS[row]
    section = PAGE.split("## What to expect on 1 to 64 machines")[1].split("\n## ")[0]
    (cells,) = re.findall(rf"^\| {re.escape(row)} \|(.*)\|$", section, re.MULTILINE)
    documented = [float(cell.strip().strip("*")) for cell in cells.split("|")[:6]]
    for ranks, factor in zip((2, 4, 8, 16, 32, 64), documented, strict=True):
        assert factor == pytest.approx(step.speedup(ranks, link), abs=0.05)


def test_the_documented_images_per_second_match_the_model() -> None:
    page = " ".join(PAGE.split())
    (one, many) = re.findall(r"processes (\d+) images a second and 64 machines ([\d,]+)", page)[0]
    assert int(one) == round(geeps().rows_per_second(1, ETHERNET_40))
    assert int(many.replace(",", "")) == round(geeps().rows_per_second(64, ETHERNET_40), -1)
    (one, many) = re.findall(r"processes ([\d,]+) rows a second and 16 machines ([\d,]+)", page)[0]
    for documented, ranks in ((one, 1), (many, 16)):
        assert int(documented.replace(",", "")) == round(
            MEASURED.rows_per_second(ranks, ETHERNET_10), -2
        )


@pytest.mark.parametrize(
    ("row", "weights", "compute", "link", "local_steps"),
    [
        ("the flights' neural network, on a GPU", 50_000, 1e-4, ETHERNET_10, 1),
        (
            "a neural network of 10 million weights, batch of 8,192 rows",
            10_000_000,
            0.04,
            ETHERNET_10,
            1,
        ),
        ("the same neural network with `local_steps: 64`", 10_000_000, 0.04, ETHERNET_10, 64),
        ("a transformer of 1 billion weights", 1_000_000_000, 1.0, ETHERNET_10, 1),
        ("the same transformer over 100 Gbit/s", 1_000_000_000, 1.0, ETHERNET_100, 1),
    ],
)
def test_the_documented_table_of_cases_matches_the_model(
    row: str, weights: int, compute: float, link: Link, local_steps: int
) -> None:
    section = PAGE.split("## What to expect")[0]
    (cells,) = re.findall(rf"^\| {re.escape(row)} \|(.*)\|$", section, re.MULTILINE)
    documented = [cell.strip() for cell in cells.split("|")]
    traffic = summed(4 * weights)
    sent = traffic.sent(4) / local_steps
    step = Step(rows=1, compute=compute, traffic=traffic, local_steps=local_steps)
    factor = step.speedup(4, link)
    unit = 1e9 if "GB" in documented[2] else 1e6
    assert float(documented[2].split()[0]) == pytest.approx(sent / unit, rel=0.07)
    if factor < 1:
        assert documented[4] == "slower than one"
    else:
        assert float(documented[4].split()[0]) == pytest.approx(factor, abs=0.05)
