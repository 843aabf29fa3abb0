"""infra/release.py: what a release must have, and a wheel that works outside the clone."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from trialfleet.infra import release
from trialfleet.infra.release import ReleaseError

CHANGELOG = """\
# Changelog

## 0.2.0 (2026-12-01)

- A line.

## 0.1.0 (2026-11-01)

- Another.
"""


def test_this_changelog_is_that_of_the_version() -> None:
    text = (release.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    release.check_changelog(text, release.declared_version(), dated=False)


def test_a_dated_section_of_the_version_is_right() -> None:
    release.check_changelog(CHANGELOG, "0.2.0", dated=True)


@pytest.mark.parametrize(
    ("old", "new", "version"),
    [
        ("", "", "0.3.0"),
        ("", "", "0.1.0"),
        ("- A line.\n", "", "0.2.0"),
        ("2026-12-01", "unreleased", "0.2.0"),
        (CHANGELOG, "# Changelog\n", "0.2.0"),
    ],
)
def test_a_wrong_changelog_is_refused(old: str, new: str, version: str) -> None:
    expected = f"the newest section must begin with '## {version} (YYYY-MM-DD, the day of the"
    with pytest.raises(ReleaseError, match=re.escape(expected)):
        release.check_changelog(CHANGELOG.replace(old, new), version, dated=True)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, in the place of ours."""
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "One"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    return tmp_path


def test_a_tag_that_is_there_is_not_made_again(clone: Path) -> None:
    release.check_tag("v0.2.0")
    subprocess.run(["git", "tag", "v0.2.0"], cwd=clone, check=True)
    with pytest.raises(ReleaseError, match=r"v0\.2\.0 exists already"):
        release.check_tag("v0.2.0")


def test_uncommitted_changes_prevent_a_tag(clone: Path) -> None:
    (clone / "new.txt").touch()
    with pytest.raises(ReleaseError, match=r"commit these first.*\n\?\? new\.txt"):
        release.check_tag("v0.2.0")


def test_a_version_has_three_numbers(clone: Path) -> None:
    assert release.declared_version() == "0.2.0"
    (clone / "pyproject.toml").write_text('[project]\nversion = "0.2"\n')
    with pytest.raises(ReleaseError, match=r"'0\.2'; write X\.Y\.Z"):
        release.declared_version()


def wheel_with(folder: Path, *changes: str) -> Path:
    """Return a stand-in for a wheel: the names alone, without `-NAME` and with `+NAME`."""
    kept = {f"trialfleet/{name}" for name in release.tracked_files(*release.FOLDERS)}
    own = [n for n in release.tracked_files(release.PACKAGE) if not (release.ROOT / n).is_symlink()]
    kept |= {name.removeprefix("src/") for name in own}
    kept |= {change[1:] for change in changes if change[0] == "+"}
    kept -= {change[1:] for change in changes if change[0] == "-"}
    wheel = folder / "stand-in.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for name in kept:
            file.writestr(name, "")
    return wheel


@pytest.mark.parametrize(
    "missing",
    [
        "trialfleet/templates/dag/region.dag.j2",
        "trialfleet/workflows/examples/sklearn/train.py",
        "trialfleet/nodes/kernels/csrc/cuda/losses.cu",
        "trialfleet/attributes.py",
    ],
)
def test_a_wheel_without_a_file_is_refused(missing: str, tmp_path: Path) -> None:
    release.check_wheel(wheel_with(tmp_path))
    with pytest.raises(ReleaseError, match=rf"lacks {missing}$"):
        release.check_wheel(wheel_with(tmp_path, f"-{missing}"))


@pytest.mark.parametrize("extra", ["tests/bench.py", "trialfleet/tests/unit/study/test_names.py"])
def test_a_wheel_with_tests_or_benchmarks_is_refused(extra: str, tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=rf"must not hold {extra}$"):
        release.check_wheel(wheel_with(tmp_path, f"+{extra}"))


def test_a_failed_command_is_reported_with_the_end_of_its_output() -> None:
    with pytest.raises(ReleaseError, match=r"(?s)failed:\n.*alas$"):
        release._run(sys.executable, "-c", "import sys; sys.exit('alas')")


def test_an_error_is_one_line_and_exit_code_2(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (clone / "CHANGELOG.md").write_text("# Changelog\n")
    monkeypatch.setattr("sys.argv", ["release.py"])
    with pytest.raises(SystemExit) as ended:
        release.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: CHANGELOG.md: the newest section must begin")


@pytest.mark.thorough
def test_a_wheel_is_built_installed_and_plans_a_run(tmp_path: Path) -> None:
    """All of a release but packages of its own, its place in dist/ and its tag."""
    wheel, sdist = release.build(tmp_path / "dist")
    release.check_wheel(wheel)
    with tarfile.open(sdist) as archive:
        assert not [name for name in archive.getnames() if "/tests" in name]
    python = release.install(wheel, tmp_path / "environment", borrow=True)
    with release.scratch() as place:
        release.try_out(python, release.declared_version(), place)
        assert list(Path(place).glob("runs/first/*/study.dag"))


@pytest.mark.thorough
def test_try_out_refuses_a_trialfleet_that_is_not_the_wheel(tmp_path: Path) -> None:
    python = Path(sys.executable)
    with pytest.raises(ReleaseError, match="not from the installed wheel"):
        release.try_out(python, release.declared_version(), str(tmp_path))
