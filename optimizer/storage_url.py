"""The URL of a trial database: parse it, check it, show it without secrets.

This module imports no Optuna, so that a study file with such a URL can be read fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

from sqlalchemy import make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

# Common options of a PostgreSQL connection. Another option may be the end of a password.
_OPTIONS = {
    *("application_name", "channel_binding", "client_encoding", "connect_timeout", "gssencmode"),
    *("keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval", "options"),
    *("load_balance_hosts", "require_auth", "service", "sslcert", "sslcrl", "sslkey", "sslmode"),
    *("sslrootcert", "target_session_attrs", "tcp_user_timeout", "host", "hostaddr", "port"),
}
STORAGE_FORMS = "sqlite:///PATH or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"


def sqlite_url(path: Path) -> str:
    """Return the URL of the SQLite file `path`, which may contain any characters."""
    return URL.create("sqlite", database=str(path.absolute())).render_as_string()


def parse_storage(url: str) -> URL:
    """Return the parts of a database's URL.

    Raises:
        ValueError: the URL is invalid. Except for SQLite, an '@' that may belong to a password is
            invalid, too. The message omits the URL, because the URL may contain a password.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError(f"must be the URL of a database; write {STORAGE_FORMS}") from None
    before_host = 0 if parsed.username is None else 1
    if parsed.get_backend_name() != "sqlite" and url.count("@") > before_host:
        raise ValueError(
            "may have an '@' only before the host; in a user name, a password or an option, "
            "write %40 for '@', %2F for '/' and %3A for ':'"
        )
    return parsed


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite URL without options, else None. ValueError if it is invalid."""
    parsed = parse_storage(url)
    is_file = parsed.get_backend_name() == "sqlite" and parsed.database and not parsed.query
    return Path(str(parsed.database)) if is_file else None


def redact(url: URL) -> str:
    """Return a URL without password and options, for messages."""
    return url.set(query={}).render_as_string(hide_password=True)


def url_secrets(url: URL) -> Iterator[str]:
    """Yield the secret parts of a URL, in each spelling that a database driver may print."""
    for secret in filter(None, [url.password and str(url.password), *_secret_options(url)]):
        yield from {secret, quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1]}


def _secret_options(url: URL) -> Iterator[str]:
    """Yield passwords among the URL's options, and options that may be the end of a password.

    If a password has an '&' that isn't written as %26, the text after it is read as an option.
    """
    passwords = {name for name in url.query if "pass" in name.lower()}
    for name, values in url.normalized_query.items():
        if name in passwords:
            yield from values
        elif passwords and name not in _OPTIONS:
            yield from (name, *values)
