"""MulC, `x *= c` on float32, in every manner that the benchmark compares."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.bench.kernels import npp
from tests.bench.kernels.timing import Call, CudaMeter, Meter, freshly_compiled
from trialfleet.nodes.kernels import ops

CONSTANT = 1.0001  # 128,000 products of it stay far from float32's limits, and one changes a value
LAUNCHER = "_ZN10trialfleet4cuda4mulcEPvflNS0_4TypeEP11CUstream_st"  # trialfleet::cuda::mulc
FLOAT32 = 0  # trialfleet::cuda::Type::float32


class UnavailableError(Exception):
    """Something can't be measured here; the message says why."""


def copy(x: Tensor, _meter: Meter) -> Call:
    """A copy of the same bytes, which is what every share is a share of."""
    target = torch.empty_like(x)
    return partial(target.copy_, x)


def ours(x: Tensor, _meter: Meter) -> Call:
    """The operator, as Python calls it."""
    return partial(ops.mulc_, x, CONSTANT)


def launcher(x: Tensor, meter: Meter) -> Call:
    """The operator's kernel, called as NPP is: by ctypes, with a pointer and a stream."""
    if not isinstance(meter, CudaMeter):
        raise UnavailableError("needs a GPU")
    libraries = [path for path in torch.ops.loaded_libraries if "trialfleet" in path]
    if not libraries:
        raise UnavailableError(f"the kernels aren't built: {ops.REASON}")
    try:
        function: Any = getattr(ctypes.CDLL(libraries[0]), LAUNCHER)
    except AttributeError:
        raise UnavailableError("the library keeps its launchers to itself") from None
    function.argtypes = (
        ctypes.c_void_p,
        ctypes.c_float,
        ctypes.c_int64,
        ctypes.c_int,
        ctypes.c_void_p,
    )
    arguments = (
        ctypes.c_void_p(x.data_ptr()),
        ctypes.c_float(CONSTANT),
        ctypes.c_int64(x.numel()),
        ctypes.c_int(FLOAT32),
        ctypes.c_void_p(meter.stream.cuda_stream),
    )
    return partial(function, *arguments)


def npps(x: Tensor, meter: Meter) -> Call:
    """NVIDIA's library."""
    if not isinstance(meter, CudaMeter):
        raise UnavailableError("needs a GPU")
    try:
        library = npp.load(torch.version.cuda)
        context = npp.stream_context(meter.stream)
        return npp.checked(library.mulc(x.data_ptr(), x.numel(), CONSTANT, context))
    except npp.NppError as error:
        raise UnavailableError(str(error)) from error


def eager(x: Tensor, _meter: Meter) -> Call:
    """Torch as it is."""
    return partial(x.mul_, CONSTANT)


def compiled(x: Tensor, _meter: Meter) -> Call:
    """What torch.compile makes of it, for this very shape."""
    return partial(freshly_compiled(lambda x: x.mul_(CONSTANT)), x)


VARIANTS: Mapping[str, Callable[[Tensor, Meter], Call]] = {
    "copy": copy,
    "ours": ours,
    "launcher": launcher,
    "npp": npps,
    "eager": eager,
    "compile": compiled,
}


def multiplies(meter: Meter, x: Tensor, action: Call, calls: int) -> bool:
    """Say whether an action that makes so many calls really multiplies x by the constant each time.

    It begins with numbers from 1 to 2 that differ, as equal ones ask less of a GPU. float32 rounds
    once in a product or a quotient, by half a unit in the last place at most: 2^-24.
    """
    before = x.uniform_(1, 2).clone()
    meter.rounds(action, 1)
    exact = float(torch.tensor(CONSTANT, dtype=torch.float32)) ** calls
    ends = before.div_(x).aminmax()
    return all(abs(float(end) * exact - 1) <= (calls + 2) * 2.0**-24 for end in ends)
