"""`trialfleet serve`: a real server, asked over HTTP as browsers, programs and attackers would."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import promql_parser
import pytest
from click.testing import CliRunner
from optuna.trial import TrialState
from ruamel.yaml import YAML

from tests.conftest import MakeRun, make_runs_in
from tests.stored_runs import StoredRun, stored, stored_trial, turns
from tests.unit.conftest import ask_no_pool
from tests.unit.serve.page_server import Server, serving
from trialfleet import InputError
from trialfleet.files import write_json
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.models.approval import note_awaiting
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.views.report.chart_data import Pictures, region_data
from trialfleet.workflows.views.report.report_reader import read_report
from trialfleet.workflows.views.serve.live_runs import ResultCache
from trialfleet.workflows.views.serve.run_page import WhyAnswers
from trialfleet.workflows.views.serve.server import open_socket
from trialfleet.workflows.views.why.answer import Answer, Blame, Kind

pytestmark = pytest.mark.slow  # each starts a server

ROOT = Path(__file__).parents[3]
_KEYS_OF_A_RULE = {"alert", "expr", "for", "labels", "annotations"}
HOSTILE = '"><script>alert(1)</script>'
BEGAN = datetime.now() - timedelta(minutes=20)


@contextmanager
def trials_of_regions(make_run: MakeRun) -> Iterator[StoredRun]:
    """Three regions, one with a hostile name and one without trials."""
    made = make_run(regions=["A", HOSTILE, "empty"], budget={"trials": 12, "lanes": 2})
    with stored(made) as opened:
        opened.fill("A", 12, BEGAN)
        opened.fill(HOSTILE, 3, BEGAN)
        yield opened


@pytest.fixture
def run(make_run: MakeRun) -> Iterator[StoredRun]:
    with trials_of_regions(make_run) as opened:
        yield opened


@pytest.fixture
def server(run: StoredRun, work: Path) -> Iterator[Server]:
    with serving(work) as started:
        yield started


@pytest.fixture(scope="module")
def lasting_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredRun]:
    """Such a run, for tests that change nothing in its folder."""
    work = tmp_path_factory.mktemp("lasting")
    with pytest.MonkeyPatch.context() as environment:
        ask_no_pool(environment, work)
        with trials_of_regions(make_runs_in(work)) as opened:
            yield opened


@pytest.fixture(scope="module")
def lasting_server(lasting_run: StoredRun) -> Iterator[Server]:
    with serving(lasting_run.run.folder.parents[1]) as started:
        yield started


def test_a_finished_trial_appears_and_an_unchanged_page_is_not_sent_again(
    run: StoredRun, server: Server, wait_for: Callable[..., None]
) -> None:
    first = server.ask("/")
    assert first.status == 200
    assert "15 of 36" in first.text
    version = server.seen()
    unchanged = server.ask(f"/?seen={version}")
    assert (unchanged.status, unchanged.text) == (204, "")
    node, start = turns(run.graph[HOSTILE], 4, BEGAN)[3]
    running = run.add(HOSTILE, stored_trial(node, start, None, state=TrialState.RUNNING))
    run.tell(running, 0.1)
    wait_for(lambda: server.ask(f"/?seen={version}").status == 200)
    changed = server.ask(f"/?seen={version}").text
    assert "16 of 36" in changed
    assert "<html" not in changed


def test_a_run_that_was_removed_and_planned_again_is_shown_as_it_is_now(
    make_run: MakeRun, work: Path, wait_for: Callable[..., None]
) -> None:
    first = make_run(regions=["before"])
    with serving(work) as server:
        assert "before" in server.ask("/").text
        shutil.rmtree(first.folder)
        make_run(regions=["after", "other"])
        wait_for(lambda: "after" in server.ask("/").text, 30)
        page = server.ask("/").text
        assert "before" not in page
        (region, *_) = re.findall(r'href="(/runs/[^"]+/regions/[^"]+)"', page)
        assert server.ask(region).status == 200


def test_the_server_answers_only_get_and_head(lasting_server: Server) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        refused = lasting_server.ask("/", method)
        assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
    head = lasting_server.ask("/", "HEAD")
    assert (head.status, head.text) == (200, "")


def test_requests_for_another_host_name_are_refused(lasting_server: Server) -> None:
    port = urlsplit(lasting_server.url).port
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "LOCALHOST."):
        assert lasting_server.ask("/", host=host).status == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "[::1", "a b"):
        assert lasting_server.ask("/", host=host).status == 421
        assert lasting_server.ask("/metrics", host=host).status == 421


def test_no_script_runs_but_the_pages_own(lasting_server: Server) -> None:
    for path in ("/", "/runs", "/nowhere", "/metrics", "/assets/page.js"):
        headers = lasting_server.ask(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
    page = lasting_server.ask("/").text
    assert not re.search(r"<script>|<style|\son\w+=|style=", page)
    outside = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert outside
    assert all(link.startswith(("/", "#", "data:,")) and link[:2] != "//" for link in outside)


def test_pictures_are_drawn_of_the_report_s_data(
    lasting_run: StoredRun, lasting_server: Server
) -> None:
    page = lasting_server.ask("/runs/r1/regions/A").text
    (data,) = re.findall(r'<div id="data-0" hidden>(.*)</div>', page)
    report = read_report(RunFolder(lasting_run.run.folder))
    expected = json.loads(json.dumps(region_data(report, Pictures(report.regions[0]), 100)))
    assert expected["curves"]
    assert json.loads(data) == expected
    (jobs,) = re.findall(r'<div id="regions-data" hidden>(.*)</div>', lasting_server.ask("/").text)
    drawn = json.loads(jobs)
    assert drawn["names"] == ["A", HOSTILE, "empty"]
    assert len(drawn["timeline"]["bars"]) == 15


def test_a_hostile_name_of_a_region_is_text(lasting_server: Server) -> None:
    slug = region_slug(HOSTILE)
    for path in ("/", f"/runs/r1/regions/{slug}", f"/runs/r1/regions/{slug}/trials/{slug}.l1.t01"):
        text = lasting_server.ask(path).text
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)" in text
    for name in (HOSTILE, "../A", "%2e%2e", "A/../A"):
        missing = lasting_server.ask(f"/runs/r1/regions/{quote(name, safe='')}")
        assert missing.status == 404
        assert "<script>alert" not in missing.text


def test_no_address_leads_to_another_file(lasting_run: StoredRun, lasting_server: Server) -> None:
    (lasting_run.run.folder.parents[1] / "secret").write_text("the secret")
    region = "/runs/r1/regions/A/trials"
    for path in (
        f"{region}/..%2f..%2f..%2f..%2fsecret", f"{region}/../../../../secret", f"{region}/%2e%2e",
        f"{region}/A.l1.t99", f"{region}/%00", "/runs/..", "/runs/%2e%2e%2fsecret/regions/A",
        "/runs/nowhere", "/assets/..%2fpage.html.j2", "/assets/../../secret", "//secret",
    ):  # fmt: skip
        answer = lasting_server.ask(path)
        assert answer.status == 404
        assert "the secret" not in answer.text


def test_the_end_of_a_log_is_shown_and_links_in_a_trials_folder_lead_nowhere(
    run: StoredRun, server: Server, work: Path
) -> None:
    trial = RunFolder(run.run.folder).region("A").trial("A.l1.t01")
    trial.root.mkdir(parents=True, exist_ok=True)
    trial.err.write_text("x" * 40_000 + "\n<b>the last word</b>\n")
    (work / "secret").write_text("the secret")
    trial.out.symlink_to(work / "secret")
    text = server.ask("/runs/r1/regions/A/trials/A.l1.t01").text
    assert "&lt;b&gt;the last word&lt;/b&gt;" in text
    assert "the secret" not in text
    assert len(text) < 40_000
    assert "7,254 earlier bytes are in" in text


def test_a_server_open_to_other_machines_requires_a_token(run: StoredRun, work: Path) -> None:
    with serving(work, "--host", "0.0.0.0") as server:  # noqa: S104 - that is what is tried
        place = urlsplit(server.url)
        token = place.query.removeprefix("token=")
        assert len(token) >= 40
        for path in ("/", "/metrics", "/runs", "/assets/page.js", "/?token=", "/?token=wrong"):
            refused = server.ask(path)
            assert refused.status == 401
            assert "demo" not in refused.text
        welcome = server.ask(f"/?{place.query}")
        assert 'http-equiv="refresh"' in welcome.text
        assert token not in welcome.text
        cookie = welcome.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert server.ask("/", cookie=cookie.split(";")[0]).status == 200
        assert server.ask("/metrics", authorization=f"Bearer {token}").status == 200
        assert server.ask("/", cookie=cookie.split("=")[0] + "=é").status == 401


def test_a_token_from_a_file_is_not_printed(run: StoredRun, work: Path) -> None:
    file = work / "token"
    file.write_text("a-token-of-one's-own\n")
    file.chmod(0o600)
    with serving(work, "--token-file", str(file)) as server:
        assert "token" not in server.url
        assert server.ask("/").status == 401
        assert server.ask("/", authorization="Bearer a-token-of-one's-own").status == 200


@pytest.mark.parametrize(
    ("mode", "content", "expected"),
    [(0o644, "long-enough-a-token", "other users can read"), (0o600, "short", "16 or more")],
)
def test_an_insecure_token_file_is_refused(
    work: Path, monkeypatch: pytest.MonkeyPatch, mode: int, content: str, expected: str
) -> None:
    monkeypatch.chdir(work)
    (work / "token").write_text(content)
    (work / "token").chmod(mode)
    refused = CliRunner().invoke(main, ["serve", "--port", "0", "--token-file", "token"])
    assert refused.exit_code == 2
    assert expected in refused.stderr


def test_a_port_in_use_is_refused_with_a_message(
    lasting_run: StoredRun, lasting_server: Server
) -> None:
    port = str(urlsplit(lasting_server.url).port)
    result = CliRunner().invoke(main, ["serve", str(lasting_run.run.folder), "--port", port])
    assert result.exit_code == 2
    assert f"port {port} of 127.0.0.1 can't be used" in result.stderr
    assert "--port 0 takes any free port" in result.stderr


def test_a_page_without_runs_says_how_to_make_one(work: Path) -> None:
    with serving(work) as server:
        page = server.ask("/")
        assert page.status == 200
        assert "trialfleet plan STUDY" in page.text
        assert server.ask("/metrics").status == 200


def test_the_models_of_a_region_and_their_cards_are_shown(
    run: StoredRun, server: Server, wait_for: Callable[..., None]
) -> None:
    study = run.run.study
    models = Path(study.publish) / study.name / "A"
    now = datetime.now(UTC).replace(microsecond=0)
    for name, hours, loss in (("r0", 30, 0.5), ("r1", 3, 0.4)):
        created = (now - timedelta(hours=hours)).isoformat()
        content = {"study": study.name, "run": name, "region": "A", "created": created}
        (models / name).mkdir(parents=True)
        write_json(models / name / "provenance.json", content)
        gate = None if name == "r0" else VERDICT
        write_json(
            models / name / "card.json", {**content, "metrics": {"loss": loss}, "gate": gate}
        )
    (models / "latest").symlink_to("r1")
    write_json(RunFolder(run.run.folder).region("A").verdict, VERDICT)
    wait_for(lambda: "model planned 3 h ago" in server.ask("/").text)
    tile = server.ask("/").text
    assert re.search(
        r'class="good">0\.1\S*</b> <span class="muted small">better than the previous model', tile
    )
    page = server.ask("/runs/r1/regions/A").text
    assert page.index("r1</bdi>") < page.index("r0</bdi>")
    assert "Current model" in page
    assert "better by 0.1" in page
    assert "waits for approval" not in page
    later = {"study": study.name, "run": "r2", "region": "A", "created": now.isoformat()}
    (models / "r2").mkdir()
    write_json(models / "r2" / "provenance.json", later)
    note_awaiting(models / "r2")
    waits = re.compile(r'r2</bdi></b>\s*<span class="chip busy"><i.*?</i>waits for approval since ')
    wait_for(lambda: waits.search(server.ask("/runs/r1/regions/A").text), 20)
    assert f"{(now - timedelta(hours=30)).isoformat()}" in page


VERDICT = {
    "schema": 1, "verdict": "promoted", "why": "better by 0.1", "metric": "loss",
    "champion": {"run": "r0", "metrics": {"loss": 0.5}},
    "challenger": {"run": "r1", "metrics": {"loss": 0.4}},
    "baseline": None, "interval": None,
}  # fmt: skip


def test_every_metric_of_the_dashboard_and_the_alerts_exists(lasting_server: Server) -> None:
    from prometheus_client.parser import text_string_to_metric_families as parsed

    scraped = lasting_server.ask("/metrics")
    assert scraped.headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in parsed(scraped.text)}
    samples = {sample.name for family in families.values() for sample in family.samples}
    declared = set(re.findall(r"^# TYPE (\S+)", scraped.text, re.M))
    dashboard = json.loads((ROOT / "docs/assets/grafana.json").read_text())
    asked = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", [])]
    rules = YAML(typ="safe").load(ROOT / "docs/assets/prometheus-alerts.yaml")["groups"][0]["rules"]
    asked += [rule["expr"] for rule in rules]
    for expression in asked:
        promql_parser.parse(expression)  # raises
    for rule in rules:
        assert {"alert", "expr", "labels", "annotations"} <= set(rule) <= _KEYS_OF_A_RULE
        assert promql_parser.parse_duration(rule.get("for", "1m"))
        assert set(re.findall(r"\$labels\.(\w+)", str(rule))) <= {"study", "region", "what"}
    used = {name for expr in asked for name in re.findall(r"trialfleet_\w+", expr)}
    assert len(used) > 8
    assert used <= declared | samples
    assert all(family.documentation for family in families.values())
    counts = {
        (sample.labels["region"], sample.labels["state"]): sample.value
        for sample in families["trialfleet_trials"].samples
    }
    assert counts["A", "complete"] == 11
    assert counts["A", "failed"] == 1
    assert counts[HOSTILE, "complete"] == 3
    states = [s for s in families["trialfleet_region_state"].samples if s.labels["region"] == "A"]
    assert sum(sample.value for sample in states) == 1


def test_a_run_and_days_that_can_not_be_read_are_a_metric(
    run: StoredRun, server: Server, work: Path
) -> None:
    assert 'what="run"' not in server.ask("/metrics").text
    RunFolder(run.run.folder).study.write_text("{")
    days = DailyFolder(work / "runs" / "other")
    days.root.mkdir()
    days.journal.write_text("no database")
    found = server.ask("/metrics").text
    assert 'trialfleet_unreadable{study="",what="run"} 1.0' in found
    assert 'trialfleet_unreadable{study="other",what="days"} 1.0' in found


def test_unreadable_trials_and_an_unreachable_queue_are_a_metric(
    run: StoredRun, server: Server, wait_for: Callable[..., None]
) -> None:
    folder = RunFolder(run.run.folder)
    folder.dag_files.submit.touch()  # no pool answers here
    folder.database.write_bytes(b"no database" * 1000)

    def away() -> list[str]:
        found = server.ask("/metrics").text
        return re.findall(r'unreadable{study="demo",what="(\w+)"} 1.0', found)

    wait_for(lambda: away() == ["queue", "trials"], 30)


def test_a_run_links_to_its_report_which_is_served_in_a_sandbox(
    run: StoredRun, server: Server, work: Path
) -> None:
    assert server.ask("/runs/r1/report").status == 404
    assert "/runs/r1/report" not in server.ask("/").text
    page = RunFolder(run.run.folder).report_page
    page.symlink_to("/etc/hostname")
    assert server.ask("/runs/r1/report").status == 404
    page.unlink()
    assert CliRunner().invoke(main, ["report", str(run.run.folder)]).exit_code == 0
    answer = server.ask("/runs/r1/report")
    assert (answer.status, answer.text) == (200, page.read_text())
    assert answer.headers["content-security-policy"].startswith("sandbox allow-scripts")
    assert "allow-same-origin" not in answer.headers["content-security-policy"]
    assert 'href="/runs/r1/report"' in server.ask("/runs/r1").text


def test_the_dashboard_can_be_read_and_none_of_its_writing_routes_answers(
    run: StoredRun, work: Path
) -> None:
    pytest.importorskip("optuna_dashboard")
    with serving(work, str(run.run.folder), "--dashboard") as server:
        assert 'href="/dashboard"' in server.ask("/").text
        page = server.ask("/dashboard")
        assert page.status == 200
        assert "<title>Optuna Dashboard</title>" in page.text
        assert "unsafe-inline'; script" not in page.headers["content-security-policy"]
        script = re.findall(r'src="(/static/[^"]+)"', page.text)
        assert server.ask(script[0]).status == 200
        studies = json.loads(server.ask("/api/studies").text)["study_summaries"]
        assert {each["study_name"] for each in studies} == {"demo/r1/A", f"demo/r1/{HOSTILE}"}
        writing = [
            ("DELETE", "/api/studies/1"),
            ("POST", "/api/studies"),
            ("PUT", "/api/studies/1/note"),
            ("POST", "/api/trials/1/tell"),
        ]
        for method, path in writing:
            assert server.ask(path, method).status == 405
        assert len(json.loads(server.ask("/api/studies").text)["study_summaries"]) == 2


def test_a_part_of_the_page_is_compressed_for_clients_that_accept_gzip(
    lasting_server: Server,
) -> None:
    place = f"{lasting_server.url.rstrip('/')}/?seen=previous"
    with urlopen(Request(place, headers={"Accept-Encoding": "gzip"})) as answer:  # noqa: S310
        assert answer.headers["Content-Encoding"] == "gzip"
        assert answer.headers["Vary"] == "Accept-Encoding"
        packed = gzip.decompress(answer.read()).decode()
    plain = lasting_server.ask("/?seen=previous")
    assert "content-encoding" not in plain.headers
    assert packed.startswith('<div id="live"')
    assert re.sub(r"seen=\w+", "", packed) == re.sub(r"seen=\w+", "", plain.text)


def test_a_value_is_computed_again_when_its_source_has_changed() -> None:
    kept, made = ResultCache(), iter(range(9))
    assert [kept.get("name", source, lambda: next(made)) for source in (1, 1, 2, 1)] == [0, 0, 1, 2]


def test_why_runs_once_per_subject_and_state_and_at_most_twice_per_page() -> None:
    asked: list[str] = []

    def why(word: str, _run: str) -> Answer:
        asked.append(word)
        if word == "gone":
            raise InputError("there is no such thing")
        return Answer(subject=word, kind=Kind.MATCH, blame=Blame.USER, why=f"why {word}")

    kept = ResultCache()
    answers = WhyAnswers(kept, "/runs/r1", why)
    found = [answers.find(word, "failed") for word in ("a", "gone", "b", "a")]
    assert [each and each.why for each in found] == ["why a", None, None, "why a"]
    answers = WhyAnswers(kept, "/runs/r1", why)
    assert answers.find("gone", "failed") is None
    assert (answers.find("b", "failed") or answers.find("a", "")) is not None
    assert answers.find("a", "held") is not None
    assert asked == ["a", "gone", "b", "a"]


def test_an_unknown_host_is_reported_with_the_choices() -> None:
    with pytest.raises(
        InputError, match=r"--host '300\.1\.2\.3': unknown address or host name .*127\.0\.0\.1"
    ):
        open_socket("300.1.2.3", 0)
