"""Study files that are huge, deep, tangled or no files at all: refused at once, in one message."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.study.study_texts import MINIMAL, REGIONS, TRAINER, error_of, with_line, write
from trialfleet.errors import InputError
from trialfleet.workflows.study.loading import load_fleet, load_study
from trialfleet.workflows.study.spec import Study

# Each letter is twice the one before: 26 lines with 67 million values.
LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{chr(i + 1)}: &{chr(i + 1)} [*{chr(i)}, *{chr(i)}]\n" for i in range(ord("a"), ord("z"))
)
PARAMETER = "x: {type: float, low: 0.0, high: 1.0}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "go.sh").write_text("exit 0\n")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [
        "[" * 5000,
        "[" * 5000 + "]" * 5000,
        "[" * 150 + "]" * 150,
        "{a: " * 5000,
        "\n- " + "- " * 900,
    ],
    ids=["open", "closed", "shallow", "tables", "dashes"],
)
def test_a_study_of_too_many_brackets_is_refused(folder: Path, value: str) -> None:
    message = error_of(folder, MINIMAL + f"data: {value}\n")
    assert "study.yaml:" in message
    assert "32 levels deep" in message


def test_a_folder_named_instead_of_a_study_is_refused_with_the_studies_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "first").mkdir()
    (folder / "first" / "study.yaml").write_text(MINIMAL)
    with pytest.raises(InputError) as caught:
        load_study(Path("first"))
    said = "first is a folder; name a regular file; studies here: first/study.yaml"
    assert str(caught.value) == said


def test_a_study_that_is_no_regular_file_is_refused_unopened(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    for place, kind in [(folder / "fifo", "a pipe"), (Path("/dev/zero"), "a device")]:
        with pytest.raises(InputError) as caught:
            load_study(place)
        assert str(caught.value) == f"{place} is {kind}; name a regular file"
    for load in (load_study, load_fleet):
        with pytest.raises(InputError, match="is a folder; name a regular file"):
            load(folder)


@pytest.mark.parametrize("key", ["trainer: {command: sh, files: [PLACE]}", "data: PLACE"])
@pytest.mark.parametrize("place", ["/dev/zero", "fifo"])
def test_data_and_trainer_files_must_be_files_or_folders(
    folder: Path, key: str, place: str
) -> None:
    os.mkfifo(folder / "fifo")
    text = MINIMAL.replace(TRAINER + "\n", "") if key.startswith("trainer") else MINIMAL
    message = error_of(folder, text + key.replace("PLACE", place) + "\n")
    assert f"{place}' is neither a file nor a folder" in message


@pytest.mark.parametrize("data", ["link", "inside"])
def test_data_with_a_link_to_a_folder_is_refused(folder: Path, data: str) -> None:
    (folder / "real").mkdir()
    (folder / "inside" / "deep").mkdir(parents=True)
    link = folder / data if data == "link" else folder / "inside" / "deep" / "link"
    link.symlink_to(folder / "real")
    message = error_of(folder, f"{MINIMAL}data: {data}\n")
    assert f"{str(link)!r} is a link to a folder, which HTCondor does not transfer" in message
    assert "name the folder itself" in message


def test_the_region_and_the_file_that_no_job_can_get_are_named(folder: Path) -> None:
    (folder / "A").mkdir()
    (folder / "NO").mkdir()
    text = f"{MINIMAL}data: '{{region}}'\n"
    os.mkfifo(folder / "A/pipe")
    place = f"{folder}/study.yaml:9: data: region "
    message = error_of(folder, text)
    assert message == f"{place}'A': '{folder}/A/pipe' is neither a file nor a folder"
    (folder / "NO" / os.fsdecode(b"f\xfcr")).touch()
    message = error_of(folder, text)
    assert message.splitlines()[1:] == [
        rf"{place}'NO': '{folder}/NO/f\udcfcr' has a name that is not UTF-8; rename it"
    ]


def test_data_that_regions_share_is_named_once(folder: Path) -> None:
    (folder / "shared").mkdir()
    (folder / "shared/link").symlink_to(folder)
    message = error_of(folder, f"{MINIMAL}data: shared\n")
    assert message.count("is a link to a folder") == 1


def test_data_that_regions_share_is_read_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "shared").mkdir()
    (folder / "study.yaml").write_text(f"{MINIMAL}data: shared\n")
    walk, walked = os.walk, list[str]()

    def noted(place: str) -> Iterator[tuple[str, list[str], list[str]]]:
        walked.append(place)
        return walk(place)

    monkeypatch.setattr(os, "walk", noted)
    load_study(folder / "study.yaml")
    assert walked == [str(folder / "shared")]


def test_data_with_a_link_without_a_target_is_refused(folder: Path) -> None:
    link = folder / "data" / "old.csv"
    link.parent.mkdir()
    link.symlink_to("gone.csv")
    message = error_of(folder, f"{MINIMAL}data: data\n")
    assert f"{str(link)!r} is a link to a file that does not exist; remove it" in message


def test_data_with_a_link_to_itself_is_not_said_to_lack_its_target(folder: Path) -> None:
    link = folder / "data" / "loop"
    link.parent.mkdir()
    link.symlink_to(link)
    message = error_of(folder, f"{MINIMAL}data: data\n")
    assert message.endswith(f"{str(link)!r} can't be read: Too many levels of symbolic links")


def test_files_that_a_writer_renames_meanwhile_are_no_fault(folder: Path) -> None:
    (folder / "data").mkdir()
    ends = threading.Event()

    def write() -> None:
        for number in itertools.count():
            if ends.is_set():
                return
            part = folder / f"data/{number % 400}.part"
            part.touch()
            part.rename(part.with_suffix(".csv"))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        (folder / "study.yaml").write_text(f"{MINIMAL}data: data\n")
        for _ in range(150):
            load_study(folder / "study.yaml")
    finally:
        ends.set()
        writer.join()


def test_data_with_a_link_to_a_file_is_accepted(folder: Path) -> None:
    (folder / "file").touch()
    (folder / "data").mkdir()
    (folder / "data" / "link").symlink_to(folder / "file")
    (folder / "study.yaml").write_text(f"{MINIMAL}data: data\n")
    load_study(folder / "study.yaml")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"name: x\nregions: [Z\xfcrich]\n", "2: byte 0xfc is not UTF-8; save the file as UTF-8"),
        ("name: x\n".encode("utf-16"), "1: byte 0xff is not UTF-8; save the file as UTF-8"),
    ],
)
def test_a_study_in_another_encoding_is_named_with_its_line(
    folder: Path, content: bytes, error: str
) -> None:
    file = folder / "study.yaml"
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_study(file)
    assert str(caught.value) == f"{file}:{error}"


def test_a_study_that_grows_too_large_is_refused_unread(folder: Path) -> None:
    path = write(folder, MINIMAL)
    with path.open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match="larger than 2,000,000 bytes"):
        load_study(path)
    assert "larger than 2,000,000 bytes" in error_of(folder, MINIMAL + "#" + "x" * 30_000_000)


@pytest.mark.slow
def test_a_study_has_ten_thousand_regions_at_most(folder: Path) -> None:
    names = ", ".join(f"R{i}" for i in range(10_001))
    message = error_of(folder, with_line(REGIONS, f"regions: [{names}]"))
    assert ":2: regions: has 10,001 regions; the maximum is 10,000" in message
    assert len(message) < 400
    table = "\n".join(f"  R{i}:" for i in range(10_001))
    assert "has 10,001 regions" in error_of(folder, with_line(REGIONS, f"regions:\n{table}"))


def test_a_glob_gives_ten_thousand_regions_at_most(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trialfleet.workflows.study.regions.MOST_REGIONS", 2)
    for name in "abc":
        (folder / f"{name}.npz").touch()
    message = error_of(folder, with_line(REGIONS, "regions: {glob: '*.npz'}"))
    assert ":2: regions.glob: has 3 regions; the maximum is 2" in message


class CountsLookUps(dict[str, object]):
    """A table that counts how often it is gone through from its beginning."""

    walks = 0

    def items(self) -> object:  # type: ignore[override]
        CountsLookUps.walks += 1
        return super().items()


def test_each_region_is_looked_up_without_going_through_all_of_them(folder: Path) -> None:
    few = {f"R{i}": None for i in range(20)}
    study = Study.model_validate(
        {
            "name": "demo",
            "regions": few,
            "objective": {"metric": "loss", "direction": "minimize"},
            "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "trainer": {"command": ["sh", "go.sh"], "files": ["go.sh"]},
            "accelerator": "cpu",
        }
    ).resolve(folder)
    assert isinstance(study.regions, dict)
    counted = study.model_copy(update={"regions": CountsLookUps(study.regions)})
    CountsLookUps.walks = 0
    for name in few:
        counted.region_space(name)
        counted.region_budget(name)
        counted.data_paths(name)
    assert CountsLookUps.walks == 0


class Counted(str):
    """Text that counts how often it is compared."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


def test_a_thousand_choices_are_not_all_compared_in_pairs() -> None:
    choices = [Counted(f"c{i}") for i in range(1_000)]
    entry = {"type": "categorical", "choices": choices}
    Counted.comparisons = 0
    from trialfleet.optimizer.space import SearchSpace

    SearchSpace.model_validate({"x": entry})
    assert Counted.comparisons < 20_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LAUGHS, "more than 500,000 values"),
        ("a: &a [*a]\n", "is a part of itself"),
        ("a: &a {b: *a}\n", "is a part of itself"),
        ("a: &a 1\nb: &a 2\n", "the anchor &a is defined twice"),
        ("a: !foo 1\n", "!foo"),
        ("a: !!python/object:os.system x\n", "python/object:os.system"),
        ("a: !foo {b: 1}\n", "!foo"),
        ("!foo\na: 1\n", "!foo"),
        ("a: !!bool maybe\n", "tag"),
        ("a: !!str 5\n", "tag"),
    ],
)  # fmt: skip
def test_yaml_beyond_plain_values_is_refused(folder: Path, text: str, words: str) -> None:
    message = error_of(folder, text)
    assert f"{folder}/study.yaml:" in message
    assert words in message
    assert len(message) < 500


def test_the_error_of_a_yaml_tag_says_how_to_avoid_it(folder: Path) -> None:
    message = error_of(folder, with_line("name: demo", "name: !secret demo"))
    assert ":1: unsupported YAML: the tag '!secret'; write the value without a tag" in message


def test_only_the_first_of_a_hundred_problems_are_listed(folder: Path) -> None:
    entries = "".join(f"  y{i}: {{type: flaot}}\n" for i in range(100))
    message = error_of(folder, with_line("  epochs: 3\n", entries))
    lines = message.splitlines()
    assert len(lines) == 21
    assert lines[-1].endswith("and 80 more problems")


def test_a_message_stays_short_whatever_the_value(folder: Path) -> None:
    long = "x" * 100_000
    message = error_of(folder, with_line(TRAINER, f"trainer: {{command: [sh], files: '{long},'}}"))
    assert len(message) < 1000
    assert ":7: trainer.files: " in message


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (PARAMETER, "x: {type: float, min: 0, high: 1}", [":5:", "'min' (did you mean 'low'?)"]),
        (PARAMETER, "x: {type: int, low: 0, max: 1}", [":5:", "'max' (did you mean 'high'?)"]),
        (PARAMETER, "x: {type: categorical, values: [a]}", ["'values' (did you mean 'choices'?)"]),
        ("type: float", "type: flaot", [":5: search_space.x.type: ", "(did you mean 'float'?)"]),
        ("type: float", "type: double", [":5: search_space.x.type: ", "(did you mean 'float'?)"]),
        ("high: 1.0}", "high: 1.0, when: {y: [1]}}", [
            ":5: search_space.x.when.y: 'y' is not a parameter of the space, and the space has no",
        ]),
        ("accelerator: cpu", "budget: {trials: true}", [
            ":8: budget.trials: must be a whole number (got True)",
        ]),
        ("accelerator: cpu", "budget: {trials: '5'}", [
            ":8: budget.trials: must be a whole number (got '5')",
        ]),
        ("accelerator: cpu", "budget: {trials: 1.5}", [
            ":8: budget.trials: must be a whole number (got 1.5)",
        ]),
        ("accelerator: cpu", "budget: {hours: false}", [
            ":8: budget.hours: must be a number (got False)",
        ]),
        ("accelerator: cpu", "seed: true", [":8: seed: must be a whole number (got True)"]),
        ("accelerator: cpu", "retries: yes", [":8: retries: must be a whole number (got 'yes')"]),
        ("high: 1.0", "high: 1.0, log: 1", [
            ":5: search_space.x.log: must be true or false (got 1)",
        ]),
    ],
)  # fmt: skip
def test_a_misspelt_key_gets_a_suggestion(
    folder: Path, old: str, new: str, words: list[str]
) -> None:
    message = error_of(folder, with_line(old, new))
    assert len(message.splitlines()) == 1
    for word in words:
        assert word in message


def test_control_characters_are_escaped_in_every_message(folder: Path) -> None:
    message = error_of(folder, with_line("name: demo", 'name: "a\\u202eb\\e[31m\\u2066"'))
    assert message.isprintable()
    assert "\\u202e" in message
    key = error_of(folder, with_line("accelerator: cpu", '"a\\u202e": 1'))
    assert key.isprintable()
    (folder / "\u202eevil\x1b[31m").mkdir()
    there = error_of(folder / "\u202eevil\x1b[31m", MINIMAL)
    assert all(line.isprintable() for line in there.splitlines())
    assert "\\u202eevil\\x1b[31m" in there


def test_an_unusable_default_publish_folder_is_reported_by_its_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda _path, mode: not mode & os.W_OK)
    message = error_of(folder, MINIMAL)
    assert message == (
        f"{folder}/study.yaml: publish: '{folder}/models' can't be used, because '{folder}' is not "
        "writable for you; name another folder with `publish: …`"
    )
