"""The node's log: on the console, in a file, and in the fleet's bucket for those who wait."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from trialfleet.instance_aws import Aws, AwsError

FILE = "/var/log/trialfleet-bootstrap.log"  # the user data writes its lines here, too


class Log:
    """Takes lines; each has its time."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def say(self, text: str) -> None:
        """Write a line to the log and, by standard output, to the console."""
        now = datetime.now(timezone.utc)  # noqa: UP017  a node may have Python 3.10
        line = f"{now:%Y-%m-%dT%H:%M:%SZ} {text}"
        print(line, flush=True)
        with suppress(OSError):  # a full disk
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def telling(self, aws: Aws, bucket: str, key: str) -> Callable[[str], None]:
        """Return what says a line and puts the log into the bucket, for those who wait.

        That the log can't be had there stops nobody.
        """

        def tell(text: str) -> None:
            self.say(text)
            try:
                aws.put_object(bucket, key, self._file.read_bytes())
            except (AwsError, OSError) as error:
                self.say(f"the log isn't in the bucket: {error}")

        return tell
