"""What a trial's courier carries. Chirp is spoken by a stand-in here; tests/pool has HTCondor's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.nodes.chirp_server import ChirpServer
from trialfleet.nodes import courier
from trialfleet.nodes.chirp import Chirp
from trialfleet.nodes.courier import Courier


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    folder = tmp_path / "sandbox"
    folder.mkdir()
    (folder / "stop.json").touch()
    return folder


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ChirpServer]:
    folder = tmp_path / "on-the-access-point"
    folder.mkdir()
    (folder / "stop.json").touch()
    with ChirpServer(folder, tmp_path / ".chirp.config") as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def one(sandbox: Path, proxy: ChirpServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Courier]:
    monkeypatch.setenv("_CONDOR_CHIRP_CONFIG", str(proxy.config))
    with Chirp.of_this_job() as chirp:
        yield Courier(sandbox, chirp)


def reports(proxy: ChirpServer) -> str:
    return (proxy.folder / "reports.jsonl").read_text()


def add(sandbox: Path, *lines: str) -> None:
    with (sandbox / "progress.jsonl").open("a") as file:
        file.writelines(lines)


def test_reports_are_carried_as_they_come_and_no_half_line(
    sandbox: Path, one: Courier, proxy: ChirpServer
) -> None:
    assert one.turn() is False
    add(sandbox, "a\n", "b\n", "half")
    one.turn()
    assert reports(proxy) == "a\nb\n"
    add(sandbox, " a line\n")
    one.turn()
    assert reports(proxy) == (sandbox / "progress.jsonl").read_text()


def test_a_courier_elsewhere_begins_with_what_the_checkpoint_had(
    sandbox: Path, one: Courier, proxy: ChirpServer
) -> None:
    (proxy.folder / "reports.jsonl").write_text("1\n2\n3\nof the machine before\n")
    add(sandbox, "1\n", "2\n")
    one.turn()
    assert reports(proxy) == "1\n2\n"


def test_progress_that_was_cut_is_told_again(
    sandbox: Path, one: Courier, proxy: ChirpServer
) -> None:
    add(sandbox, "1\n", "2\n", "3\n")
    one.turn()
    (sandbox / "progress.jsonl").write_text("1\n")
    one.turn()
    assert reports(proxy) == "1\n"


def test_much_progress_takes_several_turns(
    sandbox: Path, one: Courier, proxy: ChirpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "MOST_BYTES", 10)
    add(sandbox, *(f"{i}\n" for i in range(20)), "a line longer than a turn\n")
    for _ in range(12):
        one.turn()
    assert reports(proxy) == (sandbox / "progress.jsonl").read_text()


@pytest.mark.parametrize("word", ["cookie", "open", "pwrite", "close", "getfile"])
def test_what_fails_is_tried_again(
    sandbox: Path, one: Courier, proxy: ChirpServer, word: str
) -> None:
    add(sandbox, "1\n", "2\n")
    proxy.refused = word
    with pytest.raises(OSError, match=word):
        one.turn()
    proxy.refused = ""
    one.turn()
    assert reports(proxy) == "1\n2\n"


def test_reports_that_a_full_disk_did_not_take_are_sent_again(
    sandbox: Path, one: Courier, proxy: ChirpServer
) -> None:
    add(sandbox, "1\n", "2\n")
    proxy.room = 3
    with pytest.raises(OSError, match="3 of 4 bytes"):
        one.turn()
    proxy.room = 1000
    one.turn()
    assert reports(proxy) == "1\n2\n"


def test_the_order_to_stop_comes_whole(sandbox: Path, one: Courier, proxy: ChirpServer) -> None:
    (proxy.folder / "stop.json").write_text('{"predicted": 0.5}')
    assert one.turn() is True
    assert (sandbox / "stop.json").read_text() == '{"predicted": 0.5}'


def beside(
    trainer: subprocess.Popen[bytes], sandbox: Path, proxy: ChirpServer, grace: float
) -> None:
    """Run a trainer's courier, as RUN/start does, to its end."""
    subprocess.run(
        [sys.executable, "-I", "-S", courier.__file__, str(trainer.pid), str(grace)],
        cwd=sandbox,
        env={**os.environ, "_CONDOR_CHIRP_CONFIG": str(proxy.config)},
        check=True,
    )


@pytest.mark.slow
def test_a_trainer_that_goes_on_gets_sigterm(sandbox: Path, proxy: ChirpServer) -> None:
    (proxy.folder / "stop.json").write_text('{"predicted": 0.5}')
    with subprocess.Popen(["sleep", "600"]) as trainer:
        beside(trainer, sandbox, proxy, grace=0.1)
        assert trainer.wait(60) == -signal.SIGTERM


@pytest.mark.slow
def test_a_courier_ends_with_its_trainer_and_leaves_it_alone(
    sandbox: Path, proxy: ChirpServer
) -> None:
    with subprocess.Popen(["sleep", "1"]) as trainer:
        beside(trainer, sandbox, proxy, grace=600)
        assert trainer.wait(60) == 0
