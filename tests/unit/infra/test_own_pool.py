"""A pool in a folder of one's own: how commands find it, and what they say about it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from trialfleet.infra.pool.connection import connect, export_command, start_command
from trialfleet.infra.pool.embedded import Pool, meant_folder
from trialfleet.workflows.cli.main import main

RECORD = '{"release": "/usr", "version": "25.14.1", "unpacked": false}'


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    """A pool that was up once, which no variable names."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("CONDOR_CONFIG", raising=False)
    monkeypatch.delenv("TRIALFLEET_POOL", raising=False)
    monkeypatch.chdir(tmp_path)
    pool = Pool(tmp_path / "my pool")
    pool.folder.mkdir()
    (pool.folder / "pool.json").write_text(RECORD)
    return pool


def users(tmp_path: Path) -> Pool:
    return Pool(tmp_path / "state/trialfleet/pool")


def foreign(tmp_path: Path) -> str:
    (tmp_path / "theirs").mkdir()
    return str(tmp_path / "theirs/condor_config")


def result_of(*words: str) -> Result:
    return CliRunner().invoke(main, ["pool", *words])


def test_the_export_command_makes_commands_find_the_pool(
    own: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = export_command(own)
    assert shlex.split(line) == ["export", f"TRIALFLEET_POOL={own.folder}"]
    assert export_command(users(tmp_path)) == ""
    monkeypatch.setenv("TRIALFLEET_POOL", str(own.folder))
    assert export_command(own) == ""
    assert meant_folder() == own.folder


def test_the_export_command_also_replaces_a_foreign_condor_config(
    own: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDOR_CONFIG", foreign(tmp_path))
    line = f'eval "$(trialfleet pool env --folder {shlex.quote(str(own.folder))})"'
    assert export_command(own) == line
    monkeypatch.setenv("CONDOR_CONFIG", str(own.condor_config))
    assert export_command(own) == ""
    monkeypatch.setenv("CONDOR_CONFIG", os.devnull)  # as after an import of htcondor2
    assert export_command(own).startswith("export TRIALFLEET_POOL=")


def test_status_and_down_are_about_the_pool_that_condor_config_names(
    own: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDOR_CONFIG", str(own.condor_config))
    status = result_of("status")
    assert (status.exit_code, status.stdout) == (1, f"down  HTCondor 25.14.1  {own.folder}\n")
    assert status.stderr == ""
    assert result_of("down").exit_code == 0
    assert not users(tmp_path).folder.exists()
    assert f"CONDOR_CONFIG={shlex.quote(str(own.condor_config))}" in result_of("env").stdout


def test_a_pool_that_was_never_up_has_no_version(own: Pool, tmp_path: Path) -> None:
    assert not users(tmp_path).folder.exists()
    assert result_of("status").stdout == f"down  {users(tmp_path).folder}\n"
    assert own.folder.exists()


@pytest.mark.parametrize("command", ["status", "down"])
def test_a_warning_says_that_runs_use_the_pool_of_a_foreign_condor_config(
    own: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    config = foreign(tmp_path)
    monkeypatch.setenv("CONDOR_CONFIG", config)
    (line,) = result_of(command).stderr.splitlines()
    assert line == (
        f"CONDOR_CONFIG names {config}: `trialfleet plan` and `run` use that pool, but "
        f"this command uses the pool in {users(tmp_path).folder}"
    )
    assert result_of(command, "--folder", str(own.folder)).stderr == ""


def test_the_shell_exports_of_a_pool_make_commands_find_it(
    own: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where TRIALFLEET_POOL named another before."""
    monkeypatch.setenv("TRIALFLEET_POOL", str(tmp_path / "other"))
    for line in own.shell_exports().splitlines():
        name, _, value = shlex.split(line)[1].partition("=")
        monkeypatch.setenv(name, value)
    assert meant_folder() == own.folder
    assert export_command(own) == ""
    assert result_of("status").stderr == ""


def test_the_start_command_of_a_pool_names_its_folder(
    own: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = f"TRIALFLEET_POOL={shlex.quote(str(own.folder))} trialfleet pool up"
    assert own.command("up") == named
    assert users(tmp_path).command("up") == start_command() == "trialfleet pool up"
    monkeypatch.setenv("CONDOR_CONFIG", str(own.condor_config))
    assert start_command() == named
    with pytest.raises(Exception, match="which is not up") as refused:
        connect()
    assert str(refused.value).endswith(f"start it by `{named}`")
