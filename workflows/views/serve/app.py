"""The URLs of `trialfleet serve`, and the answers to requests.

A page is a frame around a live part. Each second, the browser requests the live part, and sends the
version that the page shows. If that version is the newest, the answer is empty (status 204).
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from trialfleet.errors import InputError, TrialfleetError
from trialfleet.render import render_template
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.last_days import study_days
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.formatting import duration, local_time
from trialfleet.workflows.status.status_reader import open_run
from trialfleet.workflows.views.report import chart_data, page_tables
from trialfleet.workflows.views.report import days_matrix as by_day
from trialfleet.workflows.views.report import page_texts as report_views
from trialfleet.workflows.views.report.days_matrix import read_days
from trialfleet.workflows.views.report.page import libraries, own_script, script_json
from trialfleet.workflows.views.report.timeline import Timeline, build_timeline
from trialfleet.workflows.views.serve import region_and_trial_pages, run_page
from trialfleet.workflows.views.serve.live_runs import LiveRuns, Snapshot
from trialfleet.workflows.views.serve.live_timeline import timeline_of_run
from trialfleet.workflows.views.serve.metrics import exposition
from trialfleet.workflows.views.serve.runs import KnownRun, Runs, run_key
from trialfleet.workflows.views.serve.security import Guard
from trialfleet.workflows.views.terminal.run_list import list_runs

_ASSETS = {
    "style.css": "text/css",
    "libraries.js": "text/javascript",
    "page.js": "text/javascript",
    "theme.js": "text/javascript",
}
# The report can't request other pages. The policy for its scripts is in its own file.
_REPORT_POLICY = "sandbox allow-scripts allow-popups; frame-ancestors 'none'"
_PACKING = 4  # gzip's level
_KEPT = 64  # rendered parts
_SHOWN_RUNS = 30  # in the list of runs


class Pages:
    """The functions that answer requests for pages.

    The pages of runs and regions are rendered once for all readers. `dashboard` is the folder of
    the run that optuna-dashboard shows, or None if optuna-dashboard isn't served.
    """

    def __init__(self, runs: Runs, dashboard: Path | None = None) -> None:
        self.runs, self.live, self._dashboard = runs, LiveRuns(), dashboard
        self._lock = threading.Lock()
        self._rendered: OrderedDict[tuple[object, ...], _Rendered] = OrderedDict()

    def warm_up(self) -> None:
        """Render the first page before any request, because the first rendering is slow."""
        with suppress(TrialfleetError):  # the first request shows it
            self.newest(Request({"type": "http", "path": "/", "query_string": b"", "headers": []}))

    def newest(self, request: Request) -> Response:
        """Return the page of the newest run, or a page that says why there is no run."""
        try:
            run = self.runs.newest()
        except InputError as error:
            part = render_template("serve/nothing.html.j2", why=str(error))
            return self._answer(request, None, "trialfleet", lambda: part)
        return self._run(request, run, "/")

    def run(self, request: Request) -> Response:
        """Return the page of one run."""
        run = self.runs.find(request.path_params["run"])
        return self._run(request, run, run_page.run_path(run.key))

    def region(self, request: Request) -> Response:
        """Return the page of a region of a run."""
        run, snapshot, slug = self._find_region(request)
        return self._answer(
            request,
            ("region", run.folder.root, slug, snapshot.number, snapshot.turn),
            f"{snapshot.graph[slug].name} · {snapshot.run.status.run}",
            lambda: _region_part(snapshot, slug, run.key),
        )

    def trial(self, request: Request) -> Response:
        """Return the page of a trial, with the ends of its logs."""
        run, snapshot, slug = self._find_region(request)
        page = region_and_trial_pages.trial_page(snapshot, slug, request.path_params["node"])
        if page is None:
            return _missing("the trial does not exist")
        return self._answer(
            request,
            None,
            f"{page.node} · {snapshot.run.status.run}",
            lambda: render_template(
                "serve/trial.html.j2",
                page=page,
                run=snapshot.frozen.run,
                key=run.key,
                views=run_page,
            ),
        )

    def all(self, request: Request) -> Response:
        """Return the page with the list of the newest runs."""
        found = self.runs.all()[:_SHOWN_RUNS]
        return self._answer(
            request,
            None,
            "Runs",
            lambda: render_template(
                "serve/runs.html.j2",
                runs=list(zip(map(run_key, found), list_runs(found), strict=True)),
                views=run_page,
                duration=duration,
                local_time=local_time,
            ),
            polls=False,
        )

    def report(self, request: Request) -> Response:
        """Return a run's report file, or status 404 if there is none."""
        run = self.runs.find(request.path_params["run"])
        if not has_report(run.folder):
            return _missing("no report yet; to write one: trialfleet report")
        headers = {"Content-Security-Policy": _REPORT_POLICY, "Cache-Control": "no-store"}
        return FileResponse(run.folder.report_page, media_type="text/html", headers=headers)

    def metrics(self, request: Request) -> Response:
        """Return the metrics of runs, daily runs and nodes, for Prometheus."""
        snapshots, days = [], []
        unreadable: list[tuple[str, str]] = []  # studies, and what of them can't be read
        for study, place in self.runs.newest_of_each().items():
            try:
                snapshots.append(self.live.get_run(open_run(place)).snapshot())
            except (TrialfleetError, OSError):
                unreadable.append((study, "run"))
        for folder in self.runs.daily_folders():
            try:
                days.append(study_days(folder))
            except (TrialfleetError, OSError):
                unreadable.append((folder.root.name, "days"))
        accept, nodes = request.headers.get("accept", ""), self.live.nodes.read()
        body, kind = exposition(snapshots, filter(None, days), nodes, accept, unreadable)
        return Response(body, headers={"Content-Type": kind})

    def _run(self, request: Request, run: KnownRun, path: str) -> Response:
        snapshot = self.live.get_run(run.folder).snapshot()
        status = snapshot.run.status
        return self._answer(
            request,
            ("run", run.folder.root, path, snapshot.number, snapshot.turn),
            f"{status.study} · {status.run}",
            lambda: self._run_part(snapshot, run),
        )

    def _run_part(self, snapshot: Snapshot, run: KnownRun) -> str:
        status = snapshot.run.status
        tiles = run_page.tiles(snapshot)
        places = {region.slug: at for at, region in enumerate(status.regions)}
        now = snapshot.turn, status.ended
        note, regions_json = snapshot.kept.get("timeline", now, partial(_timeline, snapshot))
        journal = DailyFolder.for_study(status.study)
        return render_template(
            "serve/run.html.j2",
            snapshot=snapshot,
            status=status,
            tiles=tiles,
            places=places,
            timeline_note=note,
            regions_json=regions_json,
            days=snapshot.kept.get("days", now, partial(read_days, journal)),
            key=run.key,
            only=self.runs.is_single,
            has_report=has_report(run.folder),
            dashboard=self._dashboard == run.folder.root,
            details=region_and_trial_pages,
            by_day=by_day,
            views=run_page,
        )

    def _find_region(self, request: Request) -> tuple[KnownRun, Snapshot, str]:
        run = self.runs.find(request.path_params["run"])
        slug = request.path_params["region"]
        snapshot = self.live.get_run(run.folder).snapshot()
        if slug not in snapshot.graph:
            raise InputError(f"the region {slug!r} does not exist in this run")
        return run, snapshot, slug

    def _answer(
        self,
        request: Request,
        key: object,
        title: str,
        render: Callable[[], str],
        *,
        polls: bool = True,
    ) -> Response:
        """Return the page for a request, or only its live part.

        If the request has the query parameter `seen`, the browser has the page, and `seen` is the
        version of its live part. The answer is then the newest live part, or empty (status 204) if
        the browser has that version. The live part is cached under `key`, unless `key` is None.
        `polls` says whether the browser requests the live part again.
        """
        found = self._part(key, partial(_Rendered.make, request.url.path, render, polls=polls))
        seen = request.query_params.get("seen")
        if seen == found.version:
            return Response(status_code=204)
        if seen is not None:
            return HTMLResponse(found.html)
        page = render_template(
            "serve/page.html.j2", title=title, body=found.html, assets=_asset_urls()
        )
        return HTMLResponse(page)

    def _part(self, key: object, render: Callable[[], _Rendered]) -> _Rendered:
        if key is None:
            return render()
        with self._lock:  # a second request waits for the first one's rendering
            found = self._rendered.pop((key,), None) or render()
            self._rendered[(key,)] = found
            while len(self._rendered) > _KEPT:
                self._rendered.popitem(last=False)
            return found


@dataclass(frozen=True)
class _Rendered:
    html: Markup
    version: str

    @staticmethod
    def make(path: str, render: Callable[[], str], *, polls: bool) -> _Rendered:
        part = render()
        version = hashlib.sha256(part.encode()).hexdigest()[:16]
        html = render_template(
            "serve/live.html.j2",
            part=Markup(part),  # noqa: S704 - a template's, which escapes
            path=path,
            version=version if polls else "",
        )
        return _Rendered(Markup(html), version)  # noqa: S704 - likewise


def has_report(folder: RunFolder) -> bool:
    """Return whether a run has a report that is not a symbolic link."""
    return folder.report_page.is_file() and not folder.report_page.is_symlink()


def _region_part(snapshot: Snapshot, slug: str, key: str) -> str:
    page = region_and_trial_pages.region_page(snapshot, slug)
    (region,), timeline = page.report.regions, build_timeline(page.report)
    pictures = chart_data.Pictures(region)
    points = chart_data.curve_points(page.report)
    return render_template(
        "serve/region.html.j2",
        page=page,
        report=page.report,
        region=region,
        pictures=pictures,
        timeline=timeline,
        regions_json=_regions_json(timeline, [region.name]),
        region_json=script_json(chart_data.region_data(page.report, pictures, points)),
        trial_path=partial(run_page.trial_path, key, slug),
        run_path=run_page.run_path(key),
        details=region_and_trial_pages,
        local_time=local_time,
        views=report_views,
        tables=page_tables,
    )


def _timeline(snapshot: Snapshot) -> tuple[str, Markup]:
    """Return the note below a run's timeline ("" if no job has run), and the timeline's data."""
    timeline = timeline_of_run(snapshot)
    names = [region.name for region in snapshot.run.status.regions]
    note = report_views.timeline_note(timeline) if timeline.bars else ""
    return note, _regions_json(timeline, names)


def _regions_json(timeline: Timeline, names: Sequence[str]) -> Markup:
    return script_json({"names": names, "timeline": chart_data.timeline_data(timeline)})


def _missing(why: str) -> Response:
    page = render_template(
        "serve/page.html.j2",
        title="not found",
        body=Markup(render_template("serve/nothing.html.j2", why=why)),  # noqa: S704 - escaped
        assets=_asset_urls(),
    )
    return HTMLResponse(page, 404)


def application(
    pages: Pages,
    *,
    hosts: frozenset[str],
    token: str | None,
    cookie: str,
    routes: tuple[BaseRoute, ...] = (),
) -> Guard:
    """Return the web application of the pages, with its access control.

    `hosts`, `token` and `cookie` are those of `Guard`. `routes` are added to the pages' routes.
    """
    app = Starlette(
        routes=[
            Route("/", pages.newest),
            Route("/runs", pages.all),
            Route("/runs/{run}", pages.run),
            Route("/runs/{run}/report", pages.report),
            Route("/runs/{run}/regions/{region}", pages.region),
            Route("/runs/{run}/regions/{region}/trials/{node}", pages.trial),
            Route("/metrics", pages.metrics),
            Route("/assets/{name}", _respond_asset),
            *routes,
        ],
        middleware=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=_PACKING)],
        exception_handlers={
            InputError: lambda _, error: _missing(str(error)),
            TrialfleetError: lambda _, error: PlainTextResponse(f"{error}\n", 503),
        },
    )
    return Guard(app, hosts, token, cookie)


def _respond_asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _ASSETS:
        return _missing("the file does not exist")
    headers = {"Cache-Control": "private, max-age=31536000, immutable"}
    return Response(_asset_text(name), media_type=_ASSETS[name], headers=headers)


@cache
def _asset_text(name: str) -> str:
    folder = files("trialfleet.templates") / "serve"
    if name == "style.css":
        return render_template("serve/style.css.j2")
    if name == "libraries.js":
        return libraries()
    if name == "page.js":
        return own_script(folder / "live.js")
    return (folder / name).read_text(encoding="utf-8")


@cache
def _asset_urls() -> dict[str, str]:
    digests = {
        name: hashlib.sha256(_asset_text(name).encode()).hexdigest()[:12] for name in _ASSETS
    }
    return {name: f"/assets/{name}?{digest}" for name, digest in digests.items()}
