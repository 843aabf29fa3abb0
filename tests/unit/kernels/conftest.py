"""The CUDA kernels on the CPU by tests/kernels/stand_in_cuda, and values for them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch.nn import functional

from tests.kernels.operations import Floats
from tests.kernels.stand_in import Array, Kernels, Type, build
from trialfleet.nodes.kernels import toolchain

few = hypothesis_settings(max_examples=20)
edges = (1, 4, 8, 32, 256, 1024, 4096, 3 * 4096, 3 * 8192, 6 * 8192)  # packs, blocks, grids
sizes = st.sampled_from([0, *(edge + d for edge in edges for d in (-1, 0, 1))])
some_rows = st.sampled_from([0, 1, 2, 31, 32, 33, 255, 256, 257, 700])
some_columns = st.sampled_from([1, 2, 3, 4, 5, 8, 10, 16, 31, 32, 33, 64, 100, 256, 260])
kinds = st.sampled_from(list(Type))
offsets = st.one_of(
    st.integers(0, 8).map(lambda offset: (offset,) * 5),
    st.tuples(*[st.sampled_from([0, 0, 1, 4])] * 5),
)
seeds = st.integers(0, 2**32)
probabilities = st.sampled_from([0.0, 0.1, 0.5, 0.999])


def missing_compiler() -> str:
    """Return why the library can't be built for this torch: a CUDA build needs an nvcc."""
    try:
        toolchain.compilers()
    except toolchain.BuildError as error:
        return str(error)
    return ""


needs_compilers = pytest.mark.skipif(bool(missing_compiler()), reason=missing_compiler())


def folder_for(request: pytest.FixtureRequest, name: str) -> Path:
    """Return where a build is kept from one run of the tests to the next."""
    cache = request.config.cache
    assert cache, "these tests keep their builds in pytest's cache"
    return Path(cache.mkdir(f"cuda-kernels-{name}"))


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if not shutil.which("g++"):
        pytest.skip("no g++ to build the kernels with")
    return Kernels(build(folder_for(request, "plain")))


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(size=shape)


def whole_numbers(seed: int, *shape: int) -> Floats:
    """Return small integers: float32 adds them up exactly, in any order."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float64)


def rounded(values: Floats, kind: Type) -> Floats:
    """Return what a kernel sees of `values`, as float64."""
    return kind.decode(kind.encode(values)).astype(np.float64)


def assert_close(stored: Array, wanted: Floats, kind: Type, passing: float = 0.0) -> None:
    """Compare with `wanted`, but for some roundings in float32 and the last one, to `kind`.

    `passing` is the largest number that was rounded before.
    """
    last = kind.epsilon if kind is not Type.FLOAT32 else 0.0
    relative = 4 * Type.FLOAT32.epsilon + last
    absolute = 2 * kind.tiny + 4 * Type.FLOAT32.epsilon * passing
    np.testing.assert_allclose(kind.decode(stored), wanted, rtol=relative, atol=absolute)


POINTWISE: dict[str, Callable[..., torch.Tensor]] = {
    "sigmoid_bce": functional.binary_cross_entropy_with_logits,
    "mean_squared_error": functional.mse_loss,
}


def rates_of(learning_rates: Sequence[float], betas: tuple[float, float]) -> Array:
    """Return the schedule of one step after the other."""
    rows = [[lr, *(1 / (1 - b**t) for b in betas)] for t, lr in enumerate(learning_rates, 1)]
    return np.array(rows, np.float32)
