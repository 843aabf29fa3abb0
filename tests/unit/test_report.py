"""What a report says about studies that lie in a real SQLite storage."""

from __future__ import annotations

import dataclasses
import json
import random
import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import optuna
import plotly.graph_objects as go
import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState, create_trial
from rich.console import Console

from trialfleet.errors import OptimizerError
from trialfleet.workflows.report import (
    Region,
    RegionSource,
    Report,
    ReportSource,
    build_report,
    render_page,
    summary_table,
)
from trialfleet.workflows.report.figures import overview, region_figures
from trialfleet.workflows.report.formatting import (
    column_decimals,
    duration,
    excerpt,
    fixed,
    number,
    setting,
    shortened,
    signed,
)

START = datetime(2026, 11, 20, 2, 0)  # noqa: DTZ001 - Optuna's times have no zone
SPACE: dict[str, BaseDistribution] = {
    "rate": FloatDistribution(1e-4, 1e-1, log=True),
    "layers": IntDistribution(1, 4),
    "solver": CategoricalDistribution(["adam", "sgd"]),
}
MOMENTUM = FloatDistribution(0.0, 0.9)  # searched only where solver is sgd
DEFAULTS = {"rate": 1e-3, "layers": 2, "solver": "adam"}


def trial(
    params: Mapping[str, Any],
    value: float | None,
    *,
    state: TrialState | None = None,
    at: int = 0,
    **notes: Any,
) -> optuna.trial.FrozenTrial:
    """A trial as the optimiser leaves it: failed where `value` is None."""
    state = state or (TrialState.FAIL if value is None else TrialState.COMPLETE)
    space = {**SPACE, "momentum": MOMENTUM}
    frozen = create_trial(
        state=state,
        params=dict(params),
        distributions={name: space[name] for name in params},
        value=value,
        user_attrs={"node": f"R.l0.t{at:02}", "params": dict(params), "seed": at, **notes},
    )
    frozen.datetime_start = START + timedelta(seconds=at)
    frozen.datetime_complete = frozen.datetime_start + timedelta(seconds=10)
    return frozen


def tuned_trials(
    count: int, direction: str = "maximize", metric: str = "auc"
) -> list[optuna.trial.FrozenTrial]:
    """`count` trials in which the learning rate decides: 0.01 is best. One in ten fails."""
    rng = random.Random(1)  # noqa: S311
    trials = []
    for at in range(count):
        params = dict(DEFAULTS) if at == 0 else some_params(rng)
        distance = abs(10 * params["rate"] - 0.1) + 0.001 * rng.random()
        value = 0.8 - distance if direction == "maximize" else distance
        failed = at % 10 == 5
        notes: dict[str, Any] = {"baseline": at == 0, "seconds": 2.5, "device": "cpu"}
        if failed:
            notes["error"] = "exit code 64: can't be trained"
        else:
            notes["metrics"] = {metric: value, "test": value - 0.01}
        trials.append(trial(params, None if failed else value, at=at, attempts=1, **notes))
    return trials


def some_params(rng: random.Random) -> dict[str, Any]:
    solver = rng.choice(["adam", "sgd"])
    params = {"rate": 10 ** rng.uniform(-4, -1), "layers": rng.randint(1, 4), "solver": solver}
    return params | ({"momentum": rng.uniform(0, 0.9)} if solver == "sgd" else {})


class Fleet:
    """A storage, and the sources of the regions whose studies were put into it."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'study.db'}"
        self.storage = optuna.storages.RDBStorage(self.url)

    def region(
        self, name: str, trials: list[optuna.trial.FrozenTrial], **facts: Any
    ) -> RegionSource:
        study = optuna.create_study(study_name=f"s/r/{name}", storage=self.storage)
        study.add_trials(trials)
        return region_source(name, **facts)

    def report(self, *regions: RegionSource, **facts: Any) -> Report:
        return build_report(report_source(self.url, *regions, **facts))


def region_source(name: str, **facts: Any) -> RegionSource:
    known: dict[str, Any] = {
        "slug": name,
        "study_name": f"s/r/{name}",
        "published": None,
        "stopped": None,
        "final": None,
        "defaults": DEFAULTS,
        "budget_trials": 40,
    }
    return RegionSource(name=name, **(known | facts))


def report_source(url: str, *regions: RegionSource, **facts: Any) -> ReportSource:
    known: dict[str, Any] = {
        "study": "flights",
        "run": "r",
        "metric": "auc",
        "direction": "maximize",
        "report_metric": "test",
        "created": datetime(2026, 11, 20, 2, 0, tzinfo=UTC),
        "finished": datetime(2026, 11, 20, 3, 1, tzinfo=UTC),
    }
    return ReportSource(regions=regions, storage_url=url, **(known | facts))


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.fixture
def fleet(tmp_path: Path) -> Any:
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.storage.remove_session()
    fleet.storage.engine.dispose()


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Two regions with 40 trials each, of which the second is named like markup."""
    fleet = Fleet(tmp_path_factory.mktemp("tuned"))
    trials = tuned_trials(40)
    report = fleet.report(
        fleet.region("JFK", trials, published=Path("/models/JFK/r"), final={"test": 0.81}),
        fleet.region("[red]LGA", trials[:30], budget_trials=30),
    )
    fleet.storage.remove_session()
    fleet.storage.engine.dispose()
    return report


def only(report: Report) -> Region:
    (region,) = report.regions
    return region


def test_the_best_trial_is_compared_with_the_default_settings_trial(tuned: Report) -> None:
    region = tuned.regions[0]
    best = max(
        (t for t in region.trials if t.objective is not None), key=lambda t: t.objective or 0
    )
    assert region.best_trial == best.number != 0
    assert region.objective.tuned == best.objective
    assert region.objective.default == region.trials[0].objective
    assert region.report.tuned == best.metrics["test"]
    assert region.report.default == region.trials[0].metrics["test"]
    assert region.report.gain == pytest.approx(
        best.metrics["test"] - region.trials[0].metrics["test"]
    )
    assert region.report.gain is not None
    assert region.report.gain > 0
    assert region.final_metric == 0.81


def test_trials_are_counted_by_state_and_their_time_is_summed(tuned: Report) -> None:
    region = tuned.regions[0]
    assert (region.complete, region.failed, region.running) == (36, 4, 0)
    assert (tuned.complete, tuned.failed, tuned.budget_trials) == (63, 7, 70)
    assert region.compute_seconds == 100.0
    assert region.wall_seconds == 49.0
    assert tuned.compute_seconds == 175.0
    assert tuned.wall_seconds == 3660.0


def test_importance_names_the_parameter_that_decides(tuned: Report) -> None:
    importance = tuned.regions[0].importance
    assert next(iter(importance.shares)) == "rate"
    assert set(importance.shares) == {"rate", "layers", "solver", "momentum"}
    assert sum(importance.shares.values()) == pytest.approx(1.0)
    assert list(importance.shares.values()) == sorted(importance.shares.values(), reverse=True)
    assert (importance.trials, importance.note) == (36, None)


def test_importance_follows_the_direction_of_the_study(fleet: Fleet) -> None:
    # rate decides among small values, layers among great ones: a wrong sign names the wrong one
    rng = random.Random(3)  # noqa: S311
    trials = []
    for at in range(60):
        params = {"rate": 10 ** rng.uniform(-4, -1), "layers": rng.randint(1, 4)}
        bad = 10.0 * params["layers"] if params["rate"] > 3e-4 else 0.0
        trials.append(trial(params, bad + rng.random(), at=at))
    source = fleet.region("A", trials)
    down = only(fleet.report(source, direction="minimize")).importance.shares
    up = only(fleet.report(source, direction="maximize")).importance.shares
    assert next(iter(down)) == "rate"
    assert next(iter(up)) == "layers"


@pytest.mark.parametrize(
    ("trials", "reason"),
    [
        ([], "too few trials: 0 of"),
        (tuned_trials(9), "too few trials: 8 of"),
        ([trial(DEFAULTS, 0.5, at=at) for at in range(12)], "every trial reached the same value"),
        ([trial({}, at / 10, at=at) for at in range(12)], "the study has no parameters"),
    ],
)
def test_where_importance_means_nothing_the_reason_is_given(
    fleet: Fleet, trials: list[optuna.trial.FrozenTrial], reason: str
) -> None:
    importance = only(fleet.report(fleet.region("A", trials))).importance
    assert importance.shares == {}
    assert importance.note is not None
    assert importance.note.startswith(reason)


def test_minimising_takes_the_lowest_and_counts_a_decrease_as_gain(fleet: Fleet) -> None:
    trials = tuned_trials(20, "minimize", "loss")
    source = fleet.region("A", trials)
    report = fleet.report(source, metric="loss", direction="minimize", report_metric="loss")
    region = only(report)
    values = [t.value for t in trials if t.state is TrialState.COMPLETE]
    assert region.objective.tuned == min(v for v in values if v is not None)
    assert region.objective.gain == pytest.approx((trials[0].value or 0) - region.objective.tuned)
    assert region.report == region.objective


def test_the_report_metric_may_go_the_other_way_than_the_objective(fleet: Fleet) -> None:
    trials = [
        trial(DEFAULTS, 0.5, at=0, baseline=True, metrics={"loss": 0.5, "accuracy": 0.7}),
        trial(DEFAULTS, 0.4, at=1, metrics={"loss": 0.4, "accuracy": 0.9}),
    ]
    source = fleet.region("A", trials)
    facts = {"metric": "loss", "direction": "minimize", "report_metric": "accuracy"}
    assert only(fleet.report(source, **facts)).report.gain == pytest.approx(-0.2)
    right = fleet.report(source, **facts, report_direction="maximize")
    assert only(right).report.gain == pytest.approx(0.2)
    assert only(right).objective.gain == pytest.approx(0.1)


def test_of_equal_trials_the_first_is_best(fleet: Fleet) -> None:
    source = fleet.region("A", [trial(DEFAULTS, 0.5, at=at) for at in range(3)])
    assert only(fleet.report(source)).best_trial == 0


def test_settings_show_default_and_best_and_where_they_lie(fleet: Fleet) -> None:
    best = {"rate": 0.0999, "layers": 2, "solver": "sgd", "momentum": 0.3}
    source = fleet.region("A", [trial(DEFAULTS, 0.5), trial(best, 0.6, at=1)])
    settings = {item.name: item for item in only(fleet.report(source)).settings}
    assert list(settings) == ["rate", "layers", "solver", "momentum"]
    assert [item.changed for item in settings.values()] == [True, False, True, True]
    assert [item.edge for item in settings.values()] == ["high", None, None, None]
    assert settings["rate"].range is not None
    assert settings["rate"].range.place(1e-3) == pytest.approx(1 / 3)  # of three decades
    assert not settings["momentum"].default_active
    assert settings["solver"].range is not None
    assert settings["solver"].range.choices == ("adam", "sgd")


def test_a_true_and_a_one_are_different_settings(fleet: Fleet) -> None:
    trials = [trial(DEFAULTS, 0.5, params={"flag": 1})]
    source = fleet.region("A", trials, defaults={"flag": True})
    (flag, *_) = only(fleet.report(source)).settings
    assert flag.changed


def test_failures_are_grouped_by_error_most_frequent_first(fleet: Fleet) -> None:
    errors = ["rare", "often", "often", None, "often"]
    source = fleet.region(
        "A", [trial(DEFAULTS, None, at=at, error=e) for at, e in enumerate(errors)]
    )
    failures = only(fleet.report(source)).failures
    assert [(item.error, item.trials) for item in failures] == [
        ("often", (1, 2, 4)),
        ("rare", (0,)),
        ("no error was recorded", (3,)),
    ]


RUNNING = trial(DEFAULTS, None, state=TrialState.RUNNING)


@pytest.mark.parametrize(
    ("trials", "facts", "status"),
    [
        ([], {}, "not started"),
        ([RUNNING], {}, "tuning"),
        ([trial(DEFAULTS, None)], {}, "failed"),
        ([trial(DEFAULTS, 0.5)], {}, "incomplete"),
        ([trial(DEFAULTS, 0.5), RUNNING], {}, "tuning"),
        ([trial(DEFAULTS, 0.5)], {"budget_trials": 1}, "tuned"),
        ([trial(DEFAULTS, 0.5)], {"final": {"test": 0.5}}, "trained"),
        ([trial(DEFAULTS, 0.5), RUNNING], {"stopped": "no money"}, "stopped"),
        ([trial(DEFAULTS, 0.5)], {"published": Path("/m")}, "published"),
        ([trial(DEFAULTS, 0.5)], {"published": Path("/m"), "stopped": "late"}, "published"),
    ],
)
def test_a_region_has_the_status_that_says_most(
    fleet: Fleet, trials: list[optuna.trial.FrozenTrial], facts: dict[str, Any], status: str
) -> None:
    report = fleet.report(fleet.region("A", trials, **facts))
    assert only(report).status == status
    assert status in render_page(report)


def test_a_storage_that_was_never_made_gives_regions_not_started(tmp_path: Path) -> None:
    missing = tmp_path / "study.db"
    report = build_report(report_source(f"sqlite:///{missing}", region_source("A")))
    assert only(report).status == "not started"
    assert overview(report) is None
    assert not missing.exists()
    missing.touch()  # the service was killed before it made the tables
    assert only(build_report(report_source(f"sqlite:///{missing}", region_source("A")))) == only(
        report
    )
    assert missing.stat().st_size == 0


def test_a_region_without_a_study_is_not_started(fleet: Fleet) -> None:
    report = fleet.report(fleet.region("A", [trial(DEFAULTS, 0.5)]), region_source("B"))
    assert [region.status for region in report.regions] == ["incomplete", "not started"]


def test_a_storage_that_cannot_be_read_is_named_without_its_password(tmp_path: Path) -> None:
    broken = tmp_path / "study.db"
    broken.write_bytes(b"no database at all" * 100)
    with pytest.raises(OptimizerError, match="study.db can't be read"):
        build_report(report_source(f"sqlite:///{broken}", region_source("A")))
    url = "postgresql+psycopg://user:secret@127.0.0.1:1/db"
    with pytest.raises(OptimizerError, match="user:") as error:
        build_report(report_source(url, region_source("A")))
    assert "secret" not in str(error.value)


def test_reading_changes_nothing_in_the_storage(fleet: Fleet, tmp_path: Path) -> None:
    source = fleet.region("A", tuned_trials(12))
    before = dump(tmp_path / "study.db")
    fleet.report(source)
    assert dump(tmp_path / "study.db") == before


def dump(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        return list(connection.iterdump())
    finally:
        connection.close()


def test_json_is_plain_complete_and_has_the_documented_keys(tuned: Report) -> None:
    text = json.dumps(tuned.to_json(), allow_nan=False)
    value = json.loads(text)
    assert list(value)[:4] == ["schema", "study", "run", "metric"]
    assert value["schema"] == 1
    assert value["finished"] == "2026-11-20T03:01:00+00:00"
    region = value["regions"][0]
    assert set(region) == {field.name for field in dataclasses.fields(Region)}
    assert region["published"] == "/models/JFK/r"
    assert region["report"]["gain"] == tuned.regions[0].report.gain
    assert len(region["trials"]) == 40
    assert region["trials"][0]["params"] == DEFAULTS
    assert region["failures"][0]["trials"] == [5, 15, 25, 35]
    assert "sqlite" not in text


def test_text_that_no_file_or_terminal_can_take_is_made_harmless(fleet: Fleet) -> None:
    error = "\x1b[31mred\x1b[0m\r\nbell\x07 half \ud800 tab\t"
    source = fleet.region("A", [trial(DEFAULTS, None, error=error)])
    report = fleet.report(source)
    assert only(report).failures[0].error == "red\nbell\ufffd half \ufffd tab"
    render_page(report).encode()
    json.dumps(report.to_json(), ensure_ascii=False).encode()


def test_garbage_in_a_trials_notes_is_left_out(fleet: Fleet) -> None:
    notes = {
        "metrics": {"test": float("nan"), "x": "y", "b": True, "ok": 1},
        "seconds": -1,
        "attempts": "many",
        "device": None,
        "params": None,
    }
    source = fleet.region("A", [trial(DEFAULTS, 0.5, **notes)], final={"test": float("inf")})
    region = only(fleet.report(source))
    assert region.trials[0].metrics == {"ok": 1}
    assert (region.trials[0].seconds, region.trials[0].attempts) == (None, None)
    assert region.final == {}
    json.dumps(fleet.report(source).to_json(), allow_nan=False)


@pytest.mark.parametrize(
    "values",
    [[0.5], [0.5] * 9, [1e300, -1e300, 0.0], [1e-300, 1e300, 5.0], [1e-12, 2e-12], [None, None]],
)
@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_a_page_and_a_table_come_of_any_values(
    fleet: Fleet, values: list[float | None], direction: str
) -> None:
    trials = [trial(DEFAULTS, value, at=at, baseline=at == 0) for at, value in enumerate(values)]
    report = fleet.report(fleet.region("A", trials), direction=direction)
    assert "region-A" in render_page(report)
    check_figures(report)
    assert "A" in printed(report)


def check_figures(report: Report) -> int:
    """Let plotly itself judge every picture: it refuses properties and values it doesn't know."""
    figures = [overview(report), *(f for r in report.regions for f in region_figures(r).values())]
    for figure in filter(None, figures):
        text = json.dumps(figure, allow_nan=False)
        for role in ("tuned", "default", "failed", "muted", "surface"):
            text = text.replace(f'"@{role}"', '"#123456"')
        go.Figure(json.loads(text))
    return len(figures)


def test_pictures_are_valid_plotly_figures(tuned: Report) -> None:
    assert check_figures(tuned) == 1 + 2 * (2 + 4)


def test_the_history_holds_every_completed_trial_and_the_best_so_far(tuned: Report) -> None:
    region = tuned.regions[0]
    points, best, default, failed = region_figures(region)["history"]["data"]
    assert points["x"] == [t.number for t in region.trials if t.state == "complete"]
    assert points["y"] == pytest.approx([t.objective for t in region.trials if t.objective])
    assert best["y"] == sorted(best["y"])
    assert best["y"][-1] == pytest.approx(region.objective.tuned)
    assert default["y"] == pytest.approx([region.objective.default] * 2)
    assert failed["x"] == [5, 15, 25, 35]


def test_the_best_so_far_falls_when_minimising(fleet: Fleet) -> None:
    source = fleet.region("A", [trial(DEFAULTS, v, at=at) for at, v in enumerate([3.0, 1.0, 2.0])])
    region = only(fleet.report(source, direction="minimize"))
    assert region_figures(region)["history"]["data"][1]["y"] == [3.0, 1.0, 1.0]


def test_one_wild_value_does_not_flatten_the_history(fleet: Fleet) -> None:
    values = [0.5 + at / 100 for at in range(15)]
    trials = [trial(DEFAULTS, v, at=at) for at, v in enumerate([*values, -1e6])]
    layout = region_figures(only(fleet.report(fleet.region("A", trials))))["history"]["layout"]
    low, high = layout["yaxis"]["range"]
    assert 0.4 < low < 0.5
    assert 0.64 < high < 0.7
    lucky = [trial(DEFAULTS, v, at=at) for at, v in enumerate([*values, 5.0])]
    layout = region_figures(only(fleet.report(fleet.region("B", lucky))))["history"]["layout"]
    assert "range" not in layout["yaxis"]  # the best is always in view


def test_a_positive_value_over_many_orders_is_drawn_on_a_logarithmic_axis(fleet: Fleet) -> None:
    trials = [trial(DEFAULTS, v, at=at) for at, v in enumerate([1e-3, 0.5, 40.0])]
    figure = region_figures(only(fleet.report(fleet.region("A", trials))))["history"]
    assert figure["layout"]["yaxis"]["type"] == "log"
    assert "0.001" in figure["layout"]["yaxis"]["ticktext"]


def test_the_overview_has_a_row_per_region_greatest_gain_first(fleet: Fleet) -> None:
    def pair(default: float, tuned: float) -> list[optuna.trial.FrozenTrial]:
        return [
            trial(DEFAULTS, v, at=at, baseline=at == 0, metrics={"test": v})
            for at, v in enumerate([default, tuned])
        ]

    report = fleet.report(
        fleet.region("small", pair(0.5, 0.6)),
        fleet.region("none", [trial(DEFAULTS, None, baseline=True)]),
        fleet.region("great", pair(0.5, 0.9)),
        fleet.region("no default", [trial(DEFAULTS, 0.7, metrics={"test": 0.7})]),
    )
    figure = overview(report)
    assert figure is not None
    assert figure["layout"]["yaxis"]["ticktext"] == ["great", "small", "no default"]
    default, tuned = figure["data"][2:]
    assert default["x"] == [0.5, 0.5, None]
    assert tuned["x"] == [0.9, 0.6, 0.7]


def printed(report: Report) -> str:
    console = Console(file=StringIO(), width=130, color_system=None)
    console.print(summary_table(report))
    output = console.file
    assert isinstance(output, StringIO)
    return output.getvalue()


def test_the_summary_has_a_row_per_region_with_its_numbers(tuned: Report) -> None:
    lines = printed(tuned).splitlines()
    row = next(line for line in lines if "JFK" in line)
    region = tuned.regions[0]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[:3] == ["JFK", "36", "4"]
    assert cells[3] == f"{region.objective.tuned:.4f}"
    assert cells[4:6] == [f"{region.report.tuned:.4f}", f"{region.report.default:.4f}"]
    assert cells[6] == f"+{region.report.gain:.4f}"
    assert cells[7:] == ["49 s", "published"]


def test_a_region_named_like_markup_is_printed_as_it_is(tuned: Report) -> None:
    assert "[red]LGA" in printed(tuned)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (float("nan"), "–"), (0.0, "0"), (0.00131234, "0.001312"), (0.5, "0.5"),
        (1234567, "1,234,567"), (1234.5678, "1,235"), (-0.25, "−0.25"), (2.5e-7, "2.5 × 10⁻⁷"),
        (1e300, "1 × 10³⁰⁰"), (10**400, "–"),
    ],
)  # fmt: skip
def test_numbers_read_well(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [("adam", "adam"), ("", '""'), (" ", '" "'), (True, "true"), (None, "null"), (64, "64"),
     (1e-5, "1 × 10⁻⁵"), ([1, "é"], '[1, "é"]'), (10**400, str(10**400))],
)  # fmt: skip
def test_settings_read_as_they_are_written_in_a_study(value: Any, text: str) -> None:
    assert setting(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.44, "0.4 s"), (9.96, "10 s"), (41.2, "41 s"), (59.7, "1 min 00 s"),
     (185, "3 min 05 s"), (3599.6, "1 h 00 min"), (7500, "2 h 05 min"), (97200, "1 d 03 h")],
)  # fmt: skip
def test_durations_read_well(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.71234, 0.7, None], ["0.7123", "0.7000", "–"]),
        ([0.999912, 0.999934], ["0.999912", "0.999934"]),
        ([1234.5, 12.0], ["1,234", "12"]),
        ([1e-9, 3.0], ["1 × 10⁻⁹", "3"]),
        ([0.0, 0.0], ["0", "0"]),
        ([-0.00001, 0.5], ["−1 × 10⁻⁵", "0.5"]),
    ],
)
def test_a_columns_numbers_share_their_decimals(values: list[Any], texts: list[str]) -> None:
    decimals = column_decimals(values)
    assert [fixed(value, decimals) for value in values] == texts


def test_differences_have_a_sign_but_zero() -> None:
    assert [signed(v, 4) for v in (0.0123, -0.004, 0.0, None, float("inf"))] == [
        "+0.0123", "−0.0040", "0", "–", "–"
    ]  # fmt: skip
    assert signed(0.00001, 4) == "+1 × 10⁻⁵"  # a gain that the column's decimals would hide


def test_long_texts_keep_both_ends() -> None:
    assert shortened("a" * 50 + " \n b", 10) == "aaaaaa…a b"
    cut = excerpt("first" + "x" * 5000 + "last", 300)
    assert cut.startswith("first")
    assert cut.endswith("last")
    assert "4,709 characters" in cut


@pytest.mark.parametrize("facts", [{"direction": "up"}, {"report_direction": "down"},
                                   {"created": START}])  # fmt: skip
def test_a_source_that_makes_no_sense_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is not one of|has no time zone"):
        report_source("sqlite://", **facts)
