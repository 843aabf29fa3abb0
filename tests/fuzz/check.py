"""Expected results of generated inputs: a right result, or one clear error.

A case that finds otherwise raises; whatever it raises, an assertion or a traceback of the
program's own, is the finding.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import unicodedata
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from random import Random

import click
from click.testing import CliRunner

from tests.fuzz import generate
from tests.unit.report.report_studies import text_of
from trialfleet.errors import TrialfleetError, escape_control
from trialfleet.files import write_json
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.optimizer.region_types import Complete
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.cli.printing.plan_summary import plan_text
from trialfleet.workflows.control.daily.day_attempt import DailyWork
from trialfleet.workflows.control.daily.missed_days import DAY, days_to_do, next_start
from trialfleet.workflows.control.models.latest import promote
from trialfleet.workflows.control.run.new_run import plan
from trialfleet.workflows.facts.run_folder.dag_structure import build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.names import TURNING
from trialfleet.workflows.status.attempts.outcome import read_outcome
from trialfleet.workflows.study.daily import EARLY, Daily
from trialfleet.workflows.study.frozen import FrozenStudy, dump_frozen, load_frozen
from trialfleet.workflows.study.loading import load_day, load_fleet
from trialfleet.workflows.study.loading import load_study as load
from trialfleet.workflows.study.spec import Study
from trialfleet.workflows.views.report.report_reader import read_report

LONGEST_MESSAGE = 15_000  # characters: twenty problems with their places and values
MOST_NODES = 60  # of a plan that is written: each is a folder
RETURN_CODES = [0, 0, 0, 0, 1, 64, 85, -9, -1001, -2, 2**40]

# Commands that reach beyond the folder where the case runs: their arguments are read, no more.
OUTSIDE = {
    "run",
    "submit",
    "stop",
    "resume",
    "pool",
    "fleet",
    "manager",
    "notify",
    "daily install",  # systemd's units, or a job of HTCondor
    "daily remove",
}


def study(random: Random, folder: Path) -> None:
    """Read a study file, freeze it and read it back; plan it and report on it if it is small."""
    path = folder / "study.yaml"
    path.write_bytes(generate.study(random))
    day = date.fromisoformat(generate.DAY)
    try:
        found = load(path, day)
    except TrialfleetError as error:
        assert_clear(str(error), names="study.yaml")
        _read_for_a_day(path, day, None)
        return
    _read_for_a_day(path, day, found)
    if found.daily:
        _days_follow_each_other(found.daily, generate.moment(random))
    frozen = FrozenStudy(run="r1", folder=str(folder), created=datetime.now(UTC), study=found)
    (folder / "frozen.json").write_text(dump_frozen(frozen), encoding="utf-8")
    assert load_frozen(folder / "frozen.json") == frozen, "the frozen study reads otherwise"
    assert found.resolve(Path("/elsewhere")) == found, "the normal form resolves to another"
    if build_graph(found).node_count <= MOST_NODES:
        _planned(found, folder)


def _read_for_a_day(path: Path, day: date, expected: Study | None) -> None:
    """Read the study for a day: as a plan does, but without regions that have no data."""
    try:
        found = load_day(path, day)
    except TrialfleetError as error:
        if expected is not None:
            raise AssertionError("a plan reads it, a day does not") from error
        assert_clear(str(error), names="study.yaml")
        return
    if not found.unusable:
        assert found.study == expected, "a day reads it otherwise than a plan"


def _days_follow_each_other(daily: Daily, now: datetime) -> None:
    due = daily.due_day(now)
    assert daily.start_time(due) <= now + EARLY < daily.start_time(due + 2 * DAY)
    assert next_start(daily, now) > now
    assert days_to_do(daily, {due - 3 * DAY}, now)[-1] == due
    assert days_to_do(daily, {due}, now) == [due]


def _planned(found: Study, folder: Path) -> None:
    out = folder / "run"
    try:
        run = plan(found, run="r1", out=out)
    except TrialfleetError as error:
        assert_clear(str(error))
        assert not out.exists(), "a plan that failed left a part of itself"
        return
    left = {"accelerator": "auto", "python": None}  # … to the plan, which asks the pool
    chosen = {k: getattr(run.study, k) for k, open_ in left.items() if getattr(found, k) == open_}
    assert run.study == found.model_copy(update=chosen), "the plan froze another study"
    assert_safe(escape_control(plan_text(run)))
    if found.storage and found.storage.startswith("postgresql"):
        private = (out / "study.yaml").stat().st_mode & 0o077
        assert not private, "others may read the storage's password"
    try:
        assert run.best() == []
        page = text_of(read_report(RunFolder(out)))
    except TrialfleetError as error:
        assert_clear(str(error))
    else:
        assert generate.PASSWORD not in page


def fleet(random: Random, folder: Path) -> None:
    """Check a file with a fleet."""
    path = folder / "fleet.yaml"
    path.write_bytes(generate.fleet(random))
    try:
        found = load_fleet(path)
    except TrialfleetError as error:
        assert_clear(str(error), names="fleet.yaml")
        return
    assert found.full_name
    assert Fleet.model_validate(found.model_dump()) == found, "the fleet reads otherwise"


def result(random: Random, folder: Path) -> None:
    """Check the outcome of a trial's files."""
    files = TrialFolder(folder)
    files.result.write_bytes(generate.result(random))
    files.err.write_bytes(generate.result(random))
    files.log.write_bytes(generate.result(random))
    outcome = read_outcome(files, random.choice(RETURN_CODES), "auc", {})
    if isinstance(outcome, Complete):
        assert "auc" in outcome.metrics
        assert all(math.isfinite(value) for value in outcome.metrics.values())
        texts = [*outcome.metrics, outcome.device or ""]
    else:
        texts = [outcome.error]
        assert 0 < len(outcome.error) <= 350, outcome.error
    for character in "".join(texts):
        harmless = unicodedata.category(character) not in {"Cc", "Cs", "Zl", "Zp"}
        assert harmless, texts
        assert character not in TURNING, texts
    json.dumps(vars(outcome), allow_nan=False).encode()


def command_line(random: Random, folder: Path) -> None:
    """Check a command line, in a folder with a study, a run and other things."""
    _input_files(folder, random)
    arguments = _arguments(random)
    os.chdir(folder / "here")
    done = CliRunner().invoke(main, arguments)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise AssertionError(f"{arguments}: {done.exception!r}") from done.exception
    assert done.exit_code in {0, 1, 2}, (arguments, done.exit_code, done.output)
    if done.exit_code:  # `status --watch` exits with 1 if a run has ended without its models
        assert_clear(done.stderr.removeprefix("error: ") or done.stdout)


def _input_files(folder: Path, random: Random) -> None:
    """Write the files that the arguments may name; `..` is still in the case's own folder."""
    here = folder / "here"
    (here / "runs" / "demo").mkdir(parents=True)
    furnish(here)
    (here / "study.yaml").write_bytes(generate.study(random))
    (here / "fleet.yaml").write_bytes(generate.fleet(random))
    (here / "daily.yaml").write_text(json.dumps(generate.DAILY))  # JSON is YAML
    if generate.chance(random):  # half the time is spent here
        plan(
            Study.model_validate(generate.SMALL).resolve(here), run="r1", out=here / "runs/demo/r1"
        )
        for run in ("r1", "r2"):
            _publish(here / "models/demo/A" / run)


def _publish(model: Path) -> None:
    """Write a model as a run leaves it, with the records needed to find it and go back to it."""
    model.mkdir(parents=True)
    origin = {"study": "demo", "run": model.name, "created": f"{generate.DAY}T00:00:00+00:00"}
    write_json(model / "provenance.json", origin)
    write_json(model / "card.json", {**origin, "region": "A", "metrics": {"loss": 0.5}})
    promote(model)


def furnish(folder: Path) -> None:
    """Files that studies name."""
    days = folder / "days" / generate.DAY
    days.mkdir(parents=True)
    (folder / "data").mkdir()
    for name in ("go.sh", "data/a.npz", "data/A.npz", "data/NO.npz", "rows.csv"):
        (folder / name).write_text("a,b\n1,2\n")
    for region in generate.DAILY["regions"]:
        (days / f"{region}.npz").write_text(region)
    rows = [f"{i % 9},{'ab'[i % 2]}\n" for i in range(60)]
    (folder / "table.csv").write_text("".join(["x,y\n", *rows]))
    parts = ["train", "train", "validation", "test"]
    rows = [f"{i % 9},{'ab'[i % 2]},{i},{parts[i % 4]}\n" for i in range(60)]
    (folder / "parts.csv").write_text("".join(["x,y,z,part\n", *rows]))
    for name in ("data/São Paulo.npz", "data/the other.npz"):
        (folder / name).touch()
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to("nowhere")


ENDLESS = {"autoscale", "dashboard", "serve", "supervise"}  # commands that run until Ctrl-C


def _arguments(random: Random) -> list[str]:
    names: list[str] = []
    command: click.Command = main
    while isinstance(command, click.Group) and generate.chance(random, 0.95):
        name = random.choice(sorted(command.commands.keys() - ENDLESS))
        command = command.commands[name]
        names.append(name)
    options = [name for parameter in command.params for name in parameter.opts if name[0] == "-"]
    words = [*options, "--help", "--nix", "-x", "--json", "--", "runs/demo/r1", "study.yaml"]
    words += ["fleet.yaml", "runs", "new", "rows.csv", "data", "A", "first", "1", "-1", "r1"]
    words += ["daily.yaml", generate.DAY, "demo", "demo/A", "models/demo/A/r2", "r2"]
    odd = [text for text in generate.TEXTS if "\0" not in text and text[:1] != "/"]
    odd += ["/dev/zero", "/dev/null", "/dev/null/x", "/proc/nix", "\udcff"]
    more = [random.choice(random.choice([words, words, odd])) for _ in range(random.randrange(5))]
    return [*names, *(_likely(random, command) if generate.chance(random) else []), *more]


LIKELY = {  # by the name of an argument or of a required option
    "study": ["study.yaml", "daily.yaml", "daily.yaml"],
    "run": ["r1", "runs/demo/r1"],
    "names": ["r1"],
    "region": ["A", "demo/A"],
    "models": ["models/demo/A/r1"],
    "model": ["A"],
    "rows": ["rows.csv"],
    "first": [generate.DAY, "2026-11-21"],
    "last": [generate.DAY, "2026-11-23"],
}


def _likely(random: Random, command: click.Command) -> list[str]:
    """Return arguments that a person would try first."""
    words: list[str] = []
    for parameter in command.params:
        if known := LIKELY.get(parameter.name or ""):
            option = parameter.opts[-1:] if parameter.opts[0][0] == "-" else []
            words += [*option, random.choice(known)]
    return words


def assert_clear(message: str, names: str = "") -> None:
    """One message that a person can read in any terminal, without a password."""
    assert message.strip(), "an error without a word"
    assert names in message, f"does not name {names}: {message}"
    assert len(message) <= LONGEST_MESSAGE, f"{len(message)} characters: {message[:300]}"
    for word in ("Traceback", "pydantic", "ruamel", "ctx=", "input_value", "<unicode string>"):
        assert word not in message, message
    assert not message.rstrip().endswith(":"), message
    assert_safe(message)


def assert_safe(text: str) -> None:
    """Nothing that a terminal would act on, and no part of the password."""
    assert all(line.isprintable() for line in text.split("\n")), repr(text)
    assert generate.PASSWORD not in text, text


CASES: dict[str, Callable[[Random, Path], None]] = {
    "study": study,
    "fleet": fleet,
    "result": result,
    "command-line": command_line,
}


def run_case(kind: str, seed: int, number: int, folder: Path) -> None:
    """Run one case in a new folder, which is removed if it went well."""
    folder.mkdir(parents=True)
    if kind == "study":
        furnish(folder)
    CASES[kind](Random(f"{seed} {kind} {number}"), folder)  # noqa: S311 - no secret
    os.chdir("/")
    shutil.rmtree(folder)


def keep_inside() -> None:
    """Let commands that reach beyond their folder read their arguments and do nothing.

    A day that has to wait for a pool stops: none ever comes here.
    """

    def close(command: click.Command) -> None:
        if isinstance(command, click.Group):
            for inner in command.commands.values():
                close(inner)
        else:
            command.callback = lambda **_: None

    def abandon(_: DailyWork, error: Exception) -> None:
        raise error

    for names in OUTSIDE:
        command: click.Command = main
        for name in names.split():
            assert isinstance(command, click.Group), names
            command = command.commands[name]
        close(command)
    setattr(DailyWork, "_retry_seconds", abandon)  # noqa: B010 - no type checker allows it
