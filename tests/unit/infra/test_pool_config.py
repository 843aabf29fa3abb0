from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from tests.unit.terminal import printed
from trialfleet.errors import InputError, PoolError
from trialfleet.files import json_text
from trialfleet.infra.pool import processes, user_namespace
from trialfleet.infra.pool import status as pool_status
from trialfleet.infra.pool.config import render, variable
from trialfleet.infra.pool.connection import connect, use
from trialfleet.infra.pool.embedded import Pool, default_folder, tail
from trialfleet.infra.pool.htcondor_installation import (
    Installation,
    extended_path,
    inherited_environment,
)
from trialfleet.infra.pool.machines import Resources, parse_machines
from trialfleet.infra.pool.user_namespace import Identity
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.cli.printing.pool_view import pool_view

UNPACKED = Installation(Path("/cache/usr"), "25.14.1", unpacked=True)
MACHINES = Installation(Path("/usr"), "25.14.1", unpacked=False)


def rendered(**changes: object) -> str:
    usual: dict[str, object] = {
        "folder": Path("/home/me/pool"),
        "installation": UNPACKED,
        "who": Identity("me"),
        "port": 20001,
        "apptainer": None,
    }
    return render(**(usual | changes))  # type: ignore[arg-type]


def knobs_of(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "use "))]
    return {
        name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)
    }


def test_only_the_owner_is_allowed_anything() -> None:
    knobs = knobs_of(rendered())
    allowed = {name: value for name, value in knobs.items() if name.startswith("ALLOW_")}
    assert set(allowed.values()) == {"$(POOL_OWNER)"}
    assert {"ALLOW_READ", "ALLOW_WRITE", "ALLOW_DAEMON", "ALLOW_ADMINISTRATOR"} <= set(allowed)
    assert knobs["POOL_OWNER"] == "me@$(UID_DOMAIN)"
    assert knobs["SEC_DEFAULT_AUTHENTICATION"] == "REQUIRED"
    assert knobs["NETWORK_INTERFACE"] == "127.0.0.1"


def test_condor_ids_are_set_for_root_alone() -> None:
    assert knobs_of(rendered(who=Identity("daemon", ("unshare",))))["CONDOR_IDS"] == "0.0"
    assert "CONDOR_IDS" not in knobs_of(rendered())


def test_the_same_settings_give_the_same_text() -> None:
    assert rendered() == rendered()


def test_the_pool_offers_two_cpus_even_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert knobs_of(rendered())["NUM_CPUS"] == "2"


def test_python3_in_a_job_is_this_python() -> None:
    environment = knobs_of(rendered())["STARTER_JOB_ENVIRONMENT"]
    assert environment.startswith(f"\"'PATH={Path(sys.executable).parent}:")


@pytest.mark.parametrize("name", ["a\nb", "a$b", "a,b", 'a"b', "a\\b", "a ", "a\x7fb", "a\tb"])
def test_a_folder_that_htcondor_would_misread_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="which HTCondor can't use: choose another path"):
        rendered(folder=Path("/home/me") / name)


@pytest.mark.parametrize("name", ["a b", "größe", "a'b", "a#b", "a=b", "a%b", "(a)", "a;b"])
def test_other_folders_are_written_as_they_are(name: str) -> None:
    folder = Path("/home/me") / name
    assert knobs_of(rendered(folder=folder))["LOCAL_DIR"] == str(folder)


@pytest.mark.slow
@settings_of_hypothesis(database=None)  # the clone may not be ours to write
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_a_variable_for_jobs_is_quoted_losslessly(value: str) -> None:
    word = variable("NAME", value)
    assert word[0] == word[-1] == "'"
    assert word[1:-1].replace('""', "").count('"') == 0
    assert word[1:-1].replace("''", "'").replace('""', '"') == f"NAME={value}"


def test_unpacked_tools_come_first_and_the_machines_own_last() -> None:
    assert (
        extended_path("/venv/bin:/bin", UNPACKED) == "/cache/usr/bin:/cache/usr/sbin:/venv/bin:/bin"
    )
    assert extended_path("/venv/bin:/usr/bin", MACHINES) == "/venv/bin:/usr/bin:/usr/sbin"
    once = extended_path("/bin", UNPACKED)
    assert extended_path(once, UNPACKED) == once


def test_the_settings_of_a_surrounding_pool_are_not_inherited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("_CONDOR_LOG", "/elsewhere")
    monkeypatch.setenv("_condor_SPOOL", "/elsewhere")
    monkeypatch.setenv("_CONDOR_ANCESTOR_1", "2:3:4")
    monkeypatch.setenv("CONDOR_INHERIT", "1 2")
    monkeypatch.setenv("KEPT", "yes")
    assert not [name for name in inherited_environment() if name.upper().startswith("_CONDOR_")]
    assert "CONDOR_INHERIT" not in inherited_environment()
    assert inherited_environment()["KEPT"] == "yes"


def test_the_end_of_a_log_names_its_file(tmp_path: Path) -> None:
    log = tmp_path / "SchedLog"
    log.write_text("".join(f"line {number}\n" for number in range(40)))
    text = tail(log)
    assert str(log) in text
    assert "line 39" in text
    assert "line 24" not in text
    assert "(empty)" in tail(tmp_path / "absent")


def test_the_default_folder_is_the_users_or_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    monkeypatch.delenv("TRIALFLEET_POOL", raising=False)
    assert default_folder() == Path("/state/trialfleet/pool")
    monkeypatch.setenv("TRIALFLEET_POOL", "/elsewhere")
    assert default_folder() == Path("/elsewhere")


def test_a_pool_object_creates_no_folder(tmp_path: Path) -> None:
    named = Pool(tmp_path / "new")
    assert named.status().state == "down"
    named.down()
    assert not (tmp_path / "new").exists()
    with pytest.raises(PoolError, match=r"start it by `TRIALFLEET_POOL=.*/new trialfleet pool up`"):
        named.environment()


def test_a_pool_in_the_home_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(InputError, match=r"nobody-here/pool can't be used: .* home directory"):
        Pool("~nobody-here/pool")


@pytest.mark.parametrize("below", ["", "sub/folder"])
@pytest.mark.parametrize("command", ["up", "down", "status", "env", "shell"])
def test_a_pool_in_a_file_or_below_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, below: str
) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / below
    expected = f"the pool's folder {place}: {tmp_path}/file is not a folder"
    monkeypatch.delenv("CONDOR_CONFIG", raising=False)
    named = CliRunner().invoke(main, ["pool", command, "--folder", str(place)])
    monkeypatch.setenv("TRIALFLEET_POOL", str(place))
    for result in (named, CliRunner().invoke(main, ["pool", command])):
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error: {expected}; name an existing or new folder")
    with pytest.raises(InputError, match=expected):
        connect()


def test_connect_keeps_a_configuration_that_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDOR_CONFIG", str(tmp_path / "condor_config"))
    assert connect()["CONDOR_CONFIG"] == str(tmp_path / "condor_config")


def test_connect_says_how_to_start_the_embedded_pool_that_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDOR_CONFIG", str(tmp_path / "condor_config"))
    (tmp_path / "pool.json").write_text('{"release": "/usr", "version": "1", "unpacked": false}')
    with pytest.raises(PoolError, match=r"which is not up: start it by .*trialfleet pool up"):
        connect()


def test_no_error_blames_a_variable_that_nobody_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = str(tmp_path / "condor_config")
    (tmp_path / "pool.json").write_text('{"release": "/usr", "version": "1", "unpacked": false}')
    monkeypatch.setitem(sys.modules, "htcondor2", None)
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setenv("TRIALFLEET_POOL", str(tmp_path))
    monkeypatch.setenv("CONDOR_CONFIG", config)
    use({"CONDOR_CONFIG": config})  # a person's, which a command uses
    with pytest.raises(PoolError, match=r"CONDOR_CONFIG names the pool in .*: start it by `trial"):
        connect()
    monkeypatch.delenv("CONDOR_CONFIG")
    use({"CONDOR_CONFIG": config})  # the pool was up then, and a command keeps watching
    with pytest.raises(PoolError, match=f"^the pool in {tmp_path} is not up: start it by `trialfl"):
        connect()


def test_connect_without_any_htcondor_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONDOR_CONFIG", raising=False)
    monkeypatch.setenv("TRIALFLEET_POOL", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PoolError, match="none is not up: start it by `trialfleet pool up`"):
        connect()


def test_connect_takes_the_machines_own_where_its_schedd_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "condor_q"
    fake.write_text("#!/bin/sh\necho '[{\"JobStatus\": 2}]'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CONDOR_CONFIG", "/dev/null")  # as after an import of htcondor2
    monkeypatch.setenv("TRIALFLEET_POOL", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert connect() == {"PATH": f"{tmp_path}:/bin"}


def test_using_an_environment_forgets_the_null_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "htcondor2", None)
    monkeypatch.setenv("CONDOR_CONFIG", "/dev/null")
    monkeypatch.setenv("PATH", "/bin")
    use({"PATH": "/usr/bin:/bin"})
    assert "CONDOR_CONFIG" not in os.environ
    assert os.environ["PATH"] == "/usr/bin:/bin"


def process(pid: int, *environment: str, parent: int = 1, space: str = "") -> processes.Process:
    own = str(Path("/proc/self/ns/user").readlink())
    variables = frozenset(environment)
    return processes.Process(pid, parent, "any", variables, space or own, psutil.Process())


def members(*everyone: processes.Process) -> list[int]:
    chosen = processes.pool_processes(everyone, mark="MARK", config="/p/condor_config")
    return [one.pid for one in chosen]


def test_daemons_and_jobs_are_recognised_by_their_mark() -> None:
    assert members(process(5, "MARK=/p/condor_config"), process(6, "MARK=/q/condor_config")) == [5]


def test_dagman_is_recognised_by_its_ancestor_and_the_users_shell_is_left_out() -> None:
    config = "CONDOR_CONFIG=/p/condor_config"
    assert members(process(5, config, "_CONDOR_ANCESTOR_1=2:3:4"), process(6, config)) == [5]


def test_descendants_of_a_member_are_members() -> None:
    daemon = process(5, "MARK=/p/condor_config", "_CONDOR_ANCESTOR_1=5:3:4")
    child = process(6, parent=5)
    grandchild = process(7, parent=6)
    detached = process(8, "_CONDOR_ANCESTOR_1=5:3:4")
    other_pool = process(9, "_CONDOR_ANCESTOR_1=9:3:4")
    assert members(grandchild, child, detached, daemon, other_pool) == [5, 6, 7, 8]


def test_all_of_a_namespace_of_the_pools_own_are_members() -> None:
    daemon = process(5, "MARK=/p/condor_config", space="user:[1]")
    assert members(daemon, process(6, space="user:[1]"), process(7, space="user:[2]")) == [5, 6]


def test_the_running_process_is_read_and_listed() -> None:
    this = processes.read(os.getpid())
    assert this is not None
    assert this.parent == os.getppid()
    assert this.has("PATH", os.environ["PATH"]) or "PATH" in os.environ
    assert os.getpid() in [each.pid for each in processes.list_processes()]


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert processes.read(child.pid) is None
    child.wait()


def test_a_signal_to_an_ended_process_is_ignored() -> None:
    child = subprocess.Popen(["sleep", "30"])
    alive = processes.read(child.pid)
    assert alive is not None
    processes.send(alive, signal.SIGKILL)
    assert child.wait(5) == -9
    processes.send(alive, signal.SIGKILL)


def test_the_account_in_roots_namespace_is_never_the_overflow_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever isn't mapped looks like the overflow uid: it must not be the pool's owner."""
    overflow = tmp_path / "overflowuid"
    monkeypatch.setattr(user_namespace, "OVERFLOW_UID", overflow)
    first = user_namespace.mapped_account()
    overflow.write_text(f"{first.pw_uid}\n")
    assert user_namespace.mapped_account().pw_uid not in {0, first.pw_uid}
    assert first.pw_uid not in {0, 65534}


def test_the_error_without_user_namespaces_tells_root_to_be_a_plain_user() -> None:
    refused = user_namespace.Identity("daemon", ("sh", "-c", "echo 'unshare failed' >&2; exit 1"))
    with pytest.raises(PoolError, match=r"\(unshare failed\).*run trialfleet as a plain user"):
        user_namespace.refuse_where_forbidden(refused)


def test_a_user_id_without_a_name_is_refused() -> None:
    with pytest.raises(PoolError, match="user id 987654 has no name"):
        user_namespace.user_name(987654)


def test_slots_are_read_from_json_and_ordered_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    ads = [
        {"MyType": "Machine", "Name": "slot1_10@h", "State": "Claimed", "Cpus": 1},
        {"MyType": "Machine", "Name": "slot1_2@h", "TotalGPUs": 2, "GPUs": 1, "Memory": 5},
        {"MyType": "Machine", "Name": "slot1@h", "SlotType": "Partitionable"},
        {"MyType": "Scheduler", "Name": "h"},
    ]
    monkeypatch.setattr(pool_status, "read_ads", lambda *_: ads)
    daemons, machines = pool_status.daemons_and_machines({})
    assert daemons == ("condor_schedd",)
    status = pool_status.PoolStatus(
        state="up", folder=Path("pool"), condor_config=Path("conf"), machines=machines
    )
    (machine,) = json.loads(json_text(status.to_json()))["machines"]
    assert [slot["name"] for slot in machine["slots"]] == ["slot1@h", "slot1_2@h", "slot1_10@h"]
    assert machine["slots"][0]["partitionable"]
    assert machine["slots"][1] == {
        "name": "slot1_2@h",
        "state": "Unknown",
        "activity": "Unknown",
        "partitionable": False,
        "room": {"gpus": 1, "cpus": 0, "memory_mb": 5},
    }


def test_pool_status_names_the_silent_daemons_and_their_logs() -> None:
    silent = {"condor_schedd": Path("/p/log/SchedLog")}
    status = pool_status.PoolStatus(
        state="failing", folder=Path("/p"), condor_config=Path("/p/c"), silent=silent
    )
    assert printed(pool_view(status), 120).splitlines()[1:] == [
        "silent   condor_schedd does not answer: see /p/log/SchedLog"
    ]


@pytest.mark.parametrize(
    ("daemons", "machines", "queue", "silent"),
    [
        (pool_status.DAEMON_ADS.values(), 1, pool_status.Queue(), []),
        ((), 0, None, ["condor_collector"]),  # nobody knows about the others
        (pool_status.DAEMON_ADS.values(), 1, None, ["condor_schedd"]),
        (("condor_collector", "condor_schedd", "condor_startd"), 1, None, [
            "condor_negotiator", "condor_schedd",
        ]),
        (pool_status.DAEMON_ADS.values(), 0, pool_status.Queue(), ["condor_startd"]),
    ],
)  # fmt: skip
def test_a_daemon_is_silent_if_its_ad_or_its_answer_is_missing(
    daemons: Any, machines: int, queue: pool_status.Queue | None, silent: list[str]
) -> None:
    found = parse_machines([{"Name": "slot1@h", "State": "Unclaimed"}] * machines)
    assert pool_status.silent_daemons(tuple(daemons), found, queue) == silent


def test_the_queue_is_unknown_without_an_executable_condor_q(tmp_path: Path) -> None:
    assert pool_status.look_at_queue({"PATH": str(tmp_path)}) is None
    (tmp_path / "condor_q").touch(mode=0o644)
    assert pool_status.look_at_queue({"PATH": str(tmp_path)}) is None


def test_runs_are_counted_apart_from_the_jobs_of_trials() -> None:
    dagman: dict[str, Any] = {"JobUniverse": 7, "JobStatus": 2, "TrialfleetFolder": "/runs/1"}
    trial: dict[str, Any] = {
        "JobUniverse": 5,
        "TrialfleetFolder": "/runs/1",
        "TrialfleetNode": "A.t1",
        "TrialfleetMode": "tune",
    }
    full = trial | {"TrialfleetNode": "A.best", "TrialfleetMode": "final"}
    ads = [
        dagman,
        dagman | {"DAGManJobId": 1},  # a region's
        {"JobUniverse": 7, "JobStatus": 2},  # somebody else's
        {"JobUniverse": 12, "JobStatus": 2, "TrialfleetNode": "A.publish"},
        trial | {"JobStatus": 2},
        trial | {"JobStatus": 6},
        trial | {"JobStatus": 1},
        trial | {"JobStatus": 9},  # waits for the files that it shares with others
        full | {"JobStatus": 1},
        {"JobUniverse": 5, "JobStatus": 5},
        {"JobUniverse": 12, "JobStatus": 1, "TrialfleetDaily": "/runs"},
    ]
    assert pool_status.count_jobs(ads) == pool_status.Queue(
        runs=1,
        trials={"idle": 2, "running": 2},
        jobs={"held": 1, "idle": 3, "running": 2},
        clocks=1,
    )


def test_pool_status_shows_used_and_free_resources_of_each_machine() -> None:
    whole: dict[str, Any] = {"Name": "slot1@h", "SlotType": "Partitionable", "State": "Unclaimed"}
    ads: list[dict[str, Any]] = [
        whole | {"Cpus": 1, "Memory": 7, "GPUs": 3, "TotalGPUs": 4},
        {"Name": "slot1_1@h", "State": "Claimed", "Cpus": 1, "Memory": 3, "GPUs": 1},
        {"Name": "slot1_2@h", "State": "Claimed", "Cpus": 2, "Memory": 5},
        {"Name": "slot1@g", "Machine": "g.lan", "State": "Unclaimed", "Cpus": 8, "Memory": 9},
        {"Name": "slot2@g", "Machine": "g.lan", "State": "Owner", "Cpus": 8, "Memory": 9},
    ]
    found = parse_machines(ads)
    assert [(one.in_use, one.offered_room) for one in found] == [
        (Resources(), Resources(cpus=8, memory_mb=9)),
        (Resources(gpus=1, cpus=3, memory_mb=8), Resources(gpus=3, cpus=1, memory_mb=7)),
    ]
    status = pool_status.PoolStatus(
        state="up", folder=Path("pool"), condor_config=Path("conf"), machines=found, runs=3,
        trials={"idle": 5, "running": 2}, jobs={"held": 1, "idle": 6, "running": 2},
        clocks=1,
    )  # fmt: skip
    content = status.to_json()
    assert (content["state"], content["clocks"]) == ("up", 1)
    assert content["machines"][1] == {
        "name": "h",
        "in_use": found[1].in_use,
        "free": found[1].offered_room,
        "slots": found[1].slots,
    }
    head, *lines = printed(pool_view(status), 120).splitlines()
    assert head.startswith("up")
    assert lines == [
        "machine  g.lan: cores 0 in use, 8 free; memory 0 MB in use, 9 MB free",
        "machine  h: cores 3 in use, 1 free; memory 8 MB in use, 7 MB free; GPUs 1 in use, 3 free",
        "runs     3",
        "trials   2 running, 5 waiting",
        "others   1 waiting, 1 held (full trainings, publications and similar jobs)",
        "daily    1 schedule(s)",
    ]
