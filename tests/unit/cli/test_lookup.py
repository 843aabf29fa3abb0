"""Runs, models and regions by name: matches, messages, and the shell's completion."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from trialfleet.errors import InputError
from trialfleet.files import write_json
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.models.latest import promote
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs import lookup
from trialfleet.workflows.facts.runs.lookup import find_model, find_models, find_run, runs_here
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.views.serve.runs import Runs

TRIALFLEET = Path(sys.executable).with_name("trialfleet")
PLANNED = [  # study, run: the oldest first
    ("flights", "2026-11-19T10-00-00"),
    ("flights", "2026-11-20T10-00-00"),
    ("stores", "2026-11-20T11-00-00"),
    ("stores", "nightly"),
    ("flights", "nightly"),
]


@pytest.fixture
def here(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with runs that nobody planned: their names are all that is read."""
    monkeypatch.chdir(work)
    for time, (study, run) in enumerate(PLANNED, 1_000_000):
        folder = work / "runs" / study / run
        folder.mkdir(parents=True)
        (folder / "study.json").touch()
        os.utime(folder / "study.json", (time, time))
    (work / "runs/flights/.plan-x").mkdir()
    (work / "runs/flights/.plan-x/study.json").touch()
    (work / "runs/flights/claimed").mkdir()
    return work


# -- runs ------------------------------------------------------------------------------------------


def test_runs_are_listed_the_newest_first(here: Path) -> None:
    assert [(run.study, run.run) for run in runs_here()] == PLANNED[::-1]
    (here / "runs/own").mkdir()
    (here / "runs/own/study.json").touch()
    assert runs_here()[0].name == "own"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (None, "flights/nightly"),
        ("2026-11-19T10-00-00", "flights/2026-11-19T10-00-00"),
        ("2026-11-19", "flights/2026-11-19T10-00-00"),
        ("2026-11-20T11", "stores/2026-11-20T11-00-00"),
        ("flights", "flights/nightly"),
        ("stores", "stores/nightly"),
        ("stores/nightly", "stores/nightly"),
        ("flights/2026-11-20", "flights/2026-11-20T10-00-00"),
        ("stores/2", "stores/2026-11-20T11-00-00"),
        ("sto", "stores/nightly"),
        ("flig", "flights/nightly"),
    ],
)
def test_a_run_is_found_by_its_id_a_prefix_or_its_study(
    here: Path, name: str | None, found: str
) -> None:
    assert find_run(name) == Path("runs") / found


def test_the_newest_run_is_a_submitted_one_if_there_is_any(here: Path) -> None:
    (here / "runs/stores/2026-11-20T11-00-00/study.dag.condor.sub").touch()
    by_hand = here / "runs/flights/2026-11-19T10-00-00/regions/A"
    by_hand.mkdir(parents=True)
    assert find_run(None) == Path("runs/stores/2026-11-20T11-00-00")
    assert find_run(None, planned=True) == Path("runs/flights/nightly")
    assert find_run("flights") == Path("runs/flights/nightly"), "all of them are only planned"
    (by_hand / "region.dag.condor.sub").touch()
    assert find_run("flights") == Path("runs/flights/2026-11-19T10-00-00")
    assert find_run("flights", planned=True) == Path("runs/flights/nightly")


@pytest.mark.usefixtures("here")
def test_a_run_that_can_not_be_read_is_not_the_newest() -> None:
    file = Path("runs/flights/2026-11-19T10-00-00/study.json")
    file.unlink()
    file.symlink_to(file.name)  # root, too, can't read it
    assert runs_here()[-1].submitted
    assert find_run(None) == Path("runs/flights/nightly")
    assert Runs().newest_of_each()["flights"] == Path("runs/flights/nightly")


def test_a_folder_is_taken_as_it_is(here: Path) -> None:
    (here / "stores").mkdir()  # the study's own folder
    assert find_run("stores") == Path("runs/stores/nightly")
    (here / "stores/study.dag").touch()
    assert find_run("stores") == Path("stores")
    (here / "elsewhere").mkdir()
    assert find_run("elsewhere") == Path("elsewhere")
    assert find_run(str(here / "nowhere")) == here / "nowhere"
    assert find_run("./nightly") == Path("nightly")


@pytest.mark.usefixtures("here")
def test_an_empty_name_is_refused_although_every_name_begins_with_it() -> None:
    for run in runs_here()[1:]:
        shutil.rmtree(run.folder)
    assert len(runs_here()) == 1
    with pytest.raises(InputError, match="the name of the run is empty"):
        find_run("")


@pytest.mark.parametrize("name", ["2026", "nightly", "2026-11-20T1"])
def test_an_ambiguous_run_name_lists_the_matching_runs(here: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"{name!r} may be any of") as caught:
        find_run(name)
    expected = {f"{study}/{run}" for study, run in PLANNED if run.startswith(name)}
    assert set(str(caught.value).partition("name one of them: ")[2].split(", ")) == expected


def test_an_unknown_run_name_is_answered_with_similar_and_existing_names(here: Path) -> None:
    with pytest.raises(InputError) as caught:
        find_run("fligths")
    assert "did you mean 'flights'?" in str(caught.value)
    assert "flights/nightly, stores/nightly" in str(caught.value)
    shutil.rmtree(here / "runs")
    with pytest.raises(InputError, match="there are no runs in"):
        find_run("flights")
    with pytest.raises(InputError, match="no run was named, and there is none in"):
        find_run(None)


def test_only_a_long_list_of_runs_ends_with_the_command_that_lists_all(
    here: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "_SHOWN", 1)
    with pytest.raises(InputError, match=r"nightly and \d more: trialfleet runs --all$"):
        find_run("fligths")
    with pytest.raises(InputError, match=r"regions with models here: A and 1 more$"):
        find_model("C")


def test_an_unknown_region_is_answered_with_similar_names(make_run: MakeRun) -> None:
    with pytest.raises(InputError, match=r"did you mean 'Nord'\?\); regions: 'Nord', 'Süd'"):
        make_run(regions=["Nord", "Süd"]).trials("Nrod")


def test_runs_lists_each_run_with_its_state(
    make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    run = make_run(run="first", out=work / "runs/demo/first", regions=["A", "B"])
    make_run(run="second", out=work / "runs/demo/second")
    (work / "runs/demo/broken").mkdir()
    (work / "runs/demo/broken/study.json").write_text("a: [")
    os.utime(work / "runs/demo/broken/study.json", (1, 1))
    files = RunFolder(run.folder)
    write_json(files.region("A").published, {"path": str(work / "models/A/first")})
    files.dag_files.submit.touch()
    shown = CliRunner().invoke(main, ["runs", "--json"])
    listed = {entry["run"]: entry for entry in json.loads(shown.output)}
    assert list(listed)[-1] == "broken"
    first = listed["first"]
    assert (first["study"], first["published"], first["regions"]) == ("demo", 1, 2)
    assert (first["state"], listed["second"]["state"]) == ("unknown", "planned")
    assert first["folder"] == str(run.folder)
    assert first["began"].startswith("20")
    assert listed["broken"]["state"] is None
    assert "not JSON" in listed["broken"]["trouble"]
    table = CliRunner().invoke(main, ["runs"]).output
    assert "1 of 2" in table
    assert "runs/demo/broken: " in table
    shutil.rmtree(work / "runs")
    assert "no runs in" in CliRunner().invoke(main, ["runs"]).output


def test_older_runs_are_left_out_unless_asked_for(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trialfleet.workflows.cli.run_commands._SHOWN_RUNS", 2)
    short = CliRunner().invoke(main, ["runs"]).output
    assert "… 3 older: trialfleet runs --all" in short
    assert len(json.loads(CliRunner().invoke(main, ["runs", "--all", "--json"]).output)) == 5


# -- models ----------------------------------------------------------------------------------------


@pytest.fixture
def models(make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs of a study that published: both A, the older one B, too."""
    monkeypatch.chdir(work)
    for time, (name, regions) in enumerate({"monday": ["A", "B"], "tuesday": ["A"]}.items(), 1):
        run = make_run(run=name, out=work / "runs/demo" / name, regions=["A", "B", "C"])
        os.utime(run.folder / "study.json", (time, time))
        for region in regions:
            place = work / "models/demo" / region / name
            place.mkdir(parents=True)
            write_json(place / "provenance.json", {"run": name, "created": run.run_id})
            record = RunFolder(run.folder).region(region).published
            write_json(record, {"path": str(place)})
    return work / "models/demo"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("A", "A/latest"),
        ("B", "B/latest"),
        ("demo/B", "B/latest"),
        ("monday/A", "A/monday"),
        ("demo/monday/A", "A/monday"),
        ("tue/A", "A/tuesday"),
    ],
)
def test_a_model_is_found_by_its_region_and_run(models: Path, name: str, found: str) -> None:
    assert find_model(name) == models / found


def test_a_models_folder_is_taken_as_it_is(models: Path) -> None:
    assert find_model("models/demo/A/monday") == Path("models/demo/A/monday")
    assert find_model(str(models / "A")) == models / "A"
    (models / "A/latest").symlink_to("monday")
    assert find_model("models/demo/A") == Path("models/demo/A/latest")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("AA", "did you mean 'A'?"),
        ("C", "published a model; regions with models here: A, B"),
        ("tuesday/B", "has published no model of 'B'; regions: A"),
        ("sunday/A", "nor RUN/REGION: 'sunday' is neither a run's folder"),
        ("/nowhere", "/nowhere"),
    ],
)
def test_an_unknown_model_is_refused_with_a_hint(models: Path, name: str, expected: str) -> None:
    for command in (["promote", name], ["predict", name, "rows.csv"]):
        shown = CliRunner().invoke(main, command)
        assert shown.exit_code == 2
        assert expected in shown.stderr


@pytest.fixture
def with_slash(make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of a study that published two models of a region with slashes in its name."""
    monkeypatch.chdir(work)
    name = "Nord/Ost/A"
    for run_id, day in (("monday", 23), ("tuesday", 24)):
        run = make_run(run=run_id, out=work / "runs/demo" / run_id, regions=[name])
        place = work / "models/demo" / region_slug(name) / run_id
        place.mkdir(parents=True)
        created = f"2026-11-{day}T10:00:00+00:00"
        origin = {"run": run_id, "study": "demo", "region": name, "created": created}
        write_json(place / "provenance.json", origin)
        write_json(RunFolder(run.folder).region(region_slug(name)).published, {"path": str(place)})
    (place.parent / "latest").symlink_to("tuesday")
    return place.parent


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Nord/Ost/A", "latest"),
        ("demo/Nord/Ost/A", "latest"),
        ("monday/Nord/Ost/A", "monday"),
        ("demo/monday/Nord/Ost/A", "monday"),
        ("runs/demo/monday/Nord/Ost/A", "monday"),
    ],
)
def test_a_regions_name_may_have_slashes(with_slash: Path, name: str, found: str) -> None:
    assert find_model(name).absolute() == with_slash / found
    shown = CliRunner().invoke(main, ["models", name, "--json"])
    assert [each["region"] for each in json.loads(shown.stdout)] == ["Nord/Ost/A"]


def test_commands_take_a_region_with_slashes_in_its_name(with_slash: Path) -> None:
    def said(*words: str) -> str:
        return CliRunner().invoke(main, words).output

    assert said("promote", "monday/Nord/Ost/A") == (
        "demo/Nord/Ost/A: latest is monday (was tuesday)\n"
    )
    assert "name the run: RUN/Nord/Ost/A;" in said("promote", "demo/Nord/Ost/A")
    assert "latest is tuesday" in said("rollback", "Nord/Ost/A", "--study", "demo")
    assert said("models", "Nord/Ost/A", "--study", "demo").startswith("demo/Nord/Ost/A\n")
    assert "published no model of 'A'; regions: Nord/Ost/A" in said("promote", "monday/A")
    assert bash_completions("promote", "monday/Nord/") == ["monday/Nord/Ost/A"]
    assert bash_completions("models", "") == ["Nord/Ost/A"]


def test_a_name_that_two_slashes_may_divide_is_refused_as_ambiguous(
    with_slash: Path, make_run: MakeRun, work: Path
) -> None:
    run = make_run(run="r1", out=work / "runs/Nord/r1", name="Nord", regions=["Ost/A"])
    assert find_model("Nord/Ost/A").absolute() == with_slash / "latest", "the other has no model"
    place = work / "models/Nord" / region_slug("Ost/A") / "r1"
    place.mkdir(parents=True)
    write_json(place / "provenance.json", {"run": "r1", "study": "Nord", "region": "Ost/A"})
    write_json(RunFolder(run.folder).region(region_slug("Ost/A")).published, {"path": str(place)})
    for command in (["models", "Nord/Ost/A"], ["promote", "Nord/Ost/A"]):
        shown = CliRunner().invoke(main, command)
        assert shown.exit_code == 2
        choices = f"demo/Nord/Ost/A, models/Nord/{region_slug('Ost/A')}"
        assert f"may be any of 2 models; name one of them: {choices}" in shown.stderr
    assert find_model("demo/Nord/Ost/A").absolute() == with_slash / "latest"
    shown = CliRunner().invoke(main, ["models", "Nord/Ost/A", "--study", "demo"])
    assert shown.output.startswith("demo/Nord/Ost/A\n")


def test_a_regions_whole_name_is_meant_rather_than_the_beginning_of_a_studys(
    with_slash: Path, make_run: MakeRun, work: Path
) -> None:
    make_run(run="r1", out=work / "runs/Nordic/r1", name="Nordic", regions=["Ost/A"])
    assert find_model("Nord/Ost/A").absolute() == with_slash / "latest"


def test_promoting_a_run_promotes_all_its_models(models: Path) -> None:
    assert find_models("monday") == [models / "A/monday", models / "B/monday"]
    shown = CliRunner().invoke(main, ["promote", "monday", "tuesday/A"])
    assert shown.exit_code == 0, shown.output
    assert (models / "A/latest").readlink() == Path("tuesday")
    assert (models / "B/latest").readlink() == Path("monday")


@pytest.mark.parametrize("name", ["A", "demo/A", "models/demo/A", "models/demo/A/latest"])
def test_promote_refuses_a_region_and_lists_its_runs(models: Path, name: str) -> None:
    (models / "A/latest").symlink_to("monday")
    shown = CliRunner().invoke(main, ["promote", name])
    assert shown.exit_code == 2
    assert f"{name!r} is a region, and each run has a model of it" in shown.stderr
    assert "name the run: RUN/A; runs, newest first: tuesday, monday (current)" in shown.stderr
    shown = CliRunner().invoke(main, ["promote", "tuesday/A"])
    assert shown.output == "demo/A: latest is tuesday (was monday)\n"
    shown = CliRunner().invoke(main, ["promote", "tuesday/A"])
    assert shown.output == "demo/A: latest is tuesday, as before\n"


@pytest.fixture
def two_studies(make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A region of one name in two studies, each with a current model."""
    monkeypatch.chdir(work)
    for time, study in enumerate(("sales", "own"), 1):
        run = make_run(run="r1", out=work / "runs" / study / "r1", name=study, regions=["Nordics"])
        os.utime(run.folder / "study.json", (time, time))
        place = work / "models" / study / "Nordics" / "r1"
        place.mkdir(parents=True)
        origin = {"run": "r1", "study": study, "region": "Nordics"}
        write_json(place / "provenance.json", origin)
        (place.parent / "latest").symlink_to("r1")
        write_json(RunFolder(run.folder).region("Nordics").published, {"path": str(place)})
    return work


def test_a_region_name_that_two_studies_share_is_refused_as_ambiguous(two_studies: Path) -> None:
    expected = "'Nordics' may be any of 2 models; name one of them: own/Nordics, sales/Nordics"
    for without_runs in (False, True):
        if without_runs:
            shutil.rmtree(two_studies / "runs")
        for command in (["models", "Nordics"], ["rollback", "Nordics"], ["promote", "Nordics"]):
            shown = CliRunner().invoke(main, command)
            assert (shown.exit_code, expected in shown.stderr) == (2, True), shown.output
        with pytest.raises(InputError, match="may be any of 2 models"):
            find_model("Nordics")
        assert find_model("sales/Nordics").resolve() == two_studies / "models/sales/Nordics/r1"
        shown = CliRunner().invoke(main, ["models", "Nordics", "--study", "sales"])
        assert shown.output.startswith("sales/Nordics\n")


def test_a_copied_run_hides_no_model_of_its_study(models: Path, work: Path) -> None:
    """Its name begins with STUDY/, as the names of all runs of the study do."""
    promote(models / "A/tuesday")
    shutil.copytree(work / "runs/demo/monday", work / "runs/demo/monday-copy")
    for name, found in {"demo/A": "latest", "tuesday/A": "tuesday", "monday/A": "monday"}.items():
        assert find_model(name).absolute() == models / "A" / found
    with pytest.raises(InputError, match=r"'monday-copy/A' is neither .* was planned in"):
        find_model("monday-copy/A")


def test_a_region_in_a_study_is_found_without_reading_the_studys_runs(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(models / "A/tuesday")
    monkeypatch.setattr(lookup, "_model_of_run", lambda *_: pytest.fail("read a run"))
    assert find_model("demo/A").absolute() == models / "A/latest"


def test_a_folder_with_the_name_of_a_region_hides_no_models(models: Path, work: Path) -> None:
    promote(models / "A/monday")
    promote(models / "A/tuesday")
    (work / "A").mkdir()  # such as the region's data
    for name in (["A"], ["A", "--study", "demo"]):
        assert CliRunner().invoke(main, ["models", *name]).output.startswith("demo/A\n")
    assert CliRunner().invoke(main, ["rollback", "A"]).exit_code == 0
    assert (models / "A/latest").resolve().name == "monday"
    with pytest.raises(InputError, match=r"no models below the folder '\./A'"):
        lookup.find_models_folder("./A")


def test_a_run_of_another_study_is_not_said_to_lack_the_model(two_studies: Path) -> None:
    shutil.move(two_studies / "runs/own/r1", two_studies / "runs/own/r2")
    with pytest.raises(InputError, match=r"neither a model's folder nor a region .*: Nordics$"):
        lookup.find_models_folder("r2/Nordics", "sales")


def test_models_takes_a_studys_name_and_refuses_a_folder_without_models(models: Path) -> None:
    def shown(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["models", *words])
        return done.exit_code, done.output

    Path("demo").mkdir()
    code, said = shown("demo")
    assert code == 2
    assert "there are no models below the folder 'demo'" in said
    assert "studies with models here: none" in said
    for region in "AB":
        (models / region / "latest").symlink_to("monday")
        origin = {"study": "demo", "run": "monday", "region": region}
        write_json(models / region / "monday/provenance.json", origin)
    code, said = shown("demo")
    assert code == 0
    assert [line.split()[1] for line in said.splitlines()[1:3]] == ["A", "B"]
    code_of_card, said_of_card = shown(str(models), "--card")
    assert code_of_card == 2
    assert f"but '{models}' names 2 regions: give STUDY/REGION" in said_of_card
    for folder in ("models/demo", "models/demo/", str(models), "models", "./models/"):
        assert shown(folder) == (code, said)
    Path("empty").mkdir()
    code, said = shown("empty")
    assert code == 2
    assert "or a study with --study; studies with models here: demo" in said


def test_models_have_the_order_of_their_regions_names(models: Path) -> None:
    for region in ("Åland Øst", "Zürich", "Bergen"):
        model = models / region_slug(region) / "r1"
        model.mkdir(parents=True)
        write_json(model / "provenance.json", {"study": "demo", "run": "r1", "region": region})
        (model.parent / "latest").symlink_to("r1")
    for words in ([], ["demo"], [str(models)]):
        shown = CliRunner().invoke(main, ["models", *words, "--json"])
        regions = [each["region"] for each in json.loads(shown.stdout)]
        assert regions == ["Bergen", "Zürich", "Åland Øst"], words


@pytest.mark.usefixtures("two_studies")
@pytest.mark.parametrize(
    "words", [["models"], ["rollback"], ["promote"], ["predict", "rows.csv"], ["serve"], ["cost"]]
)
def test_an_empty_name_is_not_the_working_folder_or_everything(
    words: list[str], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_server(*_: object, **__: object) -> None:
        raise AssertionError("the page is served")

    monkeypatch.setattr("trialfleet.workflows.views.serve.server.serve", no_server)
    shutil.copytree(work / "runs/own/r1", work / "runs/alone")  # a run without a study's folder
    shown = CliRunner().invoke(main, [words[0], "", *words[1:]])
    assert shown.exit_code == 2, shown.output
    assert re.search("the name of the (run|region or model) is empty; name", shown.stderr)
    assert not (work / ".lock").exists()


@pytest.mark.slow
def test_a_name_that_is_too_long_for_a_file_is_a_name(
    make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    region = "Å" * 200
    run = make_run(run="r1", out=work / "runs/demo/r1", regions=[region])
    place = work / "models/demo" / region_slug(region) / "r1"
    place.mkdir(parents=True)
    write_json(place / "provenance.json", {"run": "r1", "study": "demo", "region": region})
    (place.parent / "latest").symlink_to("r1")
    write_json(RunFolder(run.folder).region(region_slug(region)).published, {"path": str(place)})
    for name in (region, f"demo/{region}", f"r1/{region}"):
        assert find_model(name).resolve() == place
        assert CliRunner().invoke(main, ["models", name]).exit_code == 0
    for command in (["promote", f"r1/{region}"], ["why", region], ["why", f"r1/{region}"]):
        assert CliRunner().invoke(main, command).exit_code == 0
    for words in (["models"], ["promote"], ["rollback"], ["status"], ["why"], ["why", "--run"]):
        for unknown in ("x" * 300, f"demo/{'x' * 300}", f"/{'x' * 300}"):
            shown = CliRunner().invoke(main, [*words, unknown])
            assert shown.exit_code == 2, shown.output


@pytest.mark.usefixtures("two_studies")
def test_an_unknown_study_is_answered_with_similar_names() -> None:
    for words in (["rollback", "Nordics"], ["predict", "Nordics", "rows.csv"]):
        shown = CliRunner().invoke(main, [*words, "--study", "salse"])
        assert shown.exit_code == 2
        expected = "no study 'salse' (did you mean 'sales'?); studies: own, sales"
        assert expected in shown.stderr


def test_models_without_any_model_says_where_runs_publish_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(main, ["models"]).output
    assert (
        "there are no published models here. A run publishes models beside its study file" in shown
    )


# -- the shell -------------------------------------------------------------------------------------

BASH = """\
eval "$(trialfleet completion bash)"
COMP_WORDS=(trialfleet "$@")
COMP_CWORD=$#
_trialfleet_completion trialfleet
printf '%s\\n' "${COMPREPLY[@]}"
"""


def bash_completions(*words: str) -> list[str]:
    """Return bash's completions of the last word."""
    path = f"{TRIALFLEET.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", BASH, "bash", *words],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.slow
def test_bash_completes_commands_options_and_runs(here: Path) -> None:
    assert bash_completions("sta") == ["status"]
    assert bash_completions("pool", "st") == ["status"]
    assert "--watch" in bash_completions("status", "--w")
    assert bash_completions("status", "2026-11-2") == ["2026-11-20T11-00-00", "2026-11-20T10-00-00"]
    assert bash_completions("stop", "n") == []  # both studies have a run called so
    assert bash_completions("stop", "fl") == ["flights/nightly", "flights"]
    assert bash_completions("takeover", "stores/") == ["stores/nightly"]


@pytest.mark.slow
def test_bash_completes_regions_and_models(models: Path) -> None:
    assert bash_completions("trials", "monday", "--region", "") == ["A", "B", "C"]
    assert bash_completions("models", "") == ["A"]  # of the newest run
    assert bash_completions("promote", "") == ["tuesday", "monday"]
    assert bash_completions("promote", "tuesday/") == ["tuesday/A"]
    assert {"A", "A.l1.t01", "A.best"} <= set(bash_completions("why", "A"))
    assert bash_completions("why", "--run", "mon") == ["monday"]
    assert bash_completions("why", "--run", "monday", "B.p") == ["B.publish"]
    (models.parent.parent / "runs/demo/tuesday/study.json").write_text("a: [")
    assert bash_completions("trials", "--region", "") == []  # can't be read: nothing is said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_completion_for_each_shell(shell: str) -> None:
    shown = CliRunner().invoke(main, ["completion", shell])
    assert shown.exit_code == 0
    assert "_TRIALFLEET_COMPLETE" in shown.output
    assert "%(" not in shown.output
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=shown.output, text=True, check=True)


def test_help_keeps_the_lines_of_its_examples() -> None:
    shown = CliRunner().invoke(main, ["--help"]).output
    assert "\b" not in shown
    assert "\\b" not in shown
    lines = [line.strip() for line in shown.splitlines()]
    assert any(line.startswith("trialfleet pool up  ") for line in lines)
