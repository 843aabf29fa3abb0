"""The URL of a storage: read, checked, and shown without a secret.

Light to import (no Optuna), as every study file with a storage is checked here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

from sqlalchemy import make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

# Options of a PostgreSQL connection that people set; no other name is shown beside a password.
_OPTIONS = {
    *("application_name", "channel_binding", "client_encoding", "connect_timeout", "gssencmode"),
    *("keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval", "options"),
    *("load_balance_hosts", "require_auth", "service", "sslcert", "sslcrl", "sslkey", "sslmode"),
    *("sslrootcert", "target_session_attrs", "tcp_user_timeout", "host", "hostaddr", "port"),
}
STORAGE_FORMS = "sqlite:///PATH or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"


def sqlite_url(path: Path) -> str:
    """Return the storage URL of a SQLite file, whatever characters its path has."""
    return URL.create("sqlite", database=str(path.absolute())).render_as_string()


def parse_storage(url: str) -> URL:
    """Return the parts of a storage's URL.

    Raises:
        ValueError: it has none, or an end of its password would be taken for another part; the
            message repeats nothing of it.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError(f"is no URL of a database; write {STORAGE_FORMS}") from None
    inside = f"{parsed.host}{parsed.database}{parsed.query}"
    if parsed.get_backend_name() != "sqlite" and (url.count("@") > 1 or "@" in inside):
        raise ValueError(
            "has an '@' beside the one before the host; in a user's name, a password or an option "
            "write %40 for '@', %2F for '/' and %3A for ':'"
        )
    return parsed


def sqlite_file(url: str) -> Path | None:
    """Return the file of a storage that is SQLite's, with no option that opens it in another way.

    Raises:
        ValueError: as `parse_storage`.
    """
    parsed = parse_storage(url)
    is_file = parsed.get_backend_name() == "sqlite" and parsed.database and not parsed.query
    return Path(str(parsed.database)) if is_file else None


def redacted(url: URL) -> str:
    """Return a URL without password and options, for messages."""
    return url.set(query={}).render_as_string(hide_password=True)


def secrets_of(url: URL) -> Iterator[str]:
    """Yield what must not be shown of a URL, in each form that a driver might repeat."""
    for secret in filter(None, [url.password and str(url.password), *_secret_options(url)]):
        yield from {secret, quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1]}


def _secret_options(url: URL) -> Iterator[str]:
    """Yield the passwords among the options, and what may be the end of one.

    Behind an '&' that isn't written as %26 it would be taken for another option.
    """
    passwords = {name for name in url.query if "pass" in name.lower()}
    for name, values in url.normalized_query.items():
        if name in passwords:
            yield from values
        elif passwords and name not in _OPTIONS:
            yield from (name, *values)
