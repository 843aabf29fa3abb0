"""The machines of the pool on the page, in its metrics and in its figures."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from trialfleet.infra.pool.machines import parse_machines
from trialfleet.render import render_template
from trialfleet.workflows.formatting import NOTHING
from trialfleet.workflows.views.serve import live_runs
from trialfleet.workflows.views.serve.live_runs import NodeReader, PoolNodes
from trialfleet.workflows.views.serve.metrics import exposition

SLOT: dict[str, Any] = {"SlotType": "Partitionable", "TotalSlotCpus": 8, "TotalSlotGPUs": 1}
WELL: dict[str, Any] = {
    "Machine": "n1",
    "TrialfleetInstanceType": "g5.xlarge",
    "TrialfleetLifecycle": "spot",
    "TrialfleetPricePerHour": 0.5,
    "TrialfleetGpuHealthy": True,
}
ADS = [
    SLOT | WELL,
    {"Machine": "n1", "SlotType": "Dynamic", "JobId": "1.0"},
    {"Machine": "n1", "SlotType": "Dynamic", "JobId": "1.0", "IsDataSlot": True},
    {"Machine": "n1", "SlotType": "Dynamic", "State": "Claimed", "Activity": "Idle"},
    SLOT | {"Machine": "n2", "TrialfleetGpuHealthy": False, "TrialfleetGpuReason": "ECC"},
    SLOT | {"Machine": "n3", "Draining": True, "DrainReason": "trialfleet: idle"},
]


def text_of(html: str) -> str:
    """Return the text that a reader sees."""
    return " ".join(re.sub("<.*?>", "", html, flags=re.S).split())


def test_page_and_metrics_show_the_same_states_of_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_runs, "read_machines", lambda: parse_machines(ADS))
    found = NodeReader().read()
    page = render_template("serve/machines.html.j2", snapshot=SimpleNamespace(nodes=found))
    rows = re.findall(r"<tr><th scope=\"row\"><bdi>(n\d)</bdi></th>(.*?)</tr>", page, re.S)
    shown = {name: [text_of(cell) for cell in row.split("</td>")[:-1]] for name, row in rows}
    assert shown == {
        "n1": ["well", "0.500", "8", "1", "1", "g5.xlarge · spot"],
        "n2": ["sick its GPU failed the probe: ECC", NOTHING, "8", "1", NOTHING, NOTHING],
        "n3": ["draining idle", NOTHING, "8", "1", NOTHING, NOTHING],
    }
    metrics = exposition([], [], found, "")[0].decode()
    for line in (
        'trialfleet_nodes{state="well"} 1.0',
        'trialfleet_nodes{state="sick"} 1.0',
        'trialfleet_nodes{state="draining"} 1.0',
        "trialfleet_nodes_price_usd_per_hour 0.5",
        "trialfleet_nodes_jobs 1.0",
    ):
        assert line in metrics


def test_unknown_nodes_are_not_counted_as_none() -> None:
    metrics = exposition([], [], PoolNodes(notice="the collector does not answer"), "")[0].decode()
    assert 'trialfleet_unreadable{study="",what="nodes"} 1.0' in metrics
    assert not re.search(r"^trialfleet_nodes", metrics, re.M)
