"""The wheel, installed into an empty environment outside the clone."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from trialfleet.infra.pool.embedded import Pool

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the clone, so that building leaves nothing in it."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    for name in files_of("--others", "--exclude-standard", "--cached"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    subprocess.run([*command, out, copy], check=True, capture_output=True)
    return next(out.glob("*.whl"))


def files_of(*options: str) -> list[str]:
    """Names of the clone's files, as git knows them."""
    command = ["git", "ls-files", "-z", *options]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).exists()]


def test_its_only_top_level_name_is_trialfleet(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"trialfleet"}


def test_it_holds_every_file_that_the_folders_hold(wheel: Path) -> None:
    there = set(zipfile.ZipFile(wheel).namelist())
    folders = ("workflows", "templates", "optimizer", "nodes", "infra")
    missing = {name for name in files_of(*folders) if f"trialfleet/{name}" not in there}
    assert missing == set()


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the wheel and nothing else of ours.

    The dependencies are found where they are installed already: torch alone is a gigabyte.
    """
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    site = next((home / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_installed_alone_it_runs_the_demos_study(python: Path, pool: Pool, work: Path) -> None:
    def call(*words: str | Path) -> str:
        done = subprocess.run(words, cwd=work, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = call(python, "-c", "import trialfleet; print(trialfleet.__file__)")
    assert str(python.parents[1]) in where
    trialfleet = python.with_name("trialfleet")
    call(trialfleet, "init", "--example", "flights", "flights")
    study = work / "flights" / "study.yaml"
    text = study.read_text()
    assert "trials: 12" in text
    study.write_text(text.replace("trials: 12", "trials: 4").replace("[EWR, JFK, LGA]", "[LGA]"))
    call(python, "flights/prepare.py")
    told = call(trialfleet, "run", study)
    assert "LGA: published: 4/4 trials" in told
    assert "published" in told
    model = next((work / "flights" / "models" / "flights" / "LGA").glob("latest"))
    assert (model / "provenance.json").exists()
