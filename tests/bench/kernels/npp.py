"""NVIDIA's NPP by ctypes: `nppsMulC_32f_I`, the library call of the benchmark of 2014.

The library is in NVIDIA's wheels, `pip install '.[npp-cu13]'` (or `npp-cu12`), and in the CUDA
toolkit. It has its own CUDA runtime, and uses torch's context and stream.

CUDA 13 has only the functions whose names end in `_Ctx`, which get the stream as an argument; CUDA
12 has them, too. There `nLength` is an int in early releases and a size_t in later ones. A length
that fits into an int is right for both if passed as size_t.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

WHEELS = {13: "nvidia-npp", 12: "nvidia-npp-cu12"}  # by CUDA's major version
TOOLKIT = Path("/usr/local/cuda/lib64")
SUCCESS = 0  # NPP_SUCCESS; errors are below, warnings above
NON_BLOCKING = 1  # cudaStreamNonBlocking, with which torch makes all its streams
THREADS_PER_BLOCK = 1024  # at most, on every GPU since 2010


class StreamContext(ctypes.Structure):
    """`NppStreamContext` of nppdefs.h, the same 48 bytes from 12.0 to 13.2.

    13.2 calls its last field, which stays 0, `hWorkspace`.
    """

    _fields_ = (
        ("hStream", ctypes.c_void_p),
        ("nCudaDeviceId", ctypes.c_int),
        ("nMultiProcessorCount", ctypes.c_int),
        ("nMaxThreadsPerMultiProcessor", ctypes.c_int),
        ("nMaxThreadsPerBlock", ctypes.c_int),
        ("nSharedMemPerBlock", ctypes.c_size_t),
        ("nCudaDevAttrComputeCapabilityMajor", ctypes.c_int),
        ("nCudaDevAttrComputeCapabilityMinor", ctypes.c_int),
        ("nStreamFlags", ctypes.c_uint),
        ("nReserved0", ctypes.c_int),
    )


class NppError(Exception):
    """There is no NPP here, or it refused a call."""


@dataclass(frozen=True)
class Npp:
    """The library, and its wheel (such as `nvidia-npp 13.2.0.93`) or file."""

    library: ctypes.CDLL
    wheel: str

    def mulc(
        self, pointer: int | None, length: int, constant: float, context: StreamContext
    ) -> Callable[[], int]:
        """Return a call of `nppsMulC_32f_I_Ctx`: `length` float32 at `pointer`, times `constant`.

        The arguments are converted once, here, so that the call costs what a library call costs.
        The call returns NPP's status: `SUCCESS`, or see `checked`.
        """
        function: Any = self.library.nppsMulC_32f_I_Ctx
        function.argtypes = (ctypes.c_float, ctypes.c_void_p, ctypes.c_size_t, StreamContext)
        function.restype = ctypes.c_int
        return functools.partial(
            function,
            ctypes.c_float(constant),
            ctypes.c_void_p(pointer),
            ctypes.c_size_t(length),
            context,
        )


def load(cuda: str | None) -> Npp:
    """Return the NPP of torch's CUDA version (such as "13.0"), else any that is installed.

    Raises:
        NppError: none is installed, or it can't be loaded.
    """
    wanted = int(cuda.partition(".")[0]) if cuda else None
    for major in sorted(WHEELS, key=lambda major: major != wanted):
        file = library_of(WHEELS[major])
        if file is not None:
            try:
                library = ctypes.CDLL(str(file))
            except OSError as error:
                raise NppError(f"{file} can't be loaded: {error}") from error
            return Npp(library, f"{WHEELS[major]} {metadata.version(WHEELS[major])}")
    for file in (TOOLKIT / f"libnpps.so.{major}" for major in WHEELS if wanted in {major, None}):
        with contextlib.suppress(OSError):
            return Npp(ctypes.CDLL(str(file)), str(file))
    wheel = WHEELS.get(wanted or 0, WHEELS[max(WHEELS)])
    raise NppError(f"NPP is not installed; it comes with: pip install {wheel}")


def library_of(wheel: str) -> Path | None:
    """Return the signal-processing library of an installed wheel."""
    try:
        files = metadata.files(wheel) or ()
    except metadata.PackageNotFoundError:
        return None
    return next((Path(f.locate()) for f in files if f.name.startswith("libnpps.so")), None)


def stream_context(stream: torch.cuda.Stream) -> StreamContext:
    """Return NPP's description of a stream and its device."""
    device = torch.cuda.get_device_properties(stream.device)
    return StreamContext(
        hStream=stream.cuda_stream,
        nCudaDeviceId=stream.device.index,
        nMultiProcessorCount=device.multi_processor_count,
        nMaxThreadsPerMultiProcessor=device.max_threads_per_multi_processor,
        nMaxThreadsPerBlock=THREADS_PER_BLOCK,
        nSharedMemPerBlock=device.shared_memory_per_block,
        nCudaDevAttrComputeCapabilityMajor=device.major,
        nCudaDevAttrComputeCapabilityMinor=device.minor,
        nStreamFlags=NON_BLOCKING,
    )


def checked(call: Callable[[], int]) -> Callable[[], int]:
    """Make a call once, and return it if NPP did not report an error.

    Raises:
        NppError: NPP did, with its status; nppdefs.h says what the status means.
    """
    status = call()
    if status < SUCCESS:
        raise NppError(f"nppsMulC_32f_I_Ctx gives status {status}")
    return call
