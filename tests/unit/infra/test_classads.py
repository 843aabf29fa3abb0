"""Undefined values in ads, which HTCondor's bindings give as an int, 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import classad2
import pytest

from trialfleet.classads import from_json, plain_attributes, text, value
from trialfleet.infra.pool.machines import parse_machines
from trialfleet.nodes.node_agent import decisions, htcondor_tools
from trialfleet.nodes.probe import privileged_readings
from trialfleet.workflows.facts.dagman import pool_slots
from trialfleet.workflows.facts.dagman.files import NodeStatus, read_node_status
from trialfleet.workflows.rules import slot_matching as matching
from trialfleet.workflows.views.why import slot_sources as slots

NOTHING, ERROR = classad2.Value.Undefined, classad2.Value.Error


def ad(**says: Any) -> classad2.ClassAd:
    """Return an ad; a value in a tuple becomes an expression."""
    return classad2.ClassAd(
        {n: classad2.ExprTree(*v) if isinstance(v, tuple) else v for n, v in says.items()}
    )


def test_plain_attributes_leave_out_undefined_values() -> None:
    says = ad(
        Cpus=4, Price=NOTHING, Memory=ERROR, Half=("Cpus / 2",), Gpus=("NoSuch + 1",), Name="slot1",
        Bad=("1 / 0",), Draining=False, Requirements=("TARGET.Cpus > Cpus",),
    )  # fmt: skip
    assert float(says["Price"]) == 2.0  # as the bindings have it
    usual = {"Cpus": 4, "Half": 2, "Name": "slot1", "Draining": False}
    assert plain_attributes(says) == usual
    assert plain_attributes(usual) == usual
    asked = {"Requirements", "Price"}
    assert plain_attributes(says, as_text=asked) == {**usual, "Requirements": "TARGET.Cpus > Cpus"}
    assert [value(says, name) for name in ("Price", "Bad", "Nowhere", "Half")] == [None] * 3 + [2]
    assert [text(says, name) for name in ("Price", "Nowhere", "Half")] == [None, None, "Cpus / 2"]


def test_an_expression_of_a_plain_mapping_is_evaluated_for_itself() -> None:
    assert plain_attributes({"A": classad2.ExprTree("1 + 1"), "B": classad2.ExprTree("A")}) == {
        "A": 2
    }


PRINTED = r"""[
{ "Bad": "\/Expr(1 / 0)\/", "Cpus": null, "Memory": 7, "Name": "slot1@a", "Twice": "\/Expr(2 * Memory)\/" }
]"""  # noqa: E501 - by condor_status -json of such an ad


def test_the_json_of_a_tool_is_read_without_undefined_values() -> None:
    assert from_json(PRINTED) == [{"Memory": 7, "Name": "slot1@a"}]
    assert from_json("\n") == from_json("[]\n") == []
    with pytest.raises(ValueError, match="Expecting value"):
        from_json("no collector")


def test_a_slot_with_undefined_resources_fits_no_job() -> None:
    job = ad(RequestCpus=1, Requirements=True)
    found = matching.prospects(job, [ad(Cpus=NOTHING), ad(Cpus=("NoSuch",)), ad(Cpus=1)])
    assert (found.slots, found.fit) == (3, 1)
    assert pool_slots.gpus(ad(GPUs=NOTHING)) == 0


@pytest.mark.parametrize(
    ("says", "word"),
    [
        ({"Draining": True, "TrialfleetNote": NOTHING, "DrainReason": "trialfleet: idle"}, "idle"),
        ({"Draining": True, "TrialfleetNote": NOTHING, "DrainReason": NOTHING}, ""),
        ({"TrialfleetNote": NOTHING}, ""),
        (
            {"TrialfleetGpuHealthy": False, "TrialfleetGpuReason": NOTHING},
            "its GPU failed the probe: no reason given",
        ),
    ],
)
def test_why_leaves_out_undefined_notes_of_a_machine(
    says: dict[str, Any], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine,) = parse_machines([plain_attributes(ad(Name="slot1@vm", TotalSlotGPUs=1, **says))])
    monkeypatch.setattr(slots, "machine_named", lambda _: machine)
    assert slots.word_of_machine("vm") == word


def test_a_dag_node_with_undefined_details_has_empty_ones(tmp_path: Path) -> None:
    path = tmp_path / "node.status"
    path.write_text(
        '[ Type = "NodeStatus"; Node = "a"; NodeStatus = 6; StatusDetails = undefined; ]\n'
    )
    assert read_node_status(path) == {"a": NodeStatus(submitted=False, failed=True, details="")}


def test_the_states_of_dag_nodes_are_read_again_after_an_error_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "node.status"
    path.write_text('[ Type = "NodeStatus"; Node = "a"; NodeStatus = 3; StatusDetails = ""; ]\n')

    def fail(_: Path) -> str:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "read_text", fail)
        assert read_node_status(path) == {}
    assert read_node_status(path)["a"].submitted


def test_the_nodes_agent_reads_no_gpus_from_an_undefined_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        htcondor_tools,
        "run",
        lambda _: '[{"TrialfleetGpuHealthy": true, "TrialfleetSickGpus": null}]',
    )
    (slot,) = htcondor_tools.query(["condor_status"])
    assert decisions.sick_gpus(slot) == ()


def test_a_node_that_measured_an_unknown_gpu_is_no_measure_for_others() -> None:
    ads = from_json(
        '[{"TrialfleetGpuName": null, "TrialfleetBandwidth": 7.5},'
        ' {"TrialfleetGpuName": "L4", "TrialfleetBandwidth": 300}]'
    )
    assert privileged_readings.bandwidths(ads, besides="i-1") == {"L4": (300.0,)}
