from __future__ import annotations

import base64
import json
import os
import pwd
import shutil
import socket
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from trialfleet.errors import InputError, PoolError
from trialfleet.infra.manager import actions, apt_repository, config, install
from trialfleet.infra.manager.config import ManagerSettings
from trialfleet.infra.manager.install import InstallTarget
from trialfleet.infra.pool import htcondor_installation
from trialfleet.infra.pool import status as pool_status

KEY = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\nabc\n"
ME = pwd.getpwuid(os.geteuid())
DEBIAN = 'ID=debian\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian"\n'


class Computer:
    """A machine's folder, and a stand-in for what its commands do: apt, systemctl, the token."""

    def __init__(self, root: Path, *, installed: bool = False) -> None:
        self.root = root
        self.installed = installed
        self.ran: list[str] = []
        self.enabled: set[str] = set()
        self.started = 0.0  # when HTCondor was, in seconds since boot
        self.fails = ""
        (root / "etc").mkdir()
        (root / "etc" / "os-release").write_text(DEBIAN)

    @property
    def target(self) -> InstallTarget:
        return InstallTarget(
            root=self.root,
            run=self.run,
            installed=lambda: self.installed or None,
            key=lambda: KEY,
            seconds=0.2,
        )

    def run(self, arguments: list[str]) -> str:
        asked = " ".join(arguments)
        if self.fails and self.fails in asked:
            raise PoolError(f"{asked} exits 1")
        answer = self.answer(arguments)
        if answer is None:
            self.ran.append(asked)
            answer = self.change(arguments)
        return answer

    def answer(self, arguments: list[str]) -> str | None:
        """Return the answer to a question; None if it is none."""
        match arguments:
            case ["systemctl", "show", "condor", *_]:
                state = "active" if self.started else "inactive"
                since = f"{self.started * 1e6:.0f}"
                return f"ActiveState={state}\nActiveEnterTimestampMonotonic={since}\n"
        return None

    def change(self, arguments: list[str]) -> str:
        """Do what a command would, and return what it prints."""
        match arguments:
            case ["apt-get", *_, "condor"]:
                self.installed = True
            case ["systemctl", "enable", *_, unit]:
                self.enabled.add(unit)
            case ["systemctl", "restart", "condor"]:
                self.started = time.monotonic()
            case ["condor_token_create", *_]:
                payload = json.dumps({"exp": time.time() + 30 * 86_400}).encode()
                return f"a.{base64.urlsafe_b64encode(payload).decode()}.b\n"
        return ""

    def go(self, settings: ManagerSettings, *, dry_run: bool = False) -> list[str]:
        """Perform what an installation does here and return what it says."""
        messages: list[str] = []
        steps = install.actions(settings, self.target, ME.pw_gid)
        actions.perform_all(steps, messages.append, dry_run=dry_run)
        return messages

    def files(self) -> set[str]:
        return {str(f.relative_to(self.root)) for f in self.root.rglob("*") if f.is_file()}


SETTINGS = ManagerSettings(user="ada")


@pytest.fixture
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Computer:
    if os.geteuid() != 0:  # a plain user can't give folders to root's group
        monkeypatch.setattr(os, "chown", lambda *_: None)
        monkeypatch.setattr(install, "ROOT_GROUP", ME.pw_gid)
    return Computer(tmp_path)


def test_a_manager_has_systemd_run_the_supervisor_as_the_user(computer: Computer) -> None:
    computer.go(SETTINGS)
    unit = computer.root / "etc/systemd/system" / install.SUPERVISOR
    assert "User=ada\n" in unit.read_text()
    assert "-I -m trialfleet.programs supervise --state %S/" in unit.read_text()
    assert install.SUPERVISOR in computer.enabled


def test_a_fresh_machine_gets_all_that_a_manager_needs(computer: Computer) -> None:
    computer.go(SETTINGS)
    assert [line.split()[0] for line in computer.ran] == [
        *["apt-get"] * 2,
        "sysctl",
        "condor_token_create",
        *["systemctl"] * 5,
    ]
    etc = computer.root / "etc"
    assert (etc / "condor/config.d/50-trialfleet-manager.conf").read_text() == config.render(
        SETTINGS
    )
    assert (etc / "apt/sources.list.d/htcondor.list").read_text() == (
        "deb [signed-by=/etc/apt/keyrings/htcondor.asc]"
        " https://htcss-downloads.chtc.wisc.edu/repo/debian/25.x bookworm main\n"
    )
    assert (etc / "apt/keyrings/htcondor.asc").read_bytes() == KEY
    assert "net.ipv4.tcp_keepalive_intvl = 5\n" in (etc / "sysctl.d/60-trialfleet.conf").read_text()
    assert computer.enabled == {"condor", "trialfleet-token.timer", install.SUPERVISOR}


def test_secrets_are_readable_by_root_only_and_the_token_by_its_user(computer: Computer) -> None:
    computer.go(SETTINGS)
    etc = computer.root / "etc"
    modes = {
        "condor/passwords.d": 0o700,
        "condor/passwords.d/trialfleet": 0o600,
        "trialfleet": 0o2750,
        "trialfleet/node.token": 0o640,
    }
    assert {name: (etc / name).stat().st_mode & 0o7777 for name in modes} == modes
    assert (etc / "trialfleet/node.token").stat().st_gid == ME.pw_gid


def test_a_second_time_changes_only_the_token_and_does_not_restart_htcondor(
    computer: Computer,
) -> None:
    computer.go(SETTINGS)
    before = {name: (computer.root / name).stat().st_mtime_ns for name in computer.files()}
    computer.ran.clear()
    time.sleep(0.01)
    computer.go(SETTINGS)
    assert "systemctl restart condor" not in computer.ran
    after = {name: (computer.root / name).stat().st_mtime_ns for name in computer.files()}
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"etc/trialfleet/node.token"}


def test_a_dry_run_says_every_step_and_does_none(computer: Computer) -> None:
    before = computer.files()
    promised = computer.go(SETTINGS, dry_run=True)
    assert computer.files() == before
    assert computer.ran == []
    assert all(line.startswith("would ") for line in promised)
    done = computer.go(SETTINGS)
    assert [line.removeprefix("would ") for line in promised] == done


@pytest.mark.slow
def test_after_a_crash_anywhere_the_next_time_completes_it(
    computer: Computer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    computer.go(SETTINGS)
    whole = computer.files()
    for step in ("update", "condor", "sysctl", "condor_token_create", "enable", "restart"):
        again = Computer(tmp_path_factory.mktemp(step))
        again.fails = step
        with pytest.raises(PoolError):
            again.go(SETTINGS)
        again.fails = ""
        again.go(SETTINGS)
        assert again.files() == whole
        assert (again.enabled, bool(again.started)) == (computer.enabled, True)


def test_another_configuration_restarts_the_daemons_and_keeps_the_key(computer: Computer) -> None:
    computer.go(SETTINGS)
    key = (computer.root / "etc/condor/passwords.d/trialfleet").read_bytes()
    computer.ran.clear()
    time.sleep(0.01)
    computer.go(replace(SETTINGS, port=9700))
    assert "systemctl restart condor" in computer.ran
    assert (computer.root / "etc/condor/passwords.d/trialfleet").read_bytes() == key


def test_files_made_unreadable_are_repaired(computer: Computer) -> None:
    computer.go(SETTINGS)
    configuration = computer.root / "etc/condor/config.d/50-trialfleet-manager.conf"
    token = computer.root / "etc/trialfleet/node.token"
    for path in (configuration, token):
        path.chmod(0o600)
    computer.go(SETTINGS)
    assert [path.stat().st_mode & 0o777 for path in (configuration, token)] == [0o644, 0o640]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to any group")
def test_another_user_may_read_the_token_and_the_previous_one_may_not(computer: Computer) -> None:
    computer.go(SETTINGS)
    steps = install.actions(SETTINGS, computer.target, 12_345)
    actions.perform_all(steps, lambda _: None, dry_run=False)
    folder = computer.root / "etc/trialfleet"
    assert [path.stat().st_gid for path in (folder, folder / "node.token")] == [12_345] * 2


@pytest.mark.slow
def test_the_timer_renews_by_htcondors_tool_alone(computer: Computer) -> None:
    """Nothing that a user may change is run as root each week."""
    computer.go(SETTINGS)
    unit = (computer.root / "etc/systemd/system/trialfleet-token.service").read_text()
    programs = [line.split()[0] for line in unit.splitlines() if line.startswith("ExecStart=")]
    assert [Path(word.partition("=")[2]).name for word in programs] == [
        "condor_token_create",
        "chmod",
        "mv",
    ]
    timer = (computer.root / "etc/systemd/system/trialfleet-token.timer").read_text()
    assert "OnCalendar=weekly\n" in timer


def test_a_machine_with_htcondor_keeps_it(tmp_path: Path, computer: Computer) -> None:
    computer.installed = True
    output = computer.go(SETTINGS)
    assert not [line for line in output if "apt" in line]


def test_install_fails_if_apt_brings_an_old_htcondor(computer: Computer) -> None:
    too_old = replace(computer.target, installed=lambda: None)
    steps = install.actions(SETTINGS, too_old, ME.pw_gid)
    with pytest.raises(PoolError, match=r"apt did not install HTCondor 25\.14 or newer"):
        actions.perform_all(steps, lambda _: None, dry_run=False)


def test_an_operating_system_error_is_reported_with_its_step(computer: Computer) -> None:
    (computer.root / "etc" / "apt").write_text("in the way")
    with pytest.raises(PoolError, match=r"couldn't fetch the key .*File exists|Not a directory"):
        computer.go(SETTINGS)


@pytest.mark.parametrize(
    ("release", "machine"),
    [
        ("ID=fedora\n", "x86_64"),
        ('ID="debian"\nVERSION_CODENAME=buster\n', "x86_64"),
        ("", "x86_64"),
        (DEBIAN, "aarch64"),
    ],
)
def test_a_machine_without_packages_is_refused_with_the_choices(
    tmp_path: Path, release: str, machine: str
) -> None:
    (tmp_path / "os-release").write_text(release)
    found = apt_repository.distribution(tmp_path / "os-release")
    with pytest.raises(PoolError, match=r"debian \(bookworm, trixie\) or ubuntu \(jammy, noble\)"):
        apt_repository.refuse_unsupported(found, machine)


def test_supported_machines_are_not_refused(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text('ID=ubuntu\nVERSION_CODENAME="noble"\n')
    apt_repository.refuse_unsupported(
        apt_repository.distribution(tmp_path / "os-release"), "x86_64"
    )


def test_a_user_without_an_account_is_refused() -> None:
    with pytest.raises(InputError, match="there is no account 'nobody-such'"):
        install.install(ManagerSettings(user="nobody-such"), dry_run=True)


def test_only_root_makes_a_manager(monkeypatch: pytest.MonkeyPatch, computer: Computer) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PoolError, match=r"only root can install a manager: `sudo "):
        install.install(ManagerSettings(user="daemon"), target=computer.target)


def test_a_machine_without_systemd_is_refused(
    monkeypatch: pytest.MonkeyPatch, computer: Computer, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PoolError, match="no systemctl"):
        install.install(ManagerSettings(user="daemon"), target=computer.target)


def test_daemons_that_do_not_answer_are_reported_with_their_logs(
    monkeypatch: pytest.MonkeyPatch, computer: Computer
) -> None:
    some = ("condor_master", "condor_schedd")
    monkeypatch.setattr(pool_status, "daemons_and_machines", lambda _: (some, ()))
    expected = r"condor_collector, condor_negotiator did not answer within 0 s: .*journalctl"
    with pytest.raises(PoolError, match=expected):
        install.wait_for_answer(computer.target)


def test_the_default_user_is_the_caller_of_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ada")
    assert install.build_settings().user == "ada"
    assert install.build_settings("bea").user == "bea"
    monkeypatch.delenv("SUDO_USER")
    with pytest.raises(InputError, match="name it with --user"):
        install.build_settings()


def test_an_address_that_is_not_the_machines_own_is_forwarded() -> None:
    assert not install.build_settings("ada", "127.0.0.1").forwarded
    assert install.build_settings("ada", "203.0.113.7").forwarded
    assert install.build_settings("ada", "pool.example").forwarded
    assert not install.build_settings("ada").forwarded


def test_a_download_that_is_no_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer:
        def __enter__(self) -> Answer:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def read(self) -> bytes:
            return b"<html>log in"

    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Answer())
    with pytest.raises(PoolError, match="did not return a key; it returned b'<html>log in'"):
        apt_repository.fetch_key()


def test_a_key_that_cannot_be_fetched_names_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    with pytest.raises(PoolError, match=r"HTCondor-25\.x-Key: .*not known"):
        apt_repository.fetch_key()


@pytest.mark.parametrize(("version", "usable"), [("25.14.0", True), ("25.4.1", False)])
def test_the_managers_version_is_new_enough_or_refused(
    monkeypatch: pytest.MonkeyPatch, version: str, usable: bool
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/usr/sbin/condor_master")
    monkeypatch.setattr(htcondor_installation, "read_version", lambda _release: version)
    if usable:
        assert htcondor_installation.managers_version() == version
    else:
        with pytest.raises(PoolError, match=r"no HTCondor 25\.14 or newer"):
            htcondor_installation.managers_version()


def test_a_failed_command_is_reported_with_its_output() -> None:
    with pytest.raises(PoolError, match=r"sh -c 'echo why >&2; exit 3' exited with code 3:\nwhy"):
        actions.run_command(["sh", "-c", "echo why >&2; exit 3"])
    with pytest.raises(PoolError, match="no-such-program can't be run"):
        actions.run_command(["no-such-program"])
    assert actions.run_command(["sh", "-c", "echo $DEBIAN_FRONTEND"]) == "noninteractive\n"
