"""The operators on a GPU: values, capture, streams, devices, and NVIDIA's sanitizer.

pytest tests/gpu/test_kernels_gpu.py
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)  # before the kernels are built for nothing

from tests.unit.kernels import kernel_cases as cases
from trialfleet.nodes.kernels import ops, plain

KERNELS = torch.ops.trialfleet
GPU = torch.device("cuda", 0)

SHAPES = [(0, 5), (5, 0), (1, 1), (3, 5), (7, 64), (64, 7), (257, 130), (4096, 512), (3, 30_001)]
dtypes = pytest.mark.parametrize("dtype", cases.FLOATS)
names = pytest.mark.parametrize("name", cases.arguments())


def test_the_cuda_kernels_are_in_use() -> None:
    assert ops.IMPLEMENTATION == "cuda", f"{ops.REASON} (run tests/gpu by itself)"


# Values


def on_gpu(values: Tensor, offset: int = 0) -> Tensor:
    """Return a contiguous copy that begins `offset` elements into its memory."""
    memory = torch.empty(offset + values.numel(), dtype=values.dtype, device=GPU)
    memory[offset:] = values.detach().flatten().to(GPU)
    return memory[offset:].view(values.shape)


def test_a_kernel_handles_more_elements_than_a_32_bit_int_counts() -> None:
    rows, columns = 2**24 + 1, 128
    if torch.cuda.mem_get_info(GPU)[0] < 5 * rows * columns:
        pytest.skip("needs 11 GB of GPU memory")
    x = torch.ones(rows, columns, dtype=torch.bfloat16, device=GPU)
    bias, rng = torch.full_like(x[0], 2), torch.tensor([1, 2], device=GPU)
    assert bool((ops.bias_relu_dropout(x, bias, rng, 0, 0.0) == 3).all())


@dtypes
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_activation_and_its_gradients_match_the_reference(
    shape: tuple[int, int], p: float, dtype: torch.dtype
) -> None:
    rng, layer = torch.tensor([cases.SEED, cases.STEP]), 3
    x, grad = cases.normal(*shape).to(dtype), cases.normal(*shape, seed=2).to(dtype)
    for bias_type in {dtype, torch.float32}:
        bias = cases.normal(shape[1], seed=1).to(bias_type)
        mask = plain.dropout_mask(x.shape, rng, layer, p) if p else torch.ones(shape)
        y = KERNELS.bias_relu_dropout(on_gpu(x, 1), bias.to(GPU), rng.to(GPU), layer, p)
        cases.close(y, cases.activation(x, bias, mask, p))
        assert torch.equal(y.cpu() > 0, plain.bias_relu_dropout(x, bias, rng, layer, p) > 0)
        grad_x, grad_bias = KERNELS.bias_relu_dropout_backward(on_gpu(grad, 1), y, p)
        expected = grad.double() * (y.cpu() > 0) / (1 - p)
        cases.close(grad_x, expected)
        near_sum(grad_bias, expected)


def backward(value: Tensor, grad: Tensor | None = None) -> None:
    value.backward(grad)  # type: ignore[no-untyped-call]


def near_sum(actual: Tensor, terms: Tensor) -> None:
    """Require a float32 sum over the rows to be as near as its terms' sizes allow."""
    error = (actual.double().cpu() - terms.sum(0)).abs()
    assert bool((error <= 1e-6 * terms.abs().sum(0) + 1e-12).all())


@dtypes
@pytest.mark.parametrize("name", cases.LOSSES)
@pytest.mark.parametrize("rows", [0, 1, 33, 5000])
def test_losses_and_gradients_match_the_reference(name: str, rows: int, dtype: torch.dtype) -> None:
    for classes in (1, 2, 31, 33, 1000) if name == "softmax_cross_entropy" else (0,):
        shape = (rows, classes) if classes else (rows,)
        outputs = (cases.normal(*shape) * 5).to(dtype)
        target = torch.rand(rows, generator=cases.random(1))
        if classes:
            target = torch.randint(0, classes, (rows,), generator=cases.random(1))
        expected, expected_gradient = cases.with_gradient(cases.LOSSES[name], outputs, target)
        mine = on_gpu(outputs, 1).requires_grad_()
        loss = getattr(KERNELS, name)(mine, target.to(GPU))[0]
        backward(loss)
        cases.close(loss.detach(), expected)
        assert mine.grad is not None
        near = cases.tolerance(dtype)
        torch.testing.assert_close(
            mine.grad.double().cpu(), expected_gradient, rtol=near, atol=2e-7 if rows else 0
        )


@dtypes
@pytest.mark.parametrize("target", [torch.float32, torch.int64])
@pytest.mark.parametrize(
    ("rows", "numeric", "columns", "embedding"),
    [(0, 3, 2, 4), (1, 0, 1, 1), (33, 5, 0, 4), (100, 0, 3, 7), (4097, 17, 9, 16)],
)
def test_gather_embed_matches_the_reference(
    rows: int, numeric: int, columns: int, embedding: int, target: torch.dtype, dtype: torch.dtype
) -> None:
    for cursor in (0, 3, 10**6):  # the last: past the end
        given = cases.batch(rows, numeric, columns, embedding, target)
        given |= {"cursor": torch.tensor([cursor]), "dtype": dtype}
        weight = given["weight"].double().requires_grad_()
        expected, expected_target = cases.gathered(given, weight)
        mine = cases.on(GPU, given)
        mine["weight"].requires_grad_()
        joined, _, got = ops.gather_embed(**mine)
        cases.close(joined.detach(), expected.detach(), dtype)
        assert torch.equal(got.cpu(), expected_target)
        grad = cases.normal(*joined.shape).to(dtype)
        backward(joined, grad.to(GPU))
        if expected.requires_grad:
            backward(expected, grad.double())
        wanted = torch.zeros_like(weight) if weight.grad is None else weight.grad
        torch.testing.assert_close(
            mine["weight"].grad.double().cpu(), wanted, rtol=1e-5, atol=1e-5 * max(1, rows) ** 0.5
        )


def test_an_index_outside_its_table_gives_nan() -> None:
    given = cases.on(GPU, cases.batch(4, 2, 3, 2))
    given["first_code"].fill_(10_000)
    joined, *_ = ops.gather_embed(**given)
    assert bool(joined[:, 2:].isnan().all())
    logits = torch.zeros(3, 5, device=GPU)
    loss = KERNELS.softmax_cross_entropy(logits, torch.tensor([0, 5, 1], device=GPU))[0]
    assert bool(loss.isnan())


@dtypes
@pytest.mark.parametrize("shadows", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [0, 1, 64, 65, 150])
def test_optimizer_steps_match_the_reference(
    count: int, shadows: torch.dtype | None, dtype: torch.dtype
) -> None:
    some = [(3, 4), (5,), (), (0, 2), (129, 70)]
    given = cases.step([some[i % len(some)] for i in range(count)], dtype, shadows)
    moved = cases.adamw(given, 0.9, 0.999, 1e-8)
    mine = cases.on(GPU, given)
    ops.adamw_step_(**mine, beta1=0.9, beta2=0.999, epsilon=1e-8)
    check_step([mine["weights"], mine["m"], mine["v"]], moved, mine)

    moved = cases.sgd(given, 0.9)
    mine = cases.on(GPU, given)
    others = {name: value for name, value in mine.items() if name not in {"m", "v"}}
    ops.sgd_step_(**others, velocity=mine["m"], momentum=0.9)
    check_step([mine["weights"], mine["m"]], moved, mine)


def check_step(actual: list[list[Tensor]], moved: list[list[Tensor]], mine: dict[str, Any]) -> None:
    for values, wanted in zip(actual, moved, strict=True):
        for value, want in zip(values, wanted, strict=True):
            cases.close(value, want)
    for weight, shadow in zip(mine["weights"], mine["shadows"], strict=False):
        assert shadow.numel() == 0 or torch.equal(shadow, weight.to(shadow.dtype))


def test_tick_advances_the_clock_and_adds_up_the_loss() -> None:
    clock, loss, loss_sum, rows = cases.on(GPU, cases.arguments()["tick_"])
    ops.tick_(clock, loss, loss_sum, rows)
    assert clock.tolist() == [33, 3, 3, 5]
    assert loss_sum.item() == 2.5


# As operators of torch


@dtypes
@names
def test_opcheck_finds_no_error(name: str, dtype: torch.dtype) -> None:
    torch.library.opcheck(
        getattr(KERNELS, name).default, cases.on(GPU, cases.arguments(dtype)[name])
    )


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_functions_give_the_same_results() -> None:
    def function(x: Tensor, bias: Tensor, rng: Tensor, target: Tensor) -> Tensor:
        y = ops.bias_relu_dropout(x * 2, bias, rng, 0, 0.3)
        loss: Tensor = KERNELS.softmax_cross_entropy(y, target)[0]
        return loss

    x, bias, rng, *_ = cases.arguments()["bias_relu_dropout"]
    target = cases.arguments()["softmax_cross_entropy"][1].to(GPU)
    results = []
    for called in (function, torch.compile(function, fullgraph=True)):
        x, bias, rng = cases.on(GPU, (x, bias, rng))
        loss = called(x, bias, rng, target)
        backward(loss)
        results.append([loss, x.grad, bias.grad])
    torch.testing.assert_close(results[1], results[0])


@names
def test_no_operator_waits_for_the_device(name: str) -> None:
    values = cases.on(GPU, cases.arguments()[name])
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.no_grad():
            getattr(KERNELS, name)(*values)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_tensor_on_the_cpu_is_refused_by_name() -> None:
    x, bias, rng, layer, p, *_ = cases.on(GPU, cases.arguments()["bias_relu_dropout"])
    words = re.escape("bias must be on cuda:0, as the other arguments are; it is on cpu")
    with pytest.raises(ValueError, match=words):
        ops.bias_relu_dropout(x, bias.cpu(), rng, layer, p)
    with pytest.raises(ValueError, match="its first argument must be on cuda; it is on cpu"):
        ops.bias_relu_dropout(x.cpu(), bias, rng, layer, p)


def test_float64_is_refused() -> None:
    y = torch.ones(3, 5, dtype=torch.float64, device=GPU)
    words = "grad must be float32, bfloat16 or float16; it is float64"
    with pytest.raises(ValueError, match=words):
        KERNELS.bias_relu_dropout_backward(y, y, 0.0)


# Graphs, streams, devices

Call = Callable[[list[Any]], Any]


def by_kernel(name: str) -> Call:
    return lambda values: getattr(KERNELS, name)(*values)


def by_plain(name: str) -> Call:
    """Plain torch as the trainer has it: told to be deterministic, it takes other ways."""

    def call(values: list[Any]) -> Any:
        torch.use_deterministic_algorithms(mode=True)
        try:
            return getattr(plain, name)(*values)
        finally:
            torch.use_deterministic_algorithms(mode=False)

    return call


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors(part)


@pytest.mark.parametrize("by", [by_kernel, by_plain])
@names
def test_each_operator_is_captured_in_a_graph(name: str, by: Callable[[str], Call]) -> None:
    call = by(name)
    with torch.no_grad():
        eager, captured = (list(cases.on(GPU, cases.arguments()[name])) for _ in range(2))
        warm_up = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(warm_up):
            call(list(cases.on(GPU, cases.arguments()[name])))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured_result = call(captured)
        for _ in range(3):
            eager_result = call(eager)
            graph.replay()
        torch.cuda.synchronize()
    mine, theirs = (
        [*tensors(values)] for values in ([captured, captured_result], [eager, eager_result])
    )
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@names
def test_an_operator_gives_the_same_bits_on_two_streams_and_in_every_run(name: str) -> None:
    streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]
    alone = list(cases.on(GPU, cases.large(3000, 1000)[name]))
    with torch.no_grad():
        for _ in range(20):
            alone_result = by_kernel(name)(alone)
        together = [list(cases.on(GPU, cases.large(3000, 1000)[name])) for _ in streams]
        results: list[Any] = [None, None]
        torch.cuda.synchronize()
        for _ in range(20):
            for i, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    results[i] = by_kernel(name)(together[i])
        torch.cuda.synchronize()
    for values, result in zip(together, results, strict=True):
        for one, other in zip(
            tensors([values, result]), tensors([alone, alone_result]), strict=True
        ):
            assert torch.equal(one, other)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@names
def test_an_operator_runs_on_the_device_of_its_tensors(name: str) -> None:
    other = torch.device("cuda", 1)
    here, there = (list(cases.on(device, cases.arguments()[name])) for device in (GPU, other))
    with torch.no_grad(), torch.cuda.device(0):
        result_here, result_there = by_kernel(name)(here), by_kernel(name)(there)
        assert torch.cuda.current_device() == 0
    for one, two in zip(tensors([here, result_here]), tensors([there, result_there]), strict=True):
        assert two.device == other
        assert torch.equal(one.cpu(), two.cpu())


# NVIDIA's sanitizer


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_the_sanitizer_finds_no_error(tool: str) -> None:
    sanitizer = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    )
    if sanitizer is None:
        pytest.skip("needs compute-sanitizer, which comes with the CUDA toolkit")
    words = [sanitizer, "--tool", tool, "--error-exitcode", "9"]
    ended = subprocess.run(
        [*words, sys.executable, "-m", "tests.gpu.every_kernel"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        # Every tensor has its own allocation; else the next tensor follows it in memory.
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert "ERROR SUMMARY: 0 errors" in ended.stdout or "RACECHECK SUMMARY: 0" in ended.stdout
