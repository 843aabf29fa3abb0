"""Two access points of one pool divide a study's regions, and write to one database."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeRun
from tests.pool.conftest import MakePool
from tests.pool.machines import free_port
from tests.pool.watching import active, assert_exactly_once
from tests.postgresql import Server, private_server
from trialfleet import RunState
from trialfleet.infra.pool import schedd
from trialfleet.infra.pool.connection import use
from trialfleet.infra.pool.embedded import Pool
from trialfleet.infra.pool.processes import wait_until
from trialfleet.infra.pool.user_namespace import identity
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.run_folder.folder import RunFolder

pytestmark = pytest.mark.postgres
# Settings of a machine that is only an access point, in place of the pool's own.
SECOND = """
include : {first}
COLLECTOR_HOST = 127.0.0.1:{collector}
LOCAL_DIR = {folder}
SEC_PASSWORD_DIRECTORY = {passwords}
DAEMON_LIST = MASTER SCHEDD
SHARED_PORT_PORT = {port}
SCHEDD_NAME = second@
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    yield from private_server()


@pytest.fixture
def first(make_pool: MakePool) -> Iterator[Pool]:
    pool = make_pool(cpus=4)
    with active(pool):
        yield pool


@pytest.fixture
def second(first: Pool, work: Path) -> Iterator[dict[str, str]]:
    """Another access point of the pool; what a command there has in its environment."""
    folder = work / "second"
    for name in ("run", "log", "lock", "spool", "execute"):
        (folder / name).mkdir(parents=True, mode=0o755)
    config = folder / "condor_config"
    text = first.condor_config.read_text()
    port = next(line for line in text.splitlines() if line.startswith("SHARED_PORT_PORT"))
    config.write_text(
        SECOND.format(
            first=first.condor_config,
            collector=port.split()[-1],
            folder=folder,
            passwords=first.folder / "passwords.d",
            port=free_port(),
        )
    )
    environment = first.environment() | {"CONDOR_CONFIG": str(config)}
    program = subprocess.check_output(["condor_config_val", "SBIN"], text=True).strip()
    master = subprocess.Popen(
        [*identity().prefix, f"{program}/condor_master", "-f"], env=environment, cwd=folder
    )
    try:
        known = ["condor_status", "-schedd", "-af", "Name"]
        both = 2
        assert wait_until(
            lambda: len(subprocess.check_output(known, text=True).split()) == both, seconds=60
        )
        yield environment
    finally:
        master.terminate()
        master.wait(60)


@pytest.mark.thorough
def test_two_access_points_tune_a_studys_regions_in_one_pool_and_one_database(
    first: Pool, second: dict[str, str], make_run: MakeRun, server: Server
) -> None:
    budget = {"trials": 6, "lanes": 2}
    parts = {"first": ["A", "B"], "second": ["C", "D"]}
    places = {"first": first.environment(), "second": second}
    runs = {
        name: make_run(
            {"seconds": 0.2}, run=name, regions=regions, storage=server.url(), budget=budget
        )
        for name, regions in parts.items()
    }
    for name, run in runs.items():
        use(places[name])
        run.submit()
    for name, run in runs.items():
        use(places[name])
        queued = schedd.query(job_queue.run_constraint(RunFolder(run.folder)), ["TrialfleetFolder"])
        assert {ad["TrialfleetFolder"] for ad in queued} == {str(run.folder)}
    for name, run in runs.items():
        use(places[name])
        assert run.wait().state is RunState.DONE
        assert_exactly_once(run, 6)
        assert {record.region for record in run.trials()} == set(parts[name])
    use(first.environment())
