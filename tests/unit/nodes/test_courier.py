"""What a trial's courier carries. Chirp is spoken by a stand-in here; tests/pool has HTCondor's."""

from __future__ import annotations

import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trialfleet.nodes import courier
from trialfleet.nodes.courier import Courier


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    folder = tmp_path / "sandbox"
    folder.mkdir()
    (folder / "stop.json").touch()
    return folder


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    folder = tmp_path / "on-the-access-point"
    folder.mkdir()
    (folder / "stop.json").touch()
    with Proxy(folder) as server:
        server.config = tmp_path / ".chirp.config"
        server.config.write_text(f"127.0.0.1 {server.server_address[1]} c00kie\n")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Proxy(socketserver.TCPServer):
    """Answers as HTCondor's starter does, with the files of a folder."""

    config: Path

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.room = 1000  # bytes that it takes at once
        self.refused = ""  # the word of lines that are answered with an error
        super().__init__(("127.0.0.1", 0), Connection)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()


class Connection(socketserver.StreamRequestHandler):
    server: Proxy

    def handle(self) -> None:
        for line in self.rfile:
            word, *rest = line.decode().split()
            if word == self.server.refused:
                self.wfile.write(b"-17\n")
                continue
            answers: dict[str, Callable[..., bytes]]
            answers = {"open": self._open, "pwrite": self._write, "getfile": self._get}
            self.wfile.write(answers[word](*rest) if word in answers else b"0\n")

    def _open(self, name: str, flags: str, _mode: str) -> bytes:
        self.path = self.server.folder / name
        if "t" in flags:
            self.path.write_bytes(b"")
        return b"7\n65024 5808800 33188 1 1 1 0 0 4096 0 1 1 1\n"

    def _write(self, _descriptor: str, length: str, offset: str) -> bytes:
        content = self.rfile.read(int(length))[: self.server.room]
        with self.path.open("r+b") as file:
            file.seek(int(offset))
            file.write(content)
        return f"{len(content)}\n".encode()

    def _get(self, name: str) -> bytes:
        content = (self.server.folder / name).read_bytes()
        return f"{len(content)}\n".encode() + content


def add(sandbox: Path, *lines: str) -> None:
    with (sandbox / "progress.jsonl").open("a") as file:
        file.writelines(lines)


def test_reports_are_carried_as_they_come_and_no_half_line(sandbox: Path, proxy: Proxy) -> None:
    one = Courier(sandbox, proxy.config)
    assert one.turn() is False
    add(sandbox, "a\n", "b\n", "half")
    one.turn()
    assert proxy.text("reports.jsonl") == "a\nb\n"
    add(sandbox, " a line\n")
    one.turn()
    assert proxy.text("reports.jsonl") == (sandbox / "progress.jsonl").read_text()


def test_a_courier_elsewhere_begins_with_what_the_checkpoint_had(
    sandbox: Path, proxy: Proxy
) -> None:
    (proxy.folder / "reports.jsonl").write_text("1\n2\n3\nof the machine before\n")
    add(sandbox, "1\n", "2\n")
    Courier(sandbox, proxy.config).turn()
    assert proxy.text("reports.jsonl") == "1\n2\n"


def test_progress_that_was_cut_is_told_again(sandbox: Path, proxy: Proxy) -> None:
    add(sandbox, "1\n", "2\n", "3\n")
    one = Courier(sandbox, proxy.config)
    one.turn()
    (sandbox / "progress.jsonl").write_text("1\n")
    one.turn()
    assert proxy.text("reports.jsonl") == "1\n"


def test_much_progress_takes_several_turns(
    sandbox: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "MOST_BYTES", 10)
    add(sandbox, *(f"{i}\n" for i in range(20)), "a line longer than a turn\n")
    one = Courier(sandbox, proxy.config)
    for _ in range(12):
        one.turn()
    assert proxy.text("reports.jsonl") == (sandbox / "progress.jsonl").read_text()


@pytest.mark.parametrize("word", ["cookie", "open", "pwrite", "close", "getfile"])
def test_what_fails_is_tried_again(sandbox: Path, proxy: Proxy, word: str) -> None:
    add(sandbox, "1\n", "2\n")
    one = Courier(sandbox, proxy.config)
    proxy.refused = word
    with pytest.raises(OSError, match=word):
        one.turn()
    proxy.refused = ""
    one.turn()
    assert proxy.text("reports.jsonl") == "1\n2\n"


def test_reports_that_a_full_disk_did_not_take_are_sent_again(sandbox: Path, proxy: Proxy) -> None:
    add(sandbox, "1\n", "2\n")
    one = Courier(sandbox, proxy.config)
    proxy.room = 3
    with pytest.raises(OSError, match="3 of 4 bytes"):
        one.turn()
    proxy.room = 1000
    one.turn()
    assert proxy.text("reports.jsonl") == "1\n2\n"


def test_the_order_to_stop_comes_whole(sandbox: Path, proxy: Proxy) -> None:
    (proxy.folder / "stop.json").write_text('{"predicted": 0.5}')
    assert Courier(sandbox, proxy.config).turn() is True
    assert (sandbox / "stop.json").read_text() == '{"predicted": 0.5}'


def beside(trainer: subprocess.Popen[bytes], sandbox: Path, proxy: Proxy, grace: float) -> None:
    """Run a trainer's courier, as RUN/start does, to its end."""
    subprocess.run(
        [sys.executable, "-I", "-S", courier.__file__, str(trainer.pid), str(grace)],
        cwd=sandbox,
        env={**os.environ, "_CONDOR_CHIRP_CONFIG": str(proxy.config)},
        check=True,
    )


@pytest.mark.slow
def test_a_trainer_that_goes_on_gets_sigterm(sandbox: Path, proxy: Proxy) -> None:
    (proxy.folder / "stop.json").write_text('{"predicted": 0.5}')
    with subprocess.Popen(["sleep", "600"]) as trainer:
        beside(trainer, sandbox, proxy, grace=0.1)
        assert trainer.wait(60) == -signal.SIGTERM


@pytest.mark.slow
def test_a_courier_ends_with_its_trainer_and_leaves_it_alone(sandbox: Path, proxy: Proxy) -> None:
    with subprocess.Popen(["sleep", "1"]) as trainer:
        beside(trainer, sandbox, proxy, grace=600)
        assert trainer.wait(60) == 0
