"""torch is installed by uv, or by pip where PyTorch's index is out of reach."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trialfleet.infra import install_torch

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
VERSION = "2.13.0"
NOWHERE = "http://127.0.0.1:9"  # the port of "discard": nothing listens
Install = Callable[..., str]


def make_stand_in_wheel(folder: Path, name: str, version: str, *needs: str) -> None:
    """Write a wheel without any code, as pip takes it."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    about = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{info}/METADATA", "\n".join(["Metadata-Version: 2.1", *about, ""]))
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pip and this one's uv."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "uv").symlink_to(Path(sysconfig.get_path("purelib")) / "uv")
    (folder / "bin" / "uv").symlink_to(Path(sysconfig.get_path("scripts")) / "uv")
    return folder / "bin"


@pytest.fixture
def install(environment: Path, tmp_path: Path) -> Iterator[Install]:
    """Run the program where pip finds a stand-in of PyPI's build alone; return its output."""
    wheels, constraints = tmp_path / "wheels", tmp_path / "constraints.txt"
    constraints.write_text(f"numpy<3\ntorch=={VERSION}\n")
    make_stand_in_wheel(wheels, "torch", VERSION, "nvidia_cublas")
    make_stand_in_wheel(wheels, "nvidia_cublas", "13")
    variables = {name: value for name, value in os.environ.items() if "PIP" not in name}
    variables |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    variables |= {"UV_CACHE_DIR": str(tmp_path / "cache"), "UV_NO_CONFIG": "1"}

    def run(**others: str) -> str:
        done = subprocess.run(
            [str(environment / "python"), install_torch.__file__, str(constraints)],
            env=variables | others,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    yield run
    uninstall = [str(environment / "pip"), "uninstall", "--yes", "torch", "nvidia_cublas"]
    subprocess.run(uninstall, capture_output=True, check=True)


def packages(environment: Path) -> str:
    return subprocess.check_output([environment / "pip", "list", "--format", "freeze"], text=True)


def test_pip_installs_torch_if_pytorchs_index_is_unreachable(
    install: Install, environment: Path
) -> None:
    output = install(ALL_PROXY=NOWHERE, HTTPS_PROXY=NOWHERE)
    assert output.startswith("uv can't install torch from PyTorch's index (")
    assert "4 to 5 GB" in output
    assert f"torch=={VERSION}" in packages(environment)
    assert "nvidia_cublas" in packages(environment)


def test_another_failure_of_uv_is_not_called_an_unreachable_index(
    install: Install, environment: Path, tmp_path: Path
) -> None:
    (tmp_path / "uv.py").write_text("raise SystemExit('error: no such option')")
    output = install(PYTHONPATH=str(tmp_path))
    reason = "(error: no such option)"
    assert output.startswith(f"uv can't install torch from PyTorch's index {reason}, so pip")
    assert f"torch=={VERSION}" in packages(environment)


@pytest.mark.thorough
def test_pip_installs_torch_if_the_index_never_answers(install: Install, environment: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        proxy = f"http://127.0.0.1:{silent.getsockname()[1]}"
        install(ALL_PROXY=proxy, HTTPS_PROXY=proxy)
    assert f"torch=={VERSION}" in packages(environment)


def test_uv_chooses_the_build_where_the_index_answers(
    install: Install, environment: Path, tmp_path: Path
) -> None:
    """A stand-in for uv: PyTorch's index is out of a test's reach."""
    (tmp_path / "uv.py").write_text("import sys; print(*sys.argv[1:])")
    words = f"pip install --python {environment / 'python'} --torch-backend auto torch=={VERSION}"
    lines = install(PYTHONPATH=str(tmp_path)).splitlines()
    assert lines == [f"{words} --dry-run --quiet", words]
    assert "torch" not in packages(environment)


def test_constraints_without_torch_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").touch()
    with pytest.raises(SystemExit, match=r"constraints.txt has no line torch==VERSION"):
        install_torch.torch_requirement(tmp_path / "constraints.txt")


def test_make_install_refuses_an_old_python_first(tmp_path: Path) -> None:
    """A stand-in for an old Python: it says its version, and runs nothing else."""
    make = shutil.which("make")
    assert make
    old = tmp_path / "python3.9"
    script = "import sys; sys.version_info, sys.version = (3, 9), '3.9.2 (x)'; exec(sys.argv[2])"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{script}" "$@"\n')
    old.chmod(0o755)
    command = [make, "install", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert f"needs Python 3.11 or newer; {old} is 3.9.2: " in done.stderr
    assert done.returncode == 2
    assert not (tmp_path / "venv").exists()
