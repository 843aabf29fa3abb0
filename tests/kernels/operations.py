"""Every operation of the kernels as a function of numpy arrays: allocates, launches, returns.

Values are float arrays; a function rounds them to `kind` first, so a reference has to do the same.
`offsets` moves the arrays, in the order of the launcher's arguments, by this many elements off the
addresses at which 16 bytes may be read.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.kernels.stand_in import Array, Kernels, Parameter, Type

Floats = npt.NDArray[Any]
Offsets = Sequence[int]  # one for each array that is read by packs, or more

ALIGNED = (0,) * 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dropout:
    """The parameters of bias_relu_dropout other than its arrays."""

    p: float = 0.0
    seed: int = 0
    step: int = 0
    layer: int = 0
    offset: int = 0
    wider: int = 0  # columns that the larger array has more


def bias_relu_dropout(
    kernels: Kernels,
    x: Floats,
    bias: Floats,
    dropout: Dropout,
    kinds: tuple[Type, Type],
    offsets: Offsets = ALIGNED,
) -> Array:
    """Return y [rows, columns], as stored; `kinds` are x's and the bias's."""
    y = kernels.empty(x.shape, kinds[0].storage, offsets[2])
    kernels.launch(
        "bias_relu_dropout",
        kernels.array(kinds[0].encode(x), offsets[0]),
        kernels.array(kinds[1].encode(bias), offsets[1]),
        kernels.array(np.array([dropout.seed, dropout.step], np.int64)),
        *(dropout.layer, dropout.p, dropout.offset, x.shape[1] + dropout.wider),
        *(y, *x.shape, *kinds),
    )
    return y


def bias_relu_dropout_backward(
    kernels: Kernels, grad: Floats, y: Floats, p: float, kind: Type, offsets: Offsets = ALIGNED
) -> tuple[Array, Array]:
    """Return grad_x [rows, columns] as stored and grad_bias [columns]."""
    grad_x = kernels.empty(grad.shape, kind.storage, offsets[2])
    grad_bias = kernels.empty(grad.shape[1:], np.float32)
    kernels.launch(
        "bias_relu_dropout_backward",
        kernels.array(kind.encode(grad), offsets[0]),
        kernels.array(kind.encode(y), offsets[1]),
        *(p, grad_x, grad_bias),
        kernels.workspace("bias_relu_dropout_backward", *grad.shape, kind),
        *(*grad.shape, kind),
    )
    return grad_x, grad_bias


def softmax_cross_entropy(
    kernels: Kernels, logits: Floats, target: Array, kind: Type, offsets: Offsets = ALIGNED
) -> tuple[Array, Array]:
    """Return loss [1] and grad [rows, classes] as stored."""
    loss = kernels.empty([1], np.float32)
    grad = kernels.empty(logits.shape, kind.storage, offsets[1])
    kernels.launch(
        "softmax_cross_entropy",
        *(kernels.array(kind.encode(logits), offsets[0]), kernels.array(target.astype(np.int64))),
        *(loss, grad, kernels.workspace("softmax_cross_entropy", *logits.shape)),
        *(*logits.shape, kind),
    )
    return loss, grad


def pointwise_loss(
    kernels: Kernels,
    name: str,
    outputs: Floats,
    target: Floats,
    kind: Type,
    offsets: Offsets = ALIGNED,
) -> tuple[Array, Array]:
    """Return loss [1] and grad [rows] as stored of sigmoid_bce or mean_squared_error."""
    loss = kernels.empty([1], np.float32)
    grad = kernels.empty(outputs.shape, kind.storage, offsets[2])
    kernels.launch(
        name,
        kernels.array(kind.encode(outputs), offsets[0]),
        kernels.array(target.astype(np.float32), offsets[1]),
        *(loss, grad, kernels.workspace(name, len(outputs)), len(outputs), kind),
    )
    return loss, grad


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples:
    """A resident table and its embeddings, as gather_embed takes them."""

    numeric: npt.NDArray[np.float32]  # [samples, numbers]
    categorical: npt.NDArray[np.int32]  # [samples, categories]
    target: Array  # [samples] float32 or int64
    order: npt.NDArray[np.int64]  # [positions]
    first_code: npt.NDArray[np.int32]  # [categories]
    weight: npt.NDArray[np.float32]  # [vocabulary, embedding]


def some_samples(
    seed: int, samples: int, numbers: int, vocabularies: Sequence[int], embedding: int
) -> Samples:
    """Return a random table; each category has its own vocabulary."""
    random = np.random.default_rng(seed)
    sizes = np.array(vocabularies, np.int32)
    codes = [random.integers(0, size, samples) for size in vocabularies]
    return Samples(
        numeric=random.normal(size=(samples, numbers)).astype(np.float32),
        categorical=np.array(codes, np.int32).reshape(len(codes), samples).T.copy(),
        target=random.integers(0, 2, samples).astype(np.float32),
        order=random.permutation(samples).astype(np.int64),
        first_code=(sizes.cumsum() - sizes).astype(np.int32),
        weight=random.normal(size=(int(sizes.sum()), embedding)).astype(np.float32),
    )


def gather_embed(
    kernels: Kernels,
    samples: Samples,
    cursor: int,
    rows: int,
    kind: Type,
    offsets: Offsets = ALIGNED,
) -> tuple[Array, Array, Array]:
    """Return joined [rows, numbers + categories * embedding] as stored, codes and target."""
    numbers, categories = samples.numeric.shape[1], samples.categorical.shape[1]
    vocabulary, embedding = samples.weight.shape
    joined = kernels.empty([rows, numbers + categories * embedding], kind.storage, offsets[2])
    codes = kernels.empty([rows, categories], np.int32)
    target = kernels.empty([rows], samples.target.dtype)
    kernels.launch(
        "gather_embed",
        *(kernels.array(samples.numeric, offsets[0]), kernels.array(samples.categorical)),
        *(kernels.array(samples.target), kernels.array(samples.order)),
        *(kernels.array(np.array([cursor])), kernels.array(samples.first_code)),
        *(kernels.array(samples.weight, offsets[1]), joined, codes, target),
        *(len(samples.order), rows, numbers, categories, vocabulary, embedding),
        *(samples.target.itemsize, kind),
    )
    return joined, codes, target


def gather_embed_backward(
    kernels: Kernels,
    grad: Floats,
    codes: npt.NDArray[np.int32],
    numbers: int,
    shape: tuple[int, int],
    kind: Type,
) -> Array:
    """Return grad_weight, whose shape is [vocabulary, embedding]."""
    rows, categories = codes.shape
    grad_weight = kernels.empty(shape, np.float32)
    sizes = (rows, numbers, categories, *shape)
    kernels.launch(
        "gather_embed_backward",
        *(kernels.array(kind.encode(grad)), kernels.array(codes), grad_weight),
        kernels.workspace("gather_embed_backward", *sizes),
        *(*sizes, kind),
    )
    return grad_weight


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moved:
    """One parameter in the kernels' memory."""

    weight: Array
    gradient: Array
    m: Array
    v: Array
    shadow: Array | None
    decay: float
    gradient_kind: Type = Type.FLOAT32
    shadow_kind: Type = Type.BFLOAT16

    def described(self) -> Parameter:
        """Return launchers.h's Parameter."""
        arrays = (self.weight, self.gradient, self.m, self.v, self.shadow)
        addresses = [None if array is None else array.ctypes.data for array in arrays]
        kinds = (self.gradient_kind, self.shadow_kind)
        return Parameter(*addresses, self.weight.size, self.decay, *kinds)


def some_parameter(
    kernels: Kernels,
    size: int,
    seed: int = 0,
    offsets: Offsets = ALIGNED,
    gradient_kind: Type = Type.FLOAT32,
    shadow_kind: Type | None = None,
    decay: float = 0.0,
) -> Moved:
    """Return a random parameter in the middle of its training; no shadow if it has no kind."""
    random = np.random.default_rng(seed)
    weight, gradient, m = random.normal(size=(3, size)).astype(np.float32)
    kind = Type.BFLOAT16 if shadow_kind is None else shadow_kind
    return Moved(
        weight=kernels.array(weight, offsets[0]),
        gradient=kernels.array(gradient_kind.encode(gradient), offsets[1]),
        m=kernels.array(m, offsets[2]),
        v=kernels.array(np.square(m), offsets[3]),
        shadow=None if shadow_kind is None else kernels.empty([size], kind.storage, offsets[4]),
        decay=decay,
        gradient_kind=gradient_kind,
        shadow_kind=kind,
    )


def adamw_step(
    kernels: Kernels,
    parameters: Sequence[Moved],
    schedule: npt.NDArray[np.float32],
    step: int,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
) -> None:
    """Take a step by AdamW, in place."""
    _step(kernels, "adamw_step", parameters, schedule, step, *betas, epsilon)


def sgd_step(
    kernels: Kernels,
    parameters: Sequence[Moved],
    schedule: npt.NDArray[np.float32],
    step: int,
    momentum: float,
) -> None:
    """Take a step by SGD, in place."""
    _step(kernels, "sgd_step", parameters, schedule, step, momentum)


def _step(
    kernels: Kernels,
    name: str,
    parameters: Sequence[Moved],
    schedule: npt.NDArray[np.float32],
    step: int,
    *constants: float,
) -> None:
    table = (Parameter * len(parameters))(*(each.described() for each in parameters))
    kernels.launch(
        name,
        *(ctypes.addressof(table), len(parameters)),
        *(kernels.array(schedule), len(schedule), kernels.array(np.array([step]))),
        *constants,
    )
