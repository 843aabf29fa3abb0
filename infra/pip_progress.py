"""pip install, with a word every few seconds while it unpacks what it has loaded.

    python infra/pip_progress.py --requirement requirements.lock

pip shows what it loads, but unpacks in silence: minutes, for a hundred packages or for torch.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path

EVERY = 10.0  # seconds


def main() -> None:
    """Install what the arguments say and exit as pip does."""
    command = [sys.executable, "-m", "pip", "install", *sys.argv[1:]]
    sys.exit(watched(command, Path(sysconfig.get_path("purelib")), say))


def watched(
    command: Sequence[str], packages: Path, tell: Callable[[str], None], every: float = EVERY
) -> int:
    """Run a command that fills a folder with packages; return its exit code.

    Args:
        command: what to run.
        packages: the folder of the packages.
        tell: told how far it is, now and then, once packages appear there.
        every: so many seconds lie between two times.
    """
    before, begun = _entries(packages), time.monotonic()
    process = subprocess.Popen(command)
    while True:
        try:
            return process.wait(timeout=every)
        except subprocess.TimeoutExpired:
            new = _entries(packages) - before
        except KeyboardInterrupt:  # pip was told, too, and ends by itself
            return process.wait()
        if new:
            done = sum(name.endswith(".dist-info") for name in new)
            tell(f"… unpacking: {done} packages are in place, {time.monotonic() - begun:.0f} s")


def _entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


if __name__ == "__main__":
    main()
