"""The compilers that suit this machine's torch, and the commands to compile the files of csrc/."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

SOURCES = Path(__file__).parent / "csrc"
PACKAGES = Path(inspect.getfile(torch)).parents[1]  # the folder of torch's and NVIDIA's packages

# Without -march, because different machines may share a cache. torch's headers need C++20.
CXX_FLAGS = ("-std=c++20", "-O3", "-fno-math-errno", "-fPIC", "-fopenmp")
NVCC_FLAGS = ("-O3", "-lineinfo", "-Xcompiler", "-fPIC")
HOST_FLAGS = (*NVCC_FLAGS, "-std=c++20")  # for cuda.cpp
KERNEL_FLAGS = (*NVCC_FLAGS, "-std=c++17")  # for cuda/*.cu
# Without the first define, c10's CUDA headers include a file that a torch for CPUs doesn't have and
# that only Windows needs.
DEFINES = (
    "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE",
    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
)
FLAGS = (*CXX_FLAGS, *HOST_FLAGS, *KERNEL_FLAGS, *DEFINES)
ERROR_LINES = 6  # maximum lines of a compiler's errors that are shown
# A compiler's messages if memory or disk was short; a later compilation may succeed.
PASSING = re.compile(
    r"[Kk]illed|[Kk]ill signal|No space left|[Oo]ut of memory|[Cc]annot allocate memory|"
    r"virtual memory exhausted"
)


class BuildError(RuntimeError):
    """No library of kernels can be found, built or loaded. The message says why."""


class CompileError(BuildError):
    """The compiler failed, and would fail again with the same sources."""


@dataclass(frozen=True, kw_only=True)
class Compilers:
    """The names or paths of the compilers."""

    cxx: str
    nvcc: str  # "" if torch is built only for the CPU


def compilers() -> Compilers:
    """Return the compilers for this machine's torch. Raise BuildError if one is missing."""
    cxx = os.environ.get("CXX") or "g++"
    if not shutil.which(cxx):
        raise BuildError(f"the C++ compiler {cxx} is missing: install it, or set CXX")
    return Compilers(cxx=cxx, nvcc=find_nvcc(torch.version.cuda) if torch.version.cuda else "")


def find_nvcc(cuda: str) -> str:
    """Return the path of an nvcc that has the same major version as `cuda`, torch's CUDA version.

    Raise BuildError if there is none.
    """
    others = []
    for path in filter(shutil.which, dict.fromkeys(_nvcc_candidates())):
        output = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        release = re.search(r"release (\d+\.\d+)", output.stdout)
        if release and parse_version(release[1])[0] == parse_version(cuda)[0]:
            return path
        others.append(f"{path} ({release[1] if release else 'of unknown version'})")
    raise BuildError(
        f"torch {torch.__version__} needs an nvcc of CUDA {parse_version(cuda)[0]}: "
        f"install it, or set CUDA_HOME; found: {', '.join(others) or 'none'} (looked in CUDA_HOME, "
        "PATH, /usr/local/cuda and NVIDIA's Python packages)"
    )


def _nvcc_candidates() -> Iterator[str]:
    if os.environ.get("CUDA_HOME"):
        yield f"{os.environ['CUDA_HOME']}/bin/nvcc"
    yield shutil.which("nvcc") or ""
    yield "/usr/local/cuda/bin/nvcc"
    yield from map(str, sorted(PACKAGES.glob("nvidia/*/bin/nvcc")))


def parse_version(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, such as (12, 8) for "12.8.1"."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def parallel_compilers() -> int:
    """Return how many compilers may run at the same time.

    This is the number of cores. In a job of HTCondor it is 1, to save memory.
    """
    return 1 if "_CONDOR_SCRATCH_DIR" in os.environ else len(os.sched_getaffinity(0))


def compile_commands(
    architectures: Sequence[str], chosen: Compilers, objects: Path
) -> dict[str, list[str]]:
    """Return the commands that compile the source files of csrc/, by file name.

    The commands write to the folder `objects`.
    """
    include = ["-isystem", str(PACKAGES / "torch" / "include")]
    cxx = [chosen.cxx, *CXX_FLAGS, *DEFINES, *include]
    nvcc = [chosen.nvcc, "-ccbin", chosen.cxx]
    commands = {"schema.cpp": cxx, "cpu.cpp": cxx}
    if chosen.nvcc:
        # nvcc only calls the C++ compiler for a .cpp, but with its own include paths.
        commands["cuda.cpp"] = [*nvcc, *HOST_FLAGS, *DEFINES, *include]
        codes = code_options(architectures, supported_architectures(chosen.nvcc))
        kernels = [*nvcc, *KERNEL_FLAGS, "--threads", str(parallel_compilers()), *codes]
        commands |= {f"cuda/{path.name}": kernels for path in sorted(SOURCES.glob("cuda/*.cu"))}
    return {
        unit: [*command, "-c", str(SOURCES / unit), "-o", str(objects / f"{Path(unit).name}.o")]
        for unit, command in commands.items()
    }


def supported_architectures(nvcc: str) -> list[int]:
    """Return the GPU architectures that `nvcc` compiles for, such as 90 for sm_90."""
    output = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=False)
    return [int(number) for number in re.findall(r"compute_(\d+)\b", output.stdout)]


def code_options(architectures: Sequence[str], known: Sequence[int]) -> list[str]:
    """Return the options with which nvcc generates code for the GPU architectures.

    `known` has the architectures that this nvcc supports. Those of `architectures` get machine code
    if they are in `known`, otherwise portable code (PTX) for the closest earlier architecture in
    `known`. PTX is also added for GPUs later than all of `architectures`.
    """
    codes = []
    for number in sorted(int(name.removeprefix("sm_")) for name in architectures):
        latest = max((other for other in known if other <= number), default=number)
        code = "sm" if latest == number else "compute"
        codes.append(f"arch=compute_{latest},code={code}_{latest}")
    codes.append(f"arch=compute_{latest},code=compute_{latest}")
    return [option for code in dict.fromkeys(codes) for option in ("-gencode", code)]


def loaded_libraries() -> list[str]:
    """Return the paths of torch's libraries in this process, with which the kernels are linked.

    So the kernels use the same OpenMP and CUDA runtimes as torch. Another OpenMP runtime would have
    its own threads, and another CUDA runtime may not be installed.
    """
    # Each distribution of torch has them in a different place.
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    wanted = r"/.*/lib(?:c10|c10_cuda|torch_cpu|cudart|gomp|omp|iomp5)[-.].*$"
    return list(dict.fromkeys(re.findall(wanted, maps, re.MULTILINE)))


def run(unit: str, command: list[str]) -> tuple[str, float]:
    """Run the command that compiles or links `unit`, and return `unit` and the command's seconds.

    `unit` is the name of a source file or of the library. Raise CompileError if the command fails.
    If it was killed, or memory or disk space was short, raise a plain BuildError, because a later
    attempt may succeed.
    """
    start = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        output = ended.stderr + ended.stdout
        lines = output.splitlines() or [f"exit code {ended.returncode}"]
        errors = [line for line in lines if re.search(r"\berror\b", line)] or lines
        shown = "\n".join(f"    {line}" for line in errors[:ERROR_LINES])
        passing = ended.returncode < 0 or PASSING.search(output)
        kind = BuildError if passing else CompileError
        raise kind(f"{command[0]} failed to compile {unit}:\n{shown}")
    return unit, time.monotonic() - start
