"""Builds `agent.pyz`, the file with the code of trialfleet that runs in a trial's job."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

_NODES = Path(__file__).parents[1]
_START = _NODES / "job_start.py"
_PACKAGES = ("job", "gang")
_MADE = (1980, 1, 1, 0, 0, 0)  # a fixed time, so that the same files give the same bytes


def build(target: Path) -> None:
    """Write the archive `target` unless it is up to date. The same sources give the same bytes."""
    texts = {"trialfleet/__init__.py": b"", "__main__.py": _START.read_bytes()}
    sources = [
        _NODES / "__init__.py",
        *(p for each in _PACKAGES for p in (_NODES / each).glob("*.py")),
    ]
    for source in sources:
        texts[f"trialfleet/nodes/{source.relative_to(_NODES)}"] = source.read_bytes()
    del texts["trialfleet/nodes/job/archive.py"]
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in sorted(texts.items()):
            entry = zipfile.ZipInfo(name, _MADE)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, text, zipfile.ZIP_DEFLATED)
    if not target.is_file() or target.read_bytes() != content.getvalue():
        beside = target.parents[1] / f".{target.name}"  # outside: jobs get the folder's files
        beside.write_bytes(content.getvalue())
        beside.replace(target)
