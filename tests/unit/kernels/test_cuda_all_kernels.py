"""All CUDA kernels: empty inputs, refused launches, the sanitizers, and nvcc."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.kernels import operations as on
from tests.kernels.operations import Dropout
from tests.kernels.stand_in import CUDA, ROOT, Kernels, LaunchError, Type, build, build_program
from tests.unit.kernels.conftest import POINTWISE, folder_for, rates_of

pytestmark = pytest.mark.slow
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="no g++ to build them with")
needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")


def test_an_empty_input_launches_no_kernel(kernels: Kernels) -> None:
    before, kind, none = kernels.grids, Type.FLOAT32, np.zeros(0)
    for shape in ((0, 3), (3, 0)):
        x = np.zeros(shape)
        on.bias_relu_dropout(kernels, x, np.zeros(shape[1]), Dropout(), (kind, kind))
        _, grad_bias = on.bias_relu_dropout_backward(kernels, x, x, 0.0, kind)
        np.testing.assert_array_equal(grad_bias, np.zeros(shape[1]))
    untouched = [
        on.softmax_cross_entropy(kernels, np.zeros((0, 3)), none, kind)[0],
        *(on.pointwise_loss(kernels, name, none, none, kind)[0] for name in POINTWISE),
    ]
    assert all(loss.tobytes() == b"\x5a" * 4 for loss in untouched)  # as it was allocated
    samples = on.some_samples(0, 3, 2, [5], 4)
    _, codes, _ = on.gather_embed(kernels, samples, 0, 0, kind)
    grad_weight = on.gather_embed_backward(kernels, np.zeros((0, 6)), codes, 2, (5, 4), kind)
    np.testing.assert_array_equal(grad_weight, np.zeros((5, 4)))
    assert kernels.grids == before


@pytest.mark.parametrize("p", [1.0, -0.1, np.nan, np.inf])
def test_a_probability_outside_0_to_1_is_refused(kernels: Kernels, p: float) -> None:
    x, both = np.zeros((2, 3)), (Type.FLOAT32, Type.FLOAT32)
    with pytest.raises(LaunchError):
        on.bias_relu_dropout(kernels, x, x[0], Dropout(p=p), both)
    with pytest.raises(LaunchError):
        on.bias_relu_dropout_backward(kernels, x, x, p, Type.FLOAT32)


def test_impossible_arguments_are_refused(kernels: Kernels) -> None:
    x, schedule = np.zeros((2, 3)), rates_of([0.1], (0.9, 0.999))
    with pytest.raises(LaunchError):
        kernels.launch("mean_squared_error", *[None] * 5, -1, Type.FLOAT32)
    with pytest.raises(LaunchError):
        on.bias_relu_dropout(kernels, x, x[0], Dropout(), (Type.BFLOAT16, Type.FLOAT16))
    with pytest.raises(LaunchError):
        on.adamw_step(kernels, [on.some_parameter(kernels, 4)], schedule[:0], 0)
    shadowed = on.some_parameter(kernels, 4, shadow_kind=Type.FLOAT32)
    with pytest.raises(LaunchError):
        on.sgd_step(kernels, [shadowed], schedule, 0, 0.9)
    samples = on.some_samples(0, 3, 2, [5], 4)
    short_target = dataclasses.replace(samples, target=samples.target.astype(np.int16))
    no_order = dataclasses.replace(samples, order=samples.order[:0])
    for wrong in (short_target, no_order):
        with pytest.raises(LaunchError):
            on.gather_embed(kernels, wrong, 0, 3, Type.FLOAT32)


def sanitized_environment() -> dict[str, str]:
    runtime = subprocess.run(
        ["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    options = "detect_leaks=0"  # Python's own
    return {**os.environ, "LD_PRELOAD": runtime.stdout.strip(), "ASAN_OPTIONS": options}


@needs_compiler
@pytest.mark.thorough
def test_the_sanitizers_find_no_error_in_the_kernels(request: pytest.FixtureRequest) -> None:
    library = build(folder_for(request, "sanitized"), sanitized=True)
    swept = subprocess.run(
        [sys.executable, "-m", "tests.kernels.sweep", library],
        env={**sanitized_environment(), "OPENBLAS_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert swept.returncode == 0, swept.stderr
    assert "nothing found" in swept.stdout


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_program(tmp_path_factory.mktemp("faulty") / "faulty")


@needs_compiler
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("beyond", "heap-buffer-overflow"),
        ("beyond shared", "index 256 out of bounds"),
        ("misaligned", "misaligned address"),
        ("unsynchronised", "nan"),
        ("left", "255 threads wait in __syncthreads, 0 in a shuffle, 1 have returned"),
        ("divergent", "128 in a shuffle, 128 have returned"),
        ("no threads", "error 9"),
        ("too many blocks", "error 9"),
        ("sound", "error 0, sum 256"),
    ],
)
def test_the_stand_in_reports_a_faulty_kernel(faulty: Path, fault: str, expected: str) -> None:
    ran = subprocess.run([faulty, fault], capture_output=True, text=True)
    assert expected in ran.stdout + ran.stderr


MULC = ROOT / "tests" / "bench" / "kernels" / "mulc.cu"
SOURCES = [*sorted(CUDA.glob("*.cu")), MULC]
TAKE_PACKS = [path for path in SOURCES if "pack.cuh" in path.read_text()] + [MULC]


def nvcc(*words: str | Path) -> str:
    """Run nvcc as strictly as it can be run, and return what it said."""
    strict = ["-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror"]
    ran = subprocess.run(
        ["nvcc", "-std=c++17", "-O3", f"-I{CUDA}", *strict, *words], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


@needs_nvcc
@pytest.mark.thorough
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_nvcc_keeps_every_kernel_in_registers(source: Path, tmp_path: Path) -> None:
    known = {int(found) for found in re.findall(r"compute_(\d+)", nvcc("--list-gpu-arch"))}
    wanted = {75, 80, 86, 89, 90, max(known)} & known
    assert {80, 86, 89, 90} <= wanted
    targets = [f"-gencode=arch=compute_{sm},code=sm_{sm}" for sm in sorted(wanted)]
    output = nvcc(*targets, "-fatbin", "-Xptxas", "-v", source, "-o", tmp_path / "fatbin")
    used = re.findall(r"(\d+) bytes (stack frame|spill stores|spill loads)", output)
    assert len(used) >= 3 * len(wanted)
    assert {count for count, _ in used} == {"0"}


@needs_nvcc
@pytest.mark.parametrize("source", TAKE_PACKS, ids=lambda path: path.name)
def test_kernels_that_take_packs_have_wide_loads_and_stores(source: Path, tmp_path: Path) -> None:
    ptx = tmp_path / "kernels.ptx"
    nvcc("-arch=sm_90", "-ptx", source, "-o", ptx)
    packed = r"ILb1E|LayoutE[12]E|mulc_kernel|gather_kernelILi4E|step_kernel"
    entries = re.findall(r"\.entry (\w+)(.*?)\n}", ptx.read_text(), re.DOTALL)
    wide = [(name, body) for name, body in entries if re.search(packed, name)]
    assert wide
    for name, body in wide:
        assert re.search(r"ld\.global\S*\.v4", body), name
        assert re.search(r"st\.global\S*\.v4", body), name
