"""MulC, `x *= c` on float32, in every implementation that the benchmark compares."""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.bench.kernels import npp
from tests.bench.kernels.timing import Call, CudaMeter, Meter, freshly_compiled
from trialfleet.nodes.kernels import build, toolchain

CONSTANT = 1.0001  # 128,000 products of it stay far from float32's limits, and one changes a value
SOURCE = Path(__file__).with_suffix(".cu")


class UnavailableError(Exception):
    """An implementation can't be measured on this machine; the message says why."""


def copy(x: Tensor, _meter: Meter) -> Call:
    """Return a copy of the same bytes; all shares of bandwidth are relative to its bandwidth."""
    target = torch.empty_like(x)
    return partial(target.copy_, x)


def library() -> Path:
    """Return the library of mulc.cu for this machine's torch and GPUs; compile it if needed.

    Raises:
        BuildError: a compiler is missing, or fails.
        OSError: the cache can't be written.
    """
    recipe, place = build.Recipe.for_this_machine(), build.cache()
    source = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    made = place / f"mulc-{source}-{recipe.folder}.so"
    if made.exists():
        return made
    chosen = toolchain.compilers()
    nvcc = [chosen.nvcc, "-ccbin", chosen.cxx, *toolchain.KERNEL_FLAGS]
    codes = toolchain.code_options(
        recipe.architectures, toolchain.supported_architectures(chosen.nvcc)
    )
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        compiled, linked = f"{folder}/mulc.o", f"{folder}/mulc.so"
        include = f"-I{toolchain.SOURCES / 'cuda'}"
        command = [*nvcc, *codes, include, "-c", str(SOURCE), "-o", compiled]
        toolchain.run(SOURCE.name, command)
        link = [chosen.cxx, "-shared", compiled, *toolchain.loaded_libraries(), "-o", linked]
        toolchain.run("mulc.so", link)
        return Path(linked).replace(made)


def ours(x: Tensor, meter: Meter) -> Call:
    """Return a call of mulc.cu's kernel, made as NPP's is: by ctypes, with pointer and stream."""
    if not isinstance(meter, CudaMeter):
        raise UnavailableError("needs a GPU")
    try:
        function: Any = ctypes.CDLL(str(library())).mulc
    except (toolchain.BuildError, OSError) as error:
        raise UnavailableError(f"mulc.cu isn't built: {error}") from error
    function.argtypes = (ctypes.c_void_p, ctypes.c_float, ctypes.c_int64, ctypes.c_void_p)
    return partial(
        function,
        ctypes.c_void_p(x.data_ptr()),
        ctypes.c_float(CONSTANT),
        ctypes.c_int64(x.numel()),
        ctypes.c_void_p(meter.stream.cuda_stream),
    )


def npps(x: Tensor, meter: Meter) -> Call:
    """Return a call of NVIDIA's library NPP."""
    if not isinstance(meter, CudaMeter):
        raise UnavailableError("needs a GPU")
    try:
        library = npp.load(torch.version.cuda)
        context = npp.stream_context(meter.stream)
        return npp.checked(library.mulc(x.data_ptr(), x.numel(), CONSTANT, context))
    except npp.NppError as error:
        raise UnavailableError(str(error)) from error


def eager(x: Tensor, _meter: Meter) -> Call:
    """Return a call of torch without compilation."""
    return partial(x.mul_, CONSTANT)


def compiled(x: Tensor, _meter: Meter) -> Call:
    """Return a call that torch.compile makes for this exact shape."""
    return partial(freshly_compiled(lambda x: x.mul_(CONSTANT)), x)


VARIANTS: Mapping[str, Callable[[Tensor, Meter], Call]] = {
    "copy": copy,
    "ours": ours,
    "npp": npps,
    "eager": eager,
    "compile": compiled,
}


def multiplies(meter: Meter, x: Tensor, action: Call, calls: int) -> bool:
    """Return whether `action` multiplies x by the constant as often as `calls` says.

    x begins with different numbers from 1 to 2, because equal ones make a GPU faster. float32
    rounds once in a product or a quotient, by half a unit in the last place at most: 2^-24.
    """
    before = x.uniform_(1, 2).clone()
    meter.rounds(action, 1)
    exact = float(torch.tensor(CONSTANT, dtype=torch.float32)) ** calls
    ends = before.div_(x).aminmax()
    return all(abs(float(end) * exact - 1) <= (calls + 2) * 2.0**-24 for end in ends)
