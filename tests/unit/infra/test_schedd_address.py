"""A schedd that has no address for now: it started while the shared port was being started, too."""

from __future__ import annotations

from collections.abc import Callable

import classad2
import htcondor2
import pytest

from trialfleet.errors import PoolError
from trialfleet.infra.pool import schedd
from trialfleet.workflows.facts.dagman import job_queue


@pytest.fixture(autouse=True)
def _no_address_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for a local ad as a storm met it: HTCondor adds the address a minute later."""
    ad = classad2.ClassAd({"MyType": "Scheduler", "CondorVersion": "$CondorVersion: 25.14.1 $"})
    monkeypatch.setattr(htcondor2.Collector, "locate", lambda *_words: ad)
    monkeypatch.setattr(schedd, "use", lambda *_: None)
    monkeypatch.setattr(schedd, "connect", dict)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: schedd.query("true", ["ClusterId"]),
        lambda: schedd.apply_action("Hold", "false", "no reason"),
        lambda: job_queue.one_job("true"),
    ],
)
def test_a_schedd_without_an_address_is_a_pool_error(ask: Callable[[], object]) -> None:
    with pytest.raises(PoolError, match="no address yet"):
        ask()
