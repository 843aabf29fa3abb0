"""The accounts of a node's slots, made by the real systemd-sysusers below a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.node_stand_ins import Bench
from trialfleet.nodes.bootstrap import accounts
from trialfleet.nodes.bootstrap.host import Host, StepError

ROOT = "root:x:0:0:root:/root:/bin/sh\n"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path / "bench")
    bench.file("etc/passwd", ROOT)
    bench.file("etc/group", "nogroup:x:65534:\n")
    monkeypatch.setenv("PATH", bench.path)
    if shutil.which("systemd-sysusers") is None:
        pytest.skip("wants systemd-sysusers")
    return bench


def made(bench: Bench) -> list[list[str]]:
    return [line.split(":") for line in bench.text("etc/passwd").splitlines()[1:]]


def test_each_slot_has_an_account_without_shell_and_password(bench: Bench) -> None:
    accounts.make(Host(bench.root))
    names = [entry[0] for entry in made(bench)]
    assert sorted(names) == sorted(
        ["trialfleet-files", *(f"trialfleet-slot{slot}" for slot in range(1, 401))]
    )
    assert len({entry[2] for entry in made(bench)}) == len(names)
    assert {(entry[1], entry[3], entry[6]) for entry in made(bench)} == {
        ("x", "65534", "/usr/sbin/nologin")
    }
    shadow = [line.split(":") for line in bench.text("etc/shadow").splitlines()]
    assert {entry[1] for entry in shadow if entry[0] in names} <= {"!*", "!"}
    assert bench.text("etc/passwd").startswith(ROOT)
    assert not set(names) & set(bench.text("etc/group").split(":"))


def test_the_configuration_names_an_account_for_each_slot(bench: Bench) -> None:
    accounts.make(Host(bench.root))
    settings = dict(line.split(" = ") for line in accounts.settings().splitlines())
    assert settings["SLOT1_USER"] == "trialfleet-files"
    assert settings["SLOT1_1_USER"] == "trialfleet-slot1"
    assert settings["SLOT1_400_USER"] == "trialfleet-slot400"
    assert sorted(settings.values()) == sorted(entry[0] for entry in made(bench))


def test_accounts_are_made_once_and_missing_ones_are_added(bench: Bench) -> None:
    accounts.make(Host(bench.root))
    whole = made(bench)
    accounts.make(Host(bench.root))
    assert made(bench) == whole
    some = [":".join(entry) for entry in whole[::2]]
    bench.file("etc/passwd", ROOT + "\n".join(some) + "\n")
    accounts.make(Host(bench.root))
    assert sorted(made(bench)) == sorted(whole)


def test_each_account_has_its_own_home(bench: Bench) -> None:
    accounts.make(Host(bench.root))
    homes = bench.root / "var/lib/trialfleet/home"
    assert homes.stat().st_mode & 0o777 == 0o755
    assert {home.stat().st_mode & 0o777 for home in homes.iterdir()} == {0o700}
    assert {entry[5] for entry in made(bench)} == {
        f"/{accounts.HOMES[1:]}/{home.name}" for home in homes.iterdir()
    }


@pytest.mark.parametrize(
    "taken", ["trialfleet-slot2:x:998:998::/:/bin/sh", "other:x:60708:60708::/:/bin/sh"]
)
def test_an_account_that_would_not_be_fenced_is_an_error(bench: Bench, taken: str) -> None:
    bench.file("etc/passwd", f"{ROOT}{taken}\n")
    with pytest.raises(StepError, match=r"slot2 has the user id \d+, but must have .* 60708"):
        accounts.make(Host(bench.root))


def test_an_account_that_systemd_does_not_make_is_named(bench: Bench) -> None:
    bench.program("systemd-sysusers", "exit 0")
    with pytest.raises(StepError, match="the account trialfleet-files is missing, but must"):
        accounts.make(Host(bench.root))


def test_a_failing_systemd_sysusers_is_reported(bench: Bench) -> None:
    bench.program("systemd-sysusers", "echo out of space >&2; exit 1")
    with pytest.raises(StepError, match="out of space"):
        accounts.make(Host(bench.root))
