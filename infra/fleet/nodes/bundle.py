"""The bundle: the part of trialfleet that an EC2 node needs, as one reproducible archive."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import trialfleet
from trialfleet.infra.fleet.spec import names

PACKAGE = Path(trialfleet.__file__).parent
MODULES = (
    "__init__.py",
    "classads.py",
    "errors.py",
    "gpu_memory.py",
    "instance_aws.py",
    "slots.py",
    "wall_clock.py",
)
FOLDER = "nodes"
CONFIGURATION = "node.conf"


@dataclass(frozen=True)
class Bundle:
    """The bundle's archive (tar, gzip) and its SHA-256."""

    data: bytes
    sha256: str

    def key(self, fleet: str) -> str:
        """Return the bundle's S3 key, made from the fleet's name and the SHA-256."""
        return f"{names.prefix(fleet)}bundle-{self.sha256}.tar.gz"


def build(node_conf: str) -> Bundle:
    """Return the bundle with `node_conf`, the nodes' HTCondor configuration."""
    packed = io.BytesIO()
    # Neither the archive nor its gzip wrapper may contain the time.
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        add(archive, CONFIGURATION, node_conf.encode())
        for name, file in sorted(code()):
            add(archive, f"lib/trialfleet/{name}", file.read_bytes())
    data = packed.getvalue()
    return Bundle(data, hashlib.sha256(data).hexdigest())


def code() -> Iterator[tuple[str, Path]]:
    """Yield each file that a node needs: its name inside the package, and its path."""
    for name in MODULES:
        yield name, PACKAGE / name
    folder = PACKAGE / FOLDER
    for file in folder.rglob("*"):
        # Compiled files are for this machine's Python, which may differ from a node's.
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".so":
            yield f"{FOLDER}/{file.relative_to(folder)}", file


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file to the archive, readable by all, and without owner and time."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    archive.addfile(member, io.BytesIO(content))
