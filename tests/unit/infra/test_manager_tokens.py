from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from trialfleet.errors import PoolError
from trialfleet.infra.manager import tokens
from trialfleet.infra.pool import signing


def made_up(**payload: object) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'HS256'})}.{part(payload)}.signature"


@pytest.fixture
def token_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the nodes' token, not yet there."""
    monkeypatch.setenv(tokens.TOKEN_VARIABLE, str(tmp_path / "node.token"))
    return tmp_path / "node.token"


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    fake = folder / signing.PROGRAM
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin")


def test_a_token_asks_for_no_more_than_a_node_needs() -> None:
    words = tokens.command()
    rights = {words[i + 1] for i, word in enumerate(words) if word == "-authz"}
    assert rights == {"ADVERTISE_STARTD", "ADVERTISE_MASTER", "READ"}
    assert words[words.index("-identity") + 1] == "node@trialfleet"
    assert words[words.index("-lifetime") + 1] == str(30 * 86_400)


@pytest.mark.parametrize("extra", ["", "x", "xx", "xxx"])  # base64 with and without padding
def test_the_expiry_of_a_token_is_read_from_it(extra: str) -> None:
    expires = tokens.expiry(made_up(exp=1_800_000_000, sub=extra))
    assert expires == datetime(2027, 1, 15, 8, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    ["", "abc", "a.b", "a.b.c", "a.e30.c", made_up(exp="soon"), made_up(exp=1e30), "ä.ö.ü"],
)
def test_a_text_that_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(PoolError, match=r"not an HTCondor token .*trialfleet manager token"):
        tokens.expiry(text)


def test_a_token_that_is_good_is_read(token_path: Path) -> None:
    token = made_up(exp=int(time.time()) + 60)
    token_path.write_text(f"{token}\n")
    assert tokens.read_node_token() == token


def test_the_error_of_a_missing_token_names_its_command_and_path(token_path: Path) -> None:
    with pytest.raises(PoolError, match=r"No such file.*sudo trialfleet manager token") as raised:
        tokens.read_node_token()
    assert str(token_path) in str(raised.value)
    assert tokens.TOKEN_VARIABLE in str(raised.value)


def test_an_expired_token_says_when(token_path: Path) -> None:
    token_path.write_text(made_up(exp=1_600_000_000))
    with pytest.raises(PoolError, match=r"expired on 2020-09-13 12:26 UTC"):
        tokens.read_node_token()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"hello"])
def test_the_error_of_a_file_without_a_token_names_it(token_path: Path, content: bytes) -> None:
    token_path.write_bytes(content)
    with pytest.raises(PoolError, match=r"node\.token"):
        tokens.read_node_token()


def test_the_default_token_file_is_the_managers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tokens.TOKEN_VARIABLE, raising=False)
    assert str(tokens.TOKEN_FILE) == "/etc/trialfleet/node.token"
    monkeypatch.setattr(tokens, "TOKEN_FILE", Path("/nowhere/node.token"))
    with pytest.raises(PoolError, match=r"token /nowhere/node\.token can't be read"):
        tokens.read_node_token()


def test_a_token_is_written_for_its_group_and_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "node.token"
    tokens.write("abc", path)
    assert path.read_text() == "abc\n"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_missing_token_tool_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PoolError, match="condor_token_create is not on PATH"):
        tokens.create()


@pytest.mark.parametrize(
    "script", ["echo no key >&2; exit 1", "echo no key >&2", "echo no key; exit 2"]
)
def test_a_token_that_is_not_made_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    program(tmp_path, monkeypatch, script)
    with pytest.raises(PoolError, match=r"did not make a token \(no key\)\. Only root can make a"):
        tokens.create()


def test_renewing_replaces_the_token_and_says_until_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, f"echo {made_up(exp=1_800_000_000)}")
    monkeypatch.setattr(tokens, "TOKEN_FILE", tmp_path / "etc" / "node.token")
    with pytest.raises(PoolError, match=r"sudo trialfleet manager install"):
        tokens.renew()
    (tmp_path / "etc").mkdir()
    assert tokens.renew().year == 2027
    assert tokens.expiry(tokens.TOKEN_FILE.read_text()).year == 2027


def test_keys_are_long_and_no_two_alike() -> None:
    assert len(signing.new_key()) == 64
    assert signing.new_key() != signing.new_key()
