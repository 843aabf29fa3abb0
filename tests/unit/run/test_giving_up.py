"""Regions that are abandoned before the budget is spent: which failures are a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.run.test_causes import IMPORT, NO_MODULE, trial
from trialfleet.errors import PoolError
from trialfleet.workflows.facts.run_folder.folder import RegionFolder
from trialfleet.workflows.status.attempts import trainer_fails_everywhere
from trialfleet.workflows.status.attempts.trainer_fails_everywhere import reason_to_abandon

LOG = """\
000 (001.000.000) 2026-11-22 07:00:00 Job submitted from host: <127.0.0.1:1>
...
001 (001.000.000) 2026-11-22 07:00:01 Job executing on host: <127.0.0.1:1>
\tSlotName: slot1_1@{machine}
\tCondorScratchDir = "/execute/dir_1/scratch"
...
"""
ENDED = """\
012 (001.000.000) 2026-11-22 07:00:02 Job was held.
\tits memory
\tCode 1 Subcode 0
...
"""


@pytest.fixture
def region(tmp_path: Path) -> RegionFolder:
    return RegionFolder(tmp_path)


def write_job_logs(region: RegionFolder, **machines: str) -> None:
    """Have trials executed, each on its machine."""
    for node, machine in machines.items():
        place = region.trial(node)
        place.root.mkdir(parents=True, exist_ok=True)
        place.log.write_text(LOG.format(machine=machine))
        place.err.write_text("a traceback\n")


@pytest.fixture(autouse=True)
def pool(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The machines of the pool."""
    machines = {"one"}
    monkeypatch.setattr(trainer_fails_everywhere, "machines", lambda: machines)
    return machines


def test_three_trials_that_failed_alike_are_a_reason_to_abandon(region: RegionFolder) -> None:
    write_job_logs(region, a="one", b="one", c="one")
    failed = [trial("a", NO_MODULE), trial("b", NO_MODULE, begun=1)]
    assert reason_to_abandon([(failed, region)]) is None
    last = trial("c", NO_MODULE, begun=2, state="RUNNING")  # it would be retried
    why = reason_to_abandon([([*failed, last], region)])
    assert why == f"{NO_MODULE}; see {region.trial('c').err}"


def test_three_failed_attempts_at_one_trial_are_no_reason_to_abandon(region: RegionFolder) -> None:
    write_job_logs(region, a="one")
    assert reason_to_abandon([([trial("a", *[NO_MODULE] * 3)], region)]) is None


def test_no_region_is_abandoned_if_a_trial_completed_or_failed_differently(
    region: RegionFolder,
) -> None:
    write_job_logs(region, a="one", b="one", c="one", d="one")
    failed = [trial(node, NO_MODULE) for node in "abc"]
    assert reason_to_abandon([(failed, region)])
    assert reason_to_abandon([([*failed, trial("d", state="COMPLETE")], region)]) is None
    assert reason_to_abandon([([*failed, trial("d", IMPORT)], region)]) is None


def test_no_region_is_abandoned_while_a_first_attempt_outlasts_the_failed_ones(
    region: RegionFolder,
) -> None:
    write_job_logs(region, a="one", b="one", c="one")
    trials = [*(trial(node, NO_MODULE) for node in "abc"), trial("d", state="RUNNING")]
    assert reason_to_abandon([(trials, region)]), "it waits in the queue"
    write_job_logs(region, d="one")
    assert reason_to_abandon([(trials, region)]) is None
    log = region.trial("d").log
    log.write_text(LOG.format(machine="one").replace("2026", "2126"))
    assert reason_to_abandon([(trials, region)]), "it has just begun"
    log.write_text(LOG.format(machine="one") + ENDED)
    assert reason_to_abandon([(trials, region)]), "it has ended, and left nothing"
    region.trial("d").result.write_text("{}")
    assert reason_to_abandon([(trials, region)]) is None


def test_failed_trials_of_all_regions_are_counted_together(tmp_path: Path) -> None:
    looked_at = []
    for name in "abc":
        region = RegionFolder(tmp_path / name)
        write_job_logs(region, **{name: "one"})
        looked_at.append(([trial(name, NO_MODULE)], region))
    assert reason_to_abandon(looked_at)
    assert reason_to_abandon(looked_at[:2]) is None


def test_failures_on_one_machine_of_several_are_no_reason_to_abandon(
    region: RegionFolder, pool: set[str]
) -> None:
    pool.add("other")
    trials = [trial(node, NO_MODULE) for node in "abc"]
    write_job_logs(region, a="one", b="one", c="one")
    assert reason_to_abandon([(trials, region)]) is None
    write_job_logs(region, c="other")
    pool.add("third")
    assert reason_to_abandon([(trials, region)])


def test_no_region_is_abandoned_while_the_machines_are_unknown(
    region: RegionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> set[str]:
        raise PoolError("no collector")

    monkeypatch.setattr(trainer_fails_everywhere, "machines", away)
    write_job_logs(region, a="one", b="one", c="one")
    assert reason_to_abandon([([trial(node, NO_MODULE) for node in "abc"], region)]) is None
