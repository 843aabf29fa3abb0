from __future__ import annotations

import functools
import http.server
import os
import socket
import subprocess
import threading
import time
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
Install = Callable[..., list[str]]


def make_stand_in_wheel(folder: Path, name: str, version: str, *needs: str) -> Path:
    """A wheel without any code, as pip takes it."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    about = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(f"{info}/METADATA", "\n".join(["Metadata-Version: 2.1", *about, ""]))
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return wheel


class Index(http.server.ThreadingHTTPServer):
    """A stand-in for PyTorch's index of CPU builds; counts how often a wheel is loaded."""

    def __init__(self, folder: Path) -> None:
        self.wheels_loaded = 0
        super().__init__(("127.0.0.1", 0), functools.partial(Files, directory=str(folder)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Files(http.server.SimpleHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        self.server.wheels_loaded += self.path.endswith(".whl")
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def cpu_index(tmp_path: Path) -> Iterator[Index]:
    make_stand_in_wheel(tmp_path / "index" / "torch", "torch", f"{VERSION}+cpu", "sympy")
    with Index(tmp_path / "index") as index:
        threading.Thread(target=index.serve_forever, daemon=True).start()
        yield index
        index.shutdown()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    return folder / "bin"


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """The first folder on PATH: this machine's own nvidia-smi is hidden."""
    folder = tmp_path / "tools"
    folder.mkdir()
    make_tool(folder / "nvidia-smi", "exit 9")
    return folder


def make_tool(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def install(environment: Path, tools: Path, tmp_path: Path) -> Iterator[Install]:
    """Run the program where pip finds a stand-in of PyPI's build alone; return what it said."""
    found, constraints = tmp_path / "found", tmp_path / "constraints.txt"
    constraints.write_text(f"numpy<3\ntorch=={VERSION}\n")
    make_stand_in_wheel(found, "torch", VERSION, "nvidia_cublas")
    make_stand_in_wheel(found, "nvidia_cublas", "13")
    make_stand_in_wheel(found, "sympy", "1.14")
    variables = {name: value for name, value in os.environ.items() if "PIP" not in name}
    variables |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "", "PYTHONPATH": ""}
    variables |= {"PIP_FIND_LINKS": str(found), "PIP_INDEX_URL": NOWHERE, "PIP_RETRIES": "0"}
    variables |= {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}

    def run(index: str) -> list[str]:
        program = ROOT / "infra" / "install_torch.py"
        done = subprocess.run(
            [str(environment / "python"), str(program), str(constraints), "--cpu-index", index],
            env=variables,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    yield run
    uninstall = [str(environment / "pip"), "uninstall", "--yes", "torch", "nvidia_cublas", "sympy"]
    subprocess.run(uninstall, capture_output=True, check=True)


def packages(environment: Path) -> str:
    command = [str(environment / "pip"), "list", "--format", "freeze"]
    return subprocess.check_output(command, text=True)


def test_without_a_gpu_the_cpu_build_comes_from_pytorchs_index(
    install: Install, environment: Path, cpu_index: Index
) -> None:
    output = install(cpu_index.url)
    assert output[0] == f"no NVIDIA GPU: torch for CPUs, some 200 MB, from {cpu_index.url}"
    assert output[-1] == f"torch {VERSION}+cpu is installed"
    assert "sympy" in packages(environment)
    assert "nvidia" not in packages(environment)


@pytest.mark.thorough
def test_it_is_loaded_once(install: Install, cpu_index: Index) -> None:
    install(cpu_index.url)
    assert install(cpu_index.url) == [f"torch {VERSION}+cpu is installed"]
    assert cpu_index.wheels_loaded == 1


@pytest.mark.parametrize(
    "index", [NOWHERE, pytest.param("http://nowhere.invalid", marks=pytest.mark.thorough)]
)
def test_an_index_out_of_reach_leaves_the_choice_to_pip(
    install: Install, environment: Path, index: str
) -> None:
    output = install(index)
    assert output[0].startswith(f"{index} can't be reached")
    assert output[-1] == f"torch {VERSION} is installed"
    assert "nvidia_cublas" in packages(environment)


@pytest.mark.thorough
def test_an_index_that_breaks_off_leaves_the_choice_to_pip(
    install: Install, cpu_index: Index, tmp_path: Path
) -> None:
    (wheel,) = (tmp_path / "index" / "torch").glob("*.whl")
    wheel.write_bytes(wheel.read_bytes()[:100])
    assert install(cpu_index.url)[-1] == f"torch {VERSION} is installed"


def test_an_index_that_says_nothing_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    assert install_torch.INDEX_SECONDS == 5
    monkeypatch.setattr(install_torch, "INDEX_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        assert not install_torch.answers(f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert time.monotonic() - began < 5, "asked once"


def test_with_a_gpu_the_build_for_cuda_is_taken(
    install: Install, environment: Path, tools: Path, cpu_index: Index
) -> None:
    make_tool(tools / "nvidia-smi", 'echo "GPU 0: NVIDIA A10G (UUID: GPU-0)"')
    output = install(cpu_index.url)
    assert output[0].startswith("an NVIDIA GPU is here")
    assert output[-1] == f"torch {VERSION} is installed"
    assert cpu_index.wheels_loaded == 0


@pytest.mark.thorough
def test_a_cpu_build_beside_a_gpu_is_told(install: Install, tools: Path, cpu_index: Index) -> None:
    install(cpu_index.url)
    make_tool(tools / "nvidia-smi", 'echo "GPU 0: NVIDIA A10G (UUID: GPU-0)"')
    assert "can't use the NVIDIA GPU" in install(cpu_index.url)[-1]


def test_a_gpu_is_known_by_the_driver_alone(
    tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(install_torch, "DRIVER_GPUS", tmp_path / "gpus")
    assert not install_torch.has_nvidia_gpu()
    (tmp_path / "gpus").mkdir()
    assert not install_torch.has_nvidia_gpu()
    (tmp_path / "gpus" / "0000:00:1e.0").mkdir()
    assert install_torch.has_nvidia_gpu()


def test_constraints_without_torch_are_told(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").touch()
    with pytest.raises(SystemExit, match=r"constraints.txt has no line torch==VERSION"):
        install_torch.pinned(tmp_path / "constraints.txt")
