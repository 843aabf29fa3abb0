"""The report's pictures as plotly figures: plain dictionaries, checked by plotly in the tests.

Colours are roles ("@tuned", "@default", "@failed", "@muted") that the page turns into the theme's
colours, so that a picture follows light and dark. A trace's `customdata` holds the numbers of
trials, for which the page looks up the hover text: it is stored once, not once per picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trialfleet.workflows.report.axes import (
    HOVER_LENGTH,
    LABEL_LENGTH,
    Axis,
    coordinate,
    parameter_axis,
    plotly_text,
    short,
    value_axis,
)
from trialfleet.workflows.report.formatting import number, setting, shortened, signed
from trialfleet.workflows.report.model import Region, Report, Trial

Figure = dict[str, Any]

BETTER = {"maximize": "higher is better", "minimize": "lower is better"}
MOST_SLICES = 12
ROW_HEIGHT = 24


def overview(report: Report) -> Figure | None:
    """Tuned against default settings, a row per region, greatest gain first; None without any."""
    rows = [r for r in report.regions if r.report.default is not None or r.report.tuned is not None]
    if not rows:
        return None
    rows.sort(key=lambda row: (row.report.gain is None, -(row.report.gain or 0.0)))
    values = [v for row in rows for v in (row.report.default, row.report.tuned) if v is not None]
    labels = [plotly_text(row.name, LABEL_LENGTH) for row in rows]
    title = f"{plotly_text(report.report_metric, HOVER_LENGTH)} ({BETTER[report.report_direction]})"
    return {
        "data": [*_overview_lines(rows), *_overview_points(rows)],
        "layout": {
            "height": 96 + ROW_HEIGHT * len(rows),
            "xaxis": {
                **value_axis(values, values).spec,
                "title": {"text": title},
                "fixedrange": True,
            },
            "yaxis": {
                "tickvals": list(range(len(rows))),
                "ticktext": labels,
                "range": [len(rows) - 0.4, -0.6],
                "fixedrange": True,
                "showgrid": False,
            },
            "hovermode": "closest",
        },
    }


def _overview_lines(rows: Sequence[Region]) -> list[Figure]:
    """Two traces of separate lines: from default to tuned, by whether tuning helped."""
    return [
        _lines(rows, "@tuned", lambda gain: gain >= 0),
        _lines(rows, "@failed", lambda gain: gain < 0),
    ]


def _lines(rows: Sequence[Region], color: str, chosen: Callable[[float], bool]) -> Figure:
    x: list[float | None] = []
    y: list[int | None] = []
    for at, row in enumerate(rows):
        if row.report.gain is not None and chosen(row.report.gain):
            x += [short(row.report.default), short(row.report.tuned), None]
            y += [at, at, None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": {"color": color, "width": 3},
        "opacity": 0.45,
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _overview_points(rows: Sequence[Region]) -> list[Figure]:
    hover = [_overview_hover(row) for row in rows]
    styles: list[tuple[str, Callable[[Region], float | None], Mapping[str, Any]]] = [
        ("default settings", lambda row: row.report.default, DEFAULT_MARKER),
        ("tuned settings", lambda row: row.report.tuned, TUNED_MARKER),
    ]
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [short(value(row)) for row in rows],
            "y": list(range(len(rows))),
            "hovertext": hover,
            "hoverinfo": "text",
            "marker": dict(marker),
            "customdata": [row.slug for row in rows],
        }
        for name, value, marker in styles
    ]


def _overview_hover(row: Region) -> str:
    lines = {
        "default settings": number(row.report.default),
        "tuned settings": number(row.report.tuned),
        "gain": signed(row.report.gain, None),
        "full training": number(row.final_metric),
    }
    return _hover_lines(f"<b>{plotly_text(row.name, HOVER_LENGTH)}</b>", lines.items())


DEFAULT_MARKER = {
    "symbol": "circle",
    "size": 10,
    "color": "@surface",
    "line": {"color": "@default", "width": 2},
}
TUNED_MARKER = {"symbol": "circle", "size": 10, "color": "@tuned"}
TRIAL_MARKER = {"symbol": "circle", "size": 7, "color": "@muted", "opacity": 0.6}
BEST_MARKER = {"symbol": "circle", "size": 11, "color": "@tuned"}
FAILED_MARKER = {"symbol": "x-thin", "size": 8, "line": {"color": "@failed", "width": 2}}


def hovers(region: Region) -> dict[str, str]:
    """By trial number, what the pointer shows over a trial in any picture."""
    return {str(trial.number): _trial_hover(region, trial) for trial in region.trials}


def _trial_hover(region: Region, trial: Trial) -> str:
    roles = {region.best_trial: " · best", region.baseline_trial: " · default settings"}
    title = f"<b>trial {trial.number}{roles.get(trial.number, '')}</b>"
    lines: list[tuple[str, str]] = []
    if trial.objective is not None:
        lines.append((region.objective.metric, number(trial.objective, 6)))
    lines += [(name, setting(value)) for name, value in trial.params.items()]
    if trial.error is not None:
        lines.append(("failed", shortened(trial.error, HOVER_LENGTH)))
    return _hover_lines(title, lines)


def _hover_lines(title: str, lines: Iterable[tuple[str, str]]) -> str:
    texts = (
        f"{plotly_text(name, HOVER_LENGTH)}  {plotly_text(value, HOVER_LENGTH)}"
        for name, value in lines
    )
    return "<br>".join([title, *texts])


def region_figures(region: Region) -> dict[str, Figure]:
    """The region's pictures by name: history, importance, slice-0, slice-1, …; those it has."""
    complete = [trial for trial in region.trials if trial.objective is not None]
    figures: dict[str, Figure] = {}
    if complete:
        figures["history"] = _history(region, complete)
    if region.importance.shares:
        figures["importance"] = _importance(region)
    for at, name in enumerate(slices(region)):
        figures[f"slice-{at}"] = _slice(region, name, complete)
    return figures


def slices(region: Region) -> list[str]:
    """The parameters drawn one by one: searched ones, most important first, up to twelve."""
    ranges = region.ranges
    drawn = {name for t in region.trials if t.objective is not None for name in t.params}
    names = [name for name, item in ranges.items() if not item.single and name in drawn]
    order = {name: at for at, name in enumerate(region.importance.shares)}
    return sorted(names, key=lambda name: (order.get(name, len(order)), name))[:MOST_SLICES]


def history_outside(region: Region) -> int:
    """How many trials lie outside the history's first view."""
    return _objective_axis(region).outside


def _history(region: Region, complete: Sequence[Trial]) -> Figure:
    axis = _objective_axis(region)
    failed = [trial for trial in region.trials if trial.state == "failed"]
    data = [_points("trial", complete, [trial.number for trial in complete], TRIAL_MARKER)]
    data.append(_best_so_far(region, complete))
    data += _default_line(region)
    if failed:
        data.append(_failed_rug(failed))
    return {
        "data": data,
        "layout": {
            "height": 320,
            "xaxis": {"title": {"text": "trial"}, "rangemode": "tozero", **_whole(region.trials)},
            "yaxis": {**axis.spec, "title": {"text": _objective_title(region)}},
            "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
            "hovermode": "closest",
        },
    }


def _whole(trials: Sequence[Trial]) -> Figure:
    """Ticks of whole trials, also where there are few."""
    return {"dtick": 1} if max((t.number for t in trials), default=0) < 10 else {"tickformat": "d"}


def _best_so_far(region: Region, complete: Sequence[Trial]) -> Figure:
    pick = max if region.objective.direction == "maximize" else min
    x, y = [], []
    best: float | None = None
    for trial in complete:
        if trial.objective is not None:
            best = trial.objective if best is None else pick(best, trial.objective)
            x.append(trial.number)
            y.append(short(best))
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(x) == 1 else "lines",
        "name": "best so far",
        "x": x,
        "y": y,
        "line": {"color": "@tuned", "width": 2, "shape": "hv"},
        "hoverinfo": "skip",
    }


def _default_line(region: Region) -> list[Figure]:
    value = short(region.objective.default)
    if value is None:
        return []
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "default settings",
            "x": [0, max(trial.number for trial in region.trials)],
            "y": [value, value],
            "line": {"color": "@default", "width": 1.5, "dash": "dash"},
            "hoverinfo": "skip",
        }
    ]


def _failed_rug(failed: Sequence[Trial]) -> Figure:
    """Failed trials have no value: they stand along the lower edge."""
    return {
        **_points("failed", failed, [trial.number for trial in failed], FAILED_MARKER),
        "y": [0.02] * len(failed),
        "yaxis": "y2",
    }


def _importance(region: Region) -> Figure:
    shares = region.importance.shares
    labels = [plotly_text(name, LABEL_LENGTH) for name in shares]
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "x": [short(share) for share in shares.values()],
                "y": list(range(len(shares))),
                "text": [f"{share:.0%}" for share in shares.values()],
                "textposition": "outside",
                "cliponaxis": False,
                "hoverinfo": "skip",
                "marker": {"color": "@tuned"},
                "width": 0.55,
            }
        ],
        "layout": {
            "height": max(160, 60 + ROW_HEIGHT * len(shares)),
            "xaxis": {
                "visible": False,
                "range": [0, 1.15 * max(shares.values())],
                "fixedrange": True,
            },
            "yaxis": {
                "tickvals": list(range(len(shares))),
                "ticktext": labels,
                "showgrid": False,
                "range": [len(shares) - 0.4, -0.6],
                "fixedrange": True,
            },
            "showlegend": False,
        },
    }


def _slice(region: Region, name: str, complete: Sequence[Trial]) -> Figure:
    range_ = region.ranges[name]
    having = [trial for trial in complete if name in trial.params]
    axis = _objective_axis(region)
    groups = [
        ("trial", [t for t in having if t.number != region.best_trial], TRIAL_MARKER),
        ("best", [t for t in having if t.number == region.best_trial], BEST_MARKER),
    ]
    return {
        "data": [
            _points(label, trials, [coordinate(t.params[name], range_) for t in trials], marker)
            for label, trials, marker in groups
            if trials
        ],
        "layout": {
            "height": 190,
            "xaxis": {
                **parameter_axis(range_),
                "title": {"text": plotly_text(name, LABEL_LENGTH)},
            },
            "yaxis": {**axis.spec, "nticks": 4},
            "hovermode": "closest",
            "showlegend": False,
        },
    }


def _points(
    name: str, trials: Sequence[Trial], x: Sequence[Any], marker: Mapping[str, Any]
) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(x),
        "y": [short(trial.objective) for trial in trials],
        "customdata": [trial.number for trial in trials],
        "hoverinfo": "text",
        "marker": dict(marker),
    }


def _objective_title(region: Region) -> str:
    return plotly_text(region.objective.metric, LABEL_LENGTH)


def _objective_axis(region: Region) -> Axis:
    """One axis for all of a region's pictures; best and default are always inside."""
    values = [trial.objective for trial in region.trials if trial.objective is not None]
    keep = [v for v in (region.objective.default, region.objective.tuned) if v is not None]
    return value_axis(values, keep)
