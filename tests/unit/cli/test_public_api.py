"""The public API: names, signatures, commands. A change here is a change for users."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from optuna.study import StudyDirection
from optuna.trial import create_trial

import trialfleet
from tests.conftest import MakeRun
from tests.stored_runs import write_days_and_models
from tests.unit.study.study_texts import MINIMAL, write
from trialfleet.files import write_json
from trialfleet.optimizer.storage import close_storage, open_storage
from trialfleet.optimizer.storage_url import sqlite_url
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.facts.models.history import changes
from trialfleet.workflows.views.output import print_json

ROOT = Path(__file__).parents[3]

SIGNATURES = {
    "plan": "(study: 'Study | str | PathLike[str]', *, run: 'str | None' = None, "
    "out: 'str | PathLike[str] | None' = None, "
    "notice: 'Callable[[str], None] | None' = None, "
    "day: 'date | RunsDay | None' = None) -> 'Run'",
    "load_study": "(study: 'str | PathLike[str] | Mapping[str, Any]', day: 'date | None' = None, "
    "folder: 'str | PathLike[str]' = '.') -> 'Study'",
    "predict": "(folder: 'str | PathLike[str]', rows: 'Iterable[Mapping[str, object]]') "
    "-> 'list[float] | list[str]'",
    "cost": "(*names: 'str | PathLike[str]', by: 'Sequence[str]' = ()) -> 'Costs'",
    "days": "(study: 'str | PathLike[str]', *, most: 'int' = 14) -> 'DaysOverview'",
    "models": "(name: 'str | PathLike[str] | None' = None, *, study: 'str | None' = None) "
    "-> 'list[RegionModels]'",
    "promote": "(*models: 'str | PathLike[str]', why: 'str' = '') -> 'list[Switch]'",
    "rollback": "(region: 'str | PathLike[str]', *, to: 'str | None' = None, why: 'str' = '') "
    "-> 'Switch'",
    "Run": "(folder: 'str | PathLike[str]') -> 'None'",
    "Run.submit": "(self, *, anyway: 'bool' = False) -> 'str'",
    "Run.resume": "(self) -> 'str'",
    "Run.stop": "(self, progress: 'Callable[[str], None] | None' = None) -> 'RunStatus'",
    "Run.status": "(self) -> 'RunStatus'",
    "Run.wait": "(self, progress: 'Callable[[RunStatus], None] | None' = None) -> 'RunStatus'",
    "Run.watch": "(self, every: 'float' = 2.0) -> 'Iterator[RunStatus]'",
    "Run.trials": "(self, region: 'str | None' = None) -> 'list[Trial]'",
    "Run.cost": "(self, by: 'Sequence[str]' = ()) -> 'Costs'",
    "Run.best": "(self) -> 'list[BestSettings]'",
}


def commands(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")
        else:
            yield before + name, command


def test_each_public_name_has_documentation() -> None:
    for name in trialfleet.__all__:
        assert getattr(trialfleet, name).__doc__, f"{name} has no documentation"


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_stay_as_users_know_them(name: str) -> None:
    value: object = trialfleet
    for part in name.split("."):
        value = getattr(value, part)
    assert callable(value)
    assert str(inspect.signature(value)) == SIGNATURES[name]
    assert value.__doc__


def output_of_new_interpreter(code: str) -> str:
    """Return the output of an interpreter that has used none of the names."""
    program = [sys.executable, "-c", f"import sys, pydoc, trialfleet; print({code})"]
    return subprocess.run(program, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_help_and_completion_know_every_name() -> None:
    shown = output_of_new_interpreter("pydoc.plain(pydoc.render_doc(trialfleet))")
    for name in trialfleet.__all__:
        assert re.search(rf"^    (class {name}\(|{name}\(.* -> )", shown, re.MULTILINE), name
    completed = output_of_new_interpreter("*dir(trialfleet)").split()
    assert {name for name in completed if name[0] != "_"} == set(trialfleet.__all__)


@pytest.mark.slow
def test_paths_are_text_or_anything_like_a_path(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Place:
        def __init__(self, path: Path) -> None:
            self.path = path

        def __fspath__(self) -> str:
            return str(self.path)

    study = write(tmp_path, MINIMAL)
    (tmp_path / "go.sh").touch()
    monkeypatch.chdir(tmp_path)
    for path in ("study.yaml", study, Place(study)):
        assert trialfleet.load_study(path).name == "demo"
        out = tmp_path / f"out{id(path)}"
        planned = trialfleet.plan(path, out=Place(out))
        assert trialfleet.Run(Place(out)).folder == planned.folder == out


def test_a_run_shows_what_it_is(make_run: MakeRun) -> None:
    run = make_run(regions=["A", "B<script>"])
    assert repr(run) == f"Run({str(run.folder)!r})"
    shown = run._repr_html_()
    assert "planned" in shown
    assert "B&lt;script&gt;" in shown
    assert "<script>" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_trials_make_a_data_frame(make_run: MakeRun, library: str) -> None:
    frames = pytest.importorskip(library)
    run = make_run()
    storage = open_storage(sqlite_url(run.folder / "study.db"))
    study = storage.create_new_study([StudyDirection.MINIMIZE], "demo/r1/A")
    for number in range(3):
        attributes = {"node": f"n{number}", "params": {"x": 0.5}, "metrics": {"loss": number / 2}}
        storage.create_new_trial(study, create_trial(value=number / 2, user_attrs=attributes))
    close_storage(storage)
    frame = frames.DataFrame(run.trials())
    assert list(frame["value"]) == [0.0, 0.5, 1.0]
    assert list(frame["region"]) == ["A"] * 3


@pytest.fixture
def days_and_models(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study of one region with a day that has ended, a run of it, and two models."""
    monkeypatch.chdir(work)
    return write_days_and_models(work)


def output(*words: str) -> str:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return done.output


def test_python_has_the_same_as_json_of_the_commands(
    days_and_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def plain(value: object) -> object:
        print_json(value)
        return json.loads(capsys.readouterr().out)

    file = str(days_and_models)
    assert plain(trialfleet.days(file).to_json()) == json.loads(
        output("daily", "status", file, "--json")
    )
    printed = json.loads(output("models", "churn", "--json"))
    assert plain([one.to_json() for one in trialfleet.models("churn")]) == printed
    printed = json.loads(output("cost", "churn", "--by", "day,region", "--json"))
    assert trialfleet.cost("churn", by=["day", "region"]).to_json() == printed
    run = trialfleet.Run("runs/churn/2026-11-22")
    assert run.cost().to_json() == json.loads(output("cost", "churn/2026-11-22", "--json"))


def test_promote_and_rollback_return_the_current_model_and_record_the_reason(
    days_and_models: Path,
) -> None:
    [switch] = trialfleet.promote("models/churn/north/r2", why="looked\nat it")
    assert (switch.study, switch.region, switch.run, switch.previous) == (
        "churn",
        "north",
        "r2",
        "r1",
    )
    assert str(switch) == "churn/north: latest is r2 (was r1)"
    back = trialfleet.rollback(Path("models/churn/north"), why="bad labels")
    assert (back.run, back.previous) == ("r1", "r2")
    assert [one.why for one in changes(back.folder / "latest")[-2:]] == [
        "looked at it",
        "bad labels",
    ]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: trialfleet.promote("nowhere"), ["promote", "nowhere"]),
        (lambda: trialfleet.rollback("nowhere"), ["rollback", "nowhere"]),
        (lambda: trialfleet.rollback("churn/north", to="r9"), ["rollback", "north", "--to", "r9"]),
        (lambda: trialfleet.models("nowhere"), ["models", "nowhere"]),
        (lambda: trialfleet.cost("churn", by=["regin"]), ["cost", "churn", "--by", "regin"]),
        (lambda: trialfleet.cost("nowhere"), ["cost", "nowhere"]),
        (lambda: trialfleet.days("nowhere.yaml"), ["daily", "status", "nowhere.yaml"]),
    ],
)
def test_errors_have_the_texts_of_the_commands(
    days_and_models: Path, call: Callable[[], object], words: list[str]
) -> None:
    with pytest.raises(trialfleet.TrialfleetError) as caught:
        call()
    done = CliRunner().invoke(main, words)
    assert str(caught.value) in done.output


def test_promote_switches_other_models_when_one_cannot_be_promoted(days_and_models: Path) -> None:
    other = Path("models/churn/south/r2")
    other.mkdir(parents=True)
    write_json(other / "provenance.json", {"study": "churn", "region": "south", "run": "r2"})
    (other.parent / "latest").mkdir()
    with pytest.raises(trialfleet.InputError, match=r"not promoted: churn/south: .*is a folder"):
        trialfleet.promote(other, "models/churn/north/r2")
    assert Path("models/churn/north/latest").readlink() == Path("r2")


def test_importing_trialfleet_imports_no_heavy_package() -> None:
    heavy = "('torch', 'optuna', 'pydantic')"
    code = f"import sys, trialfleet; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("name", sorted(name for name, _ in commands(main)))
def test_every_command_has_help_and_is_named_on_a_page(name: str) -> None:
    """On a page that somebody wrote; docs/reference/commands.md, made from code, has them all."""
    assert dict(commands(main))[name].help
    result = CliRunner().invoke(main, [*name.split(), "--help"])
    assert result.exit_code == 0
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")]
    assert any(f"trialfleet {name}" in page for page in pages)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "--date"], "option '--date' requires an argument; see: trialfleet run --help"),
        (
            ["daily", "run", "x.yaml", "--date"],
            "option '--date' requires an argument; see: trialfleet daily run --help",
        ),
        (
            ["logs", "--lines", "1e3"],
            "invalid value for '--lines': '1e3' is not a valid integer; see: trialfleet logs",
        ),
        (["status", "--json=x"], "option '--json' does not take a value; see: trialfleet status"),
    ],
)
def test_every_usage_error_names_the_commands_help(words: list[str], expected: str) -> None:
    result = CliRunner().invoke(main, words, prog_name="trialfleet")
    assert result.exit_code == 2
    assert f"error: {expected}" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["plan", "nowhere.yaml"], "nowhere.yaml"),
        (["status", "nowhere"], "not a run's folder"),
        (["status"], "no run was named"),
        (["trials", "nowhere"], "not a run's folder"),
        (["predict", "nowhere", "rows.csv"], "nowhere"),
        (["promote", "nowhere"], "neither a model's folder"),
        (["takeover", "nowhere"], "not a run's folder"),
        (["init", "/etc/passwd"], "/etc/passwd"),
        (["plan"], "error: missing argument 'STUDY'; see: trialfleet plan --help"),
        (["statu"], "error: no such command 'statu'"),
    ],
)
def test_bad_input_gets_one_clear_error_and_exit_code_2(
    words: list[str], expected: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("trialfleet"), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


# -- layout ----------------------------------------------------------------------------------------


def test_top_level_folders_are_linked_into_the_package() -> None:
    links = {p.name: p.readlink() for p in (ROOT / "src/trialfleet").iterdir() if p.is_symlink()}
    assert set(links) == {"workflows", "templates", "optimizer", "nodes", "infra"}
    assert all(str(target) == f"../../{name}" for name, target in links.items())


ALLOWED = {
    "workflows": {
        "workflows",
        "optimizer",
        "infra",
        "nodes",
        "attributes",
        "classads",
        "ctrl_c",
        "errors",
        "files",
        "key_descriptions",
        "objective",
        "programs",
        "render",
        "sections",
        "spelling",
        "spread",
        "restart_after_update",
        "wall_clock",
    },
    "optimizer": {
        "optimizer",
        "ctrl_c",
        "errors",
        "files",
        "objective",
        "sections",
        "spelling",
        "spread",
        "restart_after_update",
        "wall_clock",
    },
    "infra": {
        "infra",
        "attributes",
        "classads",
        "ctrl_c",
        "errors",
        "files",
        "gpu_memory",
        "programs",
        "render",
        "sections",
        "slots",
        "spelling",
        "instance_aws",
        "wall_clock",
    },
    "nodes": {"nodes", "classads", "gpu_memory", "instance_aws", "slots", "wall_clock"},
}


@pytest.mark.parametrize("folder", sorted(ALLOWED))
def test_each_folder_imports_only_the_modules_it_may(folder: str) -> None:
    imported = re.compile(r"^\s*(?:from|import) trialfleet\.(\w+)", re.MULTILINE)
    for path in (ROOT / folder).rglob("*.py"):
        parts = set(imported.findall(path.read_text()))
        assert parts <= ALLOWED[folder], f"{path} imports {parts - ALLOWED[folder]}"


@pytest.mark.parametrize("name", ["nodes/trial.py", "optimizer/service_client.py"])
def test_trial_and_client_import_only_the_standard_library(name: str) -> None:
    imported = set()
    for node in ast.walk(ast.parse((ROOT / name).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported <= set(sys.stdlib_module_names)
