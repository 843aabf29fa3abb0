from __future__ import annotations

import platform
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.node_stand_ins import Bench, serving
from trialfleet.nodes.bootstrap import htcondor_installation
from trialfleet.nodes.bootstrap.host import Host, StepError

VERSION = (
    'test -e "$ROOT/condor" || exit 1\necho "\\$CondorVersion: $(cat "$ROOT/condor") 2026 \\$"'
)
# Has the version in $ROOT/offered, or, once HTCondor's own repository is known, 25.14.1.
APT = """
case "$*" in
  *"condor=25.14.1*") ;;
  *) exit 0 ;;
esac
test -e "$ROOT/etc/apt/sources.list.d/htcondor.list" && echo 25.14.1 > "$ROOT/offered"
grep -qsx 25.14.1 "$ROOT/offered" && cp "$ROOT/offered" "$ROOT/condor" && exit 0
echo "E: Version '25.14.1*' for 'condor' was not found" >&2; exit 100
"""
UBUNTU = 'PRETTY_NAME="Ubuntu 22.04.5 LTS"\nID=ubuntu\nVERSION_CODENAME=jammy\n'


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path / "bench")
    bench.program("condor_version", VERSION)
    bench.program("apt-get", APT)
    bench.file("etc/os-release", UBUNTU)
    monkeypatch.setenv("PATH", bench.path)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(htcondor_installation, "download", lambda url: f"the key of {url}")
    return bench


def prepare(bench: Bench) -> str:
    return htcondor_installation.prepare(Host(bench.root), "25.14.1")


def test_an_installed_htcondor_of_the_managers_version_is_kept(bench: Bench) -> None:
    bench.file("condor", "25.14.1")
    assert prepare(bench) == "present"
    assert not any(call.startswith("apt-get") for call in bench.calls)


def test_htcondor_is_installed_from_the_machines_repositories_first(bench: Bench) -> None:
    bench.file("offered", "25.14.1")
    assert prepare(bench) == "the machine's repositories"
    assert not (bench.root / "etc/apt").exists()


def test_htcondors_own_repository_is_the_second_choice(bench: Bench) -> None:
    assert prepare(bench) == htcondor_installation.REPOSITORY
    key = bench.root / "etc/apt/keyrings/htcondor.asc"
    assert (
        key.read_text() == f"the key of {htcondor_installation.REPOSITORY}/keys/HTCondor-25.x-Key"
    )
    assert bench.text("etc/apt/sources.list.d/htcondor.list") == (
        f"deb [signed-by={key}] {htcondor_installation.REPOSITORY}/ubuntu/25.x jammy main\n"
    )
    installs = [call for call in bench.calls if " install " in call]
    assert all(call.endswith("--allow-downgrades condor=25.14.1*") for call in installs)
    assert "DPkg::Lock::Timeout=300" in installs[0]


def test_another_version_of_htcondor_is_replaced(bench: Bench) -> None:
    bench.file("condor", "23.4.0")
    prepare(bench)
    assert bench.text("condor").strip() == "25.14.1"


def test_a_machine_without_packages_in_htcondors_repository_is_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(StepError, match=r"repositories of Ubuntu .* HTCondor 25\.14\.1, .* AMI"):
        prepare(bench)


def test_an_installation_of_another_version_is_reported(bench: Bench) -> None:
    bench.program("apt-get", 'echo 23.4.0 > "$ROOT/condor"')
    with pytest.raises(StepError, match=r"the manager has HTCondor 25\.14\.1, but .* has 23\.4\.0"):
        prepare(bench)


@pytest.mark.parametrize(
    ("version", "channel"), [("25.0.4", "25.0"), ("25.14.1", "25.x"), ("26.1.0", "26.x")]
)
def test_each_version_has_its_repository(version: str, channel: str) -> None:
    assert htcondor_installation.channel(version) == channel


def test_a_key_that_cannot_be_fetched_is_an_error_with_its_address() -> None:
    with pytest.raises(StepError, match=r"^http://127\.0\.0\.1:9/key can't be down.*refused"):
        htcondor_installation.download("http://127.0.0.1:9/key")


def test_an_interrupted_download_of_the_key_is_reported() -> None:
    class BreaksOff(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "99")
            self.end_headers()

        def log_message(self, *_words: object) -> None:
            pass

    with serving(BreaksOff) as address, pytest.raises(StepError, match=f"{address}/key can't be"):
        htcondor_installation.download(f"{address}/key")
