"""Errors of a wrong study file: they name file, line, key, value and choices."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.unit.study.study_texts import (
    MINIMAL,
    OBJECTIVE,
    REGIONS,
    TRAINER,
    error_of,
    with_line,
    write,
)
from trialfleet.errors import InputError, StudyError
from trialfleet.workflows.study.loading import load_study


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "go.sh").write_text("exit 0\n")
    return tmp_path


def test_missing_data_names_region_and_path(folder: Path) -> None:
    message = error_of(folder, MINIMAL + "data: '{region}.npz'\n")
    assert "region 'A'" in message
    assert str(folder / "A.npz") in message


def test_missing_data_of_several_regions_is_reported_at_once(folder: Path) -> None:
    names = "ABCDEFGH"
    text = with_line("[A, NO]", f"[{', '.join(names)}]")
    (folder / "D.npz").touch()
    message = error_of(folder, text + "data: '{region}.npz'\n")
    assert message == (
        f"{folder}/study.yaml:9: data: region 'A': '{folder}/A.npz' does not exist; the data of "
        "'B', 'C', 'E', 'F', 'G' and 1 more doesn't exist either"
    )
    both = "data: ['{region}.npz', nix]\n"
    first, second = error_of(folder, text + both).splitlines()
    assert first.endswith("'G' and 1 more doesn't exist either")
    assert second.endswith(f"data.1: region 'D': '{folder}/nix' does not exist")
    one_for_all = error_of(folder, text + "data: nix\n")
    assert one_for_all.endswith(f"region 'A': '{folder}/nix' does not exist")
    own = "regions: {A: {data: a.npz}, B: {data: b.npz}, C: {data: /}}"
    lines = error_of(folder, with_line("regions: [A, NO]", own)).splitlines()
    assert [line.split(": ")[1] for line in lines] == [f"regions.{name}.data" for name in "ABC"]


def test_a_region_spelt_like_one_with_data_gets_a_suggestion(folder: Path) -> None:
    (folder / "data").mkdir()
    for name in ("Bergen", "Oslo", "Tromsø"):
        (folder / f"data/{name}.csv").touch()
    text = with_line("[A, NO]", "[Bregen, Oslo, Osl, Ålesund]") + "data: data/{region}.csv\n"
    first, second = error_of(folder, text).splitlines()
    assert first.endswith("Bregen.csv' does not exist (did you mean 'Bergen'?)")
    assert second.endswith("region 'Osl': '" + str(folder) + "/data/Osl.csv' does not exist; the "
        "data of 'Ålesund' doesn't exist either"), "Oslo has its own region"  # fmt: skip


def test_data_urls_without_keys_to_sign_them_are_refused(folder: Path) -> None:
    message = error_of(folder, MINIMAL + "data: s3://bucket/{region}/rows.npz\n")
    assert "s3://bucket/A/rows.npz" in message
    assert "access_key_id_file" in message


def test_a_glob_that_matches_nothing_is_an_error(folder: Path) -> None:
    text = with_line("regions: [A, NO]", "regions: {glob: data/dest-*.npz}")
    assert "no file matches" in error_of(folder, text)


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
        ("name: demo\n", "", ["name: is missing. Letters, digits, - and _."]),
        (TRAINER, "", ["trainer: is missing. Write tabular", "or {command: [python3, train.py], "]),
        (TRAINER, "trainer: {files: [go.sh]}", ["trainer.command: is missing. The program and"]),
        (OBJECTIVE, "", ["objective: is missing. ", "such as {metric: val_auc, direction: maxi"]),
        (OBJECTIVE, "objective: {metric: x}", ["objective.direction: is missing. Whether smaller"]),
        ("[A, NO]", "[A, A]", ["'A' is listed twice"]),
        ("[A, NO]", '["A\\nJOB x y", B]', [":2:", "regions", "does not print"]),
        ("[A, NO]", "[1, B]", [":2:", "regions.0", "in quotes (got 1)"]),
        ("[sh, go.sh]", '["sh\\nqueue 9"]', [":7:", "trainer.command", "line break"]),
    ],
)
def test_an_error_names_file_line_key_value_and_choices(
    folder: Path, old: str, new: str, words: list[str]
) -> None:
    message = error_of(folder, with_line(old, new))
    for word in [str(folder / "study.yaml"), *words]:
        assert word in message


def test_from_python_an_error_has_one_traceback(folder: Path) -> None:
    (folder / "no.yaml").write_text("name: [")
    for path in ("missing.yaml", "no.yaml", "study.yaml"):
        if path == "study.yaml":
            write(folder, MINIMAL + "data: 'no/{region}.csv'\n")
        with pytest.raises(InputError) as caught:
            load_study(folder / path)
        text = "".join(traceback.format_exception(caught.value))
        assert text.count("Traceback") == 1, text


def test_a_region_name_with_a_line_break_stays_in_its_line(folder: Path) -> None:
    text = with_line("regions: [A, NO]", 'regions: {"so\\nuth": {}, B: {}}')
    (line,) = error_of(folder, text).splitlines()
    assert "regions.'so\\nuth': region name 'so\\nuth' has a character that does not print" in line


def test_all_problems_are_reported_at_once(folder: Path) -> None:
    text = with_line("accelerator: cpu", "accelerator: tpu").replace("minimize", "less")
    assert len(error_of(folder, text).splitlines()) == 2


def test_a_misspelt_key_hides_no_other_problem(folder: Path) -> None:
    message = error_of(folder, MINIMAL + "gate: {tolerance: -1, confidnce: 0.9}\n")
    assert "unknown key 'confidnce' (did you mean 'confidence'?)" in message
    assert "gate.tolerance: must be greater than or equal to 0 (got -1)" in message
    message = error_of(folder, MINIMAL + "gate: {approve: perhaps}\n")
    assert ":9: gate.approve: must be true or false (got 'perhaps')" in message
    message = error_of(folder, with_line("metric: ", "metrik: "))
    assert len(message.splitlines()) == 1  # "metric" is not reported as missing
    message = error_of(folder, with_line("low: 0.0, high", "min: 0.0, max"))
    assert ["'min'" in message, "'max'" in message] == [True, True]


@pytest.mark.parametrize("expression", ["Memory >", "a b", "x\nqueue 2", "$(HOME)"])
def test_requirements_must_be_a_classad_expression(folder: Path, expression: str) -> None:
    text = MINIMAL + "resources: {requirements: " + repr(expression).replace("'", '"') + "}\n"
    assert "resources.requirements" in error_of(folder, text)


@pytest.mark.parametrize("text", ["", "- a\n", "a: [", "a: 1\na: 2\n", "\x00"])
def test_yaml_that_is_no_table_is_refused_without_traceback(folder: Path, text: str) -> None:
    with pytest.raises(StudyError, match=r"study\.yaml"):
        load_study(write(folder, text))


def test_a_file_that_is_missing_or_no_text_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"nowhere\.yaml"):
        load_study(folder / "nowhere.yaml")
    (folder / "mine").mkdir()
    for name in ("here.yaml", "mine/there.yml"):
        (folder / name).write_text(MINIMAL)
    (folder / "other.yaml").write_text("a: 1\n")
    monkeypatch.chdir(folder)
    expected = "nope.yaml: the file does not exist; studies here: here.yaml, mine/there.yml"
    with pytest.raises(InputError) as raised:
        load_study("nope.yaml")
    assert str(raised.value) == expected
    (folder / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"binary\.yaml"):
        load_study(folder / "binary.yaml")


# Since Python 3.14, `Path.exists` answers False for a name that is too long.
TOO_LONG = "File name too long" if sys.version_info < (3, 14) else "does not exist"
REGION_FORMS = [":2: regions: ", "a list", "a table", "glob"]
GPUS = ["must be a whole number of GPUs, or a share 1/N for N trials on a GPU: 0.5, 0.25 or 1/3"]
SIZE = ["a number above 0 and a unit, such as 2GB; units: KB, MB, GB, TB"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        # command, files, minutes
        ("[sh, go.sh]", '"sh \'go.sh"', [":7: trainer.command: ", "No closing quotation"]),
        ("[sh, go.sh]", '"sh go.sh\\nqueue 9"', [":7: trainer.command: ", "line break"]),
        ("[sh, go.sh]", "[]", [":7: trainer.command: ", "a program and its arguments"]),
        ("[sh, go.sh]", '""', [":7: trainer.command: ", "a program and its arguments"]),
        ("[sh, go.sh]", "[sleep, 3]", [":7: trainer.command.1: ", "in quotes", "3"]),
        ("files: [go.sh]", "minutes: 0.001", [":7: trainer.minutes: ", "one second", "0.001"]),
        (
            "files: [go.sh]",
            "minutes: 1e300",
            [":7: trainer.minutes: ", "5256000", "use null for no limit"],
        ),
        ("files: [go.sh]", "files: ['a\\']", [":7: trainer.files.0: ", "backslash"]),
        ("files: [go.sh]", "files: ['$ENV(X)']", [":7: trainer.files.0: ", "macro", "$ENV(X)"]),
        ("files: [go.sh]", "files: [$RANDOM(a]", [":7: trainer.files.0: ", "macro"]),
        ("files: [go.sh]", "files: [a$$b]", [":7: trainer.files.0: ", "macro", "'a$$b'"]),
        ("files: [go.sh]", "files: /", [":7: trainer.files: ", "'/' contains the study itself"]),
        ("files: [go.sh]", "files: [..]", [":7: trainer.files.0: ", "contains the study itself"]),
        (
            "files: [go.sh]",
            "files: [go.sh, nix]",
            [":7: trainer.files.1: ", "/nix' does not exist"],
        ),
        ("files: [go.sh]", "files: 's3://a/b'", [":7: trainer.files: ", "is a URL"]),
        (TRAINER, "trainer: tabulr", [":7: trainer: must be `tabular`, or a table", "'tabulr'"]),
        (TRAINER, "trainer: [sh, go.sh]", [":7: trainer: must be `tabular`, or a table"]),
        (TRAINER, "trainer: {comand: sh}", [":7: trainer: ", "did you mean 'command'?"]),
        # regions
        (REGIONS, "regions: false", [*REGION_FORMS, "False"]),
        (REGIONS, "regions: A", [*REGION_FORMS, "'A'"]),
        (REGIONS, "regions: []", REGION_FORMS),
        (REGIONS, "regions: {}", REGION_FORMS),
        (REGIONS, "regions:", REGION_FORMS),
        (REGIONS, "regions: {glob: '*', data: x}", [":2: regions: ", "'data'", "valid keys: glob"]),
        (REGIONS, "regions: {glob: }", [":2: regions.glob: ", "text"]),
        (REGIONS, "regions: {glob: '*.*'}", [":2: regions.glob: ", "exactly one '*'", "'*.*'"]),
        (REGIONS, "regions:\n  A: {budgt: }", [":3: regions.A: ", "did you mean 'budget'?"]),
        (REGIONS, "regions: {A: 3}", [":2: regions.A: must be a table; its keys: data, ", "3"]),
        (
            REGIONS,
            "regions:\n- São Paulo\n- Sao-Paulo-f00fd81d",
            [
                ":4: regions.1: ",
                "regions 'São Paulo' and 'Sao-Paulo-f00fd81d' would share the folder",
            ],
        ),
        (
            REGIONS,
            "regions: {São Paulo: {}, Sao-Paulo-f00fd81d: {}}",
            ["regions 'São Paulo' and 'Sao-Paulo-f00fd81d' would share the folder"],
        ),
        (REGIONS, "regions:\n- A\n- B\n- A", [":5: regions.2: ", "'A' is listed twice"]),
        (REGIONS, "regions:\n  1: {data: x}", [":3: regions.1: ", "put it in quotes", "1"]),
        (REGIONS, "regions:\n  A:\n  1.5:", [":4: regions.1.5: ", "put it in quotes", "1.5"]),
        (REGIONS, "regions: [true]", [":2: regions.0: ", "put it in quotes", "True"]),
        # search space
        ("x: {type: float, low: 0.0, high: 1.0}", "x: null", [":5: search_space.x: ", "None"]),
        ("low: 0.0", "low: null", [":5: search_space.x.low: ", "None"]),
        ("name: demo", "search_space: \nname: demo", ["duplicate key"]),
        # in words
        ("metric: loss", "metric: val loss", [":3: objective.metric: ", "val_auc", "'val loss'"]),
        ("name: demo", "name: 2024", [":1: name: must be text; put it in quotes", "2024"]),
        ("accelerator: cpu", "budget: 5", [":8: budget: must be a table; its keys: trials"]),
        (
            "accelerator: cpu",
            "budget: {trials: 5, startup_trials: 50}",
            [":8: budget.startup_trials: must be at most trials, which is 5", "50"],
        ),
        (
            "accelerator: cpu",
            "early_stopping: {min_steps: 41, max_steps: 40}",
            [
                ":8: early_stopping.min_steps: must be less than max_steps, which is 40",
                "which is 40",
            ],
        ),
        (
            "accelerator: cpu",
            "early_stopping: {min_steps: 40, max_steps: 40}",
            [":8: early_stopping.min_steps: must be less than max_steps, which is 40"],
        ),
        *(
            ("accelerator: cpu", f"resources: {{{key}: {size}}}", [f":8: resources.{key}: ", *SIZE])
            for key, size in [
                ("memory", "2048"),
                ("memory", "2gb"),
                ("disk", "0GB"),
                ("disk", "0.0 MB"),
            ]
        ),
        *(
            ("accelerator: cpu", f"resources: {{{key}: {number}}}", [f":8: resources.{key}: must"])
            for key in ("cpus", "gpus")
            for number in ("100001", "1" + "0" * 400)
        ),
        *(  # HTCondor counts on beyond the greatest number, from the least one
            (
                "accelerator: cpu",
                f"resources: {{memory: {size}}}",
                [":8: resources.memory: must be less than 1048576TB"],
            )
            for size in ("1048576TB", "9999999999 GB", "9" * 400 + "KB")
        ),
        *(
            ("accelerator: cpu", f"resources: {{gpus: {gpus}}}", [":8: resources.gpus: ", *GPUS])
            for gpus in ("0", "-1", "1.5", "0.3", "1/0", "1/17", "true", "all", ".nan", "0.01")
        ),
    ],
)
def test_one_mistake_gives_one_readable_error(
    folder: Path, old: str, new: str, words: list[str]
) -> None:
    message = error_of(folder, with_line(old, new))
    assert len(message.splitlines()) == 1
    assert "pydantic" not in message
    for word in [str(folder / "study.yaml"), *words]:
        assert word in message


SHARED = "resources: {{gpus: {gpus}}}\naccelerator: gpu\nfleet: {{aws_regions: [eu-west-1], {key}}}"


def test_a_fleet_that_shares_gpus_otherwise_than_the_trials_ask_is_refused(folder: Path) -> None:
    text = with_line("accelerator: cpu", SHARED.format(gpus="0.25", key="trials_per_gpu: 2"))
    message = error_of(folder, text)
    assert "study.yaml:10: fleet.trials_per_gpu: is 2, but resources.gpus requests 4" in message
    whole = with_line("accelerator: cpu", SHARED.format(gpus="2", key="trials_per_gpu: 2"))
    assert "requests 1 trial(s) per GPU; leave trials_per_gpu out" in error_of(folder, whole)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("'{region}.npz'", ["data: region 'A': ", "/A.npz' does not exist"]),
        ("[go.sh, nix]", ["data.1: region 'A': ", "/nix' does not exist"]),
        ("'{regoin}.npz'", ["data: ", "{regoin} is not a placeholder", "did you mean '{region}'"]),
        ("s3://bucket/{regoin}", ["data: ", "{regoin} is not a placeholder"]),
        ("s3://bucket/{region}", ["data: 's3://bucket/A' is in S3, so HTCondor needs keys"]),
        ("http://host/{region}", ["data: http:// is not supported", "s3://BUCKET/KEY"]),
        ("s3://", ["data: 's3://' has no object key; write s3://BUCKET/KEY"]),
        ("s3://bucket", ["data: 's3://bucket' has no object key"]),
        ("s3://bucket/", ["data: 's3://bucket/' has no object key"]),
        (".", ["data: ", "contains the study itself"]),
        (f"{'é' * 190}.npz", ["data: ", TOO_LONG]),
    ],
)
def test_data_that_cant_be_used_names_line_and_key(
    folder: Path, data: str, words: list[str]
) -> None:
    message = error_of(folder, MINIMAL + f"data: {data}\n")
    assert message.startswith(f"{folder / 'study.yaml'}:9: ")
    for word in words:
        assert word in message


def test_the_line_of_a_regions_own_data_is_named(folder: Path) -> None:
    message = error_of(folder, with_line(REGIONS, "regions:\n  A:\n    data:\n    - nix"))
    assert "study.yaml:5: regions.A.data.0: " in message


def test_a_file_that_cant_be_read_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, _mode: Path(path).name != "go.sh")
    assert ":7: trainer.files.0: " in (message := error_of(folder, MINIMAL))
    assert "can't be read" in message


@pytest.mark.parametrize("publish", ["go.sh", "go.sh/models/x"])
def test_a_publish_folder_that_cant_be_made_is_refused(folder: Path, publish: str) -> None:
    (folder / "go.sh").chmod(0o755)
    message = error_of(folder, MINIMAL + f"publish: {publish}\n")
    assert ":9: publish: " in message
    assert "is not a folder; name another folder with `publish: …`" in message


def test_a_publish_folder_with_a_name_that_none_can_have_is_refused(folder: Path) -> None:
    message = error_of(folder, MINIMAL + f"publish: {'x' * 300}\n")
    assert ":9: publish: " in message
    assert "File name too long" in message


def test_a_publish_folder_that_cant_be_written_to_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda _path, mode: not mode & os.W_OK)
    assert ":9: publish: " in (message := error_of(folder, MINIMAL + "publish: a/b\n"))
    assert "is not writable for you" in message


def test_a_globbed_file_that_cannot_be_sent_gives_a_readable_error(folder: Path) -> None:
    (folder / "a,b.npz").touch()
    message = error_of(folder, with_line(REGIONS, "regions: {glob: '*.npz'}"))
    assert ":2: regions.glob: " in message
    assert "remove commas" in message
    assert "pydantic" not in message


def test_globbed_regions_that_would_share_a_folder_are_refused(folder: Path) -> None:
    for name in ("São Paulo", "Sao-Paulo-f00fd81d"):
        (folder / f"more-{name}.npz").touch()
    text = MINIMAL.replace(REGIONS, "regions: {glob: more-*.npz}")
    assert "would share the folder 'Sao-Paulo-f00fd81d'" in error_of(folder, text)


def test_data_together_with_a_glob_is_refused(folder: Path) -> None:
    message = error_of(folder, with_line(REGIONS, "regions: {glob: '*.sh'}") + "data: x\n")
    assert ":9: data: " in message


@pytest.mark.parametrize(
    ("own", "place"),
    [
        (
            "{a: {type: float, low: 0.0, high: 1.0, when: {y: [1]}}}",
            ":3: regions.A.search_space.a.when.y: ",
        ),
        ("{x: 1.0}", ":3: regions.A.search_space: "),
    ],
)
def test_an_override_that_breaks_the_space_gives_a_readable_error(
    folder: Path, own: str, place: str
) -> None:
    message = error_of(folder, with_line(REGIONS, f"regions:\n  A: {{search_space: {own}}}"))
    assert place in message
    assert "region 'A'" in message
    assert "pydantic" not in message


def test_an_override_that_breaks_the_studys_own_entry_names_its_line(folder: Path) -> None:
    conditional = "epochs: {type: int, low: 1, high: 3, when: {x: [0.5]}}"
    text = with_line(REGIONS, "regions: {A: {search_space: {x: 1.0}}}")
    message = error_of(folder, text.replace("epochs: 3", conditional))
    assert ":6: search_space.epochs.when.x: region 'A': 'x' is a constant" in message


def test_the_error_of_an_impossible_value_in_a_condition_names_its_line(folder: Path) -> None:
    conditional = "epochs: {type: int, low: 1, high: 3, when: {x: 7}}"
    message = error_of(folder, MINIMAL.replace("epochs: 3", conditional))
    assert ":6: search_space.epochs.when.x: 'x' never has the value 7; its range is" in message


def test_a_condition_on_no_choice_names_the_choices(folder: Path) -> None:
    method = "method: {type: categorical, choices: [plain, momentum]}"
    conditional = f"{method}\n  epochs: {{type: int, low: 1, high: 3, when: {{method: nesterov}}}}"
    message = error_of(folder, MINIMAL.replace("epochs: 3", conditional))
    assert "never has the value 'nesterov'; choices: 'plain', 'momentum'" in message


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            "gate: {metric: loss, direction: maximize}",
            "gate.direction: contradicts the objective 'loss', which is minimized",
        ),
        (
            "gate: {metric: f1, direction: maximize}\nreport_metric: f1",
            "gate.direction: contradicts report_metric 'f1', which is minimized",
        ),
        (
            "report_metric: loss\nreport_direction: maximize",
            "report_direction: contradicts the objective 'loss', which is minimized",
        ),
    ],
)
def test_a_metric_has_one_direction(folder: Path, lines: str, expected: str) -> None:
    assert expected in error_of(folder, MINIMAL + lines + "\n")


def test_a_channel_only_for_the_ends_of_days_requires_days(folder: Path) -> None:
    notify = "notify: [{command: 'true', events: day-done}]\n"
    expected = (
        "notify.0.events: day-done requires a `daily:` table; name other events, such as run-"
    )
    assert expected in error_of(folder, MINIMAL + notify)
    load_study(write(folder, MINIMAL + notify + "daily: {at: '2:30'}\n"))
    load_study(write(folder, MINIMAL + notify.replace("day-done", "[day-done, drift]")))


def test_a_postgresql_storage_needs_its_driver(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    message = error_of(folder, MINIMAL + "storage: postgresql+psycopg://u:geheim@h/d\n")
    assert ":9: storage: needs the package psycopg on the manager: python3 -m pip ins" in message
    assert "geheim" not in message


def test_startup_trials_of_a_region_are_at_most_its_trials(folder: Path) -> None:
    budget = "budget: {trials: 9, startup_trials: 9}\n"
    text = with_line(REGIONS, "regions:\n  A: {budget: {startup_trials: 10}}") + budget
    assert ":3: regions.A.budget.startup_trials: must be at most trials, which is 9" in error_of(
        folder, text
    )
    fewer = with_line(REGIONS, "regions: {A: {budget: {trials: 4}}}") + budget
    assert load_study(write(folder, fewer)).region_budget("A").startup_count == 4


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("geheim", "must be the URL"),
        ("[geheim]", "must be the URL"),
        ('"postgresql+psycopg://u:geheim@h/d\\n"', "must be the URL"),
        ("postgresql+psycopg://u:geheim@h:port/d", "must be the URL"),
        ("postgresql+psycopg://u:geheim@h", "no database"),
        ("postgresql+psycopg://u:a@geheim@h/d", "write %40 for '@'"),
        ("postgresql+psycopg://h/d?password=a@geheim", "write %40 for '@'"),
        ("postgresql://u:geheim@h/d", "postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"),
        ("mysql://u:geheim@h/d", "mysql:// is not supported"),
        ("sqlite+aiosqlite:///geheim.db", "sqlite:///PATH"),
        ("sqlite://geheim/x.db", "three slashes"),
        ("sqlite://", "SQLite file on disk"),
        ("sqlite:///", "SQLite file on disk"),
        ("'sqlite:///:memory:'", "SQLite file on disk"),
        ("sqlite:///file:geheim?uri=true", "SQLite file on disk"),
    ],
)
def test_a_storage_that_cant_be_used_is_refused_without_its_password(
    folder: Path, url: str, words: str
) -> None:
    message = error_of(folder, MINIMAL + f"storage: {url}\n")
    assert ":9: storage: " in message
    assert words in message
    assert "geheim" not in message


def test_a_password_is_in_no_message_of_a_doubled_key(folder: Path) -> None:
    url = "storage: postgresql+psycopg://u:geheim@h/d\n"
    message = error_of(folder, MINIMAL + url + url)
    assert ":10: " in message
    assert "geheim" not in message


@pytest.mark.parametrize("expression", ['A == "$ENV(X)"', 'A == "$$(B)"', 'A == "$(B)"'])
def test_an_expression_has_no_macro(folder: Path, expression: str) -> None:
    message = error_of(folder, MINIMAL + f"resources: {{rank: '{expression}'}}\n")
    assert ":9: resources.rank: " in message
    assert "contains a macro" in message


def test_a_study_from_python_gives_the_same_errors_without_a_line(folder: Path) -> None:
    table = YAML(typ="safe").load(MINIMAL)
    assert load_study(table, folder=folder).regions
    table["acelerator"] = table.pop("accelerator")
    with pytest.raises(StudyError) as caught:
        load_study(table, folder=folder)
    assert str(caught.value).startswith("study: unknown key 'acelerator'")
    assert "did you mean 'accelerator'" in str(caught.value)
    assert "pydantic" not in str(caught.value)
    with pytest.raises(StudyError, match=r"^study: data: region 'A'"):
        load_study({**YAML(typ="safe").load(MINIMAL), "data": "{region}.npz"}, folder=folder)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("gate:", ":9: gate: gate is empty: write gate: {} for its defaults, or leave it out"),
        ("gate: ~", "gate: gate is empty"),
        (
            "early_stopping:",
            ":9: early_stopping: early_stopping is empty: write early_stopping: {}",
        ),
        (
            "daily:",
            "daily is empty: give it keys (at, zone, deadline, wait_for_data, ready_file, missed",
        ),
        ("keep:", "keep is empty: give it keys (count, days), or leave it out"),
        ("export:", "export is empty: give it keys (s3, mlflow), or leave it out"),
        ("export: {s3: s3://b/c, mlflow: }", ":9: export.mlflow: mlflow is empty: give it keys (u"),
        ("fleet:", "fleet is empty: give it keys (name, aws_regions"),
        ("s3:", "s3 is empty: give it keys (access_key_id_file, secret_access_key_file)"),
        ("table:", "table is empty: write table: {} for its defaults, or leave it out"),
        (
            "resources:\n  cpus: 2\n  nodes:",
            ":11: resources.nodes: nodes is empty: give it keys (m",
        ),
        ("notify:\n- mail:", ":10: notify.0.mail: mail is empty: give it keys ("),
        ("budget:", ":9: budget: must be a table; its keys: trials"),
    ],
)
def test_an_optional_table_without_a_value_is_an_error(
    folder: Path, lines: str, expected: str
) -> None:
    assert expected in error_of(folder, f"{MINIMAL}{lines}\n")


def test_an_empty_table_of_a_region_is_refused_but_an_empty_region_is_valid(folder: Path) -> None:
    text = with_line(REGIONS, "regions:\n  A:\n  NO:\n    budget:")
    assert ":5: regions.NO.budget: budget is empty: write budget: {}" in error_of(folder, text)
    text = with_line(REGIONS, "regions:\n  A:\n  NO: {data: }")
    assert list(load_study(write(folder, text)).region_table) == ["A", "NO"]


def test_an_empty_table_hides_no_other_problem(folder: Path) -> None:
    text = with_line("accelerator: cpu", "accelerator: tpu") + "gate:\n"
    assert len(error_of(folder, text).splitlines()) == 2


@pytest.mark.parametrize("key", ["learn_from", "storage", "team", "parallel_regions", "python"])
def test_a_key_without_a_value_has_its_default(folder: Path, key: str) -> None:
    study = load_study(write(folder, f"{MINIMAL}{key}:\n"))
    assert getattr(study, key) is None
