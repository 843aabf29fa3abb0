"""A study file: what is accepted, what it becomes, and what a wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trialfleet.errors import InputError, StudyError
from trialfleet.workflows.study import Study
from trialfleet.workflows.study_file import FrozenStudy, dump_frozen, load_frozen, load_study

MINIMAL = """\
name: demo
regions: [A, NO]
objective: {metric: loss, direction: minimize}
search_space:
  x: {type: float, low: 0.0, high: 1.0}
  epochs: 3
trainer: {command: [sh, go.sh], files: [go.sh]}
accelerator: cpu
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "go.sh").write_text("exit 0\n")
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def with_line(old: str, new: str) -> str:
    assert old in MINIMAL
    return MINIMAL.replace(old, new)


def error_of(folder: Path, text: str) -> str:
    with pytest.raises(InputError) as caught:
        load_study(write(folder, text))
    return str(caught.value)


def test_norway_is_a_region_and_not_false(folder: Path) -> None:
    assert list(load_study(write(folder, MINIMAL)).region_table) == ["A", "NO"]


def test_trainer_files_and_publish_folder_become_absolute(folder: Path) -> None:
    study = load_study(write(folder, MINIMAL))
    assert study.publish == str(folder / "models")
    assert not isinstance(study.trainer, str)
    assert study.trainer.files == [str(folder / "go.sh")]


def test_data_is_found_by_region(folder: Path) -> None:
    for region in ("A", "NO"):
        (folder / f"{region}.npz").touch()
    study = load_study(write(folder, MINIMAL + "data: '{region}.npz'\n"))
    assert study.data_of("NO") == [str(folder / "NO.npz")]


def test_missing_data_names_region_and_path(folder: Path) -> None:
    message = error_of(folder, MINIMAL + "data: '{region}.npz'\n")
    assert "region 'A'" in message
    assert str(folder / "A.npz") in message


def test_data_urls_are_not_looked_for_here(folder: Path) -> None:
    for name in ("id", "secret"):
        (folder / name).touch()
    keys = "s3: {access_key_id_file: id, secret_access_key_file: secret}\n"
    study = load_study(write(folder, MINIMAL + keys + "data: s3://bucket/{region}/rows.npz\n"))
    assert study.data_of("A") == ["s3://bucket/A/rows.npz"]
    assert study.s3 is not None
    assert study.s3.access_key_id_file == str(folder / "id")


def test_data_urls_without_keys_to_sign_them_are_refused(folder: Path) -> None:
    message = error_of(folder, MINIMAL + "data: s3://bucket/{region}/rows.npz\n")
    assert "s3://bucket/A/rows.npz" in message
    assert "access_key_id_file" in message


def test_a_glob_names_each_region_after_what_the_star_matched(folder: Path) -> None:
    (folder / "data").mkdir()
    for name in ("dest-BOS.npz", "dest-São Paulo.npz", "other.npz"):
        (folder / "data" / name).touch()
    text = with_line("regions: [A, NO]", "regions: {glob: data/dest-*.npz}")
    study = load_study(write(folder, text))
    assert list(study.region_table) == ["BOS", "São Paulo"]
    assert study.data_of("BOS") == [str(folder / "data/dest-BOS.npz")]


def test_a_glob_that_matches_nothing_is_an_error(folder: Path) -> None:
    text = with_line("regions: [A, NO]", "regions: {glob: data/dest-*.npz}")
    assert "no file matches" in error_of(folder, text)


def test_a_region_overrides_parameters_and_budget(folder: Path) -> None:
    text = with_line(
        "regions: [A, NO]",
        "regions:\n  A:\n  NO: {search_space: {epochs: 9}, budget: {trials: 7}, priority: 3}",
    )
    study = load_study(write(folder, text))
    assert study.space_of("NO").constants() == {"epochs": 9}
    assert study.space_of("A").constants() == {"epochs": 3}
    assert (study.budget_of("A").trials, study.budget_of("NO").trials) == (20, 7)
    assert study.budget_of("NO").lanes == study.budget_of("A").lanes


def test_an_override_that_breaks_the_space_names_the_region(folder: Path) -> None:
    text = with_line("regions: [A, NO]", "regions: {A: {search_space: {x: 1.0}}}")
    assert "region 'A'" in error_of(folder, text)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("accelerator: cpu", "accelerator: tpu", [":8:", "accelerator", "'gpu' or 'cpu'", "'tpu'"]),
        ("accelerator: cpu", "acelerator: cpu", [":8:", "did you mean 'accelerator'"]),
        ("minimize}", "less}", [":3:", "objective.direction", "'minimize' or 'maximize'"]),
        ("high: 1.0", "high: -1.0", [":5:", "search_space.x.high", "-1.0"]),
        ("type: float", "type: floaty", [":5:", "search_space.x.type", "float, int, categorical"]),
        ("files: [go.sh]", "fils: [go.sh]", [":7:", "trainer", "'fils'", "'files'"]),
        ("files: [go.sh]", "files: ['a,b']", [":7:", "trainer.files", "comma"]),
        ("name: demo", "name: de mo", [":1:", "name", "'de mo'"]),
        ("name: demo\n", "", ["name", "required"]),
        ("[A, NO]", "[A, A]", ["'A' is listed twice"]),
        ("[A, NO]", '["A\\nJOB x y", B]', [":2:", "regions", "does not print"]),
        ("[A, NO]", "[1, B]", [":2:", "regions.0", "string", "1"]),
        ("[sh, go.sh]", '["sh\\nqueue 9"]', [":7:", "trainer.command", "line break"]),
    ],
)
def test_an_error_names_file_line_key_value_and_choices(
    folder: Path, old: str, new: str, words: list[str]
) -> None:
    message = error_of(folder, with_line(old, new))
    for word in [str(folder / "study.yaml"), *words]:
        assert word in message


def test_all_problems_are_told_at_once(folder: Path) -> None:
    text = with_line("accelerator: cpu", "accelerator: tpu").replace("minimize", "less")
    assert len(error_of(folder, text).splitlines()) == 2


@pytest.mark.parametrize("expression", ["Memory >", "a b", "x\nqueue 2", "$(HOME)"])
def test_requirements_must_be_a_classad_expression(folder: Path, expression: str) -> None:
    text = MINIMAL + "resources: {requirements: " + repr(expression).replace("'", '"') + "}\n"
    assert "resources.requirements" in error_of(folder, text)


@pytest.mark.parametrize("text", ["", "- a\n", "a: [", "a: 1\na: 2\n", "\x00"])
def test_what_is_no_table_is_refused_without_traceback(folder: Path, text: str) -> None:
    with pytest.raises(StudyError, match=r"study\.yaml"):
        load_study(write(folder, text))


def test_a_file_that_is_missing_or_no_text_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.yaml"):
        load_study(folder / "nowhere.yaml")
    (folder / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"binary\.yaml"):
        load_study(folder / "binary.yaml")


def test_the_normal_form_is_a_study_that_resolves_to_itself(folder: Path) -> None:
    study = load_study(write(folder, MINIMAL))
    assert study.resolve(Path("/elsewhere")) == study


REGION_NAMES = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=200
).filter(lambda name: name == name.strip())


@settings(deadline=None)
@given(names=st.lists(REGION_NAMES, min_size=1, max_size=5, unique=True))
def test_a_frozen_study_reads_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("study")
    (folder / "go.sh").touch()
    study = load_study(write(folder, MINIMAL)).model_copy(update={"regions": list(names)})
    frozen = FrozenStudy(run="r1", study=study.resolve(folder))
    path = folder / "frozen.yaml"
    path.write_text(dump_frozen(frozen), encoding="utf-8")
    assert load_frozen(path) == frozen


def test_the_schema_describes_every_key() -> None:
    schema = Study.model_json_schema()
    assert set(schema["properties"]) == set(Study.model_fields)
