from __future__ import annotations

from pathlib import Path

import pytest

from tests.node_stand_ins import Bench
from trialfleet.nodes.bootstrap import join, services
from trialfleet.nodes.bootstrap.host import Host, StepError

SYSTEMCTL = """
case "$*" in
  "restart condor.service") touch "$ROOT/condor-runs" ;;
  "is-active --quiet condor.service") test -e "$ROOT/condor-runs" || exit 3 ;;
esac
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path / "bench")
    bench.program("systemctl", SYSTEMCTL)
    bench.file("etc/condor/config.d/50-trialfleet-node.conf", "A = 1\n")
    bench.file("etc/condor/tokens.d/trialfleet", "the-token\n")
    monkeypatch.setenv("PATH", bench.path)
    monkeypatch.setattr(join, "INTERVAL", 0.02)
    return bench


def restarts(bench: Bench) -> int:
    return bench.calls.count("systemctl restart condor.service")


def test_htcondor_is_started_once_for_one_configuration(bench: Bench) -> None:
    host = Host(bench.root)
    assert join.start(host) == "HTCondor is started"
    assert join.start(host) == "HTCondor is already running"
    assert restarts(bench) == 1
    assert bench.calls.count("systemctl start trialfleet-agent.service") == 2


@pytest.mark.parametrize(
    "file", ["etc/condor/config.d/50-trialfleet-node.conf", "etc/condor/tokens.d/trialfleet"]
)
def test_another_configuration_or_token_restarts_htcondor(bench: Bench, file: str) -> None:
    join.start(Host(bench.root))
    bench.file(file, "changed\n")
    join.start(Host(bench.root))
    assert restarts(bench) == 2


def test_htcondor_is_not_started_without_the_agent(bench: Bench) -> None:
    bench.program("systemctl", 'test "$*" != "start trialfleet-agent.service"')
    with pytest.raises(StepError, match="start trialfleet-agent"):
        join.start(Host(bench.root))
    assert restarts(bench) == 0


def test_a_dead_htcondor_is_restarted(bench: Bench) -> None:
    join.start(Host(bench.root))
    (bench.root / "condor-runs").unlink()
    join.start(Host(bench.root))
    assert restarts(bench) == 2


def test_the_note_of_the_start_does_not_contain_the_token(bench: Bench) -> None:
    join.start(Host(bench.root))
    noted = bench.root / "run/trialfleet/condor-started-with"
    assert "token" not in noted.read_text()
    assert noted.stat().st_mode & 0o777 == 0o600


def test_the_agent_is_not_enabled_to_start_at_boot(bench: Bench) -> None:
    services.write(Host(bench.root))
    assert not [call for call in bench.calls if " enable " in call]
    agent = bench.text("etc/systemd/system/trialfleet-agent.service")
    assert f"PYTHONPATH={bench.root}/opt/trialfleet/lib" in agent
    assert "-m trialfleet.nodes.node_agent" in agent
    assert "[Install]" not in agent


def test_systemd_reloads_units_that_have_not_changed(bench: Bench) -> None:
    """Whoever wrote them may have been killed before it could tell systemd."""
    services.write(Host(bench.root))
    before = len(bench.calls)
    services.write(Host(bench.root))
    assert "systemctl daemon-reload" in bench.calls[before:]


def test_the_node_waits_until_the_pool_has_it(bench: Bench) -> None:
    seen_at_the_third = 'test $(grep -c condor_status "$ROOT/../calls") -ge 3 && echo slot1@here'
    bench.program("condor_status", f"{seen_at_the_third}; exit 0")
    assert join.wait(Host(bench.root), "i-1", "127.0.0.1:9", 20, print) == "slot1@here"
    assert 'condor_status -constraint TrialfleetInstance == "i-1" -af Name' in bench.calls


def test_a_refused_node_reports_htcondors_error(bench: Bench) -> None:
    bench.program("condor_status", "echo AUTHENTICATE:1004:Failed using IDTOKENS >&2; exit 1")
    with pytest.raises(StepError, match=r"not in the pool after 0 s: .*1004:Failed using IDTOK"):
        join.wait(Host(bench.root), "i-1", "127.0.0.1:9", 0.1, print)


def test_a_token_that_the_manager_refuses_is_explained(bench: Bench) -> None:
    bench.program("condor_status", "echo AUTHENTICATE:1003:Failed to authenticate >&2; exit 1")
    with pytest.raises(StepError, match="the manager rejects this node's token"):
        join.wait(Host(bench.root), "i-1", "127.0.0.1:9", 0.1, print)


def test_a_manager_that_cannot_be_reached_is_named(bench: Bench) -> None:
    bench.program("condor_status")
    with pytest.raises(StepError, match=r"127\.0\.0\.1:9 can't be reached .*its port open"):
        join.wait(Host(bench.root), "i-1", "127.0.0.1:9", 0.1, print)


def test_a_long_wait_is_explained_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "PATIENCE", 0.05)
    bench.program("condor_status", "echo no route >&2; exit 1")
    messages: list[str] = []
    with pytest.raises(StepError):
        join.wait(Host(bench.root), "i-1", "127.0.0.1:9", 0.3, messages.append)
    assert len(messages) == 1
    assert messages[0].startswith("not in the pool yet: `condor_status")
    assert messages[0].endswith("no route")
