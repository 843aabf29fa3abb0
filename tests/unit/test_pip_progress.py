"""pip's long silence is broken: a word now and then while packages are unpacked."""

from __future__ import annotations

import sys
from pathlib import Path

from trialfleet.infra.pip_progress import watched

UNPACKING = """\
import sys, time
from pathlib import Path
folder, told = Path(sys.argv[1]), Path(sys.argv[2])
for name in ("one", "two"):
    (folder / name).mkdir()
    (folder / f"{name}-1.0.dist-info").mkdir()
while not told.exists():
    time.sleep(0.01)
sys.exit(3)
"""


def test_it_says_how_many_packages_are_in_place_and_ends_as_pip_does(tmp_path: Path) -> None:
    packages, told = tmp_path / "packages", tmp_path / "told"
    (packages / "former-1.0.dist-info").mkdir(parents=True)
    said: list[str] = []

    def tell(text: str) -> None:
        said.append(text)
        if "2 packages are in place" in text:
            told.touch()

    command = [sys.executable, "-c", UNPACKING, str(packages), str(told)]
    assert watched(command, packages, tell, every=0.05) == 3
    assert said[-1].startswith("… unpacking: 2 packages are in place")


def test_it_is_quiet_while_nothing_is_unpacked(tmp_path: Path) -> None:
    said: list[str] = []
    command = [sys.executable, "-c", "import time; time.sleep(0.3)"]
    assert watched(command, tmp_path / "none", said.append, every=0.05) == 0
    assert said == []
