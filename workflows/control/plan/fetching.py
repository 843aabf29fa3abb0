"""Access to a region's data: objects in S3 become temporary local files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from trialfleet.errors import ExportError
from trialfleet.workflows.control.export.s3_client import s3_client
from trialfleet.workflows.study.spec import URL_PREFIXES

if TYPE_CHECKING:
    from trialfleet.workflows.study.sections import S3Keys


class UnreachableError(Exception):
    """An object in S3 that can't be read. The message has the reason."""


@contextmanager
def fetch(place: str, keys: S3Keys | None, folder: Path) -> Iterator[Path]:
    """Yield a local file with the content of `place`, a path or an s3:// URL.

    An object in S3 is downloaded to `folder`. The copy is deleted when the `with` block ends.
    UnreachableError if the object can't be read. OSError if `folder` can't be written.
    """
    if not place.startswith(URL_PREFIXES):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix=".fetched-", dir=folder) as beside:
        path = Path(beside) / "object"
        with _open_object(place, keys) as (client, there):
            client.download_file(**there, Filename=str(path))
        yield path


def object_identity(url: str, keys: S3Keys | None) -> dict[str, Any]:
    """Return an S3 object's `etag`, `bytes`, `modified` and, if it has one, `version`.

    UnreachableError if the object can't be read.
    """
    with _open_object(url, keys) as (client, place):
        found = client.head_object(**place)
    return {
        "etag": found["ETag"].strip('"'),
        "bytes": found["ContentLength"],
        "modified": found["LastModified"].isoformat(),
        **({"version": found["VersionId"]} if "VersionId" in found else {}),
    }


@contextmanager
def _open_object(url: str, keys: S3Keys | None) -> Iterator[tuple[Any, dict[str, str]]]:
    """Yield an S3 client and an object's bucket and key. Turn errors into UnreachableError."""
    from botocore.exceptions import BotoCoreError, ClientError

    from trialfleet.infra.fleet.aws.clients import error_code

    parts = urlsplit(url)
    try:
        place = {"Bucket": parts.netloc, "Key": unquote(parts.path.lstrip("/"))}
        yield s3_client(keys, retries=1), place
    except ClientError as error:
        why = {
            "404": "there is no such object",
            "403": "the keys in `s3:` have no permission to read it",
        }
        raise UnreachableError(why.get(error_code(error), f"S3 refuses: {error}")) from error
    except (BotoCoreError, ExportError, ValueError) as error:
        raise UnreachableError(
            f"S3 can't be reached from here, so it is unknown whether trials can read the file: "
            f"{error}"
        ) from error
