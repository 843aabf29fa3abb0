"""The fence between jobs and the metadata: by the real kernel's rules, in a network of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node_stand_ins import IP, Bench
from trialfleet.nodes.bootstrap import accounts, metadata_fence, services
from trialfleet.nodes.bootstrap.host import Host, StepError

pytestmark = pytest.mark.slow


RAISE = f"{sys.executable} -m trialfleet.nodes.bootstrap.metadata_fence"
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


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path / "bench")
    bench.program("systemctl")
    bench.program("ip", IP)
    monkeypatch.setenv("PATH", bench.path)
    return bench


def run_in_own_network(script: str) -> str:
    """Run a script in a new network namespace; skip the test where there can't be one."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("wants root and ip")
    command = ["unshare", "--net", "sh", "-ec", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


JOBS = accounts.NUMBERS.values()
ACCOUNTS = {
    **dict.fromkeys((0, 1000, min(JOBS) - 1), "no such place"),
    **dict.fromkeys((min(JOBS), max(JOBS), 65_534), "kept out"),
}


@pytest.mark.parametrize(("account", "expected"), ACCOUNTS.items())
def test_the_jobs_accounts_cannot_read_the_metadata(account: int, expected: str) -> None:
    connect = f"/usr/bin/python3 -c '{CONNECT}' {account}"
    assert run_in_own_network(f"{RAISE}; {RAISE}; {connect}") == expected


def test_the_fence_is_one_rule_that_networkd_does_not_remove() -> None:
    (rule,) = json.loads(run_in_own_network(f"{RAISE}; {RAISE}; ip -d -j rule show pref 169"))
    assert (rule["action"], rule["protocol"]) == ("prohibit", "kernel")


def test_a_fence_for_only_one_account_is_raised_again() -> None:
    narrow = "ip rule add pref 169 uidrange 65534-65534 to 169.254.169.254 prohibit"
    script = "from trialfleet.nodes.bootstrap.metadata_fence import *; print(raise_fence(Host()))"
    again = f'{sys.executable} -c "{script}"'
    assert run_in_own_network(f"{narrow}; {again}; {again}").split() == ["True", "False"]


def test_a_fence_that_was_removed_is_raised_again() -> None:
    script = "from trialfleet.nodes.bootstrap.metadata_fence import *; print(raise_fence(Host()))"
    again = f'{sys.executable} -c "{script}"'
    output = run_in_own_network(f"{again}; {again}; ip rule del pref 169; {again}")
    assert output.split() == ["True", "False", "True"]


NO_FENCE = {
    "there is no program ip": "",
    "Operation not supported": "echo RTNETLINK answers: Operation not supported >&2; exit 2",
    "the routing rule against this exists, but has no effect": "exit 0",
}


@pytest.mark.parametrize(("why", "program"), NO_FENCE.items(), ids=NO_FENCE)
def test_a_fence_that_cannot_be_raised_is_an_error_with_its_reason(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, why: str, program: str
) -> None:
    (bench.bin / "ip").unlink()
    if program:
        bench.program("ip", program)
    monkeypatch.setenv("PATH", bench.bare_path())
    with pytest.raises(StepError, match=f"jobs could reach the .* metadata: .*{why}"):
        metadata_fence.raise_fence(Host(bench.root))


def test_htcondor_starts_only_if_the_fence_can_be_raised(bench: Bench) -> None:
    """The drop-in's own line, run as systemd does: what it exits with decides."""
    services.write(Host(bench.root))
    drop_in = bench.text("etc/systemd/system/condor.service.d/trialfleet.conf")
    (line,) = (line for line in drop_in.splitlines() if line.startswith("ExecStartPre="))
    assert line.startswith("ExecStartPre=+")
    words = line.partition("=+")[2].replace(f"{bench.root}/opt/trialfleet/lib", "src")
    environment = bench.environment()
    assert subprocess.run(words.split(), env=environment, check=False).returncode == 0
    bench.program("ip", "exit 1")
    assert subprocess.run(words.split(), env=environment, check=False).returncode == 1
