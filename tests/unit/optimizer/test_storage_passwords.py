"""No part of a storage's password is in any message, log, report or traceback."""

from __future__ import annotations

import io
import json
import logging
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.study.study_texts import MINIMAL, write
from trialfleet.errors import OptimizerError, TrialfleetError, escape_control
from trialfleet.optimizer.storage import open_storage, open_to_read
from trialfleet.optimizer.stored_trials import reader_of_url
from trialfleet.workflows.study.frozen import FrozenStudy, load_frozen
from trialfleet.workflows.study.loading import load_study

# Cyrillic letters, which occur nowhere else here: any of them in a text is a leak.
LETTERS = "ЖЩЪЭЮ"
MARKS = "{}@/:%?#&=+ '\"\\\n\0$[]0aX"
PASSWORDS = st.text(st.sampled_from(LETTERS + MARKS), max_size=12).map(
    lambda text: LETTERS[0] + text + LETTERS[1]
)
HOSTS = ["127.0.0.1:1", "[::1]:1", "nowhere.invalid", "127.0.0.1:port", ""]
ENDS = ["/d", "/d?sslmode=nonsense", "/d?nix=1", "", "/{d}"]


def require_no_password(*texts: str) -> None:
    for text in texts:
        for letter in LETTERS:
            for form in (letter, quote(letter), quote(letter).lower(), ascii(letter)[1:-1]):
                assert form not in text, text


def output_of(call: Callable[[], object]) -> str:
    """Return the output and log of a program that doesn't handle the error of `call`."""
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger("test").addHandler(handler)
    try:
        call()
    except TrialfleetError as error:
        logging.getLogger("test").exception("it failed")
        return f"{error}{error!r}{traceback.format_exc()}{log.getvalue()}"
    finally:
        logging.getLogger("test").removeHandler(handler)
    return ""


@pytest.mark.slow
@settings(max_examples=150)
@given(
    password=PASSWORDS,
    encoded=st.booleans(),
    host=st.sampled_from(HOSTS),
    end=st.sampled_from(ENDS),
    in_query=st.booleans(),
)
@example(password="Ж{x}Щ", encoded=False, host=HOSTS[0], end="/d", in_query=False)
@example(password="Ж@Щ", encoded=False, host=HOSTS[0], end="/d", in_query=False)
@example(password="Ж@Щ:Э", encoded=False, host=HOSTS[0], end="/d", in_query=False)
@example(password="Ж\0Щ", encoded=True, host=HOSTS[0], end="/d", in_query=False)
@example(password="Ж\nЩ", encoded=True, host=HOSTS[0], end="/d?nix=1", in_query=True)
@example(password="Ж&Щ=Э", encoded=False, host=HOSTS[0], end="/d", in_query=True)
def test_no_error_of_a_storage_shows_its_password(
    tmp_path_factory: pytest.TempPathFactory,
    password: str,
    encoded: bool,
    host: str,
    end: str,
    in_query: bool,
) -> None:
    secret = quote(password, safe="") if encoded else password
    query = f"{'&' if '?' in end else '?'}password={secret}" if in_query else ""
    url = f"postgresql+psycopg://u:{secret}@{host}{end}{query}"
    folder = tmp_path_factory.mktemp("study")
    (folder / "go.sh").touch()
    given_text = url.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    path = write(folder, MINIMAL + f'storage: "{given_text}"\n'.replace("\0", "\\0"))
    require_no_password(output_of(lambda: load_study(path)))
    require_no_password(output_of(lambda: open_storage(url)))
    require_no_password(output_of(lambda: open_to_read(url)))


@pytest.mark.slow
@settings(max_examples=25)
@given(password=PASSWORDS)
def test_a_study_and_its_frozen_form_show_no_password(
    tmp_path_factory: pytest.TempPathFactory, password: str
) -> None:
    folder = tmp_path_factory.mktemp("study")
    (folder / "go.sh").touch()
    url = f"postgresql+psycopg://u:{quote(password, safe='')}@h/d"
    study = load_study(write(folder, MINIMAL + f"storage: {url}\n"))
    assert study.storage == url
    frozen = FrozenStudy(run="r1", folder=str(folder), created=datetime.now(UTC), study=study)
    require_no_password(repr(study), str(study), repr(frozen), str(frozen))
    changed = folder / "frozen.json"
    content = {"run": 1, "folder": str(folder), "study": {"storage": url, "nix": url}}
    changed.write_text(json.dumps(content))
    require_no_password(output_of(lambda: load_frozen(changed)))


@pytest.mark.parametrize(
    "text",
    [
        "x86_mysql://u:geheim@h/d64",
        "16Gmysql://u:geheim@h/dB",
        "10mysql://u:geheim@h/d.0.0.1:9618",
        "po//u:a@geheim@h16GB",
        "//u:geheim@h",
    ],
)
def test_a_url_within_a_text_shows_no_password(text: str) -> None:
    assert "geheim" not in escape_control(f"must be text (got {text!r})")


@pytest.mark.parametrize("text", ["s3://b/a@b:c", "/a//b@c", "http://h/p", "a:b@c", "//b/c:d"])
def test_a_text_without_a_password_is_shown(text: str) -> None:
    assert escape_control(text) == text


def test_an_unreachable_storage_is_named_with_the_reason() -> None:
    url = "postgresql+psycopg://me:geh{ei}m@127.0.0.1:1/db?sslmode=prefer&password=geheim"
    for call in (
        lambda: open_storage(url),
        lambda: reader_of_url(url).read_all(["A"])["A"],
    ):
        with pytest.raises(OptimizerError) as caught:
            call()
        assert str(caught.value).startswith(
            "storage postgresql+psycopg://me:***@127.0.0.1:1/db can't be used: "
        )
        assert "refused" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a b", "a?b#c%20d", "{x}'\"", "é\n"])
def test_a_reader_finds_a_storage_at_any_path(tmp_path: Path, name: str) -> None:
    from trialfleet.optimizer.storage_url import sqlite_url

    url = sqlite_url(tmp_path / f"{name}.db")
    assert reader_of_url(url).read_all(["A"])["A"] == []
    assert list(tmp_path.iterdir()) == []
    open_storage(url)
    assert reader_of_url(url).read_all(["A"])["A"] == []
