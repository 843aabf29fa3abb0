"""A study file: what is accepted, and what it becomes."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sqlalchemy import make_url

from tests.unit.study.study_texts import MINIMAL, REGIONS, error_of, with_line, write
from trialfleet.render import needs_escape
from trialfleet.workflows.names import TURNING
from trialfleet.workflows.study.frozen import FrozenStudy, dump_frozen, load_frozen
from trialfleet.workflows.study.loading import load_study
from trialfleet.workflows.study.paths import region_data
from trialfleet.workflows.study.spec import Budget

NOW = datetime(2026, 11, 23, 6, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "go.sh").write_text("exit 0\n")
    return tmp_path


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
    assert study.data_paths("NO") == [str(folder / "NO.npz")]


def test_data_urls_are_not_looked_for_here(folder: Path) -> None:
    for name in ("id", "secret"):
        (folder / name).touch()
    keys = "s3: {access_key_id_file: id, secret_access_key_file: secret}\n"
    study = load_study(write(folder, MINIMAL + keys + "data: s3://bucket/{region}/rows.npz\n"))
    assert study.data_paths("A") == ["s3://bucket/A/rows.npz"]
    assert study.s3 is not None
    assert study.s3.access_key_id_file == str(folder / "id")


def test_a_glob_names_each_region_after_what_the_star_matched(folder: Path) -> None:
    (folder / "data").mkdir()
    for name in ("dest-BOS.npz", "dest-São Paulo.npz", "other.npz"):
        (folder / "data" / name).touch()
    text = with_line("regions: [A, NO]", "regions: {glob: data/dest-*.npz}")
    study = load_study(write(folder, text))
    assert list(study.region_table) == ["BOS", "São Paulo"]
    assert study.data_paths("BOS") == [str(folder / "data/dest-BOS.npz")]


def test_a_region_overrides_parameters_and_budget(folder: Path) -> None:
    text = with_line(
        "regions: [A, NO]",
        "regions:\n  A:\n  NO: {search_space: {epochs: 9}, budget: {trials: 7}, priority: 3}",
    )
    study = load_study(write(folder, text))
    assert study.region_space("NO").constants() == {"epochs": 9}
    assert study.region_space("A").constants() == {"epochs": 3}
    assert (study.region_budget("A").trials, study.region_budget("NO").trials) == (20, 7)
    assert study.region_budget("NO").lanes == study.region_budget("A").lanes


def test_the_normal_form_is_a_study_that_resolves_to_itself(folder: Path) -> None:
    study = load_study(write(folder, MINIMAL))
    assert study.resolve(Path("/elsewhere")) == study


REGION_NAMES = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters=TURNING),
    min_size=1,
    max_size=200,
).filter(lambda name: name == name.strip() and name[0] not in "./" and "://" not in name)


@pytest.mark.slow
@settings(deadline=None)
@given(names=st.lists(REGION_NAMES, min_size=1, max_size=5, unique=True))
def test_a_frozen_study_reads_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("study")
    (folder / "go.sh").touch()
    study = load_study(write(folder, MINIMAL)).model_copy(update={"regions": dict.fromkeys(names)})
    frozen = FrozenStudy(run="r1", folder=str(folder), created=NOW, study=study.resolve(folder))
    path = folder / "frozen.json"
    path.write_text(dump_frozen(frozen), encoding="utf-8")
    assert load_frozen(path) == frozen


def test_a_run_stays_readable_if_a_later_version_refuses_its_keys_together(tmp_path: Path) -> None:
    (tmp_path / "go.sh").touch()
    study = load_study(write(tmp_path, MINIMAL)).resolve(tmp_path)
    refused = study.model_copy(update={"report_direction": "maximize"})
    assert list(refused.problems())
    planned = FrozenStudy(run="r1", folder=str(tmp_path), created=NOW, study=study)
    frozen = planned.model_copy(update={"study": refused})
    path = tmp_path / "frozen.json"
    path.write_text(dump_frozen(frozen), encoding="utf-8")
    assert load_frozen(path) == frozen


def test_a_frozen_study_keeps_the_types_of_numbers_and_is_read_again_if_it_changed(
    tmp_path: Path,
) -> None:
    (tmp_path / "go.sh").touch()
    own = "  fit: {type: categorical, choices: [true, 2, 2.5, 'on', '1.0', 1.0e-7]}\n"
    study = load_study(write(tmp_path, with_line("  epochs: 3\n", f"  epochs: 3\n{own}")))
    frozen = FrozenStudy(run="r1", folder=str(tmp_path), created=NOW, study=study.resolve(tmp_path))
    path, text = tmp_path / "frozen.json", dump_frozen(frozen)
    path.write_text(text)
    assert repr(load_frozen(path).study) == repr(frozen.study)  # 2 stays 2, not 2.0
    path.write_text(text.replace('"run": "r1"', '"run": "another"'))
    assert load_frozen(path).run == "another"


@pytest.mark.parametrize(
    "text", ["python3 go.sh --name 'a b'", "['python3', 'go.sh', '--name', 'a b']"]
)
def test_a_command_is_a_line_or_a_list(folder: Path, text: str) -> None:
    study = load_study(
        write(folder, with_line("[sh, go.sh]", repr(text) if text[0] == "p" else text))
    )
    assert not isinstance(study.trainer, str)
    assert study.trainer.command == ["python3", "go.sh", "--name", "a b"]


@settings(deadline=None)
@given(name=st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1))
def test_a_url_has_the_regions_name_percent_encoded(name: str) -> None:
    url = region_data(name, ["s3://bucket/a b/{region}.npz"], Path("/"), ("data",))[0]
    assert url.startswith("s3://bucket/a%20b/")
    assert unquote(url.rpartition("/")[2]) == f"{name}.npz"
    assert url.isascii()
    assert not set(url) & set(' ,"\\{}?#$')


def test_a_region_may_be_called_glob(folder: Path) -> None:
    text = with_line(REGIONS, "regions: {glob: {data: go.sh}}")
    study = load_study(write(folder, text))
    assert list(study.region_table) == ["glob"]
    frozen = FrozenStudy(run="r1", folder=str(folder), created=NOW, study=study)
    (folder / "frozen.json").write_text(dump_frozen(frozen))
    assert load_frozen(folder / "frozen.json") == frozen


@pytest.mark.parametrize("pattern", ["./data/*.npz", "data/../data/*.npz", "{folder}/data/*.npz"])
def test_a_glob_may_be_written_any_way(tmp_path: Path, pattern: str) -> None:
    folder = tmp_path / "[x]*"
    (folder / "data").mkdir(parents=True)
    for name in ("go.sh", "data/A[1].npz", "data/B.npz"):
        (folder / name).touch()
    pattern = pattern.replace("{folder}", str(tmp_path / "plain"))
    (tmp_path / "plain").symlink_to(folder)
    text = with_line(REGIONS, f"regions: {{glob: {pattern}}}")
    assert list(load_study(write(folder, text)).region_table) == ["A[1]", "B"]


def test_null_in_a_regions_budget_is_the_studys_figure(folder: Path) -> None:
    own = "{trials: null, lanes: 2, startup_trials: null, hours: null, failures: null}"
    text = with_line(REGIONS, f"regions: {{A: {{budget: {own}}}}}")
    study = load_study(write(folder, text + "budget: {trials: 30, hours: 2}\n"))
    assert study.region_budget("A") == Budget(trials=30, hours=2, lanes=2, startup_trials=5)


def test_a_sqlite_storage_becomes_absolute(folder: Path) -> None:
    study = load_study(write(folder, MINIMAL + "storage: sqlite:///a b?timeout=9\n"))
    assert study.storage is not None
    parsed = make_url(study.storage)
    assert parsed.database == str(folder / "a b")
    assert parsed.query == {"timeout": "9"}
    assert study.resolve(Path("/elsewhere")) == study
    message = error_of(folder, MINIMAL + "storage: sqlite:///nix/x.db\n")
    assert ":9: storage: " in message


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://u:p%40ss@h:5433/d?sslmode=require",
        "postgresql+psycopg://u:p@h/d?application_name=a%40b",
        "postgresql+psycopg://h/d%40e?user=u%40v",
    ],
)
def test_a_postgresql_storage_is_kept_as_it_is(folder: Path, url: str) -> None:
    assert load_study(write(folder, MINIMAL + f"storage: {url}\n")).storage == url


@pytest.mark.parametrize("expression", [r'regexp("a\.b", Machine)', 'Arch == "X86_64"', "Cpus > 2"])
def test_an_expression_may_hold_quotes_and_backslashes(folder: Path, expression: str) -> None:
    text = MINIMAL + f"resources: {{requirements: '{expression}'}}\n"
    assert load_study(write(folder, text)).resources.requirements == expression


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a b", False),
        ("$5 (five)", False),
        ("a$", False),
        ('"', True),
        ("a\\", True),
        ("$(A)", True),
        ("$ENV(A)", True),
        ("$INT(A,%d)", True),
        ("a$$", True),
    ],
)
def test_text_that_the_submit_language_reads_differently_is_known(text: str, escaped: bool) -> None:
    assert needs_escape(text) is escaped


@pytest.mark.parametrize("value", [0, -1, "some", 1.5, True])
def test_a_bad_number_of_trials_per_job_is_one_error(value: object) -> None:
    with pytest.raises(ValidationError) as raised:
        Budget.model_validate({"trials_per_job": value})
    (error,) = raised.value.errors()
    assert "must be `all`, or a whole number above 0" in error["msg"]
