"""Compiles csrc/ for this machine's torch and GPUs, once, and finds what was compiled before.

A library lies in a folder named by all that it depends on: a hash of the sources, torch, the flags,
and the GPU architectures. It is compiled in a folder beside and renamed when complete, so nobody
sees half of one; a lock that dies with its process lets one process build while others wait. A
failed compilation is remembered, so that not every trial repeats it; the command repeats it.

torch.utils.cpp_extension is not used: it imports setuptools and leaves its lock behind when killed.

Environment:
    TRIALFLEET_KERNELS    the only folder to look for libraries in, and to build them into
    TRIALFLEET_PLAIN      any text: no library, plain torch
    CXX, CUDA_HOME        the compiler (else g++), the CUDA toolkit (else found)
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch

SOURCES = Path(__file__).parent / "csrc"
LIBRARY = "trialfleet_kernels.so"
PACKAGES = Path(inspect.getfile(torch)).parents[1]  # torch's and NVIDIA's
SYSTEM = Path("/var/lib/trialfleet/kernels")  # root's, built when the node booted

# Without -march: a cache may be shared by machines. C++20 is what torch's headers want.
CXX_FLAGS = ("-std=c++20", "-O3", "-fno-math-errno", "-fPIC", "-fopenmp")
NVCC_FLAGS = ("-O3", "-lineinfo", "-Xcompiler", "-fPIC")
HOST_FLAGS = (*NVCC_FLAGS, "-std=c++20")  # of cuda.cpp
KERNEL_FLAGS = (*NVCC_FLAGS, "-std=c++17")  # of cuda/*.cu
# c10's CUDA headers include a file that a CPU torch lacks, and that matters on Windows alone.
DEFINES = (
    "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE",
    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
)
ERROR_LINES = 6  # of a compiler's errors are told
# A machine that was short of something says nothing about the next time.
PASSING = re.compile(
    r"[Kk]illed|[Kk]ill signal|No space left|[Oo]ut of memory|[Cc]annot allocate memory|"
    r"virtual memory exhausted"
)
REMEMBERED = 6 * 3600  # s; by then somebody may have mended the compiler


class BuildError(RuntimeError):
    """There is no library, and why."""


class CompileError(BuildError):
    """The compiler refused, and would refuse again."""


def say(words: str) -> None:
    """Tell people what goes on; standard output is the trial's."""
    print(f"trialfleet kernels: {words}", file=sys.stderr, flush=True)


# What a library depends on


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that a library depends on.

    Attributes:
        sources: hash of csrc/.
        torch: its version.
        cuda: the version of CUDA that torch was built with; "" for a CPU torch.
        machine: the processor's family.
        flags: of both compilers.
        architectures: of GPUs, such as sm_90; the highest one's PTX serves later ones.
    """

    sources: str
    torch: str
    cuda: str
    machine: str
    flags: tuple[str, ...]
    architectures: tuple[str, ...]

    @classmethod
    def here(cls) -> Recipe:
        """Return the recipe for this machine's torch and the GPUs that it sees."""
        return cls(
            sources=hash_of_sources(),
            torch=torch.__version__,
            cuda=torch.version.cuda or "",
            machine=platform.machine(),
            flags=(*CXX_FLAGS, *HOST_FLAGS, *KERNEL_FLAGS, *DEFINES),
            architectures=architectures() if torch.version.cuda else ("cpu",),
        )

    @property
    def key(self) -> str:
        """What must be equal; a library may be for more architectures than are needed."""
        parts = {**asdict(self), "architectures": None}
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    @property
    def folder(self) -> str:
        """The name of the library's folder."""
        return "-".join([self.key, *self.architectures])


def hash_of_sources() -> str:
    """Return a hash of the names and contents of csrc/."""
    found = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            found.update(f"{path.relative_to(SOURCES)} {len(content)}\n".encode() + content)
    return found.hexdigest()


def architectures() -> tuple[str, ...]:
    """Return the visible GPUs' own; where none is visible, those of the GPUs in data centres."""
    visible = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    if not visible:
        visible = {(7, 5), (8, 0), (8, 6), (8, 9), (9, 0)}
        if _version(torch.version.cuda or "") >= (12, 8):
            visible |= {(10, 0), (12, 0)}
    return tuple(f"sm_{major}{minor}" for major, minor in sorted(visible))


# Where libraries lie


def cache() -> Path:
    """Return the folder that this user builds into.

    Raises:
        BuildError: this user has no home.
    """
    chosen = os.environ.get("TRIALFLEET_KERNELS")
    if chosen:
        return Path(chosen)
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    except RuntimeError as error:
        raise BuildError("this user has no home to keep a library in") from error
    return Path(caches) / "trialfleet" / "kernels"


def places() -> tuple[Path, ...]:
    """Return the folders where libraries are looked for, in order."""
    if os.environ.get("TRIALFLEET_KERNELS"):
        return (cache(),)
    try:
        return (SYSTEM, cache())
    except BuildError:
        return (SYSTEM,)


def find(recipe: Recipe, where: Sequence[Path]) -> Path | None:
    """Return a library that was built before, if there is one."""
    for place in where:
        for library in sorted(place.glob(f"{recipe.key}-*/{LIBRARY}")):
            if set(recipe.architectures) <= set(library.parent.name.split("-")):
                return library
    return None


# Loading


def best() -> tuple[Literal["cuda", "cpu"], str]:
    """Return what a library is for with this torch, and why not for more."""
    if torch.version.cuda is None:
        return "cpu", f"torch {torch.__version__} is for the CPU alone"
    return "cuda", ""


def find_or_build() -> Path:
    """Return the library for this machine, found or built now.

    Raises:
        BuildError: there is none and none can be built.
        OSError: the cache can't be written.
    """
    recipe = Recipe.here()
    found = find_usable(recipe)
    if found is None and SYSTEM in places() and waited_for(SYSTEM / f"{recipe.folder}.lock"):
        found = find_usable(recipe)
    return found or build(recipe, cache())


def waited_for(lock: Path) -> bool:
    """Wait for a build of somebody else's that is under way; tell whether there was one."""
    try:
        file = lock.open("rb")
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            say("this machine's own are being built; waiting for them")
            fcntl.flock(file, fcntl.LOCK_SH)
            return True
    return False


def load(library: Path) -> None:
    """Load a library into this process.

    Raises:
        BuildError: it doesn't fit this machine.
    """
    try:
        torch.ops.load_library(library)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise BuildError(f"{library} does not load: {error.__cause__ or error}") from error


def find_usable(recipe: Recipe) -> Path | None:
    """Return a library that was built before, or None if it is worth while to build one.

    Raises:
        BuildError: there is none and none is to be built.
    """
    if os.environ.get("TRIALFLEET_PLAIN"):
        raise BuildError("TRIALFLEET_PLAIN is set")
    found = find(recipe, places())
    for place in places() if found is None else ():
        _heed_failure(recipe, place)
    return found


def _heed_failure(recipe: Recipe, place: Path) -> None:
    failed = place / f"{recipe.folder}.failed"
    if failed.is_file() and time.time() - failed.stat().st_mtime < REMEMBERED:
        raise CompileError(f"{failed.read_text(encoding='utf-8')}\n(so says {failed})")


# Compilers


@dataclass(frozen=True, kw_only=True)
class Compilers:
    """The programs to compile with; nvcc is "" where torch is for the CPU alone."""

    cxx: str
    nvcc: str


def compilers() -> Compilers:
    """Return the compilers for this machine's torch.

    Raises:
        BuildError: one of them is missing.
    """
    cxx = os.environ.get("CXX") or "g++"
    if not shutil.which(cxx):
        raise BuildError(f"there is no C++ compiler {cxx}")
    return Compilers(cxx=cxx, nvcc=find_nvcc(torch.version.cuda) if torch.version.cuda else "")


def find_nvcc(cuda: str) -> str:
    """Return the nvcc of torch's major version of CUDA.

    Raises:
        BuildError: there is none.
    """
    others = []
    for path in filter(shutil.which, dict.fromkeys(_nvccs())):
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        release = re.search(r"release (\d+\.\d+)", said.stdout)
        if release and _version(release[1])[0] == _version(cuda)[0]:
            return path
        others.append(f"{path} ({release[1] if release else 'of unknown version'})")
    raise BuildError(
        f"torch {torch.__version__} needs an nvcc of CUDA {_version(cuda)[0]}; "
        f"found: {', '.join(others) or 'none'} (looked at CUDA_HOME, PATH, /usr/local/cuda "
        "and NVIDIA's Python packages)"
    )


def _nvccs() -> Iterator[str]:
    """Yield where an nvcc may be, the likeliest first."""
    if os.environ.get("CUDA_HOME"):
        yield f"{os.environ['CUDA_HOME']}/bin/nvcc"
    yield shutil.which("nvcc") or ""
    yield "/usr/local/cuda/bin/nvcc"
    yield from map(str, sorted(PACKAGES.glob("nvidia/*/bin/nvcc")))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


# Building


def build(recipe: Recipe, place: Path, *, again: bool = False) -> Path:
    """Compile the library into a folder of `place`, unless it is there.

    Args:
        recipe: what to compile for.
        place: see `places`.
        again: even if that failed before.

    Raises:
        BuildError: a compiler is missing, or refuses.
        OSError: the folder can't be written.
    """
    place.mkdir(parents=True, exist_ok=True)
    with _locked(place / f"{recipe.folder}.lock"):
        found = find(recipe, [place])  # by another process, a moment ago
        if found:
            return found
        failed = place / f"{recipe.folder}.failed"
        if again:
            failed.unlink(missing_ok=True)
        _heed_failure(recipe, place)
        chosen = compilers()
        for left_by_a_killed_one in place.glob(f".{recipe.folder}.*"):
            shutil.rmtree(left_by_a_killed_one, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f".{recipe.folder}.", dir=place))
        try:
            _make(recipe, chosen, work)
            return _publish(work, place / recipe.folder)
        except CompileError as error:
            failed.write_text(str(error), encoding="utf-8")
            raise
        finally:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is building them; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(recipe: Recipe, chosen: Compilers, work: Path) -> None:
    """Compile and link the library and write build.json beside it."""
    start = time.monotonic()
    say(f"compiling for torch {recipe.torch}, {', '.join(recipe.architectures)}")
    with tempfile.TemporaryDirectory(dir=work) as objects:
        units = compile_commands(recipe, chosen, Path(objects))
        with ThreadPoolExecutor(compilers_at_once()) as pool:
            running = [pool.submit(_run, unit, command) for unit, command in units.items()]
            for done, finished in enumerate(as_completed(running), 1):
                unit, seconds = finished.result()
                say(f"compiled {unit} in {seconds:.1f} s ({done} of {len(units)})")
        made = sorted(map(str, Path(objects).iterdir()))
        link = [chosen.cxx, "-shared", *made, *loaded_libraries(), "-o", str(work / LIBRARY)]
        _run(LIBRARY, link)
    seconds = round(time.monotonic() - start, 1)
    told = {**asdict(recipe), **asdict(chosen), "seconds": seconds}
    (work / "build.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def compilers_at_once() -> int:
    """Return how many compilers may run at once: in an HTCondor job one, within its memory."""
    return 1 if "_CONDOR_SCRATCH_DIR" in os.environ else len(os.sched_getaffinity(0))


def compile_commands(recipe: Recipe, chosen: Compilers, objects: Path) -> dict[str, list[str]]:
    """Return how to compile each file of csrc/, by its name, into a folder for objects."""
    include = ["-isystem", str(PACKAGES / "torch" / "include")]
    cxx = [chosen.cxx, *CXX_FLAGS, *DEFINES, *include]
    nvcc = [chosen.nvcc, "-ccbin", chosen.cxx]
    commands = {"schema.cpp": cxx, "cpu.cpp": cxx}
    if chosen.nvcc:
        # Compiled by nvcc for its include paths; what it does with a .cpp is call the C++ compiler.
        commands["cuda.cpp"] = [*nvcc, *HOST_FLAGS, *DEFINES, *include]
        codes = code_for(recipe.architectures, known_to(chosen.nvcc))
        kernels = [*nvcc, *KERNEL_FLAGS, "--threads", str(compilers_at_once()), *codes]
        commands |= {f"cuda/{path.name}": kernels for path in sorted(SOURCES.glob("cuda/*.cu"))}
    return {
        unit: [*command, "-c", str(SOURCES / unit), "-o", str(objects / f"{Path(unit).name}.o")]
        for unit, command in commands.items()
    }


def known_to(nvcc: str) -> list[int]:
    """Return the architectures that an nvcc compiles for: 90 for sm_90."""
    said = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=False)
    return [int(number) for number in re.findall(r"compute_(\d+)\b", said.stdout)]


def code_for(architectures: Sequence[str], known: Sequence[int]) -> list[str]:
    """Return nvcc's options: machine code for each, and PTX of the highest for later GPUs.

    A GPU that is later than those that nvcc knows has the PTX of the latest one before it.
    """
    codes = []
    for number in sorted(int(name.removeprefix("sm_")) for name in architectures):
        latest = max((other for other in known if other <= number), default=number)
        code = "sm" if latest == number else "compute"
        codes.append(f"arch=compute_{latest},code={code}_{latest}")
    codes.append(f"arch=compute_{latest},code=compute_{latest}")
    return [option for code in dict.fromkeys(codes) for option in ("-gencode", code)]


def loaded_libraries() -> list[str]:
    """Return the very files that torch loaded into this process.

    Another copy of the OpenMP runtime would have threads of its own, and another copy of CUDA's
    might not be there at all: each packaging of torch has them elsewhere.
    """
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    wanted = r"/.*/lib(?:c10|c10_cuda|torch_cpu|cudart|gomp|omp|iomp5)[-.].*$"
    return list(dict.fromkeys(re.findall(wanted, maps, re.MULTILINE)))


def _run(unit: str, command: list[str]) -> tuple[str, float]:
    """Run a compiler; return what it compiled and the seconds that it took."""
    start = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        said = ended.stderr + ended.stdout
        lines = said.splitlines() or [f"exit code {ended.returncode}"]
        errors = [line for line in lines if re.search(r"\berror\b", line)] or lines
        told = "\n".join(f"    {line}" for line in errors[:ERROR_LINES])
        passing = ended.returncode < 0 or PASSING.search(said)
        kind = BuildError if passing else CompileError
        raise kind(f"{command[0]} can't compile {unit}:\n{told}")
    return unit, time.monotonic() - start


def _publish(work: Path, folder: Path) -> Path:
    """Rename a complete folder to where libraries are looked for; return the library."""
    library = work / LIBRARY
    with library.open("rb") as file:
        os.fsync(file.fileno())
    work.chmod(0o755)  # a temporary folder is its owner's alone
    shutil.rmtree(folder, ignore_errors=True)  # without a library, or it would have been found
    work.rename(folder)
    return folder / LIBRARY
