"""pip's hundreds of lines become one that says how far it is; its errors are shown whole."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
import time
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from trialfleet.infra import pip_progress
from trialfleet.infra.pip_progress import Display, pinned_packages, watched

pytestmark = pytest.mark.slow


# What is tested imports pip, after which setuptools can't be imported in this process any more, and
# torch's compiler needs it in another test.
pytest.importorskip("setuptools")

ROOT = Path(__file__).parents[3]
INSTALLING = """\
import sys, time
from pathlib import Path
folder, told = Path(sys.argv[1]), Path(sys.argv[2])
print("Collecting one==1.0 (from -r lock (line 3))")
print("  Downloading one-1.0-py3-none-any.whl (90 kB)")
print("  Downloading two_b-2.0+cpu-cp311-linux_x86_64.whl.metadata (1 kB)")
print("  Downloading two_b-2.0+cpu-cp311-linux_x86_64.whl (190.4 MB)")
print("Requirement already satisfied: six==1.0")
print("Installing collected packages: one, two-b", flush=True)
(folder / "one-1.0.dist-info").mkdir()
while not told.exists():
    time.sleep(0.01)
print("ERROR: no space\\n  see above", file=sys.stderr)
sys.exit(3)
"""


class Terminal(io.StringIO):
    """A text that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Watched(Display):
    """Ends the stand-in of pip once its second package is being installed."""

    marker: Path

    def placed(self, count: int) -> None:
        super().placed(count)
        if count == 1:
            self.marker.touch()


@pytest.mark.parametrize("out", [Terminal(), io.StringIO()])
def test_a_line_says_how_far_it_is_and_errors_are_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], out: io.StringIO
) -> None:
    display = Watched(out, total=97)
    display.marker = tmp_path / "told"
    command = [sys.executable, "-c", INSTALLING, str(tmp_path), str(display.marker)]
    (tmp_path / "former-1.0.dist-info").mkdir()
    assert watched(command, tmp_path, display) == 3
    printed = out.getvalue()
    assert capsys.readouterr().err == "ERROR: no space\n  see above\n"
    if out.isatty():
        assert "\n" not in printed
        shown = [text.strip() for text in printed.split("\r")]
        for part in (
            "loading 1 of 97: one (90 kB); ",
            "loading 2 of 97: two-b (190.4 MB); ",
            "installing 2 of 2: two-b (190.4 MB); 190 MB loaded, ",
        ):
            assert any(text.startswith(part) for text in shown), shown
        assert all(text.endswith(" s") for text in shown if text), "no part comes and goes"
        assert shown[-1] == ""
    else:
        assert printed.splitlines() == [
            "loading 1 of 97: one (90 kB)",
            "installing 1 of 2: one (90 kB)",
        ]


def test_elsewhere_than_on_a_terminal_there_is_a_line_every_ten_packages() -> None:
    out = io.StringIO()
    display = Display(out)
    for number in range(1, 32):
        display.read(f"Processing /wheels/p{number}-1.0-py3-none-any.whl (from -r lock)\n")
    assert out.getvalue().split() == [
        word for name in ("p1", "p10", "p20", "p30") for word in ("loading", name)
    ]


def wheel(folder: Path, name: str) -> Path:
    file = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return file


def test_what_pip_itself_prints_is_understood(tmp_path: Path) -> None:
    wheels = [wheel(tmp_path, name) for name in ("mine_a", "mine_b")]
    words = ["--no-index", "--no-deps", "--target", str(tmp_path / "there"), *map(str, wheels)]
    program = [sys.executable, pip_progress.__file__]
    done = subprocess.run([*program, *words], capture_output=True, text=True, check=True)
    first, *_, last = done.stdout.splitlines()
    assert first == "loading mine-a"
    assert last.startswith("2 packages installed in ")
    assert len(done.stdout.splitlines()) == 3
    gone = [*program, "--no-index", "no-such-package-of-ours"]
    failed = subprocess.run(gone, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "ERROR: No matching distribution found for no-such-package-of-ours" in failed.stderr


@pytest.mark.slow
def test_the_line_moves_while_a_large_package_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = wheel(tmp_path, "mine_large")
    with zipfile.ZipFile(large, "a") as archive:
        archive.writestr("mine_large.bin", os.urandom(6_000_000))

    class Slow(SimpleHTTPRequestHandler):
        def copyfile(self, source: Any, outputfile: Any) -> None:
            while part := source.read(1_000_000):
                outputfile.write(part)
                time.sleep(0.7)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Slow, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    out = Terminal()
    command = [
        sys.executable, "-u", "-m", "pip", "install", "--progress-bar", "off", "--no-cache-dir",
        "--no-index", "--no-deps", "--target", str(tmp_path / "there"),
        "--find-links", f"http://127.0.0.1:{server.server_port}/", "mine-large",
    ]  # fmt: skip
    assert watched(command, tmp_path, Display(out)) == 0
    server.shutdown()
    server.server_close()
    found = [*map(int, re.findall(r"(\d+) MB loaded, ", out.getvalue()))]
    assert len({*found}) >= 3, out.getvalue()
    assert sorted(found) == found, "it never goes back"
    assert out.getvalue().splitlines()[-1].endswith("s (6 MB loaded)")


# setuptools minds pip where a test of this process has imported distutils, as torch does
@pytest.mark.filterwarnings("ignore:Setuptools is replacing distutils")
def test_the_pinned_packages_of_this_machine_are_counted(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text(
        "# made\na==1.0 \\\n    --hash=sha256:00\n    # via b\n"
        "b[x]==2 ; sys_platform == 'linux' \\\n    --hash=sha256:00\n"
        "c==3 ; os_name == 'nt' \\\n    --hash=sha256:00\n"
    )
    assert pinned_packages(["--require-hashes", "--requirement", str(lock)]) == 2
    assert pinned_packages(["torch==2"]) == 0
    assert pinned_packages(["-r", str(ROOT / "requirements.lock")]) > 50
