"""Checkpoints of large gangs in S3: signed addresses, their readers, and their renewal."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.request import Request, urlopen

import pytest

from tests.moto_server import s3_with_bucket
from trialfleet.files import read_json, write_json
from trialfleet.nodes import CHECKPOINT
from trialfleet.nodes.gang import s3_checkpoints as on_node
from trialfleet.nodes.gang.packages import Package
from trialfleet.nodes.gang.s3_checkpoints import LINKS, Pointer, StoreError, parse_pointer
from trialfleet.workflows.control.gang.checkpoint_urls import (
    AGAIN_SECONDS,
    AHEAD,
    FRESH_SECONDS,
    GangStore,
)
from trialfleet.workflows.control.gang.keeper import SILENT_SECONDS
from trialfleet.workflows.facts.jobs.gang_roster import FORM, RUN, Roster
from trialfleet.workflows.facts.run_folder.folder import TrialFolder

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

pytestmark = pytest.mark.slow


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def s3(moto: str, monkeypatch: pytest.MonkeyPatch) -> S3Client:
    return s3_with_bucket(moto, "ours", monkeypatch)


@pytest.fixture
def place(tmp_path: Path) -> TrialFolder:
    found = TrialFolder(tmp_path)
    found.gang.mkdir(parents=True)
    write_json(found.gang_store, {"prefix": "s3://ours/of/a trial"})
    return found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(s3: S3Client, clock: Clock) -> Iterator[GangStore]:
    found = GangStore(clock=clock)
    yield found
    found.close()


def roster(generation: int = 1, start: str | None = None) -> Roster:
    return Roster(cluster=1, state=RUN, generation=generation, start=start)


def checkpoint(generation: int, number: int) -> str:
    return Package(CHECKPOINT, generation, number).name


class Links(NamedTuple):
    """The URLs of packages in S3, by the packages' names."""

    put: dict[str, str]
    get: dict[str, str]


def signed(store: GangStore, place: TrialFolder, of: Roster, *delivered: str) -> Links:
    """Return the links that the agents find, once S3 has answered."""
    store.share(place, of, delivered)
    store._thread.submit(lambda: None).result()
    store.share(place, of, delivered)
    file = place.gang / LINKS
    plain = read_json(file) if file.exists() else {}
    return Links(plain.get("put", {}), plain.get("get", {}))


def test_a_checkpoint_put_to_one_signed_address_is_read_from_another(
    store: GangStore, place: TrialFolder, tmp_path: Path, s3: S3Client
) -> None:
    name = checkpoint(1, 3)
    links = signed(store, place, roster())
    assert [*links.put] == [checkpoint(1, n) for n in range(1, AHEAD + 1)]
    (tmp_path / "state").write_bytes(content := b"w" * 3_000_000)
    blocks: list[int] = []
    pointer = on_node.upload(tmp_path / "state", links.put[name], lambda: blocks.append(1))
    assert len(blocks) == 3, "signs of life meanwhile"
    assert s3.head_object(Bucket="ours", Key=f"of/a trial/{name}")["ContentLength"] == 3_000_000
    (place.gang / name).write_bytes(pointer.to_bytes())
    assert parse_pointer((place.gang / name).read_bytes()) == pointer
    links = signed(store, place, roster(2, start=name), name)
    assert checkpoint(2, 1) in links.put
    on_node.download(pointer, links.get[name], tmp_path / "back", lambda: None)
    assert (tmp_path / "back").read_bytes() == content
    with pytest.raises(StoreError, match=r"3000000 bytes\) differs from .*7 bytes"):
        on_node.download(Pointer(7, "x"), links.get[name], tmp_path / "back", lambda: None)
    with pytest.raises(StoreError, match="has not yet written this package's URL"):
        on_node.download(pointer, None, tmp_path / "back", lambda: None)
    store.remove(place, {name})
    store.close()
    with pytest.raises(StoreError, match="404"):
        on_node.download(pointer, links.get[name], tmp_path / "back", lambda: None)


def test_addresses_are_renewed_when_few_are_left_or_they_are_old(
    store: GangStore, place: TrialFolder, clock: Clock
) -> None:
    first = signed(store, place, roster())
    assert signed(store, place, roster(), checkpoint(1, 4), checkpoint(1, 2)) == first
    later = signed(store, place, roster(), checkpoint(1, 5), checkpoint(2, 9))
    assert next(iter(later.put)) == checkpoint(1, 6)
    (place.gang / LINKS).unlink()
    assert signed(store, place, roster(), checkpoint(1, 5)).put == {}, "nothing has changed"
    clock.now += FRESH_SECONDS
    assert signed(store, place, roster(), checkpoint(1, 5)).put.keys() == later.put.keys()


def test_the_end_of_an_attempt_removes_its_own_objects_only(
    store: GangStore, place: TrialFolder, s3: S3Client
) -> None:
    for name in ("a trial/x", "a trial/checkpoint", "a trial2/x"):
        s3.put_object(Bucket="ours", Key=f"of/{name}", Body=b"x")
    for _ in range(2):  # as the keeper does at each look
        store.remove_all(place)
    store.close()
    assert not place.gang_store.exists(), "another keeper has nothing to do"
    left = s3.list_objects_v2(Bucket="ours", Prefix="of/")["Contents"]
    assert "of/a trial2/x" in [one["Key"] for one in left]
    assert not [one["Key"] for one in left if one["Key"].startswith("of/a trial/")]


def test_the_objects_of_each_attempt_of_a_dag_node_are_removed(
    store: GangStore, place: TrialFolder, s3: S3Client
) -> None:
    for attempt in ("1", "2"):
        write_json(place.gang_store, {"prefix": f"s3://ours/of/{attempt}"})
        s3.put_object(Bucket="ours", Key=f"of/{attempt}/checkpoint", Body=b"x")
        store.remove_all(place)
        store._thread.submit(lambda: None).result()
    assert not place.gang_store.exists()
    assert "Contents" not in s3.list_objects_v2(Bucket="ours", Prefix="of/")


def test_the_removal_of_an_attempt_leaves_the_place_of_the_next_attempt(
    store: GangStore, place: TrialFolder
) -> None:
    go_on = threading.Event()
    store._thread.submit(go_on.wait)
    store.remove_all(place)
    write_json(place.gang_store, {"prefix": "s3://ours/of/the next attempt"})
    go_on.set()
    store.close()
    assert place.gang_store.exists()


def test_the_objects_of_an_earlier_attempt_are_removed_with_those_of_the_next(
    store: GangStore, place: TrialFolder, s3: S3Client
) -> None:
    for attempt in ("1", "2"):
        s3.put_object(Bucket="ours", Key=f"of/{attempt}/checkpoint", Body=b"x")
    write_json(place.gang_store, {"prefix": "s3://ours/of/2", "earlier": ["s3://ours/of/1"]})
    store.remove_all(place)
    store.close()
    assert "Contents" not in s3.list_objects_v2(Bucket="ours", Prefix="of/")


def test_a_package_that_is_no_pointer_to_s3_is_neither_shared_nor_removed(
    store: GangStore, place: TrialFolder, s3: S3Client
) -> None:
    name = checkpoint(1, 1)
    (place.gang / name).write_bytes(b"checkpoint" + b"\0" * 5000)
    assert parse_pointer((place.gang / name).read_bytes()) is None
    assert signed(store, place, roster(2, start=name), name).get == {}
    s3.put_object(Bucket="ours", Key=f"of/a trial/{name}", Body=b"another's")
    store.remove(place, {name})
    store.close()
    assert s3.head_object(Bucket="ours", Key=f"of/a trial/{name}")


def test_requests_to_s3_time_out_before_the_rank_counts_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert on_node.TIMEOUT < SILENT_SECONDS
    monkeypatch.setattr(on_node, "TIMEOUT", 0.2)
    (tmp_path / "state").write_bytes(b"w" * 10)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        with pytest.raises(StoreError, match="timed out"):
            on_node.upload(tmp_path / "state", address, lambda: None)
        with pytest.raises(OSError, match="timed out"):
            on_node.download(Pointer(1, "x"), address, tmp_path / "back", lambda: None)


def test_addresses_are_signed_only_for_a_training_generation_with_a_prefix(
    store: GangStore, place: TrialFolder
) -> None:
    assert signed(store, place, Roster(cluster=1, state=FORM)).put == {}
    place.gang_store.unlink()
    assert signed(store, place, roster()).put == {}


@pytest.mark.parametrize("text", ["", "{", '{"s3": true}', '{"s3": true, "size": "x"}'])
def test_a_damaged_pointer_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "p").write_text(text)
    assert parse_pointer((tmp_path / "p").read_bytes()) is None


def test_a_missing_bucket_is_reported_once_a_minute_and_retried(
    store: GangStore,
    place: TrialFolder,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    s3: S3Client,
) -> None:
    write_json(place.gang_store, {"prefix": "s3://not-yet/x"})
    with caplog.at_level(logging.WARNING, "trialfleet"):
        for _ in range(3):
            assert signed(store, place, roster()).put == {}
    (record,) = [one for one in caplog.records if one.name.endswith("checkpoint_urls")]
    assert "s3://not-yet: " in record.message
    assert "checkpoints are sent through the access point" in record.message
    s3.create_bucket(Bucket="not-yet")
    clock.now += AGAIN_SECONDS
    assert len(signed(store, place, roster()).put) == AHEAD


def test_addresses_are_signed_for_the_buckets_aws_region(
    store: GangStore, place: TrialFolder, s3: S3Client
) -> None:
    where = {"LocationConstraint": "eu-central-1"}
    s3.create_bucket(Bucket="elsewhere", CreateBucketConfiguration=where)  # type: ignore[arg-type]
    write_json(place.gang_store, {"prefix": "s3://elsewhere/x"})
    (address, *_) = signed(store, place, roster()).put.values()
    assert "eu-central-1%2Fs3%2Faws4_request" in address
    with urlopen(Request(address, data=b"x", method="PUT")) as answer:  # noqa: S310
        assert answer.status == 200
    assert read_json(place.gang_store)["prefix"] == "s3://elsewhere/x"


def test_a_file_from_a_job_names_no_objects_to_remove(
    store: GangStore, place: TrialFolder, s3: S3Client
) -> None:
    for key in ("of/a trial/x", "another team's/file"):
        s3.put_object(Bucket="ours", Key=key, Body=b"x")
    write_json(place.gang / "store.json", {"prefix": "s3://ours/another team's"})
    store.remove_all(place)
    store.close()
    assert [each["Key"] for each in s3.list_objects_v2(Bucket="ours")["Contents"]] == [
        "another team's/file"
    ]
