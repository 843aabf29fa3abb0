"""The CUDA kernels on the CPU: builds them with g++ against stand_in_cuda/ and calls the launchers.

Needs numpy alone, so that it also runs in a process that AddressSanitizer watches.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import fcntl
import hashlib
import re
import subprocess
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "nodes" / "kernels" / "csrc"
CUDA = CSRC / "cuda"
STAND_IN = Path(__file__).with_name("stand_in_cuda")

COMPILE = [
    *("g++", "-std=c++17", "-O1", "-g", "-fPIC", "-c", "-x", "c++"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-DTRIALFLEET_MOST_BLOCKS=3"),
    *(f"-I{folder}" for folder in (STAND_IN, CSRC, CUDA)),
]
SANITIZE = [
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "-fsanitize-sections=shared_memory",
]

Array = npt.NDArray[Any]

GUARD = 16  # bytes before and after an array that no kernel may touch
GUARD_BYTE = 0xA5


def build(folder: Path, *, sanitized: bool = False) -> Path:
    """Return the shared library of all kernels; one process builds, the others wait for it.

    Raises:
        subprocess.CalledProcessError: a kernel doesn't compile; g++ has said why.
    """
    flags = SANITIZE if sanitized else []
    sources = sorted([*CUDA.glob("*.cu"), *STAND_IN.glob("*.cpp")])
    headers = sorted([*CUDA.glob("*.*h"), *CSRC.glob("*.h"), *STAND_IN.glob("*.h")])
    texts = [str([*COMPILE, *flags]).encode(), *(path.read_bytes() for path in sources + headers)]
    library = folder / f"kernels-{hashlib.sha256(b''.join(texts)).hexdigest()[:16]}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            for old in folder.glob("kernels-*"):
                old.unlink()
            _compile(sources, library, flags)
    return library


def build_program(program: Path) -> Path:
    """Return the program of faulty.cpp, with sanitizers."""
    compile_and_link = [word for word in COMPILE if word != "-c"]
    sources = [Path(__file__).with_name("faulty.cpp"), STAND_IN / "grid.cpp"]
    subprocess.run([*compile_and_link, *SANITIZE, *sources, "-o", program], check=True)
    return program


def _compile(sources: Sequence[Path], library: Path, flags: Sequence[str]) -> None:
    objects = [library.with_name(f"{source.name}.o") for source in sources]

    def compile_one(source: Path, to: Path) -> None:
        subprocess.run([*COMPILE, *flags, source, "-o", to], check=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_one, sources, objects))
    beside = library.with_suffix(".tmp")
    subprocess.run(["g++", "-shared", *flags, *objects, "-o", beside], check=True)
    beside.replace(library)


class Type(enum.IntEnum):
    """launchers.h's Type: how values lie in memory. bfloat16 is kept as its bits, uint16."""

    FLOAT32 = 0
    BFLOAT16 = 1
    FLOAT16 = 2

    @property
    def storage(self) -> npt.DTypeLike:
        """Return numpy's type of the memory."""
        return (np.float32, np.uint16, np.float16)[self]

    @property
    def epsilon(self) -> float:
        """Return the relative distance of neighbouring values."""
        return 2.0 ** -(23, 7, 10)[self]

    @property
    def tiny(self) -> float:
        """Return the distance of neighbouring values around 0."""
        return 2.0 ** -(149, 133, 24)[self]

    def encode(self, values: npt.ArrayLike) -> Array:
        """Round values to nearest even, as the kernels do."""
        if self is not Type.BFLOAT16:
            with np.errstate(over="ignore"):
                return np.asarray(values).astype(self.storage)
        bits = np.asarray(values, np.float32).view(np.uint32)
        rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(np.asarray(values)), np.uint16(0x7FFF), rounded)

    def decode(self, stored: Array) -> npt.NDArray[np.float32]:
        """Return the values as float32, which has them all."""
        if self is not Type.BFLOAT16:
            return stored.astype(np.float32)
        return (stored.astype(np.uint32) << 16).view(np.float32)


class Parameter(ctypes.Structure):
    """launchers.h's Parameter."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "gradient", "m", "v", "shadow")),
        ("size", ctypes.c_int64),
        ("decay", ctypes.c_float),
        ("gradient_type", ctypes.c_int),
        ("shadow_type", ctypes.c_int),
    )


class LaunchError(Exception):
    """A launcher answered something else than cudaSuccess."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """One allocation: guard, array, guard."""

    everything: npt.NDArray[np.uint8]
    begin: int
    end: int

    def intact(self) -> bool:
        """Tell whether the guards are as they were."""
        guards = (self.everything[: self.begin], self.everything[self.end :])
        return all(bool((guard == GUARD_BYTE).all()) for guard in guards)


class Kernels:
    """The launchers of one library, by name: their signatures are read from launchers.h."""

    def __init__(self, library: Path, *, sanitized: bool = False) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.stand_in_allocate.restype = ctypes.c_void_p
        self.library.stand_in_allocate.argtypes = [ctypes.c_size_t]
        self.library.stand_in_free.argtypes = [ctypes.c_void_p]
        self.library.stand_in_reverse.argtypes = [ctypes.c_bool]
        self.launchers = {
            name: prototype(ctypes.c_void_p.in_dll(self.library, f"launch_{name}").value)
            for name, prototype in prototypes((CUDA / "launchers.h").read_text()).items()
        }
        self.guard_after = 0 if sanitized else GUARD  # AddressSanitizer's own is stricter
        self.memory: dict[int, Memory] = {}
        self.launches = 0

    def array(self, values: npt.ArrayLike, offset: int = 0) -> Array:
        """Return a copy of `values`, `offset` elements away from an address 16 bytes are read at.

        Its end is the end of an allocation, so that AddressSanitizer sees what reads beyond.
        """
        given = np.asarray(values)
        begin = GUARD + offset * given.itemsize
        end = begin + given.nbytes
        total = end + self.guard_after
        address = self.library.stand_in_allocate(total)
        buffer = (ctypes.c_uint8 * total).from_address(address)
        everything = np.ctypeslib.as_array(buffer)
        everything[:] = GUARD_BYTE
        array = np.ndarray(given.shape, given.dtype, everything.data, begin)
        array[...] = given
        self.memory[array.ctypes.data] = Memory(everything, begin, end)
        weakref.finalize(array, self._free, array.ctypes.data, address)
        return array

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike, offset: int = 0) -> Array:
        """Return memory in which nothing was written yet: it holds what looks like no result."""
        garbage = np.frombuffer(b"\x5a" * 8, np.dtype(dtype))[0]
        return self.array(np.full(shape, garbage, dtype), offset)

    def _free(self, key: int, address: int) -> None:
        del self.memory[key]
        self.library.stand_in_free(address)

    @property
    def grids(self) -> int:
        """Return how many kernels have been launched."""
        return int(self.library.stand_in_grids())

    def launch(self, name: str, *arguments: Any) -> None:
        """Call a launcher on arrays, numbers and None, on no stream.

        Raises:
            LaunchError: it answered an error.
        """
        places = [each.ctypes.data if isinstance(each, np.ndarray) else each for each in arguments]
        code = self.launchers[name](*places, None)
        self.launches += 1
        for key, memory in self.memory.items():
            assert memory.intact(), f"{name} wrote outside the array at {key:#x}"
        if code:
            raise LaunchError(f"{name} answered {code}")

    def workspace(self, name: str, *arguments: Any) -> Array:
        """Return the workspace that a launcher wants."""
        return self.empty([self.launchers[f"{name}_workspace"](*arguments)], np.uint8)

    def philox(self, counter: Sequence[int], key: Sequence[int]) -> list[int]:
        """Return Philox4x32-10 of four words and two."""
        words = (ctypes.c_uint32 * 4)()
        self.library.philox((ctypes.c_uint32 * 4)(*counter), (ctypes.c_uint32 * 2)(*key), words)
        return list(words)

    def dropout_words(self, seed: int, step: int, layer: int, group: int) -> list[int]:
        """Return the words of elements 4 * group to 4 * group + 3."""
        words = (ctypes.c_uint32 * 4)()
        self.library.dropout_words(*map(ctypes.c_int64, (seed, step, layer, group)), words)
        return list(words)

    def in_any_order(self, run: Callable[[], Sequence[Array]]) -> list[Array]:
        """Return what `run` returns; the same bits must come of threads that run in reverse."""
        forwards = [array.copy() for array in run()]
        self.library.stand_in_reverse(True)  # noqa: FBT003
        try:
            backwards = [array.copy() for array in run()]
        finally:
            self.library.stand_in_reverse(False)  # noqa: FBT003
        for one, other in zip(forwards, backwards, strict=True):
            assert one.tobytes() == other.tobytes(), "the result depends on the threads' order"
        return forwards


C_TYPES: dict[str, Any] = {
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "int64_t": ctypes.c_int64,
    "Type": ctypes.c_int,
    "cudaStream_t": ctypes.c_void_p,
    "cudaError_t": ctypes.c_int,
}


def prototypes(header: str) -> dict[str, Any]:
    """Return name → ctypes prototype of every function that launchers.h declares."""
    code = re.sub(r"//.*", "", header)
    found = re.findall(r"\b(cudaError_t|int64_t) (\w+)\(([^)]*)\);", code)
    return {
        name: ctypes.CFUNCTYPE(C_TYPES[result], *(_c_type(text) for text in parameters.split(",")))
        for result, name, parameters in found
    }


def _c_type(parameter: str) -> Any:
    if "*" in parameter:
        return ctypes.c_void_p
    kind, _name = parameter.split()
    return C_TYPES[kind]
