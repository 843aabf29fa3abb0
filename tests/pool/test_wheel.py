"""The wheel, installed into an empty environment outside the clone."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from trialfleet.infra import release
from trialfleet.infra.pool.embedded import Pool


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, made from the sdist as for a release."""
    return release.build(tmp_path_factory.mktemp("dist"))[0]


def test_the_wheels_only_top_level_name_is_trialfleet(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"trialfleet"}


def test_the_wheel_holds_exactly_the_files_of_the_folders(wheel: Path) -> None:
    release.check_wheel(wheel)


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the wheel and nothing else of ours.

    The dependencies are found where they are installed already: torch alone is a gigabyte.
    """
    return release.install(wheel, tmp_path_factory.mktemp("of") / "environment", borrow=True)


@pytest.mark.thorough
def test_a_wheel_installed_alone_runs_the_flights_example(
    python: Path, pool: Pool, work: Path
) -> None:
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
    output = call(trialfleet, "run", study)
    assert "LGA: published: 4/4 trials" in output
    assert "published" in output
    model = next((work / "flights" / "models" / "flights" / "LGA").glob("latest"))
    assert (model / "provenance.json").exists()
