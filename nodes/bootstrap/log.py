"""Writes a bootstrap's log to the console, to a file, and to the fleet's S3 bucket."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from trialfleet.instance_aws import Aws, AwsError

FILE = "/var/log/trialfleet-bootstrap.log"  # the instance's user data also writes to this file


class Log:
    """The bootstrap's log. Each line begins with its time in UTC."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def write(self, text: str) -> None:
        """Write a line to the log's file and to the console."""
        now = datetime.now(timezone.utc)  # noqa: UP017  a node may have Python 3.10
        line = f"{now:%Y-%m-%dT%H:%M:%SZ} {text}"
        print(line, flush=True)
        with suppress(OSError):  # a full disk
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def uploading_writer(self, aws: Aws, bucket: str, key: str) -> Callable[[str], None]:
        """Return a function that logs a line, and uploads the whole log to `key` in `bucket`.

        If an upload fails, the function logs the error on this machine.
        """

        def tell(text: str) -> None:
            self.write(text)
            try:
                aws.put_object(bucket, key, self._file.read_bytes())
            except (AwsError, OSError) as error:
                self.write(f"the log can't be uploaded to the bucket: {error}")

        return tell
