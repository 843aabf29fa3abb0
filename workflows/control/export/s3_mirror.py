"""The copy of a study's publish folder in S3, to which two managers may publish.

PREFIX/STUDY/REGION/RUN-ID/…       a model's files, each put once
PREFIX/STUDY/REGION/RUN-ID.json    the model's manifest, put last: a model with it is complete
PREFIX/STUDY/REGION/RUN-ID.removed shows that the model is being removed
PREFIX/STUDY/REGION/latest.json    the pointer to the current model

The pointer always names a complete model. If two processes replace the pointer at once, S3 refuses
the second request. The second process then reads the pointer again. A model's provenance.json is
put first, and only if S3 has none yet. So two managers never mix the files of runs with the same
id. If an export is killed, the next export completes the work without sending files again.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialfleet.errors import ExportError
from trialfleet.files import object_or_empty, sync_tree
from trialfleet.infra.fleet.aws.clients import DENIED, error_code, error_message, permission
from trialfleet.workflows.checksums import compute_sha256
from trialfleet.workflows.control.export.published_models import OLDEST, Published
from trialfleet.workflows.control.export.s3_client import list_objects
from trialfleet.workflows.control.models.retention import models_to_keep, models_to_remove
from trialfleet.workflows.facts.models.folders import PROVENANCE, model_time
from trialfleet.workflows.facts.models.history import BY_A_PERSON
from trialfleet.workflows.formatting import in_one_line
from trialfleet.workflows.study.export import Keep

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

POINTER = "latest.json"
_MANIFEST, _REMOVED = ".json", ".removed"
_TAKEN = {"PreconditionFailed", "ConditionalRequestConflict"}
_ABSENT = {"NoSuchKey", "404"}
_OF_ONE = {"KeyTooLongError"}  # refusals that don't concern other regions
_NO_KEYS = (
    "there are no AWS credentials here: set up ~/.aws, a role of this machine, or the files that "
    "the study's `s3:` names"
)
_ROUNDS = 5  # attempts to replace a pointer that other writers replace at the same time
_MOST_SHOWN = 300  # characters of AWS's reason

Pointer = dict[str, Any]


class S3Mirror:
    """The copy of a publish folder under `url`, s3://BUCKET/PREFIX.

    `client` needs the rights to list the bucket, and to get, put and delete objects. The methods
    raise ExportError if S3 refuses or is unreachable.
    """

    def __init__(self, client: S3Client, url: str) -> None:
        self._client = client
        self._bucket, _, prefix = url.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix.rstrip('/')}/" if prefix else ""
        self.title = url.rstrip("/")

    def check(self) -> None:
        """Test the access with a request, which shows a problem even if nothing needs an export."""
        self._list_objects(self._prefix, delimiter="/")

    def export(self, published: Published, keep: Keep | None) -> list[str]:
        """Update a region's models in S3, and return a line for each change.

        Models that exist only in S3 are removed if they exceed the limits of `keep`.
        """
        root = f"{self._prefix}{published.study}/{published.region}/"
        names = {key.removeprefix(root) for key in self._list_objects(root, delimiter="/")} - {
            POINTER
        }
        for name in names:
            if name.endswith(_REMOVED):  # a removal was interrupted
                self._remove(root, name.removesuffix(_REMOVED))
        whole = {name.removesuffix(_MANIFEST) for name in names if name.endswith(_MANIFEST)}
        whole -= {name.removesuffix(_REMOVED) for name in names}
        lines = []
        for run, model in published.models.items():
            if run not in whole and self._upload(root, model):
                lines.append(f"{run}: copied")
        lines += self._update_pointer(root, published)
        if keep:
            others = whole - set(published.models)
            lines += self._remove_superfluous(root, published, keep, others)
        return lines

    # -- copying from S3 -----------------------------------------------------------------------

    def read_pointer(self, region: str) -> Pointer:
        """Return S3's pointer to the current model of `region` (STUDY/REGION), or {}."""
        return _parse_pointer(self._get(f"{self._prefix}{region}/{POINTER}")[0])

    def has(self, region: str, run: str) -> bool:
        """Return whether S3 has a complete model of `region` (STUDY/REGION) from `run`."""
        root = f"{self._prefix}{region}/{run}"
        names = {key.removeprefix(root) for key in self._list_objects(f"{root}.")}
        return _MANIFEST in names and _REMOVED not in names

    def fetch(self, region: str, run: str, folder: Path) -> None:
        """Copy a complete model of `region` (STUDY/REGION) from S3 into a new folder.

        Raises:
            ExportError: the model is incomplete, a file differs from the model's manifest, or S3
                refuses or is unreachable.
        """
        root = f"{self._prefix}{region}/{run}"
        manifest = _parse_pointer(self._get(f"{root}{_MANIFEST}")[0])
        folder.mkdir(parents=True)
        for entry in manifest.get("files", []):
            path = folder / entry["name"]
            if not path.resolve().is_relative_to(folder.resolve()):
                raise ExportError(
                    f"{self.title}: {root}{_MANIFEST} lists the file {entry['name']!r}, "
                    "which is outside the model's folder"
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._asking(f"reading {root}/{entry['name']}"):
                self._client.download_file(self._bucket, f"{root}/{entry['name']}", str(path))
            if compute_sha256(path) != entry["sha256"]:
                raise ExportError(
                    f"{self.title}: {root}/{entry['name']} has changed since it was copied to S3: "
                    "its checksum differs from the one in the model's manifest"
                )
        if not (folder / PROVENANCE).exists():
            raise ExportError(f"{self.title}: {root} is not a complete model")
        sync_tree(folder)

    def remove_part(self, region: str, run: str) -> None:
        """Remove the files of an incompletely copied model from S3, if there are any.

        Call this only for a model for which `has` returns False.
        """
        root = f"{self._prefix}{region}/"
        if self._list_objects(f"{root}{run}/"):
            self._remove(root, run)

    # -- models --------------------------------------------------------------------------------

    def _upload(self, root: str, model: Path) -> bool:
        """Copy a model to S3. Return False if the local model was removed meanwhile."""
        folder, as_of = f"{root}{model.name}/", model_time(model)
        try:
            self._claim(folder, model)
            there = self._list_objects(folder)
            manifest = []
            for path in sorted(path for path in model.rglob("*") if path.is_file()):
                name = _name(path, model)
                size = path.stat().st_size
                if there.get(folder + name) != size:
                    self._send(path, folder + name)
                manifest.append({"name": name, "bytes": size, "sha256": compute_sha256(path)})
        except FileNotFoundError:
            if model.exists():
                raise
            return False  # `keep` has just removed it
        record = {"schema": 1, "run": model.name, "as_of": _text(as_of), "files": manifest}
        self._put_bytes(f"{root}{model.name}{_MANIFEST}", _bytes(record))
        return True

    def _claim(self, folder: str, model: Path) -> None:
        own = (model / PROVENANCE).read_bytes()
        key = folder + PROVENANCE
        if self._put_bytes(key, own, IfNoneMatch="*") or self._get(key)[0] == own:
            return
        raise ExportError(
            f"s3://{self._bucket}/{folder} has the model of a different run with the same id, "
            f"{model.name!r}: two managers publish there; give one of them another prefix"
        )

    def _send(self, path: Path, key: str) -> None:
        from boto3.exceptions import S3UploadFailedError

        try:
            with self._asking(f"copying {path.name}"):
                self._client.upload_file(str(path), self._bucket, key)
        except S3UploadFailedError as error:
            reason = in_one_line(str(error), _MOST_SHOWN)
            raise ExportError(f"{self.title}: {reason}", is_of_all=True) from error

    # -- the pointer ---------------------------------------------------------------------------

    def _update_pointer(self, root: str, published: Published) -> list[str]:
        """Make S3's pointer name the current model, unless another manager's pointer must stay."""
        champion, change = published.champion, published.change
        if champion is None or change is None:
            return []
        ours: Pointer = {
            "schema": 1,
            "run": champion.name,
            "model": f"s3://{self._bucket}/{root}{champion.name}/",
            "as_of": _text(model_time(champion)),
            "by": change.by,
            "switched": change.time,
            "writer": f"{socket.gethostname()}:{published.folder.resolve()}",
        }
        for _ in range(_ROUNDS):
            content, etag = self._get(root + POINTER)
            theirs = _parse_pointer(content)
            if theirs == ours:
                return []
            self._claim(f"{root}{champion.name}/", champion)  # error if it is another manager's
            if theirs and not replaces(ours, theirs):
                run, writer = theirs.get("run"), theirs.get("writer")
                stays = f"{POINTER} stays with {run}, which {writer} switched to"
                return [] if run == ours["run"] else [stays]
            condition = {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}
            if self._put_bytes(root + POINTER, _bytes(ours), **condition):
                return [f"{POINTER} is {champion.name}"]
        raise ExportError(f"another process keeps changing s3://{self._bucket}/{root}{POINTER}")

    # -- removal -------------------------------------------------------------------------------

    def _remove_superfluous(
        self, root: str, published: Published, keep: Keep, others: set[str]
    ) -> list[str]:
        """Remove models that exist only in S3 (`others`) and exceed the limits of `keep`."""
        ages = {run: model_time(model) or OLDEST for run, model in published.models.items()}
        for run in others:
            if as_of := _parse_pointer(self._get(f"{root}{run}{_MANIFEST}")[0]).get("as_of"):
                ages[run] = _moment(as_of)
        current = _parse_pointer(self._get(root + POINTER)[0]).get("run")
        spared = {*published.models, *models_to_keep(published.folder), current or ""}
        going = models_to_remove(ages, keep, datetime.now(UTC), spared)
        for run in going:
            self._remove(root, run)
        return [f"removed, by keep: {', '.join(going)}"] if going else []

    def _remove(self, root: str, run: str) -> None:
        """Remove a model from S3. RUN-ID.removed exists until all other objects are deleted."""
        marker = f"{root}{run}{_REMOVED}"
        self._put_bytes(marker, b"")
        with self._asking(f"removing {run}"):
            self._client.delete_object(Bucket=self._bucket, Key=f"{root}{run}{_MANIFEST}")
            for key in self._list_objects(f"{root}{run}/"):
                self._client.delete_object(Bucket=self._bucket, Key=key)
            self._client.delete_object(Bucket=self._bucket, Key=marker)

    # -- requests ------------------------------------------------------------------------------

    def _list_objects(self, prefix: str, delimiter: str = "") -> dict[str, int]:
        with self._asking(f"listing {prefix}"):
            found = list_objects(self._client, self._bucket, prefix, delimiter)
            return {one["Key"]: one["Size"] for one in found}

    def _get(self, key: str) -> tuple[bytes | None, str]:
        """Return an object's content and ETag, or (None, "") if the object does not exist."""
        from botocore.exceptions import ClientError

        with self._asking(f"reading {key}"):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=key)
            except ClientError as error:
                if error_code(error) in _ABSENT:
                    return None, ""
                raise
            return answer["Body"].read(), answer["ETag"]

    def _put_bytes(self, key: str, content: bytes, **condition: str) -> bool:
        """Put an object if S3 accepts `condition`, such as IfMatch. Return whether it was put."""
        from botocore.exceptions import ClientError

        with self._asking(f"writing {key}"):
            try:
                self._client.put_object(Bucket=self._bucket, Key=key, Body=content, **condition)  # type: ignore[arg-type]
            except ClientError as error:
                if condition and error_code(error) in _TAKEN | _ABSENT:  # absent: just removed
                    return False
                raise
            return True

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        try:
            yield
        except ClientError as error:
            denied = f"the permission {permission(error)} is denied: "
            kind = denied if error_code(error) in DENIED else f"{error_code(error)}: "
            text = f"{self.title}: {what}: {kind}{in_one_line(error_message(error), _MOST_SHOWN)}"
            raise ExportError(text, is_of_all=error_code(error) not in _OF_ONE) from error
        except NoCredentialsError as error:
            raise ExportError(f"{self.title}: {_NO_KEYS}", is_of_all=True) from error
        except BotoCoreError as error:
            reason = in_one_line(str(error), _MOST_SHOWN)
            raise ExportError(f"{self.title}: {what}: {reason}", is_of_all=True) from error


def replaces(ours: Pointer, theirs: Pointer) -> bool:
    """Return whether this manager's pointer `ours` replaces `theirs`, the present pointer in S3.

    Return True if both were written from the same folder. Otherwise the rules depend on who chose
    the model of `theirs`:

    - A run: the model of `ours` must be newer, or a person must have chosen it at a later time.
    - A person: the model of `ours` must have been chosen at a later time. In addition, it must be
      newer, or a person must have chosen it.
    """
    if ours["writer"] == theirs.get("writer"):
        return True
    is_newer = _moment(ours["as_of"]) > _moment(theirs.get("as_of"))
    is_later = _moment(ours["switched"]) > _moment(theirs.get("switched"))
    if theirs.get("by") in BY_A_PERSON:
        return is_later and (is_newer or ours["by"] in BY_A_PERSON)
    return is_newer or (is_later and ours["by"] in BY_A_PERSON)


def _moment(text: str | None) -> datetime:
    return datetime.fromisoformat(text) if text else OLDEST


def _parse_pointer(content: bytes | None) -> Pointer:
    """Return the JSON object in `content`, or {} if `content` is None or damaged."""
    return object_or_empty(lambda: json.loads(content or b"{}"))


def _name(path: Path, model: Path) -> str:
    name = path.relative_to(model).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ExportError(
            f"{str(path)!r}: the file name is not valid UTF-8, so S3 can't store it"
        ) from None
    return name


def _text(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _bytes(content: object) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()
