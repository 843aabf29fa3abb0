from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import psutil
import pytest
from click.testing import CliRunner

from trialfleet.errors import InputError, PoolError
from trialfleet.infra.pool import processes
from trialfleet.infra.pool.connection import connect
from trialfleet.infra.pool.embedded import Pool
from trialfleet.infra.pool.processes import Process, wait_until
from trialfleet.infra.pool.status import DAEMON_ADS
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.facts.jobs.job_log import read_job
from trialfleet.workflows.facts.run_folder.folder import TrialFolder

MakePool = Callable[..., Pool]


def run(command: list[str], pool: Pool, folder: Path | None = None) -> str:
    """Run a tool against `pool`, which need not be the active one, and return its output."""
    done = subprocess.run(
        command,
        env={**os.environ, **pool.environment()},
        cwd=folder or pool.folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def submit(pool: Pool, folder: Path, program: str, *lines: str) -> None:
    (folder / "job.sh").write_text(f"#!/bin/sh\n{program}\n")
    files = ["executable = job.sh", "output = out", "error = err", "log = log"]
    description = [*files, "should_transfer_files = YES", "request_memory = 100MB", *lines, "queue"]
    (folder / "job.sub").write_text("\n".join([*description, ""]))
    run(["condor_submit", "job.sub"], pool, folder)


def run_job(pool: Pool, folder: Path, program: str, *lines: str) -> str:
    """Run `program` (a shell script) as a job and return its output."""
    submit(pool, folder, program, *lines)
    done = subprocess.run(
        ["condor_wait", "-wait", "150", "log"],
        env={**os.environ, **pool.environment()},
        cwd=folder,
    )
    assert done.returncode == 0, (folder / "log").read_text()
    return (folder / "out").read_text()


def alive(mark: str) -> list[psutil.Process]:
    """Return the processes whose command line or environment names `mark`: psutil's own route."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and (
                mark in " ".join(process.cmdline()) or mark in " ".join(process.environ().values())
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return [process for process in found if process.pid != os.getpid()]


def test_the_usage_of_a_short_job_is_measured(make_pool: MakePool, work: Path) -> None:
    quiet = make_pool()  # HTCondor looks at processes when any job starts, too
    quiet.up()
    burn = "import os, time\nkept = os.urandom(100 << 20)\nwhile time.process_time() < 4: pass"
    run_job(quiet, work, f"exec python3 -c '{burn}'")
    job = read_job(TrialFolder(work))
    assert job is not None
    assert job.cpu_seconds is not None
    assert job.cpu_seconds >= 1
    assert job.memory_mb is not None
    assert job.memory_mb > 100


def test_the_status_of_a_running_pool_is_up(pool: Pool) -> None:
    status = pool.status()
    assert status.state == "up"
    assert status.daemons == ("condor_master", *DAEMON_ADS.values())
    assert psutil.Process(status.master).name() == "condor_master"
    (machine,) = status.machines
    assert machine.total.cpus == 4
    assert machine.total.memory_mb > 500
    assert tuple(map(int, status.version.split("."))) >= (25, 14)


def test_up_again_changes_nothing(pool: Pool) -> None:
    before = pool.status().master
    messages: list[str] = []
    assert pool.up(messages.append).master == before
    assert messages == [f"the pool in {pool.folder} is already up"]


def test_the_daemons_have_left_the_callers_session(pool: Pool) -> None:
    master = pool.status().master
    assert os.getsid(master) == master
    assert psutil.Process(master).terminal() is None
    assert psutil.Process(master).ppid() == 1


def test_htcondors_tools_work_with_the_pools_shell_exports(pool: Pool, tmp_path: Path) -> None:
    commands = "condor_status -af HAS_GPU; condor_q -totals; condor_config_val CONDOR_HOST"
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["/bin/sh", "-e"],
        input=f"{pool.shell_exports()}{commands}\n",
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "false"
    assert "Total for all users" in done.stdout
    assert done.stdout.splitlines()[-1] == "127.0.0.1"


def test_python3_in_a_job_has_torch(pool: Pool, work: Path) -> None:
    program = "python3 -c 'import torch; print(torch.ones(2).sum().item())'"
    assert run_job(pool, work, program) == "2.0\n"


def test_the_bindings_talk_to_the_active_pool(pool: Pool) -> None:
    import htcondor2

    assert htcondor2.param["LOCAL_DIR"] == str(pool.folder)
    assert htcondor2.Schedd().query(limit=1) is not None


def test_jobs_are_set_up_within_four_seconds(pool: Pool, work: Path) -> None:
    lines = [
        "transfer_input_files = in",
        "transfer_output_files = in",
        "when_to_transfer_output = ON_EXIT_OR_EVICT",
        "log_xml = False",
    ]
    (work / "in").touch()
    folders = [work / str(number) for number in range(8)]
    for folder in folders:
        folder.mkdir()
        (folder / "in").touch()
        submit(pool, folder, "true", *lines)
    for folder in folders:
        run(["condor_wait", "-wait", "60", "log"], pool, folder)
    durations = run(
        ["condor_history", "-limit", "8", "-af", "ActivationSetupDuration"], pool
    ).split()
    assert len(durations) == 8
    assert max(map(int, durations)) < 4


def test_a_vacated_job_continues_from_its_checkpoint(pool: Pool, work: Path) -> None:
    program = """
    trap 'echo saved >> state; exit 85' TERM
    if [ -s state ]; then cat state; exit 0; fi
    touch started; n=0; while [ $n -lt 300 ]; do sleep 0.1; n=$((n+1)); done
    """
    (work / "state").touch()
    lines = [
        "checkpoint_exit_code = 85",
        "transfer_checkpoint_files = state",
        "transfer_input_files = state",
        "transfer_output_files = state",
        "when_to_transfer_output = ON_EXIT_OR_EVICT",
    ]
    submit(pool, work, program, *lines)
    log = work / "log"
    assert wait_until(lambda: "Job executing" in log.read_text(), seconds=120)
    time.sleep(0.5)  # for the shell to set its trap
    (cluster,) = run(["condor_q", "-af", "ClusterId"], pool).split()
    run(["condor_vacate_job", cluster], pool)
    run(["condor_wait", "-wait", "150", "log"], pool, work)
    assert (work / "out").read_text() == "saved\n"


def test_a_jobs_disk_usage_is_measured_and_limited_soon(pool: Pool, work: Path) -> None:
    program = "sleep 4; dd if=/dev/zero of=big bs=1M count=150 2>/dev/null; sleep 60"
    lines = ["request_disk = 20MB", "periodic_remove = DiskUsage > RequestDisk"]
    submit(pool, work, program, *lines)
    run(["condor_wait", "-wait", "150", "log"], pool, work)
    assert "PeriodicRemove" in (work / "log").read_text()


def test_a_pool_without_gpus_has_no_slot_with_a_gpu(pool: Pool) -> None:
    (machine,) = pool.status().machines
    assert machine.total.gpus == 0
    assert run(["condor_status", "-const", "HAS_GPU", "-af", "Name"], pool) == ""


def test_slots_with_simulated_gpus_run_gpu_jobs(make_pool: MakePool, work: Path) -> None:
    private = make_pool(extra="GPU_DISCOVERY_EXTRA = -extra -simulate:4,2")
    (machine,) = private.up().machines
    assert (machine.total.gpus, machine.free.gpus) == (2, 2)
    lines = ["request_gpus = 1", "requirements = HAS_GPU"]
    output = run_job(private, work, "echo $CUDA_VISIBLE_DEVICES", *lines)
    assert output.strip() not in {"", "10000"}


@pytest.mark.parametrize("grace", [45, 0])
def test_down_leaves_no_process_and_no_job_running(
    make_pool: MakePool, work: Path, grace: float
) -> None:
    private = make_pool()
    private.up()
    mark = f"left-over-{private.folder.name}"
    program = (
        f"exec 2>/dev/null; (setsid sh -c 'while :; do sleep 0.2; done; : {mark}' &) ; sleep 99"
    )
    submit(private, work, program)
    assert wait_until(lambda: bool(alive(mark)), seconds=120)
    private.down(grace=grace)
    assert alive(str(private.folder)) == []
    assert alive(mark) == []
    assert private.status().state == "down"
    private.down()  # and once more does no harm


def test_a_pool_whose_master_was_killed_is_cleaned_and_restarted(
    make_pool: MakePool, work: Path
) -> None:
    private = make_pool()
    first = private.up().master
    submit(private, work, "true", "hold = True")
    os.kill(first, signal.SIGKILL)
    orphans = alive(str(private.folder))
    assert len(orphans) >= 4
    assert wait_until(lambda: private.status().state == "failing", seconds=60)
    assert private.status().silent["condor_master"] == private.folder / "log" / "MasterLog"
    with (
        mock.patch.dict(os.environ, private.environment()),
        pytest.raises(PoolError, match="trialfleet pool up"),
    ):
        connect()
    messages: list[str] = []
    status = private.up(messages.append)
    assert messages[0] == "ending processes that a dead pool left"
    assert status.state == "up"
    assert status.master != first
    assert status.jobs == {"held": 1}  # the queue was kept
    assert not {orphan.pid for orphan in orphans} & {
        left.pid for left in alive(str(private.folder))
    }


def test_a_jobs_trainer_may_save_a_checkpoint_before_a_silent_pool_is_restarted(
    make_pool: MakePool, work: Path
) -> None:
    private = make_pool()
    first = private.up().master
    program = f"trap 'touch {work}/saved; exit 0' TERM; touch {work}/ready; sleep 99 & wait"
    submit(private, work, program)
    assert wait_until((work / "ready").exists, seconds=120)
    run(["condor_off", "-negotiator"], private)
    assert wait_until(lambda: private.status().state == "failing", seconds=60)
    log = private.folder / "log" / "NegotiatorLog"
    assert (private.status().silent, log.is_file()) == ({"condor_negotiator": log}, True)
    messages: list[str] = []
    status = private.up(messages.append)
    assert (work / "saved").exists()
    assert (status.state, status.master == first) == ("up", False)
    assert messages[0] == f"the pool in {private.folder} does not answer"


def is_listening(host: str, port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex((host, port)) == 0


def test_a_pool_keeps_its_address_after_its_shared_port_daemon_was_killed(
    make_pool: MakePool,
) -> None:
    pool = make_pool()
    pool.up()
    where = (pool.folder / "spool" / ".schedd_address").read_text()
    address = re.match(r"<([\d.]+):(\d+)", where)
    assert address

    def listeners() -> list[Process]:
        return [one for one in pool.processes() if one.name.startswith("condor_shared")]

    [before] = listeners()
    processes.send(before, signal.SIGKILL)
    assert wait_until(lambda: any(one.pid != before.pid for one in listeners()), seconds=60)
    assert wait_until(lambda: is_listening(address[1], int(address[2])), seconds=60)


def test_the_master_takes_commands_soon_after_the_shared_port_daemon_was_killed(
    make_pool: MakePool,
) -> None:
    """FS alone is refused until the master knows its address again, up to a minute later."""
    pool = make_pool()
    pool.up()
    [listener] = [one for one in pool.processes() if one.name.startswith("condor_shared")]
    processes.send(listener, signal.SIGKILL)

    def takes_commands() -> bool:
        done = subprocess.run(
            ["condor_on"], env={**os.environ, **pool.environment()}, capture_output=True
        )
        return done.returncode == 0

    assert wait_until(takes_commands, seconds=25)
    assert pool.status().state == "up"


def test_a_pool_keeps_its_queue_after_all_its_processes_were_killed(
    make_pool: MakePool, work: Path
) -> None:
    private = make_pool()
    private.up()
    submit(private, work, "true", "hold = True")
    for process in private.processes():
        os.kill(process.pid, signal.SIGKILL)
    assert wait_until(lambda: private.status().state == "down", seconds=60)
    assert private.up().jobs == {"held": 1}


def test_two_ups_at_once_make_one_pool(make_pool: MakePool) -> None:
    private = make_pool()
    messages: list[str] = []
    with ThreadPoolExecutor() as threads:
        first, second = threads.map(lambda _: private.up(messages.append), range(2))
    assert [line.split(" ")[0] for line in messages] == ["starting", "the"]  # "… is already up"
    assert first.master == second.master
    masters = [each for each in alive(str(private.folder)) if each.name() == "condor_master"]
    assert len(masters) == 1


def test_a_deep_folder_with_blanks_works(make_pool: MakePool, work: Path) -> None:
    # longer than a Unix socket's name may be
    private = make_pool("/".join(["a b'c é"] * 12), knobs={"ANY_KNOB": "of extra.conf"})
    private.up()
    assert run_job(private, work, "pwd").startswith(str(private.folder))
    script = f"{private.shell_exports()}condor_config_val LOCAL_DIR ANY_KNOB"
    assert run(["sh", "-ec", script], private, work) == f"{private.folder}\nof extra.conf\n"


def test_up_reports_a_knob_that_htcondor_refuses(make_pool: MakePool) -> None:
    private = make_pool(knobs={"MAX_HISTORY_LOG": "twenty"})
    with pytest.raises(PoolError) as raised:
        private.up(seconds=4)
    assert "did not answer within 4 s" in str(raised.value)
    assert str(private.folder / "log" / "SchedLog") in str(raised.value)
    assert "MAX_HISTORY_LOG" in str(raised.value)
    assert alive(str(private.folder)) == []


def test_a_file_that_blocks_a_pools_start_is_named(make_pool: MakePool) -> None:
    pool = make_pool()
    key = pool.folder / "passwords.d" / "POOL"
    key.mkdir(parents=True)
    with pytest.raises(PoolError, match=rf"remove {key}, and `.*pool up` makes another"):
        pool.up()
    key.rmdir()
    key.parent.rmdir()
    key.parent.touch()
    with pytest.raises(InputError, match=f"folder {key.parent} can't be used: File exists"):
        pool.up()


@pytest.mark.usefixtures("pool")
def test_a_folder_that_cannot_be_made_is_an_error_of_the_user() -> None:
    result = CliRunner().invoke(main, ["pool", "up", "--folder", "/proc/none"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: the pool's folder /proc/none can't be used: ")


def test_only_the_pools_own_settings_are_read(pool: Pool) -> None:
    import htcondor2

    for elsewhere in ("USER_CONFIG_FILE", "LOCAL_CONFIG_DIR", "LOCAL_CONFIG_FILE"):
        assert htcondor2.param.get(elsewhere, "") == ""


def test_connect_takes_the_default_pool_only_when_it_is_up(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = make_pool()
    monkeypatch.delenv("CONDOR_CONFIG", raising=False)
    monkeypatch.setenv("TRIALFLEET_POOL", str(private.folder))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(PoolError, match="trialfleet pool up"):
        connect()
    private.up()
    assert connect() == private.environment()
    private.down()
    with pytest.raises(PoolError, match="trialfleet pool up"):
        connect()


def test_the_line_that_up_prints_selects_a_pool_in_another_folder(
    make_pool: MakePool,
) -> None:
    private = make_pool()
    plain = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": os.environ["HOME"]}

    def said(script: str) -> str:
        done = subprocess.run(
            ["sh", "-c", script], env=plain, capture_output=True, text=True, check=True
        )
        return done.stdout

    folder = shlex.quote(str(private.folder))
    *_, line = said(f"trialfleet pool up --folder {folder}").splitlines()
    export = line.partition(": ")[2]
    assert export == f"export TRIALFLEET_POOL={folder}"
    assert "next" not in said(f"{export}; trialfleet pool up")
    only = f"CONDOR_CONFIG={folder}/condor_config"  # as in a job of the pool
    for way in (export, f'eval "$(trialfleet pool env --folder {folder})"', f"export {only}"):
        assert said(f"{way}; trialfleet pool status").startswith("up  HTCondor 25.")
    assert said(f"export {only}; trialfleet pool down").startswith("stopping the pool in")
    assert not private.is_up()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("user", ["nobody", "games"])
def test_another_user_of_the_machine_is_refused(pool: Pool, user: str) -> None:
    """Also in root's user namespace, where all strangers look like one account."""
    reads_all = "+dac_read_search"  # the stranger sees root's folders, as a shared disk would show
    become = ["setpriv", f"--reuid={user}", "--clear-groups", f"--inh-caps={reads_all}"]
    ping = ["condor_ping", "-type", "schedd", "WRITE"]
    readable = Path(tempfile.mkstemp(prefix="stranger-")[1])  # access(2) asks without capabilities
    readable.write_text(pool.condor_config.read_text())
    readable.chmod(0o644)
    done = subprocess.run(
        [*become, f"--ambient-caps={reads_all}", *ping],
        env={**os.environ, **pool.environment(), "CONDOR_CONFIG": str(readable)},
        capture_output=True,
        text=True,
    )
    readable.unlink()
    assert done.returncode != 0
    assert "WRITE failed" in done.stderr + done.stdout
    assert "succeeded" in run([*ping], pool)
