"""Make a release: build wheel and sdist, test that the wheel works alone, tag the commit.

    python infra/release.py            build into dist/, try the wheel outside this clone
    python infra/release.py --tag      the same, then the tag vX.Y.Z on HEAD

The version is read from pyproject.toml. CHANGELOG.md must have a section for this version.
Nothing is uploaded, and no tag is pushed. The program needs git and the extra `test`. If a step
fails or finds a fault, the program prints an error and exits with 2. dist/ is changed only after
all checks, and the tag is made last.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("workflows", "templates", "optimizer", "nodes", "infra")  # links in src/trialfleet
PACKAGE = "src/trialfleet"
_say = partial(print, flush=True)


class ReleaseError(Exception):
    """The release failed. The message says what to do."""


def main() -> None:
    """Make a release. If it fails, print the ReleaseError and exit with 2."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--demo", action="store_true", help="also run the demo's study, on a pool")
    parser.add_argument("--tag", action="store_true", help="tag HEAD vX.Y.Z in the end")
    parser.add_argument(
        "--borrow",
        action="store_true",
        help="let the wheel use the packages of this Python; download nothing",
    )
    options = parser.parse_args()
    try:
        release(demo=options.demo, tag=options.tag, borrow=options.borrow)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def release(*, demo: bool, tag: bool, borrow: bool) -> None:
    """Build and check the wheel and the sdist, and try the wheel. ReleaseError if a step fails.

    With `demo`, the demo's study is also run. With `tag`, the commit is tagged. With `borrow`, the
    wheel is tried with the packages of this Python, and none are downloaded.
    """
    version = declared_version()
    check_changelog((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version, dated=tag)
    if tag:
        check_tag(f"v{version}")
    with tempfile.TemporaryDirectory(prefix="trialfleet-release-") as folder:
        out = Path(folder) / "dist"
        wheel, sdist = build(out)
        check_wheel(wheel)
        _say(f"{wheel.name} holds all that it should, and nothing else")
        python = install(wheel, Path(folder) / "environment", borrow=borrow)
        with scratch() as place:
            try_out(python, version, place)
            if demo:
                try_demo(python, place)
        (ROOT / "dist").mkdir(exist_ok=True)
        for path in (wheel, sdist):
            _say(f"made {shutil.copy2(path, ROOT / 'dist')}")
    if tag:
        _run("git", "tag", "--annotate", f"v{version}", "--message", f"trialfleet {version}")
        _say(f"tagged v{version}; next: git push origin v{version}")


# -- the version and its changes -------------------------------------------------------------------


def declared_version() -> str:
    """Return the version in pyproject.toml, X.Y.Z."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    version = str(tomllib.loads(text)["project"]["version"])
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ReleaseError(f"pyproject.toml: version is {version!r}; write X.Y.Z")
    return version


def check_changelog(text: str, version: str, *, dated: bool) -> None:
    """Raise ReleaseError unless the changelog's newest section is for `version` and isn't empty.

    With `dated`, its heading must have the day of the release: `## X.Y.Z (2026-11-22)`.
    """
    day = r"\d{4}-\d\d-\d\d" if dated else r"[^)\n]+"
    newest = re.search(r"^## .*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    wanted = rf"## {re.escape(version)} \({day}\)\n.*\n- "
    if not newest or not re.match(wanted, newest[0], re.DOTALL):
        when = "YYYY-MM-DD, the day of the release" if dated else "unreleased"
        raise ReleaseError(
            f"CHANGELOG.md: the newest section must begin with '## {version} ({when})', and have a "
            "line for users, such as '- …'"
        )


def check_tag(name: str) -> None:
    """Raise ReleaseError if the tag exists, or if a file differs from HEAD or is not in git."""
    if _run("git", "tag", "--list", name):
        raise ReleaseError(f"the tag {name} exists already; increase version in pyproject.toml")
    if changed := _run("git", "status", "--porcelain"):
        raise ReleaseError(f"commit these first, because a tag marks a commit:\n{changed}")


# -- wheel and sdist -------------------------------------------------------------------------------


def build(out: Path) -> tuple[Path, Path]:
    """Build the sdist from `tracked_files`, and the wheel from it. Return wheel, sdist."""
    with tempfile.TemporaryDirectory(prefix="trialfleet-build-") as copy:
        for name in tracked_files():
            (Path(copy) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, Path(copy) / name, follow_symlinks=False)
        _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, copy)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def tracked_files(*folders: str) -> list[str]:
    """Return the files below `folders` that are in git, or new and not ignored by git."""
    options = ("--cached", "--others", "--exclude-standard", "-z")
    names = _run("git", "ls-files", *options, "--", *folders).split("\0")
    return [name for name in dict.fromkeys(names) if name and os.path.lexists(ROOT / name)]


def check_wheel(wheel: Path) -> None:
    """Raise ReleaseError unless a wheel has exactly the library's files."""
    own = {n.removeprefix("src/") for n in tracked_files(PACKAGE) if not (ROOT / n).is_symlink()}
    expected = own | {f"trialfleet/{name}" for name in tracked_files(*FOLDERS)}
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    for what, files in (("lacks", expected - found), ("must not hold", found - expected)):
        if files:
            raise ReleaseError(f"{wheel.name} {what} {', '.join(sorted(files))}")


# -- the wheel by itself ---------------------------------------------------------------------------


def install(wheel: Path, environment: Path, *, borrow: bool) -> Path:
    """Install a wheel into a new environment and return the environment's Python.

    With `borrow` it uses the packages of this Python, by a .pth file. Otherwise pip and uv download
    the versions in requirements.lock, with torch for this machine.
    """
    venv.create(environment, with_pip=not borrow)
    python = environment / "bin" / "python"
    if borrow:
        site = next((environment / "lib").glob("python*/site-packages"))
        borrowed = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n", encoding="utf-8")
    else:
        by_hash = ("install", "--quiet", "--require-hashes", "--requirement")
        _run(python, "-m", "pip", *by_hash, ROOT / "requirements-uv.lock")
        uv = (python, "-m", "uv", "pip")
        _run(*uv, *by_hash, ROOT / "requirements.lock", "--python", python)
        _run(python, ROOT / "infra" / "install_torch.py", ROOT / "constraints.txt")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    _run(*pip, "--no-deps", "--no-index", "--ignore-installed", wheel)
    return python


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder outside the clone."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trialfleet"
    cache.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="release-", dir=cache)


def try_out(python: Path, version: str, folder: str) -> None:
    """Write a study with only the installed library, and plan a run of that study."""
    where = _run(python, "-c", "import trialfleet; print(trialfleet.__file__)", folder=folder)
    if not where.startswith(str(python.parents[1])):
        raise ReleaseError(
            f"the test environment imports trialfleet from {where}, not from the installed wheel"
        )
    trialfleet = python.with_name("trialfleet")
    printed = _run(trialfleet, "--version", folder=folder)
    if not printed.endswith(version):
        raise ReleaseError(f"trialfleet --version says {printed!r}, not {version}")
    for words in (("--help",), ("init", "first"), ("plan", "first/study.yaml")):
        _run(trialfleet, *words, folder=folder)
    _say("the wheel alone: --help, init and plan work")


def try_demo(python: Path, folder: str) -> None:
    """Run the demo's study with the installed library on a new pool, and check for a model."""
    trialfleet = python.with_name("trialfleet")
    pool = {"TRIALFLEET_POOL": f"{folder}/pool"}
    _run(trialfleet, "init", "flights", "--example", "flights", folder=folder)
    try:
        _run(trialfleet, "pool", "up", folder=folder, more=pool)
        _run(trialfleet, "run", "flights/study.yaml", folder=folder, more=pool)
    finally:
        _run(trialfleet, "pool", "down", "--yes", folder=folder, more=pool)
    if not list(Path(folder).glob("flights/models/flights/*/latest/provenance.json")):
        raise ReleaseError("the demo's study has published no model")
    _say("the wheel alone: the demo's study is trained and published")


def _run(*words: str | Path, folder: str | None = None, more: Mapping[str, str] = {}) -> str:
    """Run a program in `folder`, by default the clone, without PYTHONPATH. Return its output."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {**more}
    try:
        done = subprocess.run(
            words, cwd=folder or ROOT, env=own, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise ReleaseError(f"{words[0]} can't be run: {error.strerror}") from error
    if done.returncode:
        output = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        raise ReleaseError(f"{' '.join(map(str, words))} failed:\n{output}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
