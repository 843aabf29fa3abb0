"""What a gang's ranks send: the network's own weights, the page's table, the plan's line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.tabular.small_trials import make_table
from trialfleet.nodes import trial
from trialfleet.nodes.tabular import dataset
from trialfleet.nodes.tabular.network import Network
from trialfleet.nodes.tabular.settings import Settings
from trialfleet.workflows.cli.printing.gang_traffic import gang_lines, gangs_summary
from trialfleet.workflows.gang.scaling import Step, summed
from trialfleet.workflows.gang.traffic import (
    ETHERNET_10,
    ETHERNET_100,
    Link,
    sent_bytes,
    weights_of,
)
from trialfleet.workflows.study.loading import load_study
from trialfleet.workflows.study.spec import Study

PAGE = (Path(__file__).parents[3] / "docs/large-models.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("task", "outputs"), [("binary", 1), ("multiclass", 3)])
def test_weights_are_those_of_the_network(tmp_path: Path, task: str, outputs: int) -> None:
    make_table(tmp_path / "r.npz", task)
    data = dataset.load(trial.Trial(tmp_path, {"data": ["r.npz"]}), Settings())
    chosen = Settings(hidden=24, layers=3, embedding=5)
    sizes = [len(words) for words in data.columns.categorical.values()]
    described = {"hidden": 24, "layers": 3, "embedding": 5}
    found = weights_of(len(data.columns.numeric), sizes, outputs, described)
    assert found == sum(w.numel() for w in Network(data.columns, chosen).parameters())


@pytest.mark.parametrize(
    ("row", "weights", "compute", "link", "local_steps"),
    [
        ("the flights' network, on a GPU", 50_000, 1e-4, ETHERNET_10, 1),
        ("a network of 10 million, batch 8,192", 10_000_000, 0.04, ETHERNET_10, 1),
        ("the same in `local_steps: 64`", 10_000_000, 0.04, ETHERNET_10, 64),
        ("a transformer of 1 billion, batch of 1 s", 1_000_000_000, 1.0, ETHERNET_10, 1),
        ("the same over 100 Gbit/s", 1_000_000_000, 1.0, ETHERNET_100, 1),
    ],
)
def test_the_pages_table_is_the_models(
    row: str, weights: int, compute: float, link: Link, local_steps: int
) -> None:
    section = PAGE.split("## What to expect")[0]
    (cells,) = re.findall(rf"^\| {re.escape(row)} \|(.*)\|$", section, re.MULTILINE)
    told = [cell.strip() for cell in cells.split("|")]
    sent = sent_bytes(4 * weights, 4) / local_steps
    traffic = summed(4 * weights)
    step = Step(rows=1, compute=compute, traffic=traffic, local_steps=local_steps)
    factor = step.speedup(4, link)
    unit = 1e9 if "GB" in told[2] else 1e6
    assert float(told[2].split()[0]) == pytest.approx(sent / unit, rel=0.07)
    if factor < 1:
        assert told[4] == "slower than one"
    else:
        assert float(told[4].split()[0]) == pytest.approx(factor, abs=0.05)


STUDY = """
name: churn
regions: {north: {nodes: {min: 2, max: 4}}, south: {}}
objective: {metric: val_loss, direction: minimize}
trainer: tabular
data: "{region}.npz"
accelerator: cpu
search_space:
  hidden: {type: int, low: 8, high: 100}
  layers: 1
"""
TABLE = {"numeric": ["a", "b"], "categorical": {"c": 9}, "classes": {"no": 5, "yes": 5}}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        # 10 * 8 for the codes, 11 * 100 for the hidden layer, 101 for the last: 1281 weights
        ("", "each of 4 ranks holds all of the model, up to 0.0205 MB and sends up to 0.00769 MB"),
        ("", " each step, 0.0061 ms of 10 Gbit/s; docs/large-models.md"),
        ("  wire: bfloat16\n", "up to 0.00384 MB each step"),
        ("  local_steps: 16\n", "up to 0.00769 MB every 16 steps"),
        # 1201 weights of layers: gathered twice, their gradients scattered
        ("  parallel: sharded\n", "its part of the model, up to 0.00512 of 0.0205 MB and sends"),
        ("  parallel: sharded\n", "up to 0.0108 MB each step, beside the embeddings"),
        ("resources: {memory: 40KB}\n", "up to 0.00512 of 0.0205 MB"),  # 20.5 of 41 is over half
        ("resources: {memory: 41KB}\n", "all of the model"),
        ("  parallel: data\nresources: {memory: 40KB}\n", "all of the model"),
        (
            "accelerator: gpu\n",
            (
                "(or its part, on GPUs with less than 0.041 MB; with less than 0.0102 MB the "
                "embeddings lie in main memory) and sends"
            ),
        ),
        (
            "  parallel: sharded\naccelerator: gpu\nresources: {gpus: 2}\n",
            (
                "each of 8 ranks holds its part of the model, up to 0.00256 of 0.0205 MB (with "
                "less than 0.00512 MB the embeddings lie in main memory) and sends"
            ),
        ),
        ("  offload: all\naccelerator: gpu\n", "of 0.0205 MB, all of it in main memory, and sends"),
    ],
)
def test_a_plan_tells_what_the_largest_network_sends(tmp_path: Path, more: str, words: str) -> None:
    for region in ("north", "south"):
        make_table(tmp_path / f"{region}.npz")
    text = STUDY.replace("accelerator: cpu\n", "") if "accelerator" in more else STUDY
    (tmp_path / "study.yaml").write_text(text + more)
    study = load_study(tmp_path / "study.yaml")
    line, *_ = gang_lines(study, {"north": TABLE, "south": TABLE})
    assert line.startswith("  gangs    north: ")
    assert words in line
    assert gang_lines(study, {"south": TABLE}) == []


CPU, GPU = "at an assumed 30 Gflop/s a core", "at an assumed 10 Tflop/s a GPU"
ALONE = "one rank is fastest"


def planned_gang(place: Path, more: str, other: dict[str, str]) -> Study:
    """A study whose one region is a gang of four; with other texts in place of some."""
    make_table(place / "north.npz")
    text = STUDY.replace(", south: {}", "")
    for old, new in other.items():
        text = text.replace(old, new)
    (place / "study.yaml").write_text(text + more)
    return load_study(place / "study.yaml")


@pytest.mark.parametrize(
    ("more", "other", "gain", "best"),
    [
        # 1281 weights, 1201 of them with products: 0.37 ms, of which four ranks share 0.06, and
        # wait 0.3 for six messages
        ("", {}, ("0.59", "0.59", CPU), (ALONE, ALONE)),
        # 3.2 million weights: 154 Gflop a step; 12.6 MB of gradients
        (
            "  batch_size: 8192\naccelerator: gpu\n",
            {"high: 100": "high: 1024", "layers: 1": "layers: 4", "accelerator: cpu\n": ""},
            ("0.81", "2.6", GPU),
            (ALONE, "8 ranks are best, 3.4 times"),
        ),
        # the same, with half the bytes, or meeting now and then
        (
            "  batch_size: 8192\n  wire: bfloat16\naccelerator: gpu\n",
            {"high: 100": "high: 1024", "layers: 1": "layers: 4", "accelerator: cpu\n": ""},
            ("1.3", "3", GPU),
            ("4 ranks are best, 1.3 times", "9 ranks are best, 4.3 times"),
        ),
        (
            "  batch_size: 8192\n  local_steps: 64\naccelerator: gpu\n",
            {"high: 100": "high: 1024", "layers: 1": "layers: 4", "accelerator: cpu\n": ""},
            ("3.6", "3.8", GPU),
            ("49 ranks are best, 16 times", "53 ranks are best, 23 times"),
        ),
        # the same on CPUs, of which the compute is 3 s
        (
            "  batch_size: 8192\nresources: {cpus: 2}\n",
            {"high: 100": "high: 1024", "layers: 1": "layers: 4"},
            ("3.8", "3.9", CPU),
            ("57 ranks are best, 30 times", "59 ranks are best, 38 times"),
        ),
    ],
)
def test_a_plan_tells_what_ranks_gain_and_how_many_are_best(
    tmp_path: Path,
    more: str,
    other: dict[str, str],
    gain: tuple[str, str, str],
    best: tuple[str, str],
) -> None:
    ten, hundred, rate = gain
    times = f"{ten} times the rows per second of one on 10 Gbit/s, {hundred} times on 100 Gbit/s"
    study = planned_gang(tmp_path, more, other)
    assert gang_lines(study, {"north": TABLE})[1:] == [
        f"  gangs    north: 4 ranks train {times}, {rate}",
        f"  gangs    north: on 10 Gbit/s {best[0]}; on 100 Gbit/s {best[1]}",
    ]
    (told,) = gangs_summary(study, {"north": TABLE})
    assert (told["region"], told["ranks"]) == ("north", 4)
    assert [(each["gbits"], f"{each['speedup']:.2g}") for each in told["speeds"]] == [
        (10, ten),
        (100, hundred),
    ]


def test_of_a_network_that_is_shared_out_no_gain_is_told(
    tmp_path: Path,
) -> None:
    study = planned_gang(tmp_path, "  parallel: sharded\n", {})
    assert len(gang_lines(study, {"north": TABLE})) == 1
    assert gangs_summary(study, {"north": TABLE})[0]["speeds"] is None
    assert gangs_summary(study, {}) == []


def test_the_pages_example_of_a_plan_is_a_plans(tmp_path: Path) -> None:
    other = {"high: 100": "high: 1024", "layers: 1": "layers: 4", "accelerator: cpu\n": ""}
    study = planned_gang(tmp_path, "  batch_size: 8192\naccelerator: gpu\n", other)
    assert "```text\n" + "\n".join(gang_lines(study, {"north": TABLE})[1:]) + "\n```\n" in PAGE
