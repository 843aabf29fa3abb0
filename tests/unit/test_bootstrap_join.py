from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.node_stand_ins import Bench
from trialfleet.nodes.bootstrap import join, services
from trialfleet.nodes.bootstrap.machine import Machine, StepError

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
    machine = Machine(bench.root)
    assert join.start(machine) == "HTCondor is started"
    assert join.start(machine) == "HTCondor runs already"
    assert restarts(bench) == 1
    assert bench.calls.count("systemctl start trialfleet-agent.service") == 2


@pytest.mark.parametrize(
    "file", ["etc/condor/config.d/50-trialfleet-node.conf", "etc/condor/tokens.d/trialfleet"]
)
def test_another_configuration_or_token_starts_it_anew(bench: Bench, file: str) -> None:
    join.start(Machine(bench.root))
    bench.file(file, "changed\n")
    join.start(Machine(bench.root))
    assert restarts(bench) == 2


def test_htcondor_that_died_is_started_anew(bench: Bench) -> None:
    join.start(Machine(bench.root))
    (bench.root / "condor-runs").unlink()
    join.start(Machine(bench.root))
    assert restarts(bench) == 2


def test_what_notes_the_start_has_nothing_of_the_token_in_it(bench: Bench) -> None:
    join.start(Machine(bench.root))
    noted = bench.root / "run/trialfleet/condor-started-with"
    assert "token" not in noted.read_text()
    assert noted.stat().st_mode & 0o777 == 0o600


def test_at_a_boot_only_the_bootstrap_starts_by_itself(bench: Bench) -> None:
    services.write(Machine(bench.root))
    services.write(Machine(bench.root))
    assert bench.calls.count("systemctl daemon-reload") == 1
    enabled = [call for call in bench.calls if " enable " in call]
    assert set(enabled) == {"systemctl enable trialfleet-bootstrap.service"}
    unit = bench.text("etc/systemd/system/trialfleet-bootstrap.service")
    assert "WantedBy=multi-user.target" in unit
    assert f"PYTHONPATH={bench.root}/opt/trialfleet/lib" in unit
    agent = bench.text("etc/systemd/system/trialfleet-agent.service")
    assert "-m trialfleet.nodes.agent" in agent
    assert "[Install]" not in agent


def test_before_htcondor_starts_its_jobs_are_kept_from_the_metadata(bench: Bench) -> None:
    services.write(Machine(bench.root))
    fence = bench.text("etc/systemd/system/condor.service.d/trialfleet.conf")
    assert fence == f"[Service]\nExecStartPre=-/bin/sh -c '{services.KEEP_OUT}'\n"


CONNECT = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
try:
    socket.create_connection(("169.254.169.254", 80), timeout=1)
except PermissionError:
    print("kept out")
except OSError:
    print("no such place")
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="wants root and ip")
@pytest.mark.parametrize(("account", "told"), [(0, "no such place"), (65_534, "kept out")])
def test_the_metadata_are_for_others_than_the_jobs_account(account: int, told: str) -> None:
    twice = f"{services.KEEP_OUT} && {services.KEEP_OUT} && exec /usr/bin/python3 -c '{CONNECT}'"
    command = ["unshare", "--net", "sh", "-c", f"{twice} {account}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout.strip() == told


def test_the_node_waits_until_the_pool_has_it(bench: Bench) -> None:
    seen_at_the_third = 'test $(grep -c condor_status "$ROOT/../calls") -ge 3 && echo slot1@here'
    bench.program("condor_status", f"{seen_at_the_third}; exit 0")
    assert join.wait(Machine(bench.root), "i-1", "127.0.0.1:9", 20, print) == "slot1@here"
    assert 'condor_status -constraint TrialfleetInstance == "i-1" -af Name' in bench.calls


def test_a_refused_node_says_in_htcondors_words_why(bench: Bench) -> None:
    bench.program("condor_status", "echo AUTHENTICATE:1004:Failed using IDTOKENS >&2; exit 1")
    with pytest.raises(StepError, match=r"not in the pool after 0 s: .*1004:Failed using IDTOK"):
        join.wait(Machine(bench.root), "i-1", "127.0.0.1:9", 0.1, print)


def test_a_token_that_the_manager_refuses_is_said_in_words(bench: Bench) -> None:
    bench.program("condor_status", "echo AUTHENTICATE:1003:Failed to authenticate >&2; exit 1")
    with pytest.raises(StepError, match="the manager refuses this node's token"):
        join.wait(Machine(bench.root), "i-1", "127.0.0.1:9", 0.1, print)


def test_a_manager_that_cannot_be_reached_is_named(bench: Bench) -> None:
    bench.program("condor_status")
    with pytest.raises(StepError, match=r"127\.0\.0\.1:9 can't be reached .*its port open"):
        join.wait(Machine(bench.root), "i-1", "127.0.0.1:9", 0.1, print)


def test_a_long_wait_is_explained_once_while_it_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join, "PATIENCE", 0.05)
    bench.program("condor_status", "echo no route >&2; exit 1")
    said: list[str] = []
    with pytest.raises(StepError):
        join.wait(Machine(bench.root), "i-1", "127.0.0.1:9", 0.3, said.append)
    assert len(said) == 1
    assert said[0].startswith("not in the pool yet: `condor_status")
    assert said[0].endswith("no route")
