"""Functions that find, compile and load the library of kernels for this machine's torch and GPUs.

Each library has its own folder, whose name begins with a hash of what the library depends on, such
as torch's version. Only one process builds in a folder, and the others wait. A job doesn't wait
while root compiles at the node's boot: that has the lowest priority.

After a failed compilation, trials use plain torch for 6 hours. If memory or disk space was short,
the next trial tries again. The command `build` tries again at any time.

torch.utils.cpp_extension is not used, because it imports setuptools. Also, after a killed build its
later builds would wait forever for a lock.

Environment:
    TRIALFLEET_KERNELS    the folder to search and to build in, instead of the default folders
    TRIALFLEET_PLAIN      if it is not empty, plain torch is used instead of a library
    CXX                   the C++ compiler; default: g++
    CUDA_HOME             the folder of the CUDA toolkit, the first place to look for nvcc
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
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

from trialfleet.nodes.kernels import toolchain

LIBRARY = "trialfleet_kernels.so"
SYSTEM = Path("/var/lib/trialfleet/kernels")  # root's folder; a node builds into it at its boot

REMEMBERED = 6 * 3600  # seconds for which a failure is recorded; the compiler may change later


def print_progress(words: str) -> None:
    """Print `words` to stderr, because stdout belongs to the program that uses the kernels."""
    print(f"trialfleet kernels: {words}", file=sys.stderr, flush=True)


# Dependencies of a library


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything on which a compiled library depends."""

    sources: str  # hash of csrc/
    torch: str  # its version
    cuda: str  # the version of CUDA that torch was built with; "" for a CPU torch
    machine: str  # the processor's family
    flags: tuple[str, ...]  # of both compilers
    # GPU architectures, such as sm_90. Later GPUs can use the PTX of the highest one.
    architectures: tuple[str, ...]

    @classmethod
    def for_this_machine(cls) -> Recipe:
        """Return the recipe for this machine's torch and the GPUs that torch sees."""
        return cls(
            sources=hash_of_sources(),
            torch=torch.__version__,
            cuda=torch.version.cuda or "",
            machine=platform.machine(),
            flags=toolchain.FLAGS,
            architectures=architectures() if torch.version.cuda else ("cpu",),
        )

    @property
    def key(self) -> str:
        """The hash in the name of the library's folder.

        It leaves out the GPU architectures: a library that supports additional ones fits, too.
        """
        parts = {**asdict(self), "architectures": None}
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    @property
    def folder(self) -> str:
        """The name of the library's folder."""
        return "-".join([self.key, *self.architectures])


def hash_of_sources() -> str:
    """Return a hash of the names and contents of the files in csrc/."""
    found = hashlib.sha256()
    for path in sorted(toolchain.SOURCES.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            name = path.relative_to(toolchain.SOURCES)
            found.update(f"{name} {len(content)}\n".encode() + content)
    return found.hexdigest()


def architectures() -> tuple[str, ...]:
    """Return the architectures of the GPUs that torch sees, such as "sm_90".

    If there is no GPU, return the architectures of common data-centre GPUs.
    """
    visible = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    if not visible:
        visible = {(7, 5), (8, 0), (8, 6), (8, 9), (9, 0)}
        if toolchain.parse_version(torch.version.cuda or "") >= (12, 8):
            visible |= {(10, 0), (12, 0)}
    return tuple(f"sm_{major}{minor}" for major, minor in sorted(visible))


# Folders of libraries


def cache() -> Path:
    """Return the folder in which this user's libraries are built.

    It is $TRIALFLEET_KERNELS if this is set, else a folder in the user's cache. Raise BuildError if
    the user has no home folder.
    """
    chosen = os.environ.get("TRIALFLEET_KERNELS")
    if chosen:
        return Path(chosen)
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    except RuntimeError as error:
        raise toolchain.BuildError(
            "this user has no home folder for the compiled kernels: set the environment variable "
            "TRIALFLEET_KERNELS to a folder"
        ) from error
    return Path(caches) / "trialfleet" / "kernels"


def places() -> tuple[Path, ...]:
    """Return the folders to search for libraries, in order."""
    if os.environ.get("TRIALFLEET_KERNELS"):
        return (cache(),)
    try:
        return (SYSTEM, cache())
    except toolchain.BuildError:
        return (SYSTEM,)


def find(recipe: Recipe, where: Sequence[Path]) -> Path | None:
    """Return the first library in the folders `where` that fits the recipe, or None."""
    for place in where:
        for library in sorted(place.glob(f"{recipe.key}-*/{LIBRARY}")):
            if set(recipe.architectures) <= set(library.parent.name.split("-")):
                return library
    return None


# Loading


def best() -> tuple[Literal["cuda", "cpu"], str]:
    """Return the best kernels that this torch can use, "cuda" or "cpu", and a reason.

    The reason says why this torch can't use CUDA kernels. For "cuda" it is "".
    """
    if torch.version.cuda is None:
        return "cpu", f"torch {torch.__version__} is built only for the CPU"
    return "cuda", ""


def find_or_build() -> Path:
    """Return the library for this machine. If there is none, build it in this user's folder.

    If another process of this user builds it, wait for that process. Raise BuildError or OSError
    on failure.
    """
    recipe = Recipe.for_this_machine()
    return find_usable(recipe) or build(recipe, cache())


def load(library: Path) -> None:
    """Load a library into this process, or raise BuildError."""
    try:
        torch.ops.load_library(library)  # type: ignore[no-untyped-call]
    except OSError as error:
        why = f"{library} does not load: {error.__cause__ or error}"
        raise toolchain.BuildError(why) from error


def find_usable(recipe: Recipe) -> Path | None:
    """Return a library that fits `recipe`, or None if it must be built first.

    Raise BuildError if TRIALFLEET_PLAIN is set. Raise CompileError if a compilation for this recipe
    failed in the last 6 hours.
    """
    if os.environ.get("TRIALFLEET_PLAIN"):
        raise toolchain.BuildError("the environment variable TRIALFLEET_PLAIN is set")
    found = find(recipe, places())
    for place in places() if found is None else ():
        _check_failure(recipe, place)
    return found


def _check_failure(recipe: Recipe, place: Path) -> None:
    failed = place / f"{recipe.folder}.failed"
    if failed.is_file() and time.time() - failed.stat().st_mtime < REMEMBERED:
        raise toolchain.CompileError(
            f"{failed.read_text(encoding='utf-8')}\n"
            f"(recorded in {failed}; delete this file to compile again)"
        )


# Building


def build(recipe: Recipe, place: Path, *, again: bool = False) -> Path:
    """Return the library for `recipe` in the folder `place`, and compile it first if needed.

    Raise CompileError if the compilation fails, or failed in the last 6 hours. `again` ignores an
    earlier failure. Raise BuildError or OSError for other faults.
    """
    place.mkdir(parents=True, exist_ok=True)
    with _lock_build(place / f"{recipe.folder}.lock"):
        found = find(recipe, [place])  # another process may have built it a moment ago
        if found:
            return found
        failed = place / f"{recipe.folder}.failed"
        if again:
            failed.unlink(missing_ok=True)
        _check_failure(recipe, place)
        chosen = toolchain.compilers()
        for left_by_a_killed_one in place.glob(f".{recipe.folder}.*"):
            shutil.rmtree(left_by_a_killed_one, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f".{recipe.folder}.", dir=place))
        try:
            _make(recipe, chosen, work)
            return _publish(work, place / recipe.folder)
        except toolchain.CompileError as error:
            failed.write_text(str(error), encoding="utf-8")
            raise
        finally:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _lock_build(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # who can read it can lock it
    with os.fdopen(descriptor, "r+b") as file:
        os.fchmod(descriptor, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print_progress("waiting until another process has built them")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(recipe: Recipe, chosen: toolchain.Compilers, work: Path) -> None:
    start = time.monotonic()
    print_progress(f"compiling for torch {recipe.torch}, {', '.join(recipe.architectures)}")
    with tempfile.TemporaryDirectory(dir=work) as objects:
        units = toolchain.compile_commands(recipe.architectures, chosen, Path(objects))
        with ThreadPoolExecutor(toolchain.parallel_compilers()) as pool:
            running = [pool.submit(toolchain.run, unit, command) for unit, command in units.items()]
            for done, finished in enumerate(as_completed(running), 1):
                unit, seconds = finished.result()
                print_progress(f"compiled {unit} in {seconds:.1f} s ({done} of {len(units)})")
        made = sorted(map(str, Path(objects).iterdir()))
        libraries = toolchain.loaded_libraries()
        link = [chosen.cxx, "-shared", *made, *libraries, "-o", str(work / LIBRARY)]
        toolchain.run(LIBRARY, link)
    seconds = round(time.monotonic() - start, 1)
    record = {**asdict(recipe), **asdict(chosen), "seconds": seconds}
    (work / "build.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _publish(work: Path, folder: Path) -> Path:
    library = work / LIBRARY
    with library.open("rb") as file:
        os.fsync(file.fileno())
    work.chmod(0o755)  # only its owner can read a temporary folder
    shutil.rmtree(folder, ignore_errors=True)  # it has no library: `build` would have found one
    work.rename(folder)  # at the end, so that no process sees an incomplete library
    return folder / LIBRARY
