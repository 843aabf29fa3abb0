from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.node_stand_ins import Bench
from tests.processes import is_alive
from trialfleet.nodes.bootstrap import accounts, configuration, settings, system_packages
from trialfleet.nodes.bootstrap.host import Host, StepError
from trialfleet.nodes.bootstrap.instance import Instance

SPOT = Instance(id="i-1", type="g5.xlarge", zone="eu-west-1a", lifecycle="spot", price=0.4321)
TOLD = {
    "fleet": "demo",
    "run": "",
    "home": "eu-west-1",
    "bucket": "b",
    "bundle": "k",
    "bundle_sha256": "0",
    "log_prefix": "fleet/demo/log/",
    "token_parameter": "/trialfleet/demo/node-token",
    "manager": "10.0.0.1:9618",
    "condor_version": "25.14.1",
    "idle_minutes": 10,
    "boot_minutes": 20,
}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path / "bench")
    monkeypatch.setenv("PATH", bench.path)
    return bench


@pytest.mark.slow
def test_a_file_is_written_with_its_mode_and_only_if_it_changes(bench: Bench) -> None:
    host = Host(bench.root)
    assert host.write("/etc/a/secret", "x", mode=0o600)
    assert not host.write("/etc/a/secret", "x", mode=0o600)
    assert host.write("/etc/a/secret", "y", mode=0o600)
    file = bench.root / "etc/a/secret"
    assert file.read_text() == "y"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in file.parent.iterdir()] == ["secret"]


def test_a_secret_is_at_no_time_readable_by_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    Host(bench.root).write("/etc/secret", "x", mode=0o600)
    assert (bench.root / "etc/secret").stat().st_mode & 0o777 == 0o600


def test_a_file_readable_by_others_is_rewritten(bench: Bench) -> None:
    bench.file("etc/secret", "x").chmod(0o644)
    assert Host(bench.root).write("/etc/secret", "x", mode=0o600)
    assert (bench.root / "etc/secret").stat().st_mode & 0o777 == 0o600


def test_a_failing_program_is_reported_with_its_last_output(bench: Bench) -> None:
    bench.program("doomed", "for i in 1 2 3 4 5; do echo line $i >&2; done; exit 3")
    with pytest.raises(StepError, match=r"^`doomed now`: line 3; line 4; line 5$"):
        Host(bench.root).run("doomed", "now")


def test_a_program_that_fails_silently_is_reported_with_its_status(bench: Bench) -> None:
    bench.program("silent", "exit 3")
    with pytest.raises(StepError, match="`silent`: exit status 3"):
        Host(bench.root).run("silent")


def test_a_missing_or_hanging_program_is_reported(bench: Bench) -> None:
    bench.program("slow", "exec sleep 5")
    with pytest.raises(StepError, match="there is no program absent"):
        Host(bench.root).run("absent")
    with pytest.raises(StepError, match="`slow`: timed out after 0 s"):
        Host(bench.root).run("slow", seconds=0.1)


def test_a_hanging_program_is_killed_with_its_children(
    bench: Bench, wait_for: Callable[..., None]
) -> None:
    bench.program("slow", 'sleep 600 & echo $! > "$ROOT/child"; wait')
    with pytest.raises(StepError, match="timed out after"):
        Host(bench.root).run("slow", seconds=0.5)
    child = int(bench.text("child"))
    wait_for(lambda: not is_alive(child))  # SIGKILL takes a moment


def test_a_program_ends_although_its_daemon_still_runs(bench: Bench) -> None:
    bench.program("starts", 'sleep 600 & echo $! > "$ROOT/child"; echo started')
    try:
        assert Host(bench.root).run("starts", seconds=60) == "started\n"
    finally:
        os.kill(int(bench.text("child")), signal.SIGKILL)


def test_a_program_that_cannot_be_run_is_reported(bench: Bench) -> None:
    bench.file("text", "no program")
    with pytest.raises(StepError, match=r"`.*/text` can't be run: .*Permission denied"):
        Host(bench.root).run(f"{bench.root}/text")


def test_programs_never_ask_a_person(bench: Bench) -> None:
    bench.program("curious", "read answer && exit 9; echo $DEBIAN_FRONTEND")
    with typing("yes\n"):
        assert Host(bench.root).run("curious") == "noninteractive\n"


@contextmanager
def typing(text: str) -> Iterator[None]:
    """Have text on this process's standard input."""
    before, (reading, writing) = os.dup(0), os.pipe()
    os.write(writing, text.encode())
    os.dup2(reading, 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        for descriptor in (before, reading, writing):
            os.close(descriptor)


def test_an_unknown_system_is_refused_with_the_supported_ones(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.file("etc/os-release", 'PRETTY_NAME="Arch Linux"\n# a comment\n')
    monkeypatch.setenv("PATH", str(bench.bin))
    refused = pytest.raises(StepError, match="Arch Linux has no apt-get: use an AMI with Debian or")
    with refused, system_packages.fresh_lists(Host(bench.root)):
        pass


LOCKED = """
echo x >> "$ROOT/tries"
test "$(grep -c x "$ROOT/tries")" -gt {} && exit 0
echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)" >&2
echo "E: Unable to lock directory /var/lib/apt/lists/" >&2
exit 100
"""


def test_another_running_apt_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_packages, "INTERVAL", 0.01)
    bench.program("apt-get", LOCKED.format(3))
    with system_packages.fresh_lists(Host(bench.root)):
        system_packages.install(Host(bench.root), "condor")
    assert bench.text("tries").count("x") == 5


def test_an_apt_that_never_ends_is_reported(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_packages, "INTERVAL", 0.01)
    monkeypatch.setattr(system_packages, "PATIENCE", 0.05)
    bench.program("apt-get", LOCKED.format(10_000))
    with pytest.raises(StepError, match="held by process 7"):
        system_packages.install(Host(bench.root), "condor")


APT_SETTINGS = """
Dir::State "{0}/state"; Dir::State::status "{0}/status"; Dir::Cache "{0}/cache"; Dir::Etc "{0}/etc";
Acquire::Retries::Delay "false"; APT::Sandbox::User "";
"""
UNREACHABLE = "http://127.0.0.1:9/debian"  # the port of "discard": nothing listens


@pytest.mark.skipif(not shutil.which("apt-get"), reason="wants apt")
def test_an_unreachable_repository_is_logged_and_named_by_a_failed_installation(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("state/lists/partial", "cache/archives/partial", "etc/apt.conf.d"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "status").touch()
    (tmp_path / "settings").write_text(APT_SETTINGS.format(tmp_path))
    (tmp_path / "etc/sources.list").write_text(f"deb [trusted=yes] {UNREACHABLE} stable main\n")
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "settings"))
    log: list[str] = []
    host = Host(bench.root, log.append)
    with system_packages.fresh_lists(host):
        pass
    (line,) = log
    assert f"E: Failed to fetch {UNREACHABLE}/" in line
    with pytest.raises(StepError) as failed, system_packages.fresh_lists(host):
        system_packages.install(host, "condor")
    assert "E: Unable to locate package condor" in str(failed.value)
    assert str(failed.value).endswith(line)


INTERRUPTED = """
test -e "$ROOT/configured" && exit 0
echo "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct it." >&2
exit 100
"""


def test_an_interrupted_installation_is_completed(bench: Bench) -> None:
    """As after a reboot in the midst of it: apt refuses everything until then."""
    bench.program("apt-get", INTERRUPTED)
    bench.program("dpkg", 'touch "$ROOT/configured"')
    system_packages.install(Host(bench.root), "condor")
    assert [call.split()[0] for call in bench.calls] == ["apt-get", "dpkg", "apt-get"]


def test_an_installation_that_cannot_be_completed_is_reported(bench: Bench) -> None:
    bench.program("apt-get", INTERRUPTED)
    bench.program("dpkg", "echo broken >&2; exit 1")
    with pytest.raises(StepError, match="dpkg was interrupted"):
        system_packages.install(Host(bench.root), "condor")
    assert [call.split()[0] for call in bench.calls] == ["apt-get", "dpkg", "apt-get"]


def test_settings_are_read_from_the_file_of_the_user_data(bench: Bench) -> None:
    bench.file("opt/trialfleet/settings.json", str(TOLD).replace("'", '"'))
    found = settings.read(Host(bench.root))
    assert (found.manager, found.boot_minutes, found.endpoint_url) == (
        "10.0.0.1:9618",
        20,
        "",
    )


def test_missing_settings_are_reported(bench: Bench) -> None:
    with pytest.raises(StepError, match="the user data did not write it"):
        settings.read(Host(bench.root))


def test_only_root_can_read_the_token(bench: Bench) -> None:
    configuration.write_token(Host(bench.root), "the-token\n\n")
    file = bench.root / "etc/condor/tokens.d/trialfleet"
    assert file.read_text() == "the-token\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_bundle_without_configuration_is_an_error(bench: Bench) -> None:
    with pytest.raises(StepError, match=r"lacks /opt/trialfleet/node\.conf"):
        configuration.write(Host(bench.root), SPOT, "set", "/scratch")


def test_keepalive_settings_are_loaded_even_if_their_file_is_unchanged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.file("opt/trialfleet/node.conf", "A = 1\n")
    bench.program("sysctl")
    monkeypatch.setattr(accounts, "make", lambda _: None)
    # As written by a bootstrap that was killed before the kernel heard of it.
    bench.file(configuration.SYSCTL, configuration.KERNEL)
    configuration.write(Host(bench.root), SPOT, "set", "/scratch")
    file = bench.root / "etc/sysctl.d/60-trialfleet.conf"
    assert "tcp_keepalive_intvl = 5" in file.read_text()
    assert bench.calls == [f"sysctl -q -p {file}"]
    assert bench.text(configuration.INSTANCE).endswith(accounts.settings())


def test_the_configuration_describes_the_instance() -> None:
    lines = configuration.text(SPOT, "already 0", "/mnt/x", "/usr/bin/python3").splitlines()
    assert 'TrialfleetInstance = "i-1"' in lines
    assert 'TrialfleetDriverOption = "already 0"' in lines
    assert "TrialfleetPricePerHour = 0.4321" in lines
    assert "EXECUTE = /mnt/x" in lines


def test_an_unknown_price_is_undefined() -> None:
    instance = Instance(id="i-1", type="t", zone="z", lifecycle="on-demand", price=None)
    text = configuration.text(instance, "set", "/x", "/p")
    assert "TrialfleetPricePerHour = undefined\n" in text


def test_jobs_and_the_probe_use_the_python_that_has_torch(bench: Bench) -> None:
    pytorch = bench.root / "opt/pytorch/bin"
    usual = bench.root / "usr/bin"
    for folder, status in ((pytorch, 0), (usual, 1)):
        folder.mkdir(parents=True)
        (folder / "python3").write_text(f"#!/bin/sh\nexit {status}\n")
        (folder / "python3").chmod(0o755)
    assert configuration.jobs_python(Host(bench.root)) == f"{pytorch}/python3"
    (pytorch / "python3").unlink()
    assert configuration.jobs_python(Host(bench.root)) == sys.executable


def test_the_check_for_torch_works_in_a_real_python() -> None:
    question = ["-c", configuration._HAS_TORCH]
    assert subprocess.run([sys.executable, *question]).returncode == 0
    assert subprocess.run([sys.executable, "-I", "-S", *question]).returncode == 1


def test_the_first_probes_verdict_is_in_the_startds_configuration(bench: Bench) -> None:
    ad = 'TrialfleetGpuHealthy = false\nTrialfleetGpuReason = "costs $(MONEY)"\n-\nnoise\n'
    configuration.write_verdict(Host(bench.root), ad)
    assert bench.text("etc/condor/config.d/45-trialfleet-probe.conf").splitlines() == [
        "TrialfleetGpuHealthy = false",
        'TrialfleetGpuReason = "costs $(DOLLAR)(MONEY)"',
        "STARTD_ATTRS = $(STARTD_ATTRS) TrialfleetGpuHealthy TrialfleetGpuReason",
    ]


def test_a_boot_begins_with_no_gpu_offline(bench: Bench) -> None:
    file = bench.file(configuration.OFFLINE, "OFFLINE_MACHINE_RESOURCE_GPUS = GPU-1\n")
    configuration.write_verdict(Host(bench.root), "TrialfleetGpuHealthy = true\n")
    assert not file.exists()


def test_the_first_probe_has_the_fleets_thresholds_too(bench: Bench) -> None:
    assert configuration.probe_options(Host(bench.root)) == []
    bench.file(
        configuration.SHARED, "A = 1\nTRIALFLEET_PROBE_OPTIONS = --launch-rate 5000.0 --x 1\n"
    )
    options = ["--launch-rate", "5000.0", "--x", "1"]
    assert configuration.probe_options(Host(bench.root)) == options
    bench.file(configuration.SHARED, "TRIALFLEET_PROBE_OPTIONS = \nB = 2\n")
    assert configuration.probe_options(Host(bench.root)) == []
