"""Compiling, finding and loading the library, with stand-in compilers and real ones (slow)."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.kernels.conftest import needs_compilers
from trialfleet.nodes.kernels import __main__ as command
from trialfleet.nodes.kernels import build, toolchain

pytestmark = needs_compilers

HERE = Path(__file__).parents[3]

COMPILER = """#!/bin/sh
echo "$@" >> {log}
{does}
while [ $# -gt 0 ]; do [ "$1" = -o ] && echo compiled > "$2"; shift; done
"""

Put = Callable[[str], None]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder where libraries are looked for."""
    monkeypatch.delenv("TRIALFLEET_PLAIN", raising=False)
    monkeypatch.setenv("TRIALFLEET_KERNELS", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """The compiler's calls, one a line."""
    return tmp_path / "calls"


@pytest.fixture
def compiler(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """A stand-in that makes any object in no time; call it to have another do something else."""

    def put(does: str) -> None:
        path = tmp_path / "c++"
        path.write_text(COMPILER.format(log=calls, does=does), encoding="utf-8")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))

    put("")
    return put


@pytest.fixture
def recipe() -> build.Recipe:
    return build.Recipe.for_this_machine()


# Building once


def test_a_library_is_built_once_and_has_a_description(
    place: Path, compiler: Put, calls: Path, recipe: build.Recipe
) -> None:
    library = build.find_or_build()
    assert library == place / recipe.folder / build.LIBRARY
    assert build.find_or_build() == library
    assert len(calls.read_text().splitlines()) == 3  # two files, and the link
    content = json.loads((library.parent / "build.json").read_text())
    assert content["sources"] == build.hash_of_sources()
    assert content["torch"] == torch.__version__
    assert content["seconds"] >= 0
    assert sorted(path.name for path in library.parent.iterdir()) == ["build.json", build.LIBRARY]


def test_other_users_may_read_a_library_that_root_built(place: Path, compiler: Put) -> None:
    before = os.umask(0o077)
    try:
        command.main(["build"])
    finally:
        os.umask(before)
    library = build.find_or_build()
    for path in (library, library.parent, library.parent / "build.json", place):
        assert path.stat().st_mode & 0o044 == 0o044, path


@pytest.mark.slow
def test_a_second_builder_waits_and_says_so(
    place: Path, compiler: Put, calls: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compiler("sleep 0.3")
    with ThreadPoolExecutor(4) as pool:  # every lock opens its own file, as in processes
        found = list(pool.map(lambda _: build.find_or_build(), range(4)))
    assert len(set(found)) == 1
    assert len(calls.read_text().splitlines()) == 3
    assert capfd.readouterr().err.count("waiting until another process has built them") == 3


def test_a_trial_compiles_its_own_while_its_node_compiles(
    tmp_path: Path, compiler: Put, recipe: build.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's lock is root's, and its build has the lowest priority."""
    monkeypatch.delenv("TRIALFLEET_PLAIN", raising=False)
    monkeypatch.delenv("TRIALFLEET_KERNELS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of_the_trial"))
    monkeypatch.setattr(build, "SYSTEM", tmp_path / "of_the_node")
    compiler("")
    build.SYSTEM.mkdir()
    with ThreadPoolExecutor(1) as pool, (build.SYSTEM / f"{recipe.folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        library = pool.submit(build.find_or_build).result(timeout=20)
    assert library.is_relative_to(tmp_path / "of_the_trial")


def test_a_job_runs_one_compiler_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_CONDOR_SCRATCH_DIR", "/somewhere")
    assert toolchain.parallel_compilers() == 1
    monkeypatch.delenv("_CONDOR_SCRATCH_DIR")
    assert toolchain.parallel_compilers() == len(os.sched_getaffinity(0))


def test_files_of_a_killed_build_do_not_prevent_the_next_one(
    place: Path, compiler: Put, recipe: build.Recipe
) -> None:
    place.mkdir()
    left = place / f".{recipe.folder}.abc"
    left.mkdir()
    (left / build.LIBRARY).write_text("half a library")
    (place / f"{recipe.folder}.lock").touch()
    assert build.find(recipe, [place]) is None
    assert build.find_or_build().read_text() == "compiled\n"
    assert not left.exists()


@pytest.mark.slow
def test_parallel_processes_build_one_library_even_if_one_is_killed(
    place: Path, compiler: Put, calls: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    compiler(f"while [ ! -e {go} ]; do sleep 0.1; done")
    program = "from trialfleet.nodes.kernels import build; print(build.find_or_build())"
    outputs = [tmp_path / f"said{i}" for i in range(3)]
    builders = [start(program, path) for path in outputs]
    wait_until(lambda: sum("waiting" in path.read_text() for path in outputs) == 2)
    wait_until(calls.exists)
    for builder, path in zip(builders, outputs, strict=True):
        if "compiling" in path.read_text():
            builder.kill()
    go.touch()
    found = [stdout for stdout, _ in (builder.communicate(timeout=60) for builder in builders)]
    assert sorted(builder.returncode for builder in builders) == [-signal.SIGKILL, 0, 0]
    assert len(set(found) - {""}) == 1
    assert Path(max(found).strip()).read_text() == "compiled\n"
    assert len(calls.read_text().splitlines()) <= 2 + 3  # the killed one's, and its successor's
    assert not list(place.glob(".*"))


def start(program: str, errors_file: Path) -> subprocess.Popen[str]:
    with errors_file.open("w") as stderr:
        words = [sys.executable, "-c", program]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr, text=True)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# When it can't be built


def test_a_compile_error_shows_the_compilers_messages_and_is_remembered(
    place: Path, compiler: Put, calls: Path, recipe: build.Recipe
) -> None:
    errors = "for i in 1 2 3 4 5 6 7 8; do echo y.h:$i: error: $i; done"
    compiler(f"(echo note: x; {errors}) >&2; exit 1")
    with pytest.raises(toolchain.CompileError) as refused:
        build.find_or_build()
    words = str(refused.value)
    assert re.search(r"c\+\+ failed to compile (schema|cpu)\.cpp:\n    y\.h:1: error: 1\n", words)
    assert "y.h:6" in words
    assert "y.h:7" not in words
    assert "note" not in words
    before = calls.read_text()
    with pytest.raises(
        toolchain.CompileError, match=r"y\.h:1: error: 1[^$]*\(recorded in .*\.failed; "
    ):
        build.find_or_build()
    assert calls.read_text() == before  # not compiled again

    compiler("")
    build.build(recipe, place, again=True)  # the command does
    assert build.find_or_build().is_file()
    assert not list(place.glob("*.failed"))


def test_a_remembered_compile_error_expires(
    place: Path, compiler: Put, recipe: build.Recipe
) -> None:
    compiler("echo error: no >&2; exit 1")
    with pytest.raises(toolchain.CompileError):
        build.find_or_build()
    compiler("")
    long_ago = time.time() - build.REMEMBERED
    os.utime(place / f"{recipe.folder}.failed", (long_ago, long_ago))
    assert build.find_or_build().is_file()


def test_a_waiting_process_does_not_repeat_a_failed_build(
    place: Path, compiler: Put, calls: Path
) -> None:
    compiler("sleep 0.2; echo error: no >&2; exit 1")

    def attempt(_: int) -> None:
        with pytest.raises(toolchain.CompileError, match="error: no"):
            build.find_or_build()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(attempt, range(3)))
    assert len(calls.read_text().splitlines()) == 2  # two files


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("kill -9 $$", "exit code -9"),
        ("echo 'c++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1", "Killed"),
        ("echo 'error: cannot write x.o: No space left on device' >&2; exit 1", "No space"),
        ("echo 'virtual memory exhausted: Cannot allocate memory' >&2; exit 1", "exhausted"),
    ],
)
def test_a_temporary_failure_is_not_remembered(
    does: str, words: str, place: Path, compiler: Put
) -> None:
    compiler(does)
    with pytest.raises(toolchain.BuildError, match=words):
        build.find_or_build()
    compiler("")
    assert build.find_or_build().is_file()


def test_the_error_names_a_missing_compiler(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        toolchain.BuildError, match=r"the C\+\+ compiler no-such-compiler is missing"
    ):
        build.find_or_build()
    assert not list(place.glob("*.failed"))


def test_trialfleet_plain_prevents_the_build(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIALFLEET_PLAIN", "1")
    with pytest.raises(toolchain.BuildError, match="TRIALFLEET_PLAIN is set"):
        build.find_or_build()
    assert not place.exists()


@pytest.mark.slow
def test_a_trial_continues_with_plain_torch_and_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = run_python(
        "from trialfleet.nodes.kernels import ops; import trialfleet.nodes.kernels.ops, torch;"
        "loss, _ = ops.loss_and_gradient('mean_squared_error', torch.zeros(2), torch.ones(2));"
        "print(ops.IMPLEMENTATION, loss.item(), ops.REASON)",
        TRIALFLEET_KERNELS=str(tmp_path / "file" / "below"),
    )
    assert ended.returncode == 0
    assert ended.stdout.startswith("plain 1.0 [Errno 20] Not a directory")
    assert ended.stderr.count("using plain torch instead of compiled kernels: [Errno 20]") == 1


# Dependencies of a library


def test_a_library_is_found_only_if_it_has_all_architectures(
    tmp_path: Path, recipe: build.Recipe
) -> None:
    of_node = replace(recipe, cuda="13.0", architectures=("sm_75", "sm_90"))
    library = tmp_path / of_node.folder / build.LIBRARY
    library.parent.mkdir()
    assert build.find(of_node, [tmp_path]) is None  # a folder without a library
    library.touch()
    assert build.find(of_node, [tmp_path / "nothing", tmp_path]) == library
    assert build.find(replace(of_node, architectures=("sm_90",)), [tmp_path]) == library
    assert build.find(replace(of_node, architectures=("sm_80",)), [tmp_path]) is None
    assert build.find(replace(of_node, architectures=("sm_9",)), [tmp_path]) is None


@pytest.mark.parametrize(
    "change",
    [{"sources": "1"}, {"torch": "2.7"}, {"cuda": "1"}, {"machine": "aarch64"}, {"flags": ()}],
)
def test_the_key_depends_on_all_its_parts(change: dict[str, Any], recipe: build.Recipe) -> None:
    assert replace(recipe, **change).key != recipe.key


def test_the_sources_hash_depends_on_names_and_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "SOURCES", tmp_path)
    (tmp_path / "cuda").mkdir()
    hashes = [build.hash_of_sources()]
    (tmp_path / "a.cpp").write_text("1")
    hashes.append(build.hash_of_sources())
    (tmp_path / "a.cpp").write_text("2")
    hashes.append(build.hash_of_sources())
    (tmp_path / "a.cpp").rename(tmp_path / "cuda" / "a.cpp")
    hashes.append(build.hash_of_sources())
    assert len(set(hashes)) == 4


def test_roots_libraries_come_before_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRIALFLEET_KERNELS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    mine = tmp_path / "trialfleet" / "kernels"
    assert build.places() == (build.SYSTEM, mine)
    assert build.cache() == mine
    monkeypatch.setenv("TRIALFLEET_KERNELS", "/elsewhere")
    assert build.places() == (Path("/elsewhere"),)


def test_a_user_without_a_home_finds_roots_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TRIALFLEET_KERNELS", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)
    assert build.places() == (build.SYSTEM,)
    with pytest.raises(toolchain.BuildError, match="no home"):
        build.cache()


# CUDA


def test_nvcc_matches_torchs_cuda_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(folder: str, version: str) -> str:
        path = tmp_path / folder / "nvcc"
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V1'\n")
        path.chmod(0o755)
        return str(path)

    of_home, on_path = put("home/bin", "12.4"), put("path", "13.0")
    packaged = put("packages/nvidia/cu14/bin", "14.2")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    monkeypatch.setattr(toolchain, "PACKAGES", tmp_path / "packages")
    assert toolchain.find_nvcc("12.8") == of_home
    assert toolchain.find_nvcc("13.1") == on_path
    assert toolchain.find_nvcc("14.0") == packaged
    with pytest.raises(toolchain.BuildError) as missing:
        toolchain.find_nvcc("11.8")
    assert "needs an nvcc of CUDA 11: install it, or set CUDA_HOME; found: " in str(missing.value)
    assert f"{of_home} (12.4), {on_path} (13.0)" in str(missing.value)


def codes_for(architectures: list[str], known: list[int]) -> list[str]:
    return [word for word in toolchain.code_options(architectures, known) if word != "-gencode"]


@pytest.mark.parametrize("known", [[75, 80, 90, 100, 120], []])  # [] of an nvcc that doesn't say
def test_each_architecture_has_code_and_the_highest_one_also_ptx(known: list[int]) -> None:
    assert codes_for(["sm_90", "sm_100", "sm_75"], known) == [
        "arch=compute_75,code=sm_75",
        "arch=compute_90,code=sm_90",
        "arch=compute_100,code=sm_100",
        "arch=compute_100,code=compute_100",
    ]


def test_a_gpu_newer_than_nvcc_gets_the_ptx_of_the_newest_known_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(
        "#!/bin/sh\nprintf 'compute_75\\ncompute_100\\ncompute_100a\\ncompute_120\\n'\n"
    )
    nvcc.chmod(0o755)
    known = toolchain.supported_architectures(str(nvcc))
    assert known == [75, 100, 120]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", [(10, 3), (13, 0)].__getitem__)
    ptx = ["arch=compute_100,code=compute_100", "arch=compute_120,code=compute_120"]
    assert codes_for([*build.architectures()], known) == ptx
    assert codes_for(["sm_70"], known)[0] == "arch=compute_70,code=sm_70"  # nvcc says that it can't


@pytest.mark.parametrize(
    ("cuda", "latest"), [("12.4", "sm_90"), ("12.8", "sm_120"), ("13.0", "sm_120")]
)
def test_a_machine_without_a_gpu_compiles_for_data_centre_gpus(
    cuda: str, latest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert build.architectures()[0] == "sm_75"
    assert build.architectures()[-1] == latest


def test_only_architectures_of_visible_gpus_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities = [(12, 0), (8, 9), (8, 9)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.__getitem__)
    assert build.architectures() == ("sm_89", "sm_120")


@pytest.fixture(scope="module")
def cuda_objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The objects that a node compiles, for one architecture and with this torch's headers."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("needs nvcc")
    folder = tmp_path_factory.mktemp("objects")
    recipe = replace(build.Recipe.for_this_machine(), cuda="13.0", architectures=("sm_90",))
    chosen = toolchain.Compilers(cxx="g++", nvcc=nvcc)
    units = toolchain.compile_commands(recipe.architectures, chosen, folder)
    commands = [words for unit, words in units.items() if unit.startswith("cuda")]
    with ThreadPoolExecutor(2) as pool:
        for ended in pool.map(lambda words: subprocess.run(words, capture_output=True), commands):
            assert ended.returncode == 0, ended.stderr.decode()
    return folder


@pytest.mark.thorough
@pytest.mark.slow
def test_the_cuda_part_compiles_without_undefined_symbols_of_its_own(
    cuda_objects: Path, tmp_path: Path
) -> None:
    objects = sorted(map(str, cuda_objects.iterdir()))
    assert {Path(path).name for path in objects} >= {"cuda.cpp.o", "optimizer.cu.o"}
    library = tmp_path / "all.so"
    subprocess.run(["g++", "-shared", *objects, "-o", str(library)], check=True)
    missing = subprocess.run(
        ["nm", "--undefined-only", "--demangle", str(library)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "c10::cuda::getCurrentCUDAStream" in missing  # torch's side, which a CPU torch lacks
    assert not re.findall(r" U trialfleet::.*", missing)


# The command


def test_a_library_that_does_not_load_fails_the_build(
    place: Path, compiler: Put, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["build"]) == 1
    assert "no usable library: " in capsys.readouterr().out
    assert command.main(["status"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["implementation"] == "plain"
    assert re.search(r"kernels.so does not load: .*(file too short|invalid ELF)", content["reason"])


def test_status_builds_nothing(
    place: Path, compiler: Put, calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["status"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["implementation"] == "cpu"
    assert content["compiled_first_by"][0].endswith("c++")
    assert not calls.exists()
    assert not place.exists()


def test_a_user_without_a_home_needs_a_folder_only_to_build(
    place: Path,
    compiler: Put,
    calls: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def no_home(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TRIALFLEET_KERNELS")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)
    assert command.main(["status"]) == 0
    assert command.main(["build"]) == 1
    assert "TRIALFLEET_KERNELS to a folder" in capsys.readouterr().out
    assert not calls.exists()
    command.main(["build", "--into", str(place)])
    assert calls.exists()


def test_an_unknown_subcommand_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["biuld"])
    assert ended.value.code == 2


# For real


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The command's report of its build."""
    place = tmp_path_factory.mktemp("built")
    words = [
        sys.executable,
        "-m",
        "trialfleet.nodes.kernels",
        "build",
        "--into",
        str(place),
    ]
    ended = subprocess.run(words, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"compiled cpu.cpp in \d+\.\d s \(\d of 2\)", ended.stderr)
    content: dict[str, Any] = json.loads(ended.stdout)
    return {**content, "place": str(place)}


def run_python(
    program: str, cwd: Path = HERE, **environment: str
) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k != "TRIALFLEET_PLAIN"}
    words = [sys.executable, "-c", program]
    given = {**inherited, **environment}
    return subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=given)


@pytest.mark.thorough
@pytest.mark.slow
def test_the_command_builds_the_library_that_ops_loads(library: dict[str, Any]) -> None:
    assert library["built"]
    assert library["architectures"] == ["cpu"]
    assert library["seconds"] > 0
    program = "from trialfleet.nodes.kernels import ops; print(ops.IMPLEMENTATION, ops.REASON)"
    ended = run_python(program, TRIALFLEET_KERNELS=library["place"])
    assert ended.stdout == f"cpu torch {torch.__version__} is built only for the CPU\n"
    assert ended.stderr == ""


@pytest.mark.thorough
@pytest.mark.slow
def test_the_library_uses_torchs_openmp(library: dict[str, Any]) -> None:
    program = (
        "from trialfleet.nodes.kernels import ops; from pathlib import Path; import re;"
        "print(len(set(re.findall(r'/.*lib(?:g|i)?omp.*', Path('/proc/self/maps').read_text()))))"
    )
    assert run_python(program, TRIALFLEET_KERNELS=library["place"]).stdout == "1\n"


@pytest.mark.thorough
@pytest.mark.slow
def test_the_package_works_alone_in_a_sandbox(library: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(HERE / "nodes" / "kernels", tmp_path / "kernels")
    shutil.copy(HERE / "nodes" / "tabular" / "trial_imports.py", tmp_path)
    program = (
        "import trial_imports, torch; from trialfleet.nodes.kernels import ops;"
        "from trialfleet import nodes;"
        "loss, _ = ops.loss_and_gradient('mean_squared_error', torch.zeros(2), torch.ones(2));"
        "print(ops.IMPLEMENTATION, loss.item(), hasattr(nodes, '__file__'))"
    )
    ended = run_python(program, tmp_path, TRIALFLEET_KERNELS=library["place"])
    assert ended.stdout == "cpu 1.0 False\n", ended.stderr


@pytest.mark.thorough
@pytest.mark.slow
def test_the_operators_tests_pass_on_the_library(library: dict[str, Any]) -> None:
    words = ["-q", "-p", "no:cacheprovider", "tests/unit/kernels/test_kernels_ops.py"]
    program = f"import pytest, sys; sys.exit(pytest.main({words!r}))"
    ended = run_python(program, TRIALFLEET_PLAIN="", TRIALFLEET_KERNELS=library["place"])
    assert ended.returncode == 0, ended.stdout
    assert "skipped" not in ended.stdout  # as it would be with plain torch
