"""Checkpoints of gangs in S3, and the signed URLs with which ranks put and get them.

The keeper (`keeper.py`) assigns ranks to a gang's jobs. It reads gang-store.json and writes
gang/links.json:

gang-store.json   the S3 prefixes for the checkpoints of the present attempt, and of earlier
                  attempts that may have left some; missing if the gang sets no `checkpoints`
gang/links.json   the signed URLs for the present generation, valid for some hours

A thread of the keeper sends the requests to AWS. The keeper waits for the answer only if ranks
start from a checkpoint in S3, and for at most 10 s. A rank without URLs sends checkpoints through
the access point.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trialfleet import untrusted_files
from trialfleet.errors import ExportError
from trialfleet.nodes import CHECKPOINT
from trialfleet.nodes.gang.packages import Package, parse_package_name
from trialfleet.nodes.gang.s3_checkpoints import LINKS, MOST_OF_POINTER, parse_pointer
from trialfleet.workflows.control.export.s3_client import list_objects, s3_client
from trialfleet.workflows.facts.jobs.gang_records import checkpoint_prefixes
from trialfleet.workflows.facts.jobs.gang_roster import RUN, Roster
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.study.sections import S3Keys

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

VALID_SECONDS = 6 * 3600  # validity of a signed URL
FRESH_SECONDS = 900.0  # older URLs are signed again: keys of a role may expire within the hour
AHEAD, LEAST_AHEAD = 8, 4  # URLs for coming checkpoints; below LEAST_AHEAD, more are signed
WAIT_SECONDS = 10.0  # for S3's answer, if ranks start from a checkpoint in S3
AGAIN_SECONDS = 60.0  # pause after a failed request to AWS

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Signed:
    """The URLs that were last signed for a gang.

    `last` is the number of the last checkpoint that has a URL. `at` is the time of signing, in
    seconds of a monotonic clock.
    """

    generation: int
    last: int
    at: float


class _Location(NamedTuple):
    """The place in S3 of one attempt's checkpoints. `folder` ends in /."""

    bucket: str
    folder: str

    def key(self, name: str) -> str:
        return self.folder + name


class GangStore:
    """The checkpoints of a run's gangs in S3. If `keys` is None, boto3 finds AWS keys itself."""

    def __init__(
        self, keys: S3Keys | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keys, self._clock = keys, clock
        self._thread = ThreadPoolExecutor(1, "gang-store")
        self._clients: dict[str, Future[S3Client]] = {}  # by bucket
        self._failed: dict[str, float] = {}
        self._issued: dict[Path, _Signed] = {}
        self._ended: set[_Location] = set()

    def close(self) -> None:
        """Wait until all requests to AWS have ended."""
        self._thread.shutdown()

    def share(self, place: TrialFolder, roster: Roster, files: Iterable[str]) -> None:
        """Write signed URLs for the gang's next checkpoints, if the gang is training.

        `files` are the names of the files that the gang has sent to the access point. They show
        which checkpoint was the last. Call this before writing the roster, because agents read the
        URLs when they see a new roster.
        """
        there = _read_location(place)
        if there is None or roster.state != RUN:
            return
        packages = filter(None, map(parse_package_name, files))
        sent = [p.number for p in packages if p[:2] == (CHECKPOINT, roster.generation)]
        newest, now = max(sent, default=0), self._clock()
        issue = self._issued.get(place.root)
        if (
            issue
            and issue.generation == roster.generation
            and issue.last - newest >= LEAST_AHEAD
            and now - issue.at < FRESH_SECONDS
        ):
            return
        get = [roster.start] if roster.start and _is_pointer(place, roster.start) else []
        links = self._links(there, roster.generation, range(newest + 1, newest + 1 + AHEAD), get)
        if links is None:
            return
        untrusted_files.write_json(place.gang / LINKS, links, mode=0o600, root=place.root)
        self._issued[place.root] = _Signed(roster.generation, newest + AHEAD, now)

    def _links(
        self, location: _Location, generation: int, numbers: Iterable[int], get: Collection[str]
    ) -> dict[str, Any] | None:
        from botocore.exceptions import BotoCoreError

        bucket = location.bucket
        if (client := self._client(bucket, WAIT_SECONDS if get else 0.0)) is None:
            return None
        put = [Package(CHECKPOINT, generation, number).name for number in numbers]
        try:
            return {
                "schema": 1,
                "put": {n: _presign(client, "put_object", location, n) for n in put},
                "get": {n: _presign(client, "get_object", location, n) for n in get},
            }
        except BotoCoreError as error:  # such as expired keys that can't be renewed
            self._abandon(bucket, error)
            return None

    def remove(self, place: TrialFolder, names: Collection[str]) -> None:
        """Remove checkpoints from S3 in the background.

        Call this before deleting the local files `names`. They show which checkpoints are in S3.
        """
        there, gone = _read_location(place), [n for n in names if _is_pointer(place, n)]
        if there and gone:
            self._thread.submit(self._delete, there, gone)

    def remove_all(self, place: TrialFolder) -> None:
        """Remove the S3 objects of an attempt and of the attempts before it, in the background.

        Then remove gang-store.json.
        """
        there = _read_locations(place)
        if there and there[0] not in self._ended:
            self._ended.add(there[0])
            self._thread.submit(self._delete_all, place, there)

    def _delete_all(self, place: TrialFolder, there: list[_Location]) -> None:
        are_gone = [self._delete(each, None) for each in there]
        if all(are_gone) and _read_locations(place) == there:  # else the next attempt needs it
            place.gang_store.unlink(missing_ok=True)

    def _delete(self, location: _Location, names: Iterable[str] | None) -> bool:
        """Delete the named objects, or all if `names` is None. Return whether this succeeded."""
        try:
            asked = self._clients.get(location.bucket)
            is_known = asked is not None and asked.done() and asked.exception() is None
            client = asked.result() if asked and is_known else _client(self._keys, location.bucket)
            found = list_objects(client, *location) if names is None else []
            for key in (*(one["Key"] for one in found), *map(location.key, names or ())):
                client.delete_object(Bucket=location.bucket, Key=key)
        except Exception as error:  # noqa: BLE001 - in a thread, which would hide it
            log.warning("s3://%s/%s: can't be removed: %s", location.bucket, location.folder, error)
            return False
        return True

    def _client(self, bucket: str, patience: float) -> S3Client | None:
        """Return a client for the bucket, or None if it can't be made within `patience` seconds."""
        if self._clock() - self._failed.get(bucket, -AGAIN_SECONDS) < AGAIN_SECONDS:
            return None
        asked = self._clients.get(bucket)
        if asked is None:
            asked = self._clients[bucket] = self._thread.submit(_client, self._keys, bucket)
        if wait([asked], patience).not_done:
            return None
        if (error := asked.exception()) is None:
            return asked.result()
        self._abandon(bucket, error)
        return None

    def _abandon(self, bucket: str, error: BaseException) -> None:
        log.warning("s3://%s: %s; checkpoints are sent through the access point", bucket, error)
        self._failed[bucket] = self._clock()
        del self._clients[bucket]


def _client(keys: S3Keys | None, bucket: str) -> S3Client:
    """Return a client for the bucket's AWS region. S3 refuses URLs signed for other regions."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        found = s3_client(keys).head_bucket(Bucket=bucket)
    except (BotoCoreError, ClientError) as error:
        raise ExportError(str(error)) from error
    return s3_client(keys, found.get("BucketRegion") or "us-east-1")


def _presign(client: S3Client, what: Any, location: _Location, name: str) -> str:
    where = {"Bucket": location.bucket, "Key": location.key(name)}
    return client.generate_presigned_url(what, Params=where, ExpiresIn=VALID_SECONDS)


def _is_pointer(place: TrialFolder, name: str) -> bool:
    try:
        text = untrusted_files.read_bytes(place.gang / name, MOST_OF_POINTER, place.root)
    except OSError:
        return False
    return parse_pointer(text) is not None


def _read_locations(place: TrialFolder) -> list[_Location]:
    parts = (p.removeprefix("s3://").partition("/") for p in checkpoint_prefixes(place))
    return [_Location(bucket, f"{key}/") for bucket, _, key in parts]


def _read_location(place: TrialFolder) -> _Location | None:
    return next(iter(_read_locations(place)), None)
