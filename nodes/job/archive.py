"""`agent.pyz`: all of ours that a trial's job runs, in one file."""

from __future__ import annotations

import zipfile
from pathlib import Path

_NODES = Path(__file__).parents[1]
_START = _NODES / "job_start.py"
_PACKAGES = ("job", "gang")
_MADE = (1980, 1, 1, 0, 0, 0)  # the same files give the same bytes


def build(to: Path) -> None:
    """Write the archive; the same sources always give the same bytes.

    Raises:
        OSError: it can't be written.
    """
    texts = {"trialfleet/__init__.py": b"", "__main__.py": _START.read_bytes()}
    sources = [
        _NODES / "__init__.py",
        *(p for each in _PACKAGES for p in (_NODES / each).glob("*.py")),
    ]
    for source in sources:
        texts[f"trialfleet/nodes/{source.relative_to(_NODES)}"] = source.read_bytes()
    del texts["trialfleet/nodes/job/archive.py"]
    with zipfile.ZipFile(to, "w") as archive:
        for name, text in sorted(texts.items()):
            entry = zipfile.ZipInfo(name, _MADE)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, text, zipfile.ZIP_DEFLATED)
