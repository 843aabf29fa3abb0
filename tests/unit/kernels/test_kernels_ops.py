"""The operators as they are loaded: plain torch, and C++ when test_kernels_build.py runs this."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.kernels import kernel_cases as cases
from trialfleet.nodes.kernels import ops, plain

KERNELS = torch.ops.trialfleet
LOW = (torch.bfloat16, torch.float16)
DTYPES = st.sampled_from([*cases.FLOATS, torch.float64])
SIZES = st.one_of(st.sampled_from([0, 1, 2, 3, 4, 5]), st.integers(0, 300))
LAYERS = st.one_of(st.integers(0, 5), st.just(2**32 - 1))
PROBABILITIES = st.sampled_from([0.0, 0.1, 0.5, 0.999])


def misaligned(values: Tensor, offset: int) -> Tensor:
    """Return a contiguous copy that begins `offset` elements into its memory."""
    memory = torch.empty(offset + values.numel(), dtype=values.dtype)
    memory[offset:] = values.flatten()
    return memory[offset:].view(values.shape)


# Values


@pytest.mark.slow
@given(
    rows=st.integers(0, 20),
    columns=st.integers(0, 40),
    offset=st.integers(0, 3),
    dtype=DTYPES,
    bias_like_x=st.booleans(),
    layer=LAYERS,
    p=PROBABILITIES,
)
def test_activation_and_its_mask_are_right(
    rows: int,
    columns: int,
    offset: int,
    dtype: torch.dtype,
    bias_like_x: bool,
    layer: int,
    p: float,
) -> None:
    x = misaligned(cases.normal(rows, columns).to(dtype), offset)
    bias = cases.normal(columns, seed=1).to(dtype if bias_like_x else torch.float32)
    rng = torch.tensor([cases.SEED, cases.STEP])
    mask = cases.kept(x.shape, cases.SEED, cases.STEP, layer, p)
    y = ops.bias_relu_dropout(x, bias, rng, layer, p)
    assert y.dtype == dtype
    cases.close(y, cases.activation(x, bias, mask, p))
    assert torch.equal(y > 0, plain.bias_relu_dropout(x, bias, rng, layer, p) > 0)

    grad = cases.normal(rows, columns, seed=2).to(dtype)
    grad_x, grad_bias = KERNELS.bias_relu_dropout_backward(grad, y, p)
    expected = grad.double() * (y > 0) / (1 - p)
    cases.close(grad_x, expected)
    cases.close(grad_bias, expected.sum(0))


@pytest.mark.slow
@given(
    shape=st.tuples(st.integers(1, 12), st.integers(1, 24)),
    first=st.tuples(st.integers(0, 11), st.integers(0, 23)),
    p=PROBABILITIES,
    device_plain=st.booleans(),
)
def test_a_part_of_a_layer_drops_the_same_elements_as_the_complete_layer(
    shape: tuple[int, int], first: tuple[int, int], p: float, device_plain: bool
) -> None:
    rng, whole = torch.tensor([cases.SEED, cases.STEP]), torch.ones(shape)
    apply = plain.bias_relu_dropout if device_plain else KERNELS.bias_relu_dropout
    all_of_it = apply(whole, torch.zeros(shape[1]), rng, 2, p)
    row, column = first[0] % shape[0], first[1] % shape[1]
    part = whole[row:, column:].contiguous()
    place = row * shape[1] + column, shape[1]
    mine = apply(part, torch.zeros(part.shape[1]), rng, 2, p, *place)
    assert torch.equal(mine, all_of_it[row:, column:])


def test_activation_keeps_nan_and_positive_infinity() -> None:
    x = torch.tensor([[float("nan"), float("inf"), -float("inf"), -1.0]])
    y = ops.bias_relu_dropout(x, torch.zeros(4), torch.tensor([1, 2]), 0, 0.0)
    torch.testing.assert_close(
        y, torch.tensor([[float("nan"), float("inf"), 0, 0]]), equal_nan=True
    )


def test_dropout_drops_other_elements_for_each_seed_step_and_layer() -> None:
    ones, bias = torch.ones(200, 500), torch.zeros(500)
    masks = [
        ops.bias_relu_dropout(ones, bias, torch.tensor([seed, step]), layer, 0.3) > 0
        for seed, step, layer in [(1, 1, 0), (2, 1, 0), (1, 2, 0), (1, 1, 1)]
    ]
    for i, mask in enumerate(masks):
        assert mask.double().mean().item() == pytest.approx(0.7, abs=0.006)  # 4 sigma
        for other in masks[:i]:
            assert (mask == other).double().mean().item() == pytest.approx(0.58, abs=0.007)


@pytest.mark.slow
@given(rows=st.integers(0, 40), classes=st.integers(1, 50), dtype=DTYPES, scale=st.floats(0, 90))
def test_softmax_cross_entropy_is_right_for_small_and_large_logits(
    rows: int, classes: int, dtype: torch.dtype, scale: float
) -> None:
    logits = (cases.normal(rows, classes) * scale).to(dtype)
    target = torch.randint(0, classes, (rows,), generator=cases.random(1))
    check_loss("softmax_cross_entropy", logits, target)


@given(name=st.sampled_from(["sigmoid_bce", "mean_squared_error"]), rows=SIZES, dtype=DTYPES)
def test_losses_of_one_output_are_right(name: str, rows: int, dtype: torch.dtype) -> None:
    outputs = (cases.normal(rows) * 30).to(dtype)
    check_loss(name, outputs, torch.rand(rows, generator=cases.random(1)))


def check_loss(name: str, outputs: Tensor, target: Tensor) -> None:
    expected, expected_gradient = cases.with_gradient(cases.LOSSES[name], outputs, target)
    outputs.requires_grad_()
    loss = getattr(KERNELS, name)(outputs, target)[0]
    backward(loss)
    assert loss.dtype == (torch.float64 if outputs.dtype == torch.float64 else torch.float32)
    assert outputs.grad is not None
    cases.close(loss.detach(), expected)
    tiny = torch.finfo(outputs.dtype).smallest_normal / 100  # below, float16 has few bits
    torch.testing.assert_close(
        outputs.grad.double(),
        expected_gradient,
        rtol=cases.tolerance(outputs.dtype),
        atol=max(tiny, 1e-7),
    )


@pytest.mark.slow
@given(
    rows=st.integers(0, 12),
    numeric=st.integers(0, 4),
    columns=st.integers(0, 4),
    embedding=st.integers(1, 5),
    dtype=st.sampled_from(cases.FLOATS),
    target=st.sampled_from([torch.float32, torch.int64]),
    cursor=st.integers(-3, 40),
)
def test_gather_embed_and_its_gradient_are_right(
    rows: int,
    numeric: int,
    columns: int,
    embedding: int,
    dtype: torch.dtype,
    target: torch.dtype,
    cursor: int,
) -> None:
    of_batch = cases.batch(rows, numeric, columns, embedding, target)
    of_batch |= {"cursor": torch.tensor([max(0, cursor)]), "dtype": dtype}
    weight = of_batch["weight"].double().requires_grad_()
    expected, expected_target = cases.gathered(of_batch, weight)
    of_batch["weight"].requires_grad_()
    joined, _, got = ops.gather_embed(**of_batch)
    assert joined.dtype == dtype
    cases.close(joined.detach(), expected.detach(), dtype)
    assert torch.equal(got, expected_target)

    grad = cases.normal(*joined.shape).to(dtype)
    backward(joined, grad)
    if expected.requires_grad:
        backward(expected, grad.double())
    wanted = torch.zeros_like(weight) if weight.grad is None else weight.grad
    cases.close(of_batch["weight"].grad, wanted, torch.float32)


def take_adamw_step(of_step: dict[str, Any]) -> None:
    ops.adamw_step_(**of_step, beta1=0.9, beta2=0.999, epsilon=1e-8)


STEPS = given(
    shapes=st.lists(
        st.sampled_from([(), (0,), (1,), (7,), (3, 4), (2, 0), (40, 30)]), min_size=0, max_size=5
    ),
    gradients=st.sampled_from(cases.FLOATS),
    shadows=st.sampled_from([None, torch.bfloat16, torch.float16]),
    row=st.sampled_from([0, 3, 4, 99]),
)


@pytest.mark.slow
@STEPS
def test_adamw_takes_the_step_of_its_formula(
    shapes: list[tuple[int, ...]], gradients: torch.dtype, shadows: torch.dtype | None, row: int
) -> None:
    of_step = cases.step(shapes, gradients, shadows) | {"step": torch.tensor([min(row, 4)])}
    expected = cases.adamw(of_step, 0.9, 0.999, 1e-8)
    of_step["step"].fill_(row)  # past the end: the last
    take_adamw_step(of_step)
    check_step([of_step[name] for name in ("weights", "m", "v")], expected)
    check_shadows(of_step)


@pytest.mark.slow
@STEPS
def test_sgd_takes_the_step_of_its_formula(
    shapes: list[tuple[int, ...]], gradients: torch.dtype, shadows: torch.dtype | None, row: int
) -> None:
    of_step = cases.step(shapes, gradients, shadows) | {"step": torch.tensor([min(row, 4)])}
    expected = cases.sgd(of_step, 0.9)
    of_step["step"].fill_(row)
    others = {name: value for name, value in of_step.items() if name not in {"m", "v"}}
    ops.sgd_step_(**others, velocity=of_step["m"], momentum=0.9)
    check_step([of_step[name] for name in ("weights", "m")], expected)
    check_shadows(of_step)


def check_step(actual: list[list[Tensor]], expected: list[list[Tensor]]) -> None:
    for values, wanted in zip(actual, expected, strict=True):
        for value, want in zip(values, wanted, strict=True):
            cases.close(value, want)


def check_shadows(of_step: dict[str, Any]) -> None:
    for weight, shadow in zip(of_step["weights"], of_step["shadows"], strict=False):
        assert shadow.numel() == 0 or torch.equal(shadow, weight.to(shadow.dtype))


def test_all_parameters_are_stepped_if_they_need_several_launches() -> None:
    of_step = cases.step([(2,)] * 150)
    expected = cases.adamw(of_step, 0.9, 0.999, 1e-8)
    take_adamw_step(of_step)
    check_step([of_step["weights"]], expected[:1])


@pytest.mark.slow
def test_adamw_equals_torchs_adamw() -> None:
    of_step = cases.step([(3, 4), (5,)])
    rates = of_step["schedule"]
    rates[:, 0] = 0.05
    mine = [torch.nn.Parameter(w.double()) for w in of_step["weights"]]
    of_step["m"] = [torch.zeros_like(w) for w in of_step["weights"]]
    of_step["v"] = [torch.zeros_like(w) for w in of_step["weights"]]
    groups = [
        {"params": [w], "weight_decay": decay}
        for w, decay in zip(mine, of_step["decays"], strict=True)
    ]
    torchs = torch.optim.AdamW(groups, lr=0.05, betas=(0.9, 0.999), eps=1e-8)
    for row in range(5):
        for w, g in zip(mine, of_step["gradients"], strict=True):
            w.grad = g.double() * (row + 1)
        torchs.step()
        gradients = [g * (row + 1) for g in of_step["gradients"]]
        now = of_step | {"gradients": gradients, "step": torch.tensor([row])}
        take_adamw_step(now)
    for weight, w in zip(of_step["weights"], mine, strict=True):
        cases.close(weight, w.detach())


def test_tick_moves_the_clock_and_adds_up_the_loss() -> None:
    clock, loss_sum = torch.tensor([10, 20, 30, 40]), torch.tensor(1.5, dtype=torch.float64)
    ops.tick_(clock, torch.tensor(0.25), loss_sum, 32)
    assert clock.tolist() == [42, 21, 30, 41]
    assert loss_sum.item() == 1.75


@pytest.mark.skipif(ops.IMPLEMENTATION == "plain", reason="plain torch's sums are torch's affair")
@pytest.mark.parametrize("name", cases.arguments())
def test_results_do_not_depend_on_the_number_of_threads(name: str) -> None:
    results = []
    usual = torch.get_num_threads()
    given_now = cases.large(700, 300)[name]
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            mine = cases.on("cpu", given_now)
            with torch.no_grad():
                result = getattr(KERNELS, name)(*mine)
            results.append([*tensors(result), *tensors(mine)])
    finally:
        torch.set_num_threads(usual)
    for others in results[1:]:
        for one, other in zip(results[0], others, strict=True):
            assert torch.equal(one, other)


def backward(value: Tensor, grad: Tensor | None = None) -> None:
    value.backward(grad)  # type: ignore[no-untyped-call]


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors(part)


# As operators of torch


def test_every_schema_has_its_plain_function_and_its_fake() -> None:
    names = [schema.partition("(")[0] for schema in ops.schemas()]
    assert names == list(cases.arguments())
    assert set(names) == set(ops.FAKES)
    for schema, name in zip(ops.schemas(), names, strict=True):
        loaded = getattr(KERNELS, name).default._schema
        parsed = torch._C.parse_schema(f"trialfleet::{schema}")
        assert str(loaded) == str(parsed)
        assert callable(getattr(plain, name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", [torch.float32, *[pytest.param(low, marks=pytest.mark.slow) for low in LOW]]
)
@pytest.mark.parametrize("name", cases.arguments())
def test_opcheck_finds_no_error(name: str, dtype: torch.dtype) -> None:
    torch.library.opcheck(getattr(KERNELS, name).default, cases.arguments(dtype)[name])


@pytest.mark.parametrize("name", ["bias_relu_dropout", *cases.LOSSES])
def test_gradients_equal_finite_differences(name: str) -> None:
    first, *others = cases.arguments(torch.float64)[name]
    if name == "bias_relu_dropout":
        others[0] = others[0].detach().double().requires_grad_()

    def function(*values: Any) -> Tensor:
        result = getattr(KERNELS, name)(*values)
        value: Tensor = result[0] if isinstance(result, tuple) else result
        return value

    assert torch.autograd.gradcheck(function, (first, *others))


def test_a_gradient_of_any_layout_is_accepted() -> None:
    x, bias, rng, layer, p, *_ = cases.arguments()["bias_relu_dropout"]
    y = ops.bias_relu_dropout(x, bias, rng, layer, p)
    backward(y.sum())  # an expanded 1, with strides of 0
    torch.testing.assert_close(x.grad, (y > 0) / (1 - p))
    torch.testing.assert_close(bias.grad, ((y > 0) / (1 - p)).sum(0))


def test_a_bias_in_half_precision_has_a_gradient_in_half_precision() -> None:
    x = cases.normal(6, 5).bfloat16().requires_grad_()
    bias = cases.normal(5).bfloat16().requires_grad_()
    backward(ops.bias_relu_dropout(x, bias, torch.tensor([1, 2]), 0, 0.0).sum())
    assert bias.grad is not None
    assert bias.grad.dtype == torch.bfloat16


def test_scaling_a_loss_scales_its_gradient() -> None:
    logits, target = cases.arguments()["sigmoid_bce"]
    (gradient,) = torch.autograd.grad(3 * KERNELS.sigmoid_bce(logits, target)[0], logits)
    (once,) = torch.autograd.grad(KERNELS.sigmoid_bce(logits, target)[0], logits)
    torch.testing.assert_close(gradient, 3 * once)


def test_a_second_derivative_is_refused() -> None:
    logits, target = cases.arguments()["sigmoid_bce"]
    squared = KERNELS.sigmoid_bce(logits, target)[0].square()
    (gradient,) = torch.autograd.grad(squared, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        backward(gradient.sum())


def test_changing_a_value_that_backward_needs_is_an_error() -> None:
    x, bias, rng, *_ = cases.arguments()["bias_relu_dropout"]
    y = ops.bias_relu_dropout(x, bias, rng, 0, 0.0)
    rates, row = cases.schedule(), torch.tensor([0])
    ops.sgd_step_([y], [y.detach()], [torch.zeros_like(y)], [], [0.0], rates, row, 0.9)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        backward(y.sum())


def test_every_change_of_a_tensor_increases_its_version() -> None:
    for name, values in cases.arguments().items():
        mine = cases.on("cpu", values)
        before = [tensor._version for tensor in tensors(mine)]
        contents = [tensor.clone() for tensor in tensors(mine)]
        with torch.no_grad():
            getattr(KERNELS, name)(*mine)
        for tensor, version, content in zip(tensors(mine), before, contents, strict=True):
            if tensor.numel():
                assert (tensor._version > version) == (not torch.equal(tensor, content)), name


@pytest.mark.parametrize("optimizer", ["adamw_step_", "sgd_step_"])
def test_a_step_of_parameters_records_no_autograd_graph(optimizer: str) -> None:
    weights, *others = cases.arguments()[optimizer]
    parameters = [torch.nn.Parameter(w) for w in weights]
    getattr(KERNELS, optimizer)(parameters, *others)
    shadows = others[3] if optimizer == "adamw_step_" else others[2]
    assert not any(shadow.requires_grad for shadow in shadows)
    assert all(parameter.is_leaf for parameter in parameters)


def a_step(x: Tensor, bias: Tensor, rng: Tensor, target: Tensor, of_step: dict[str, Any]) -> Tensor:
    y = ops.bias_relu_dropout(x, bias, rng, 0, 0.3)
    loss: Tensor = KERNELS.softmax_cross_entropy(y, target)[0]
    take_adamw_step(of_step)
    return loss


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    [
        "aot_eager",
        pytest.param("inductor", marks=pytest.mark.thorough),  # calls a C++ compiler
    ],
)
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_functions_give_the_same_results(backend: str) -> None:
    x, bias, rng, *_ = cases.arguments()["bias_relu_dropout"]
    target = cases.arguments()["softmax_cross_entropy"][1]
    results = []
    functions: list[Callable[..., Tensor]] = [a_step]
    functions.append(torch.compile(a_step, backend=backend, fullgraph=True))
    for function in functions:
        of_step = cases.step(shadows=torch.bfloat16)
        inputs = cases.on("cpu", (x, bias))
        loss = function(*inputs, rng, target, of_step)
        backward(loss)
        results.append([loss, *[part.grad for part in inputs], *tensors(list(of_step.values()))])
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)


# Refused arguments

Change = Callable[[Any], Any]
FLOAT_NAMES = "float32, bfloat16, float16 or float64"


def first(change: Callable[[Tensor], Tensor]) -> Change:
    """Return a change of a list's first tensor."""
    return lambda values: [change(values[0]), *values[1:]]


def put(value: Any) -> Change:
    return lambda _: value


REFUSED: list[tuple[str, int, Change, str]] = [
    ("bias_relu_dropout", 0, torch.Tensor.long, f"x must be {FLOAT_NAMES}; it is int64"),
    (
        "bias_relu_dropout",
        0,
        torch.t,
        "x must be contiguous; it is not: shape [5, 6], strides [1, 5]",
    ),
    ("bias_relu_dropout", 0, torch.flatten, "x must be of shape [*, *]; it is [30]"),
    ("bias_relu_dropout", 1, lambda bias: bias[:4], "bias must be of shape [5]; it is [4]"),
    ("bias_relu_dropout", 1, torch.Tensor.half, "bias must be float32; it is float16"),
    ("bias_relu_dropout", 2, torch.Tensor.int, "rng must be int64; it is int32"),
    ("bias_relu_dropout", 3, put(-1), "layer must be in [0, 2^32); it is -1"),
    ("bias_relu_dropout", 3, put(2**32), "layer must be in [0, 2^32); it is 4294967296"),
    ("bias_relu_dropout", 5, put(-1), "offset must be at least 0; it is -1"),
    ("bias_relu_dropout", 6, put(4), "width must be 0 or at least the columns of x; it is 4"),
    ("bias_relu_dropout", 4, put(1.0), "p must be in [0, 1); it is 1"),
    ("bias_relu_dropout", 4, put(float("nan")), "p must be in [0, 1); it is nan"),
    ("bias_relu_dropout_backward", 1, torch.Tensor.half, "y must be float32; it is float16"),
    ("bias_relu_dropout_backward", 2, put(-0.5), "p must be in [0, 1); it is -0.5"),
    ("softmax_cross_entropy", 0, lambda x: x[0], "logits must be of shape [*, *]; it is [5]"),
    ("softmax_cross_entropy", 1, torch.Tensor.int, "target must be int64; it is int32"),
    ("sigmoid_bce", 0, lambda x: x[:, None], "logits must be of shape [*]; it is [6, 1]"),
    ("sigmoid_bce", 1, torch.Tensor.double, "target must be float32; it is float64"),
    ("mean_squared_error", 1, lambda t: t[1:], "target must be of shape [6]; it is [5]"),
    ("gather_embed", 0, torch.Tensor.double, "numeric must be float32; it is float64"),
    ("gather_embed", 1, lambda c: c[1:], "categorical must be of shape [11, *]; it is [10, 2]"),
    ("gather_embed", 2, torch.Tensor.int, "target must be float32 or int64; it is int32"),
    ("gather_embed", 3, lambda order: order[:0], "order must be of at least one row; it is empty"),
    ("gather_embed", 4, put(torch.tensor(2)), "cursor must be of shape [1]; it is []"),
    ("gather_embed", 5, lambda codes: codes[:1], "first_code must be of shape [2]; it is [1]"),
    ("gather_embed", 6, torch.Tensor.bfloat16, "weight must be float32; it is bfloat16"),
    ("gather_embed", 7, put(-1), "rows must be at least 0; it is -1"),
    ("gather_embed", 8, put(torch.int8), "dtype must be float32, bfloat16 or float16; it is int8"),
    (
        "gather_embed_backward",
        0,
        lambda g: g[:, 1:].clone(),
        "grad must be of shape [6, 11]; it is",
    ),
    ("gather_embed_backward", 3, put(-1), "vocabulary must be at least 0; it is -1"),
    ("adamw_step_", 0, first(torch.Tensor.double), "weights[0] must be float32; it is float64"),
    ("adamw_step_", 1, lambda g: g[1:], "gradients must be a list of 4, one per weight; it is one"),
    ("adamw_step_", 1, first(torch.t), "gradients[0] must be of shape [3, 4]; it is [4, 3]"),
    ("adamw_step_", 2, first(torch.Tensor.half), "m[0] must be float32; it is float16"),
    ("adamw_step_", 3, first(lambda v: v[1:]), "v[0] must be of shape [3, 4]; it is [2, 4]"),
    ("adamw_step_", 4, first(torch.Tensor.float), "shadows[0] must be bfloat16 or float16; it is"),
    ("adamw_step_", 5, put([0.1]), "decays must be a list of 4, one per weight; it is one of 1"),
    ("adamw_step_", 6, lambda s: s[:0], "schedule must be of at least one step; it is empty"),
    (
        "adamw_step_",
        6,
        lambda s: s[:, :1].clone(),
        "schedule must be of shape [*, 3]; it is [5, 1]",
    ),
    ("adamw_step_", 7, torch.Tensor.int, "step must be int64; it is int32"),
    ("sgd_step_", 2, first(torch.Tensor.half), "velocity[0] must be float32; it is float16"),
    ("tick_", 0, lambda clock: clock[1:], "clock must be of shape [4]; it is [3]"),
    ("tick_", 1, torch.Tensor.double, "loss must be float32; it is float64"),
    ("tick_", 2, torch.Tensor.float, "loss_sum must be float64; it is float32"),
    ("tick_", 3, put(-1), "rows must be at least 0; it is -1"),
]


@pytest.mark.skipif(ops.IMPLEMENTATION == "plain", reason="plain torch has its own words")
@pytest.mark.parametrize(("name", "index", "change", "words"), REFUSED)
def test_a_wrong_argument_is_refused_by_name(
    name: str, index: int, change: Change, words: str
) -> None:
    values = list(cases.on("cpu", cases.arguments()[name]))
    with torch.no_grad():
        values[index] = change(values[index])
        with pytest.raises(ValueError, match=re.escape(f"trialfleet::{name}: {words}")):
            getattr(KERNELS, name)(*values)


@pytest.mark.parametrize("target", [-1, 5])
def test_a_class_that_does_not_exist_is_refused(target: int) -> None:
    logits = cases.normal(3, 5).float()
    with pytest.raises((ValueError, RuntimeError), match=str(target)):
        KERNELS.softmax_cross_entropy(logits, torch.tensor([0, target, 1]))


@pytest.mark.parametrize("part", ["order", "categorical"])
def test_an_index_outside_its_table_is_refused(part: str) -> None:
    of_batch = cases.batch(4, 2, 3, 2)
    of_batch[part].fill_(1000)
    with pytest.raises((ValueError, RuntimeError, IndexError), match=r"range|must be in"):
        ops.gather_embed(**of_batch)
