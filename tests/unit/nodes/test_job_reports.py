"""Transfer of a trial's reports. Chirp is a stand-in's; tests/pool has HTCondor's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.nodes.chirp_server import ChirpServer
from trialfleet.nodes.job import reports
from trialfleet.nodes.job.chirp import Chirp
from trialfleet.nodes.job.reports import Reports


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "trial"
    folder.mkdir()
    (folder / "progress.jsonl").touch()
    (folder / "stop.json").touch()
    return folder


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ChirpServer]:
    folder = tmp_path / "on-the-access-point"
    (folder / "words").mkdir(parents=True)
    with ChirpServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def one(folder: Path, proxy: ChirpServer) -> Iterator[Reports]:
    with closing(Chirp(*proxy.address)) as chirp:
        yield Reports(folder, chirp, "A.t1")


def there(proxy: ChirpServer) -> str:
    return (proxy.folder / "words/reports.jsonl").read_text()


def add(folder: Path, *lines: str) -> None:
    with (folder / "progress.jsonl").open("a") as file:
        file.writelines(lines)


def test_only_complete_lines_of_reports_are_sent(
    folder: Path, one: Reports, proxy: ChirpServer
) -> None:
    one.send()
    add(folder, "a\n", "b\n", "half")
    one.send()
    assert there(proxy) == "a\nb\n"
    add(folder, " a line\n")
    one.send()
    assert there(proxy) == (folder / "progress.jsonl").read_text()


def test_reports_begin_with_those_of_the_checkpoint(
    folder: Path, one: Reports, proxy: ChirpServer
) -> None:
    (proxy.folder / "words/reports.jsonl").write_text("1\n2\n3\nof the machine before\n")
    add(folder, "1\n", "2\n")
    one.send()
    assert there(proxy) == "1\n2\n"


def test_reports_begin_empty_if_the_trainer_has_none_yet(
    folder: Path, one: Reports, proxy: ChirpServer
) -> None:
    (proxy.folder / "words/reports.jsonl").write_text("of the trial before\n")
    one.send()
    assert there(proxy) == ""
    assert proxy.kills == 0
    add(folder, "1\n")
    one.send()
    assert there(proxy) == "1\n"


def test_truncated_progress_is_sent_again(folder: Path, one: Reports, proxy: ChirpServer) -> None:
    add(folder, "1\n", "2\n", "3\n")
    one.send()
    (folder / "progress.jsonl").write_text("1\n")
    one.send()
    assert there(proxy) == "1\n"


def test_long_progress_is_sent_in_several_parts(
    folder: Path, one: Reports, proxy: ChirpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "MOST_BYTES", 10)
    add(folder, *(f"{i}\n" for i in range(20)), "a line longer than a turn\n")
    for _ in range(12):
        one.send()
    assert there(proxy) == (folder / "progress.jsonl").read_text()


@pytest.mark.parametrize("word", ["cookie", "open", "pwrite", "close"])
def test_failed_transfers_are_retried(
    folder: Path, one: Reports, proxy: ChirpServer, word: str
) -> None:
    add(folder, "1\n", "2\n")
    proxy.refused = word
    with pytest.raises(OSError, match=word):
        one.send()
    proxy.refused = ""
    one.send()
    assert there(proxy) == "1\n2\n"


def test_reports_refused_by_a_full_disk_are_sent_again(
    folder: Path, one: Reports, proxy: ChirpServer
) -> None:
    add(folder, "1\n", "2\n")
    proxy.room = 3
    with pytest.raises(OSError, match="3 of 4 bytes"):
        one.send()
    proxy.room = 1000
    one.send()
    assert there(proxy) == "1\n2\n"


def test_only_a_complete_order_to_stop_this_trial_is_taken(
    folder: Path, one: Reports, proxy: ChirpServer
) -> None:
    stop = proxy.folder / "words/stop.json"
    for other in ("", '{"trial": "A.t0"}', "[]", '{"trial": '):
        stop.write_text(other)
        assert not one.take_order()
    stop.write_text('{"trial": "A.t1", "predicted": 0.5}')
    assert one.take_order()
    assert json.loads((folder / "stop.json").read_text())["predicted"] == 0.5


def test_a_trials_output_is_sent_after_its_name(
    folder: Path, one: Reports, proxy: ChirpServer
) -> None:
    for name in ("out", "err"):
        (folder / name).touch()
    there = proxy.folder / "words/printed.out"
    there.write_text("A.t0\nof the trial before\n")
    one.send_printed()
    assert there.read_text() == "A.t0\nof the trial before\n", "silence costs no request"
    for text in ("first ", "line\n", "half"):
        with (folder / "out").open("a") as file:
            file.write(text)
        one.send_printed()
        assert there.read_text() == "A.t1\n" + (folder / "out").read_text()
    assert not (proxy.folder / "words/printed.err").exists()
    (folder / "out").write_text("cut\n")
    one.send_printed()
    assert there.read_text() == "A.t1\ncut\n"


def test_a_trials_output_is_sent_up_to_a_limit(
    folder: Path, one: Reports, proxy: ChirpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "MOST_BYTES", 10)
    monkeypatch.setattr(reports, "MOST_PRINTED", 25)
    (folder / "err").touch()
    (folder / "out").write_text("x" * 100)
    for _ in range(5):
        one.send_printed()
    assert (proxy.folder / "words/printed.out").read_text() == "A.t1\n" + "x" * 25
