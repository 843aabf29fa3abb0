"""Notifications: the channels of a study, the outbox, and delivery to real servers."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message
from aiosmtpd.smtp import AuthResult
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from tests.conftest import MakeRun
from tests.killed_child import status_at_line
from trialfleet import Run
from trialfleet.errors import StudyError
from trialfleet.files import shell_quoted
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.notify.delivery import (
    ABANDON_SECONDS,
    FIRST_PAUSE,
    deliver,
    deliver_all,
)
from trialfleet.workflows.control.notify.senders import SendError, build_message, send
from trialfleet.workflows.control.notify.slack_message import (
    SECTION,
    SECTIONS,
    slack_message,
    slack_text,
)
from trialfleet.workflows.facts.journal.event import Event, cut_at_a_line, event_id
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.outbox import Outbox, channel_key, undelivered_lines
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.formatting import local_time
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.frozen import dump_frozen, load_frozen
from trialfleet.workflows.study.loading import load_study
from trialfleet.workflows.study.notify import KINDS, Channel, Mail

pytestmark = pytest.mark.slow


SECRET = "s3cret-T0k3n"


def event(number: int = 1, **more: Any) -> Event:
    return Event(
        **{
            "id": event_id(number),
            "kind": "region-failed",
            "study": "demo",
            "run": "r1",
            "region": f"R{number}",
            "title": f"demo r1: R{number}: failed: no such column",
            "text": "1 of 4 trials completed.",
            **more,
        }
    )


def channel(**given: Any) -> Channel:
    return Channel.model_validate(given)


# -- the servers -----------------------------------------------------------------------------------


class Hook:
    """A web server that keeps what is posted to it."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.ids: list[str] = []
        self.answers: list[int] = []  # the next ones; 200 when there are no more
        self.location = ""
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                code = hook.answers.pop(0) if hook.answers else 200
                if code == 200:
                    hook.got.append(json.loads(body))
                    hook.ids.append(self.headers["Idempotency-Key"])
                self.send_response(code)
                if hook.location:
                    self.send_header("Location", hook.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook/{SECRET}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.server.shutdown()
    made.server.server_close()


class Mailbox(Message):
    """A mail server's handler that keeps the mails."""

    def __init__(self) -> None:
        super().__init__(EmailMessage)
        self.mails: list[Any] = []

    def handle_message(self, message: Any) -> None:
        self.mails.append(message)


class _Server(Controller):
    """On a port that the kernel chooses, which aiosmtpd itself doesn't know of."""

    def _trigger_server(self) -> None:
        server: Any = self.server
        self.port = server.sockets[0].getsockname()[1]
        super()._trigger_server()  # type: ignore[no-untyped-call]


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, str]]:
    """A mail server that lets anybody in, and whoever logs in by the secret."""

    def may(_server: Any, _session: Any, _envelope: Any, _mechanism: str, login: Any) -> AuthResult:
        return AuthResult(success=login.password.decode() == SECRET, handled=False)

    box = Mailbox()
    server = _Server(box, hostname="127.0.0.1", port=0, authenticator=may, auth_require_tls=False)
    server.start()
    yield box, f"127.0.0.1:{server.port}"
    server.stop()


# -- the study -------------------------------------------------------------------------------------

STUDY = """\
name: demo
regions: [A]
objective: {metric: loss, direction: minimize}
search_space: {x: {type: float, low: 0, high: 1}}
trainer: {command: [python3, -c, pass]}
notify:
"""


def write_study(folder: Path, notify: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(STUDY + notify)
    return path


def test_a_study_names_its_channels_with_absolute_paths(tmp_path: Path) -> None:
    (tmp_path / "page.sh").write_text("#!/bin/sh\n")
    (tmp_path / "page.sh").chmod(0o755)
    (tmp_path / "url").write_text("https://example.org/x\n")
    study = load_study(
        write_study(
            tmp_path,
            "  - {command: ./page.sh --now, events: region-failed}\n"
            "  - {webhook: {url_file: url, shape: slack}, events: [drift, day-done]}\n"
            "  - {mail: {to: team@example.org, server: 'localhost:2525'}}\n",
        )
    )
    command, webhook, mail = study.notify
    assert command.command == [str(tmp_path / "page.sh"), "--now"]
    assert command.wanted_kinds(is_daily=False) == ("region-failed",)
    assert webhook.webhook
    assert webhook.webhook.url_file == str(tmp_path / "url")
    assert mail.mail
    assert (mail.mail.host, mail.mail.port) == ("localhost", 2525)
    assert mail.wanted_kinds(is_daily=False) == KINDS
    assert set(KINDS) - set(mail.wanted_kinds(is_daily=True)) == {"run-done"}
    assert study.resolve(Path("/elsewhere")) == study


@pytest.mark.parametrize(
    ("notify", "wrong"),
    [
        ("  - {}\n", "notify.0: needs exactly one of command, webhook and mail"),
        ("  - {command: a, mail: {to: a@b.c}}\n", "needs exactly one of command, webhook and mail"),
        ("  - {command: no-such-program-of-ours}\n", "notify.0.command: 'no-such-program-of"),
        ("  - {webhook: {}}\n", "needs exactly one of url, url_file and url_env"),
        ("  - {webhook: {url: 'ftp://x/y'}}\n", "must be a URL such as https://example.org"),
        ("  - {webhook: {url: 'https://a:b@x/y'}}\n", "contains a password; put the URL into a"),
        ("  - {webhook: {url: 'https://hooks.slack.com/s'}}\n", "a URL of hooks.slack.com is"),
        ("  - {webhook: {url_file: nix}}\n", "nix' does not exist or can't be read"),
        ("  - {webhook: {url_env: 'a-b'}}\n", "the name of an environment variable"),
        ("  - {mail: {to: []}}\n", "must not be empty"),
        ("  - {mail: {to: 'a b@c'}}\n", "must be a mail address such as team@example.org"),
        ("  - {mail: {to: 'a@b\\nBcc: c@d'}}\n", "must be a mail address"),
        ("  - {mail: {to: a@b.c, server: 'x:99999'}}\n", "must have a port from 1 to 65535"),
        ("  - {mail: {to: a@b.c, user: me}}\n", "needs user and either password_file"),
        (
            "  - {mail: {to: a@b.c, user: me, password_env: P, server: mail.example.org}}\n",
            "'none' would send the password unencrypted",
        ),
        ("  - {command: 'true', events: [regionfailed]}\n", "region-failed"),
        ("  - {command: 'true', events: []}\n", "must not be empty"),
    ],
)
def test_a_channel_that_can_not_work_is_refused_with_its_line(
    tmp_path: Path, notify: str, wrong: str
) -> None:
    with pytest.raises(StudyError, match=r"study\.yaml:7: notify\.0") as caught:
        load_study(write_study(tmp_path, notify))
    assert wrong in str(caught.value)


def test_a_url_with_a_password_is_never_shown(tmp_path: Path) -> None:
    with pytest.raises(StudyError) as caught:
        load_study(
            write_study(tmp_path, f"  - {{webhook: {{url: 'https://me:{SECRET}@x.org'}}}}\n")
        )
    assert SECRET not in str(caught.value)


# -- the ways --------------------------------------------------------------------------------------


def test_a_webhook_gets_the_event_as_json(hook: Hook) -> None:
    send(channel(webhook={"url": hook.url}), [event()])
    assert hook.got == [event(at=Event.read(hook.got[0]).at).to_json()]
    assert hook.ids == [event().id]


def test_slack_gets_one_message_for_all_events_with_markup_escaped(hook: Hook) -> None:
    odd = event(2, title="<!channel> & co", text="```\n<http://x|y>")
    send(channel(webhook={"url": hook.url, "shape": "slack"}), [event(), odd])
    [got] = hook.got
    assert got["text"].startswith("*demo r1: R1: failed: no such column*\n```1 of 4 trials")
    assert "&lt;!channel&gt; &amp; co" in got["text"]
    assert got["text"].count("```") == 4
    many = slack_text([event(n) for n in range(60)])
    assert many.endswith("… and 35 more")


def test_an_event_with_a_value_that_json_lacks_is_not_stored(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    with pytest.raises(TypeError, match="PosixPath is not JSON serializable"):
        outbox.put(
            [event(data={"model": tmp_path})],
            [channel(webhook={"url": "http://h"})],
            is_daily=False,
        )
    assert outbox.deliveries() == []


def test_a_long_table_continues_in_slacks_next_section_after_a_complete_line(hook: Hook) -> None:
    table = [f"{n:03} & <region>  published  {n / 7:.4f} USD" for n in range(200)]
    send(
        channel(webhook={"url": hook.url, "shape": "slack"}),
        [event(text="\n".join(table), title="t")],
    )
    [got] = hook.got
    texts = sections(got)
    assert 2 < len(texts) < 8
    assert texts[0].startswith("*t*\n```000 &amp; &lt;region&gt;")
    assert [line for text in texts for line in text.split("```")[1].split("\n")] == [
        line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for line in table
    ]
    lines = got["text"].split("```")[1].split("\n")  # where blocks aren't known
    assert lines[-1] == f"… and {200 - len(lines) + 1} more lines"
    assert len(got["text"]) < 40_000


def sections(message: dict[str, Any]) -> list[str]:
    """Return the texts of a message's blocks, which are as Slack takes them."""
    blocks = message["blocks"]
    assert 0 < len(blocks) <= SECTIONS
    assert {(one["type"], one["text"]["type"]) for one in blocks} == {("section", "mrkdwn")}
    texts = [one["text"]["text"] for one in blocks]
    assert all(0 < len(text) <= SECTION for text in texts)
    assert all(text.count("```") in {0, 2} for text in texts)
    return texts


@example([("&" * 300, ["&" * 900] * 90)] * 40)
@example([("&" * 300, ["<\n" * 400] * 90)])
@given(
    st.lists(
        st.tuples(st.text(max_size=300), st.lists(st.text("<&`a\n", max_size=900), max_size=90)),
        min_size=1,
        max_size=40,
    )
)
def test_slack_accepts_every_message(told: list[tuple[str, list[str]]]) -> None:
    events = [event(n, title=title, text="\n".join(lines)) for n, (title, lines) in enumerate(told)]
    message = slack_message(events)
    assert len(message["text"]) < 40_000
    texts = sections(message)
    assert sum(text.startswith("*") for text in texts) == min(25, len(events))


def test_lines_left_out_of_a_long_text_are_counted() -> None:
    lines = [f"{n:>100}" for n in range(5_000)]
    [*_, last] = sections(slack_message([event(text="\n".join(lines))]))
    *_, shown, more = last.split("```")[1].split("\n")
    assert more == f"… and {4_999 - int(shown):,} more lines"


@pytest.mark.parametrize(("code", "is_final"), [(500, False), (404, False), (413, True)])
def test_an_http_error_is_reported_without_the_url(hook: Hook, code: int, is_final: bool) -> None:
    hook.answers = [code]
    with pytest.raises(SendError, match=f"answered {code} ") as caught:
        send(channel(webhook={"url": hook.url}), [event()])
    assert caught.value.is_final is is_final
    assert SECRET not in str(caught.value)


def test_a_redirect_is_not_followed(hook: Hook) -> None:
    hook.answers, hook.location = [302], hook.url
    with pytest.raises(SendError, match="answered 302"):
        send(channel(webhook={"url": hook.url}), [event()])
    assert hook.got == []


def test_a_secret_url_is_read_at_each_send_and_errors_name_its_source(
    hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "url"
    by_file = channel(webhook={"url_file": str(file)})
    with pytest.raises(SendError, match="url can't be read: No such file"):
        send(by_file, [event()])
    file.write_text("nonsense\n")
    with pytest.raises(SendError, match="must be a URL such as"):
        send(by_file, [event()])
    file.write_text(f"\n{hook.url}\n# ours\n")
    send(by_file, [event()])
    by_variable = channel(webhook={"url_env": "HOOK_OF_OURS"})
    with pytest.raises(SendError, match="the environment variable HOOK_OF_OURS is empty"):
        send(by_variable, [event()])
    monkeypatch.setenv("HOOK_OF_OURS", hook.url)
    send(by_variable, [event()])
    assert len(hook.got) == 2


def test_an_unreachable_server_is_an_error_without_the_url() -> None:
    gone = channel(webhook={"url": f"http://127.0.0.1:9/{SECRET}"})
    with pytest.raises(SendError, match=r"can't be reached: .*refused") as caught:
        send(gone, [event()])
    assert SECRET not in str(caught.value)


def test_windows_line_ends_do_not_count_when_a_text_is_cut() -> None:
    text = "\r\n".join(["x" * 20] * 100)  # too long with the line ends of Windows, else not
    assert cut_at_a_line(text, len(text) - 50) == text.replace("\r\n", "\n")
    cut = cut_at_a_line(text, 500)
    assert len(cut) <= 500
    assert cut.splitlines()[-1] == f"… and {100 - len(cut.splitlines()) + 1} more lines"


def test_a_mail_holds_all_events_of_a_kind(mailbox: tuple[Mailbox, str]) -> None:
    box, server = mailbox
    to = ["team@example.org", "boss@example.org"]
    both = [event(), event(2, text="São Paulo: 3 €")]
    send(channel(mail={"to": to, "sender": "fleet@example.org", "server": server}), both)
    [mail] = box.mails
    assert mail["Subject"] == "[trialfleet] demo r1: R1: failed: no such column (and 1 more)"
    assert (mail["From"], mail["To"]) == ("fleet@example.org", ", ".join(to))
    assert "São Paulo: 3 €" in mail.get_payload(decode=True).decode()


def test_a_mail_is_sent_only_with_the_right_password(
    mailbox: tuple[Mailbox, str], tmp_path: Path
) -> None:
    box, server = mailbox
    file = tmp_path / "password"
    login = {"to": "a@b.c", "server": server, "user": "me", "password_file": str(file)}
    file.write_text("wrong\n")
    with pytest.raises(SendError, match=r"the server refuses the login of me$"):
        send(channel(mail=login), [event()])
    file.write_text(SECRET)
    send(channel(mail=login), [event()])
    assert len(box.mails) == 1


def test_the_same_events_have_the_same_message_id() -> None:
    mail = Mail.model_validate({"to": "a@b.c"})
    ids = [
        build_message(mail, events)["Message-ID"]
        for events in ([event()], [event()], [event(2)], [event(), event(2)])
    ]
    assert ids[0] == ids[1] == f"<{event().id}@trialfleet>"
    assert len(set(ids)) == 3


@given(st.text(max_size=300))
def test_no_title_adds_a_header_to_a_mail(title: str) -> None:
    mail = Mail.model_validate({"to": "a@b.c"})
    message = build_message(mail, [event(title=title, text=title)])
    head = message.as_bytes().partition(b"\n\n")[0]
    names = [line.split(b":")[0] for line in head.splitlines() if line[:1] not in b" \t"]
    assert sorted(set(names)) == sorted(set(names) & {n.encode() for n in message})


def test_an_unreachable_mail_server_is_an_error() -> None:
    with pytest.raises(SendError, match=r"127\.0\.0\.1:9 can't be reached"):
        send(channel(mail={"to": "a@b.c", "server": "127.0.0.1:9"}), [event()])


def test_a_command_reads_the_event(tmp_path: Path) -> None:
    program = tmp_path / "page.sh"
    program.write_text('#!/bin/sh\ncat > "$1"\necho "$TRIALFLEET_EVENT $TRIALFLEET_REGION" >> "$1"')
    program.chmod(0o755)
    heard = tmp_path / "it's here"
    send(channel(command=[str(program), str(heard)]), [event()])
    content, words = heard.read_text().rsplit("}", 1)
    assert json.loads(content + "}")["id"] == event().id
    assert words == "region-failed R1\n"


@pytest.mark.parametrize(
    ("script", "wrong"),
    [
        ("echo no pager >&2; exit 3", "ended with exit code 3: no pager"),
        ("exit 1", "without output"),
    ],
)
def test_a_command_that_fails_is_an_error(script: str, wrong: str) -> None:
    with pytest.raises(SendError, match=wrong):
        send(channel(command=["sh", "-c", script]), [event()])


# -- the outbox ------------------------------------------------------------------------------------


class Time:
    """A clock that is set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_an_event_goes_once_to_each_channel_that_wants_it(tmp_path: Path, hook: Hook) -> None:
    wants = channel(webhook={"url": hook.url}, events=["region-failed"])
    other = channel(command=["false"], events=["drift"])
    outbox = Outbox(tmp_path)
    for _ in range(3):
        outbox.put([event(), event(2)], [wants, other], is_daily=False)
        assert deliver(outbox, [wants, other]) == 0
    assert [got["region"] for got in hook.got] == ["R1", "R2"]
    assert [one.state for one in outbox.deliveries()] == ["sent", "sent"]
    assert undelivered_lines(tmp_path) == ()


def test_an_event_that_another_manager_sent_is_not_sent_here(tmp_path: Path) -> None:
    outbox, failing = Outbox(tmp_path), channel(command=["false"])
    waits, sent = event(), event(2)
    outbox.put([waits, sent], [failing], is_daily=False)
    deliver(outbox, [failing])
    outbox.skip([sent.id])
    assert [one.event.id for one in outbox.waiting_deliveries()] == [waits.id]
    [line] = undelivered_lines(tmp_path)
    assert "(1 waiting, retried at " in line
    outbox.skip([waits.id])
    assert undelivered_lines(tmp_path) == ()


def test_an_undelivered_event_is_retried_less_and_less_often(tmp_path: Path, hook: Hook) -> None:
    hook.answers = [503] * 5
    to_hook, clock, outbox = channel(webhook={"url": hook.url}), Time(), Outbox(tmp_path)
    outbox.put([event()], [to_hook], is_daily=False)
    tries = []
    while deliver(outbox, [to_hook], clock):
        [one] = outbox.waiting_deliveries()
        tries.append(one.due - clock.now)
        [line] = undelivered_lines(tmp_path)
        again = f"retried at {local_time(datetime.fromtimestamp(one.due, UTC))}"
        failed = "alerts by webhook 127.0.0.1: answered 503 Service Unavailable"
        assert line == f"{failed} (1 waiting, {again})"
        left = len(hook.answers)
        clock.now = one.due - 0.1
        deliver(outbox, [to_hook], clock)
        assert len(hook.answers) == left  # not before its time
        clock.now = one.due
    assert tries == [FIRST_PAUSE * 2**n for n in range(5)]
    assert hook.ids == [event().id]


def test_a_channel_that_never_works_is_abandoned_and_reported(tmp_path: Path) -> None:
    broken, clock, outbox = channel(command=["false"]), Time(), Outbox(tmp_path)
    outbox.put([event()], [broken], is_daily=False)
    while deliver(outbox, [broken], clock):
        clock.now = outbox.waiting_deliveries()[0].due
    assert clock.now - 1000.0 > ABANDON_SECONDS
    [line] = undelivered_lines(tmp_path)
    assert line.endswith("ended with exit code 1: without output (abandoned)")
    assert outbox.sent_events() == [], "after a takeover, the other manager tries"


def test_an_event_is_left_to_the_process_that_has_the_secret(
    tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOOK", raising=False)
    secret = channel(webhook={"url_env": "HOOK"})
    heard = channel(command=["sh", "-c", f"cat > '{tmp_path}/heard'"])
    outbox = Outbox(tmp_path)
    outbox.put([event()], [secret, heard], is_daily=False)
    deliver_all(outbox, lambda: [secret, heard])
    assert [(one.channel, one.error) for one in outbox.waiting_deliveries()] == [
        (channel_key(secret), None)
    ]
    assert (tmp_path / "heard").exists()
    monkeypatch.setenv("HOOK", hook.url)
    deliver_all(outbox, lambda: [secret, heard])
    assert hook.ids == [event().id]


def test_events_that_come_while_another_process_sends_are_sent(tmp_path: Path, hook: Hook) -> None:
    """Without this, a process that found the outbox locked would leave its events unsent."""
    to_hook, outbox = channel(webhook={"url": hook.url}), Outbox(tmp_path)
    outbox.put([event()], [to_hook], is_daily=False)
    with outbox.hold_lock(wait=False) as ours:
        assert ours
        other = threading.Thread(target=deliver_all, args=(outbox, lambda: [to_hook]), daemon=True)
        other.start()
        other.join(0.3)
        assert other.is_alive()
        assert hook.ids == []
    other.join(30)
    assert hook.ids == [event().id]


def test_a_broken_channel_is_tried_once_for_all_waiting_events(tmp_path: Path) -> None:
    count = tmp_path / "count"
    broken = channel(command=["sh", "-c", f"echo >> '{count}'; exit 1"])
    outbox = Outbox(tmp_path / "box")
    outbox.put([event(n) for n in range(20)], [broken], is_daily=False)
    assert deliver(outbox, [broken]) == 20
    assert count.read_text() == "\n"


def test_a_removed_channel_gets_no_events(tmp_path: Path, hook: Hook) -> None:
    outbox = Outbox(tmp_path)
    outbox.put([event()], [channel(webhook={"url": hook.url})], is_daily=False)
    assert deliver(outbox, []) == 0
    assert hook.got == []


@pytest.mark.slow
def test_each_event_arrives_once_or_twice_if_the_sender_is_killed(tmp_path: Path) -> None:
    """Every line would be some 400 processes; every seventh, which no pattern of the code has."""
    ids = {event(1).id, event(2).id}
    for kill_at in itertools.count(1, 7):
        box, heard = Outbox(tmp_path / f"box{kill_at}"), tmp_path / f"heard{kill_at}"
        to = [channel(command=["sh", "-c", f"echo $TRIALFLEET_EVENT_ID >> '{heard}'"])]

        def tell(box: Outbox = box, to: Sequence[Channel] = to) -> None:
            box.put([event(1), event(2)], to, is_daily=False)
            deliver(box, to)

        died = status_at_line(tell, kill_at, "workflows/control/notify")
        assert status_at_line(tell, 0, "workflows/control/notify") == 0
        got = heard.read_text().split()
        assert set(got) == ids, kill_at
        assert len(got) <= 3, kill_at  # one at most was sent and not noted
        if died == 0:
            break
        assert os.WTERMSIG(died) == signal.SIGKILL
    assert kill_at > 50, "the others were killed"


# -- the commands ----------------------------------------------------------------------------------


def test_notify_test_sends_to_every_channel_and_shows_which_work(
    tmp_path: Path, hook: Hook
) -> None:
    (tmp_path / "url").write_text(hook.url)
    path = write_study(tmp_path, "  - {webhook: {url_file: url}}\n  - {command: 'false'}\n")
    done = CliRunner().invoke(main, ["notify", "test", str(path)])
    assert done.exit_code == 1
    first, second = done.output.splitlines()
    assert first.endswith("url: sent")
    assert second == "command false: 'false' ended with exit code 1: without output"
    assert hook.got[0]["event"] == "test"
    assert hook.got[0]["test"] is True
    assert hook.got[0]["title"].startswith("test:")
    assert hook.got[0]["text"].startswith("test:")
    assert SECRET not in done.output


def test_notify_test_refuses_a_study_without_channels(tmp_path: Path) -> None:
    path = write_study(tmp_path, "  []\n")
    done = CliRunner().invoke(main, ["notify", "test", str(path)])
    assert done.exit_code == 2
    assert "the study has no `notify:` list" in done.output


def test_notify_test_sends_to_channels_of_any_kind_of_event(tmp_path: Path, hook: Hook) -> None:
    (tmp_path / "url").write_text(hook.url)
    wanted = "  - {webhook: {url_file: url, shape: slack}, events: drift}\n"
    path = write_study(tmp_path, wanted)
    assert CliRunner().invoke(main, ["notify", "test", str(path)]).exit_code == 0
    assert hook.got[0]["text"].startswith("*test:")
    assert event().to_json()["test"] is False


def test_notify_list_shows_the_events_of_one_run_or_of_all(
    make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    run = make_run(name="demo", run="r1", out=work / "runs" / "demo" / "r1")
    for words in ([], ["r1"], ["runs/demo/r1"], [str(run.folder)]):
        done = CliRunner().invoke(main, ["notify", "list", *words])
        assert done.exit_code == 0, done.exception
        assert "no events yet in" in done.output
    outbox = Outbox(RunFolder(run.folder).alerts)
    outbox.put([event()], [channel(command=["true"])], is_daily=False)
    [listed] = json.loads(CliRunner().invoke(main, ["notify", "list", "--json"]).output)
    assert listed["event"]["region"] == "R1"
    days = Outbox(DailyFolder.for_study("demo").alerts)
    days.put([event(2)], [channel(command=["true"])], is_daily=True)
    both = json.loads(CliRunner().invoke(main, ["notify", "list", "--json"]).output)
    assert sorted(one["event"]["region"] for one in both) == ["R1", "R2"]
    [own] = json.loads(CliRunner().invoke(main, ["notify", "list", "r1", "--json"]).output)
    assert own["event"]["region"] == "R1"


def test_the_status_of_a_days_run_shows_alerts_that_were_not_delivered(
    make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    made = make_run(name="demo", run="r1", out=work / "runs" / "demo" / "r1")
    frozen = load_frozen(RunFolder(made.folder).study)
    broken, outbox = channel(command=["false"]), Outbox(DailyFolder.for_study("demo").alerts)
    outbox.put([event()], [broken], is_daily=True)
    deliver(outbox, [broken])
    assert not any("alerts by" in line for line in made.status().troubles), "it is no day's run"
    day = RunsDay(date=datetime.now(UTC).date())
    text = dump_frozen(frozen.model_copy(update={"day": day}))
    RunFolder(made.folder).study.write_text(text)
    [line] = [line for line in Run(made.folder).status().troubles if "alerts by" in line]
    assert line.startswith("alerts by command false: 'false' ended with exit code 1")


def test_a_program_without_permission_is_distinguished_from_a_missing_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "page.sh").write_text("#!/bin/sh\n")
    path = write_study(tmp_path, "  - {command: [./page.sh]}\n")
    with pytest.raises(
        StudyError, match=r"the file exists without execute permission; chmod \+x .*page\.sh"
    ) as caught:
        load_study(path)
    assert shell_quoted(tmp_path / "page.sh") in str(caught.value)
    (tmp_path / "page.sh").unlink()
    with pytest.raises(StudyError, match="is not an executable program") as caught:
        load_study(path)
    assert "chmod" not in str(caught.value)


def test_no_secret_is_in_a_runs_files(tmp_path: Path, hook: Hook) -> None:
    from datetime import UTC, datetime

    from trialfleet.workflows.study.frozen import FrozenStudy

    (tmp_path / "url").write_text(hook.url)
    study = load_study(write_study(tmp_path, "  - {webhook: {url_file: url}}\n"))
    frozen = FrozenStudy(run="r", folder=str(tmp_path), created=datetime.now(UTC), study=study)
    outbox = Outbox(tmp_path / "box")
    outbox.put([event()], study.notify, is_daily=False)
    deliver(outbox, study.notify)
    kept = dump_frozen(frozen).encode() + (tmp_path / "box" / "outbox.db").read_bytes()
    assert SECRET.encode() not in kept
    assert os.fsencode(tmp_path / "url") in kept
