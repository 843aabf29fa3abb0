"""A manager with its real configuration, and nodes that have only a token, or none."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pool.machines import Machine, free_port
from trialfleet.infra.manager import config, tokens
from trialfleet.infra.manager.config import ManagerSettings
from trialfleet.infra.pool import signing
from trialfleet.infra.pool.user_namespace import identity

WaitFor = Callable[..., None]
MakeNode = Callable[..., Machine]
SLOT = "slot1@n0@test"
DOCS = Path(__file__).parents[2] / "docs" / "node-does-not-join.md"
LEVELS = (
    "READ",
    "WRITE",
    "DAEMON",
    "NEGOTIATOR",
    "ADMINISTRATOR",
    "ADVERTISE_STARTD",
    "ADVERTISE_MASTER",
    "ADVERTISE_SCHEDD",
)
# A node that allows nobody anything, and whose own address leads nowhere: what reaches it takes the
# connection that it keeps to the collector.
NODE = """
DAEMON_LIST = MASTER STARTD
COLLECTOR_HOST = 127.0.0.1:{port}
CCB_ADDRESS = $(COLLECTOR_HOST)
PRIVATE_NETWORK_NAME = elsewhere
PRIVATE_NETWORK_INTERFACE = 127.0.0.1
TCP_FORWARDING_HOST = 127.9.9.9
USE_SHARED_PORT = True
SHARED_PORT_PORT = 0
STARTD_NAME = {name}@test
UID_DOMAIN = trialfleet
TRUST_DOMAIN = trialfleet
TRUST_UID_DOMAIN = True
SEC_DEFAULT_AUTHENTICATION_METHODS = IDTOKENS
SEC_CLIENT_AUTHENTICATION_METHODS = IDTOKENS
SEC_CLIENT_AUTHENTICATION = REQUIRED
SEC_TOKEN_DIRECTORY = $(ETC)/tokens.d
ALLOW_READ = nobody@nowhere
ALLOW_WRITE = nobody@nowhere
ALLOW_DAEMON = nobody@nowhere
ALLOW_NEGOTIATOR = nobody@nowhere
ALLOW_ADMINISTRATOR = nobody@nowhere
RUNBENCHMARKS = False
DOCKER =
SINGULARITY =
FILETRANSFER_PLUGINS = $(LIBEXEC)/curl_plugin, $(LIBEXEC)/data_plugin
use FEATURE : PartitionableSlot
NUM_CPUS = 2
START = True
UPDATE_INTERVAL = 5
"""

# Says who it is, or nothing, and would do without a proof, encryption or integrity.
LIAR = """
SEC_DEFAULT_AUTHENTICATION_METHODS = CLAIMTOBE, ANONYMOUS, IDTOKENS
SEC_CLIENT_AUTHENTICATION_METHODS = CLAIMTOBE, ANONYMOUS, IDTOKENS
SEC_CLIENT_AUTHENTICATION = OPTIONAL
SEC_CLIENT_ENCRYPTION = OPTIONAL
SEC_CLIENT_INTEGRITY = OPTIONAL
"""


@pytest.fixture(scope="module")
def make_node(session_folder: Path, manager: Machine, port: int) -> Iterator[MakeNode]:
    made: list[Machine] = []

    def make(token: str, name: str = "", more: str = "") -> Machine:
        name = name or f"n{secrets.token_hex(2)}"
        made.append(Machine(session_folder / name, NODE.format(port=port, name=name) + more))
        if token:
            made[-1].give_token(token)
        return made[-1]

    yield make
    for machine in made:
        machine.remove()


@pytest.fixture(scope="module")
def node(manager: Machine, make_node: MakeNode) -> Machine:
    """A node that has joined."""
    machine = make_node(token_of(manager), "n0")
    machine.start()
    deadline = time.monotonic() + 30
    while SLOT not in slots(manager):
        assert time.monotonic() < deadline, slots(manager)
        time.sleep(0.2)
    return machine


def token_of(manager: Machine, *changed: str) -> str:
    """Have the manager make a token, by the command of a node's with other arguments added."""
    done = manager.run(*tokens.command(), *changed)
    assert done.returncode == 0, done.stderr
    return done.stdout


def slots(seen_by: Machine) -> dict[str, str]:
    """Return the state of each slot."""
    done = seen_by.run("condor_status", "-af", "Name", "State")
    return dict(line.split() for line in done.stdout.splitlines())


def allowed(machine: Machine, daemon: str, *where: str) -> set[str]:
    """Return the levels that the manager's daemon allows whoever asks from `machine`."""
    done = machine.run("condor_ping", "-table", "-type", daemon, *where, *LEVELS)
    rows = [line.split() for line in done.stdout.splitlines()[1:] if line]
    assert len(rows) == len(LEVELS), done.stdout + done.stderr
    return {row[0] for row in rows if row[-2] == "ALLOW"}


def schedd_of(manager: Machine) -> tuple[str, str]:
    return "-name", manager.run("condor_status", "-schedd", "-af", "Name").stdout.strip()


def submit(manager: Machine, folder: Path, program: str) -> None:
    (folder / "job.sh").write_text(f"#!/bin/sh\n{program}\n")
    (folder / "given").write_text("from the manager")
    description = f"""
    executable = {folder}/job.sh
    initialdir = {folder}
    log = log
    transfer_input_files = given
    transfer_output_files = made
    should_transfer_files = YES
    request_memory = 50MB
    queue
    """
    (folder / "job.sub").write_text(description)
    done = manager.run("condor_submit", str(folder / "job.sub"))
    assert done.returncode == 0, done.stderr


def test_a_job_runs_on_a_node_with_a_token_and_files_go_both_ways(
    manager: Machine, node: Machine, work: Path
) -> None:
    submit(manager, work, "tr a-z A-Z < given > made")
    assert manager.run("condor_wait", "-wait", "60", str(work / "log")).returncode == 0
    assert (work / "made").read_text() == "FROM THE MANAGER"
    assert "SlotName: slot1_1@n0@test" in (work / "log").read_text()


def test_the_manager_reaches_a_node_with_an_unreachable_address(
    manager: Machine, node: Machine
) -> None:
    """Each drain and each job takes the way back that the node holds open; none the direct one."""
    asked = ("condor_status", "-collector", "-direct", "127.0.0.1", "-af", "CCBRequestsSucceeded")
    before = int(manager.run(*asked).stdout)
    assert manager.run("condor_drain", "-cancel", SLOT).returncode == 0
    assert int(manager.run(*asked).stdout) > before
    address = manager.run("condor_status", "-af", "MyAddress").stdout
    assert address.startswith("<127.9.9.9:")


def test_a_node_may_advertise_itself_and_read_the_collector_and_nothing_else(
    manager: Machine, node: Machine
) -> None:
    granted = {"READ", "ADVERTISE_STARTD", "ADVERTISE_MASTER"}
    assert allowed(node, "collector") == granted
    assert allowed(node, "negotiator") == set()
    assert allowed(node, "schedd", *schedd_of(manager)) == set()


def test_the_user_of_the_manager_may_do_everything(manager: Machine, node: Machine) -> None:
    assert allowed(manager, "collector") == set(LEVELS)
    assert allowed(manager, "schedd", *schedd_of(manager)) == set(LEVELS)


@pytest.mark.usefixtures("node")
def test_the_user_drains_a_node_without_authorized_users(
    manager: Machine, wait_for: WaitFor
) -> None:
    drained = manager.run("condor_drain", "-graceful", "-reason", "a test", SLOT)
    assert drained.returncode == 0, drained.stderr
    wait_for(lambda: slots(manager)[SLOT] == "Drained", 30)
    reason = manager.run("condor_status", "-af", "DrainReason").stdout
    assert reason.strip() == "a test"
    assert manager.run("condor_drain", "-cancel", SLOT).returncode == 0
    wait_for(lambda: slots(manager)[SLOT] == "Unclaimed", 30)


def test_a_node_cannot_drain(node: Machine) -> None:
    assert slots(node)[SLOT]  # it sees whom it would drain
    refused = node.run("condor_drain", SLOT)
    assert "Failed to start DRAIN_JOBS" in refused.stderr


def test_a_node_cannot_advertise_a_schedd(manager: Machine, node: Machine) -> None:
    ad = 'MyType = "Scheduler"\nName = "false"\nMyAddress = "<127.0.0.1:1>"\n'
    (node.folder / "ad").write_text(ad)
    node.run("condor_advertise", "UPDATE_SCHEDD_AD", str(node.folder / "ad"))
    assert "false" not in manager.run("condor_status", "-schedd", "-af", "Name").stdout.split()
    manager.run("condor_advertise", "UPDATE_SCHEDD_AD", str(node.folder / "ad"))
    assert "false" in manager.run("condor_status", "-schedd", "-af", "Name").stdout.split()
    (node.folder / "ad").write_text('MyType = "Query"\nRequirements = Name == "false"\n')
    manager.run("condor_advertise", "INVALIDATE_SCHEDD_ADS", str(node.folder / "ad"))


def test_a_node_cannot_submit_nor_see_a_job(manager: Machine, node: Machine) -> None:
    (node.folder / "job.sub").write_text("executable = /bin/true\nrequest_memory = 1\nqueue\n")
    name = schedd_of(manager)
    assert node.run("condor_submit", "-remote", name[1], "job.sub").returncode != 0
    seen = node.run("condor_q", *name)
    assert "DENIED" in seen.stderr
    assert manager.run("condor_q", "-allusers", "-af", "ClusterId").stdout == ""


def test_a_node_cannot_have_its_token_renewed(node: Machine) -> None:
    refused = node.run("condor_token_fetch", "-type", "collector")
    assert "Token fetch disabled" in refused.stderr
    asked = node.run("condor_token_request", "-type", "collector", "-identity", "root@trialfleet")
    assert "Token request disabled" in asked.stderr


def test_a_token_without_limits_gives_a_node_no_more_rights(
    manager: Machine, make_node: MakeNode
) -> None:
    """The lists of the manager hold by themselves, not only because of what the token says."""
    unlimited = [*tokens.command()[:5], "-lifetime", "600"]
    assert "-authz" not in unlimited
    machine = make_node(manager.run(*unlimited).stdout)
    assert allowed(machine, "collector") == {"READ", "ADVERTISE_STARTD", "ADVERTISE_MASTER"}
    assert allowed(machine, "schedd", *schedd_of(manager)) == set()


def test_other_identities_that_the_key_signs_have_no_rights(
    manager: Machine, make_node: MakeNode
) -> None:
    stranger = signing.token_command("x@trialfleet", config.KEY, ["-lifetime", "600"])
    machine = make_node(manager.run(*stranger).stdout)
    assert allowed(machine, "collector") == set()


def test_an_expired_token_is_refused(manager: Machine, make_node: MakeNode) -> None:
    machine = make_node(token_of(manager, "-lifetime", "1"))
    time.sleep(2.5)
    assert allowed(machine, "collector") == set()


def test_nodes_with_a_token_of_another_key_or_without_one_do_not_join(
    manager: Machine, node: Machine, port: int, make_node: MakeNode, wait_for: WaitFor
) -> None:
    forger = make_node("")
    forger.make_key()
    forged = make_node(token_of(forger))
    liar = make_node("", more=LIAR)
    for machine in (forged, liar):
        assert allowed(machine, "collector") == set()
        machine.start()
    for machine in (forged, liar):
        log = machine.folder / "log" / "StartLog"
        wait_for(lambda log=log: refusals(log) >= 2, 40)
    assert set(slots(manager)) == {SLOT}
    for machine, name, quoted in (
        (manager, "CollectorLog", quoted_lines("DC_AUTHENTICATE", NODE="127.0.0.1")),
        (forged, "StartLog", quoted_lines("SECMAN", "ERROR", MANAGER=f"127.0.0.1:{port}")),
    ):
        written = (machine.folder / "log" / name).read_text().splitlines()
        for line in quoted:
            assert any(one.endswith(line) for one in written), f"{name} has no line {line!r}"


def quoted_lines(*beginnings: str, **names: str) -> list[str]:
    """Return the lines of HTCondor's that docs/node-does-not-join.md quotes, with true names."""
    lines = [line for line in DOCS.read_text().splitlines() if line.startswith(beginnings)]
    assert len(lines) == len(beginnings)
    for placeholder, name in names.items():
        lines = [line.replace(placeholder, name) for line in lines]
    return lines


def refusals(log: Path) -> int:
    return log.read_text().count("Failed to start non-blocking update") if log.is_file() else 0


def test_a_created_token_gives_a_node_its_rights(
    manager: Machine, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in manager.environment().items():
        monkeypatch.setenv(name, value)
    machine = make_node(tokens.create())
    assert allowed(machine, "collector") == {"READ", "ADVERTISE_STARTD", "ADVERTISE_MASTER"}
    assert os.environ["CONDOR_CONFIG"] == str(manager.folder / "condor_config")


def test_a_manager_advertises_its_forwarded_address(
    session_folder: Path, wait_for: WaitFor
) -> None:
    settings = ManagerSettings(
        user=identity().account, address="127.9.9.9", forwarded=True, port=free_port()
    )
    machine = Machine(session_folder / "behind", config.render(settings))
    machine.make_key()
    try:
        machine.start()
        wait_for(lambda: machine.run("condor_status", "-schedd", "-af", "Name").stdout, 30)
        address = machine.run("condor_status", "-schedd", "-af", "MyAddress").stdout
        assert address.startswith(f"<127.9.9.9:{settings.port}?")
    finally:
        machine.remove()
