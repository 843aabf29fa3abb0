"""Files that a job leaves in its trial's folder are read within bounds, and no link is followed."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from trialfleet import untrusted_files
from trialfleet.infra.pool import schedd
from trialfleet.nodes.job import pack_and_unpack
from trialfleet.nodes.job.pack_and_unpack import DamagedPackageError, TooLargeError
from trialfleet.optimizer.region_types import Failed
from trialfleet.untrusted_files import JobFileError
from trialfleet.workflows.control.gang import keeper
from trialfleet.workflows.facts.jobs.agent_messages import read_last_message, read_order
from trialfleet.workflows.facts.jobs.gang_records import read_roster
from trialfleet.workflows.facts.jobs.gang_roster import Roster
from trialfleet.workflows.facts.jobs.job_log import read_job
from trialfleet.workflows.facts.jobs.progress import last_report, read_reports
from trialfleet.workflows.facts.jobs.unpacking import unpack_result
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.status.attempts.outcome import read_outcome, read_stop

Leave = Callable[[Path], object]


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/fd/{os.open(path.parent, os.O_PATH)}/{path.name}")


# Obstacles that a job may leave in place of a file of its contract.
LEFT: dict[str, Leave] = {
    "a terminal": lambda path: path.symlink_to("/dev/ptmx"),
    "endless zeros": lambda path: path.symlink_to("/dev/zero"),
    "another's file": lambda path: path.symlink_to("/etc/passwd"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a pipe": os.mkfifo,
    "a socket": listening,
    "a folder": Path.mkdir,
    "a terabyte": sparse,
}


@pytest.fixture
def place(tmp_path: Path) -> TrialFolder:
    found = TrialFolder(tmp_path / "trial")
    for folder in (found.root, found.words, found.gang, found.model, found.losses):
        folder.mkdir()
    return found


@pytest.fixture(params=LEFT)
def leave(request: pytest.FixtureRequest) -> Leave:
    return LEFT[request.param]


def test_no_reader_waits_for_an_obstacle_in_place_of_a_file(
    place: TrialFolder, leave: Leave
) -> None:
    files = (place.result, place.stop, place.progress, place.log, place.err, place.roster)
    for file in (*files, place.order, place.said, place.gang / "agent.0", place.job):
        leave(file)
    outcome = read_outcome(place, 0, "auc", {})
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("result.json ")
    assert read_stop(place) is None
    assert (read_order(place), read_last_message(place)) == (None, None)
    assert read_reports(place.progress, "auc") == {}
    assert last_report(place.progress, "auc") is None
    assert read_job(place) is None
    assert read_roster(place) is None
    with pytest.raises(OSError, match=r"agent\.0"):
        untrusted_files.read_bytes(place.gang / "agent.0", untrusted_files.MOST_AGENT, place.root)
    assert isinstance(read_outcome(place, 1, "auc", {}), Failed)


@pytest.mark.parametrize("content", ["[]", '"x"', "[" * 50_000, '{"a":' * 50_000])
def test_no_reader_fails_because_of_json_of_another_kind(place: TrialFolder, content: str) -> None:
    for file in (place.result, place.stop, place.progress, place.roster, place.order, place.said):
        file.write_text(content)
    assert isinstance(read_outcome(place, 0, "auc", {}), Failed)
    assert read_stop(place) is None
    assert (read_order(place), read_last_message(place)) == (None, None)
    assert read_reports(place.progress, "auc") == {}
    assert last_report(place.progress, "auc") is None
    assert read_roster(place) is None


@pytest.mark.parametrize(
    "changes",
    [{"members": [["x", "a", "h", 1]]}, {"generation": "3"}, {"apart": 5}, {"since": None}],
)
def test_a_roster_with_an_invalid_field_is_ignored(
    place: TrialFolder, changes: dict[str, object]
) -> None:
    own = Roster(cluster=1).to_json()
    place.roster.write_text(json.dumps(own))
    assert read_roster(place) == Roster(cluster=1)
    place.roster.write_text(json.dumps({**own, **changes}))
    assert read_roster(place) is None


def test_a_folder_that_is_a_link_is_not_followed(place: TrialFolder, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "roster.json").write_text(json.dumps(Roster(cluster=1).to_json()))
    place.gang.rmdir()
    place.gang.symlink_to(elsewhere)
    assert read_roster(place) is None
    with pytest.raises(JobFileError, match="gang is a symbolic link"):
        untrusted_files.write_json(place.roster, {}, root=place.root)
    with pytest.raises(JobFileError, match="gang is a symbolic link"):
        untrusted_files.folder_sizes(place.gang)
    untrusted_files.make_empty(place.gang)
    assert untrusted_files.is_folder(place.gang)
    assert [path.name for path in elsewhere.iterdir()] == ["roster.json"]


def test_our_files_replace_those_that_a_job_left(
    place: TrialFolder, tmp_path: Path, leave: Leave
) -> None:
    (tmp_path / "mine").write_text("mine")
    leave(place.stop)
    untrusted_files.write_json(place.stop, {"predicted": 0.5})
    assert read_stop(place) == {"predicted": 0.5}
    place.stop.unlink()
    place.stop.symlink_to(tmp_path / "mine")
    untrusted_files.write_json(place.stop, {"predicted": 0.5})
    assert (tmp_path / "mine").read_text() == "mine"
    assert [path.name for path in place.root.iterdir() if ".tmp" in path.name] == []


def test_too_many_metrics_fail_the_attempt(place: TrialFolder) -> None:
    metrics = {"auc": 0.5, **{f"m{i}": i for i in range(1000)}}
    place.result.write_text(json.dumps({"status": "complete", "metrics": metrics}))
    outcome = read_outcome(place, 0, "auc", {})
    assert outcome == Failed(
        error="result.json has 1,001 metrics; the maximum is 1,000", final=True
    )


def test_a_folder_with_too_many_files_is_refused(
    place: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untrusted_files, "MOST_NAMES", 10)
    (place.gang / "a").write_text("four")
    assert untrusted_files.folder_sizes(place.gang) == {"a": 4}
    for number in range(10):
        (place.gang / str(number)).touch()
    with pytest.raises(JobFileError, match="more than 10 files"):
        untrusted_files.folder_sizes(place.gang)


def test_a_copy_has_no_links_and_is_writable_by_its_owner_only(
    place: TrialFolder, tmp_path: Path
) -> None:
    (place.model / "deep").mkdir(mode=0o777)
    (place.model / "deep/weights").write_text("w")
    (place.model / "deep/weights").chmod(0o666)
    untrusted_files.copy_tree(place.model, tmp_path / "copy")
    found = [*(tmp_path / "copy").rglob("*")]
    assert {path.name for path in found} == {"deep", "weights"}
    assert not any(path.is_symlink() or path.stat().st_mode & 0o022 for path in found)
    (place.model / "out").symlink_to("/etc")
    with pytest.raises(JobFileError, match="out' is a symbolic link"):
        untrusted_files.copy_tree(place.model, tmp_path / "other")


# -- packages ------------------------------------------------------------------------------------


def package(*members: tarfile.TarInfo, form: int = tarfile.GNU_FORMAT) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size) if member.isreg() else None)
    made.seek(0)
    return made


def member(
    name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = ""
) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.size, found.linkname = kind, size, link
    return found


DEEP = "/".join(["d" * 247] * 16)  # so long that a path to it can't be resolved

HOSTILE = {
    "up": [member("../outside")],
    "up from within": [member("model/../../outside")],
    "absolute": [member("/outside")],
    "a link out": [member("model", tarfile.SYMTYPE, link=".."), member("model/outside")],
    "a second name": [member("result.json", tarfile.LNKTYPE, link="/etc/passwd")],
    "a device": [member("result.json", tarfile.CHRTYPE)],
    "a pipe": [member("result.json", tarfile.FIFOTYPE)],
    "a path that can't be resolved": [  # CVE-2025-4517
        member(DEEP, tarfile.DIRTYPE),
        member("l", tarfile.SYMTYPE, link=f"{DEEP}/{'../' * 16}.."),
        member("l/outside"),
    ],
    "a file in a file": [member("a"), member("a/b")],
    "a folder over a file": [member("a"), member("a", tarfile.DIRTYPE)],
    "more than the disk": [member("result.json", size=600), member("progress.jsonl", size=600)],
    "a name without an end": [member("n" * 20_000)],
}


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_package_writes_only_in_its_folder(
    place: TrialFolder, tmp_path: Path, hostile: str, form: int
) -> None:
    content = package(*HOSTILE[hostile], form=form).read()
    place.left.write_bytes(content)
    unpack_result(place, place.left, max_bytes=1000)
    said = json.loads(place.result.read_text())
    assert said["status"] == "failed"
    assert said["error"].startswith("its result can't be used: ")
    found = {path.name for path in tmp_path.rglob("*")}
    assert "outside" not in found
    assert ".unpacked" not in found


def test_the_error_names_the_limit_that_a_package_exceeds(
    place: TrialFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    for name in "abc":
        (tmp_path / "model" / name).write_bytes(bytes(400))

    packed = io.BytesIO()
    pack_and_unpack.pack(["model"], tmp_path, packed.write)

    def error(max_bytes: int) -> str:
        place.left.write_bytes(packed.getvalue())
        unpack_result(place, place.left, max_bytes)
        words: str = json.loads(place.result.read_text())["error"]
        return words.removeprefix("its result can't be used: ")

    assert error(1199) == "the files have more than 1,199 bytes in total"
    monkeypatch.setattr(pack_and_unpack, "MOST_MEMBERS", 3)
    assert error(1200) == (
        "there are more than 3 files and folders; put them into fewer files, such as an archive"
    )


def test_more_files_than_a_reader_accepts_are_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a checkpoint would be saved that no attempt can start from."""
    checkpoint, packed = tmp_path / "checkpoint", io.BytesIO()
    for name in ("a", "b/c"):
        (checkpoint / name).mkdir(parents=True)
    first = {"ended.json": b"{}"}
    monkeypatch.setattr(pack_and_unpack, "MOST_MEMBERS", 5)
    pack_and_unpack.pack(["checkpoint"], tmp_path, packed.write, first=first)
    packed.seek(0)
    pack_and_unpack.unpack_file(packed, tmp_path / "to")
    monkeypatch.setattr(pack_and_unpack, "MOST_MEMBERS", 4)
    with pytest.raises(TooLargeError) as error:
        pack_and_unpack.pack(["checkpoint"], tmp_path, packed.write, first=first)
    assert error.value.limit == "files"


@pytest.mark.parametrize("kind", ["a dangling link", "a link to itself", "a pipe", "a socket"])
def test_a_model_is_refused_if_an_entry_is_neither_a_file_nor_a_folder(
    place: TrialFolder, tmp_path: Path, kind: str
) -> None:
    """Otherwise the model would be published without it, such as without its weights."""
    leave = LEFT | {"a dangling link": lambda path: path.symlink_to("/scratch/gone")}
    box = tmp_path / "box"
    (box / "model/deep").mkdir(parents=True)
    (box / "model/config.json").touch()
    (box / "result.json").write_text('{"status": "complete", "metrics": {"loss": 1}}')
    (box / "out").write_text("no space left on /scratch")
    leave[kind](box / "model/deep/weights.pt")
    with place.left.open("wb") as file:
        pack_and_unpack.pack(["result.json", "out", "model"], box, file.write)
    unpack_result(place, place.left)
    assert place.out.read_text() == "no space left on /scratch"
    assert not (place.root / "model/config.json").exists()
    outcome = read_outcome(place, 0, "loss", {})
    assert outcome == Failed(
        error="its result can't be used: 'model/deep/weights.pt' is not a readable file or folder",
        final=True,
    )


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_a_model_is_refused_if_an_entry_cannot_be_read(
    place: TrialFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., None]
) -> None:
    box = tmp_path / "box"
    (box / "model").mkdir(parents=True)
    make(box / "model/weights", mode=0)
    monkeypatch.chdir(box)

    def pack_as_a_user() -> None:
        if os.geteuid() == 0:  # who can read everything
            os.setuid(65534)
        pack_and_unpack.pack(["model"], Path(), file.write)
        file.flush()

    with place.left.open("wb") as file:
        agent = multiprocessing.get_context("fork").Process(target=pack_as_a_user)
        agent.start()
        agent.join()
    unpack_result(place, place.left)
    error = json.loads(place.result.read_text())["error"]
    assert error == "its result can't be used: 'model/weights' is not a readable file or folder"


@pytest.mark.parametrize("name", [b"w\xff", b"w" * 150 + b"\xff"])
def test_the_error_shows_a_file_name_that_is_not_utf8(
    place: TrialFolder, tmp_path: Path, name: bytes
) -> None:
    box = tmp_path / "box"
    (box / "model").mkdir(parents=True)
    (box / "model" / os.fsdecode(name)).touch()
    with place.left.open("wb") as file:
        pack_and_unpack.pack(["model"], box, file.write)
    unpack_result(place, place.left)
    error = json.loads(place.result.read_text())["error"]
    assert error == f"its result can't be used: the file name {b'model/' + name!r} is not UTF-8"


def test_a_sparse_member_or_header_is_refused(tmp_path: Path) -> None:
    for kind in (tarfile.GNUTYPE_SPARSE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK, b"?"):
        header = member("a", kind).tobuf(tarfile.GNU_FORMAT)
        with pytest.raises(DamagedPackageError, match="not a readable file or folder"):
            pack_and_unpack.unpack_file(io.BytesIO(header + bytes(1024)), tmp_path)
    for kind in (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.GNUTYPE_LONGNAME):
        header = member("a", kind, size=-1).tobuf(tarfile.GNU_FORMAT)
        with pytest.raises(DamagedPackageError, match="size of a file is negative"):
            pack_and_unpack.unpack_file(io.BytesIO(header + bytes(1024)), tmp_path)
    long = member("x", tarfile.GNUTYPE_LONGNAME, size=1 << 40).tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(DamagedPackageError, match="too long"):
        pack_and_unpack.unpack_file(io.BytesIO(long), tmp_path)


@pytest.mark.parametrize("name", ["r.csv", "data/r.csv", "data/deep/r.csv", "data/new/"])
def test_a_package_never_writes_through_a_link(tmp_path: Path, name: str) -> None:
    """A trial's folder has links to the job's input files and folders."""
    inputs, into = tmp_path / "inputs", tmp_path / "into"
    (inputs / "data/deep").mkdir(parents=True)
    (inputs / "r.csv").write_text("ours")
    into.mkdir()
    for path in inputs.iterdir():
        (into / path.name).symlink_to(path)
    before = sorted(inputs.rglob("*"))
    kind = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
    with pytest.raises(DamagedPackageError, match="is a link"):
        pack_and_unpack.unpack_file(package(member(name, kind)), into)
    assert sorted(inputs.rglob("*")) == before
    assert (inputs / "r.csv").read_text() == "ours"


def test_an_agents_package_is_unpacked_completely_and_without_links(tmp_path: Path) -> None:
    box, to = tmp_path / "box", tmp_path / "to"
    name = "n" * 200
    (box / "checkpoint" / name).mkdir(parents=True)
    (box / "checkpoint" / name / "é").write_bytes(b"\0" * 1000)
    (box / "checkpoint/last").symlink_to(name)
    (box / "checkpoint/above").symlink_to("..")
    (box / "checkpoint/gone").symlink_to("missing")
    os.mkfifo(box / "checkpoint/pipe")
    with (tmp_path / "package").open("wb") as file:
        pack_and_unpack.pack(["checkpoint"], box, file.write)
    to.mkdir()
    with (tmp_path / "package").open("rb") as file:
        pack_and_unpack.unpack_file(file, to)
    for folder in (name, "last"):
        assert (to / "checkpoint" / folder / "é").read_bytes() == b"\0" * 1000
    assert not any(path.is_symlink() for path in to.rglob("*"))


def test_a_message_with_an_invalid_job_is_ignored(place: TrialFolder) -> None:
    words = {"job": "12.0", "token": "", "turn": 1, "say": "ended", "trial": "trial"}
    place.said.write_text(json.dumps(words))
    assert read_last_message(place) is not None
    place.said.write_text(json.dumps(words | {"job": "x"}))
    assert read_last_message(place) is None


@pytest.mark.parametrize("name", ["checkpoint.000001.000001.tar.part", "anything"])
def test_a_gang_that_sends_more_than_its_disk_has_failed(place: TrialFolder, name: str) -> None:
    kept = keeper.Keeper(RunFolder(place.root))
    ad = {"ClusterId": 5, "ProcId": 0, "Iwd": str(place.root), "JobStatus": 2, "RequestDisk": 1024}
    ad |= {"TrialfleetNode": "trial", "TrialfleetGangMin": 1, "TrialfleetGangMax": 2}
    order = {"token": "", "turn": 0, "do": "train", "name": "trial", "trial": {}, "last": True}
    untrusted_files.write_json(place.order, order)
    kept._keep(5, [ad])
    assert read_last_message(place) is None
    sparse(place.gang / name)
    kept._keep(5, [ad])
    said = read_last_message(place)
    assert said is not None
    assert (said.say, said.trial, said.ended.code, said.ended.over) == ("ended", "trial", 1, "disk")
    assert not (place.gang / name).exists()


def test_jobs_of_a_gang_that_an_earlier_release_began_are_removed(
    place: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for a keeper with the older protocol; their node's retry begins again."""
    acts: list[tuple[str, str, str]] = []
    monkeypatch.setattr(schedd, "apply_action", lambda *words: acts.append(words))
    ads = [
        {"ClusterId": 5, "ProcId": number, "Iwd": str(place.root), "JobStatus": 2}
        | {"TrialfleetNode": "trial", "TrialfleetGangMin": 1, "TrialfleetGangMax": 2}
        for number in range(2)
    ]
    keeper.Keeper(RunFolder(place.root))._keep(5, ads)
    assert acts == [("Remove", "ClusterId == 5 && (ProcId == 0 || ProcId == 1)", keeper.NO_ORDER)]
