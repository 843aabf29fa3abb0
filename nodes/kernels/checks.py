"""How plain.py checks its operators' arguments; csrc/checks.h is the same in C++.

Every message names the operator, the argument, what is right and what was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Shape = tuple[int, ...]
ANY = -1  # a dimension of any size

F32, I32, I64 = (torch.float32,), (torch.int32,), (torch.int64,)
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
CPU_FLOATS = (*FLOATS, torch.float64)  # float64 for the references of tests, on the CPU alone


@dataclass(frozen=True)
class Arguments:
    """What the arguments of one call must be; all of them must lie on one device."""

    operator: str
    device: torch.device

    @property
    def floats(self) -> tuple[torch.dtype, ...]:
        """The types that the operator computes with here."""
        return CPU_FLOATS if self.device.type == "cpu" else FLOATS

    def require(self, *, met: bool, argument: str, wanted: str, given: object) -> None:
        """Raise ValueError unless the condition is met."""
        if not met:
            raise ValueError(
                f"trialfleet::{self.operator}: {argument} must be {wanted}; it is {given}"
            )

    def tensor(
        self,
        argument: str,
        value: Tensor,
        dtypes: Sequence[torch.dtype],
        shape: Shape | None = None,
    ) -> None:
        """Require a contiguous tensor of one of the types, and of the shape if there is one."""
        self.require(
            met=value.device == self.device,
            argument=argument,
            wanted=f"on {self.device}, as the other arguments are",
            given=f"on {value.device}",
        )
        self.require(
            met=value.dtype in dtypes,
            argument=argument,
            wanted=_either(dtypes),
            given=_name(value.dtype),
        )
        self.require(
            met=shape is None or _fits(value.shape, shape),
            argument=argument,
            wanted=f"of shape {_written(shape or ())}",
            given=_written(value.shape),
        )
        self.require(
            met=value.is_contiguous(),
            argument=argument,
            wanted="contiguous",
            given=f"not: shape {_written(value.shape)}, strides {_written(value.stride())}",
        )

    def dtype(self, dtype: torch.dtype) -> None:
        """Require a type that results may have."""
        given = _name(dtype)
        self.require(met=dtype in FLOATS, argument="dtype", wanted=_either(FLOATS), given=given)

    def lists(self, weights: Sequence[Tensor], **others: Sequence[object]) -> None:
        """Require lists as long as that of the weights."""
        for argument, values in others.items():
            self.require(
                met=len(values) == len(weights),
                argument=argument,
                wanted=f"a list of {len(weights)}, one per weight",
                given=f"one of {len(values)}",
            )

    def not_negative(self, **numbers: int) -> None:
        """Require numbers that are 0 or more."""
        for argument, value in numbers.items():
            self.require(met=value >= 0, argument=argument, wanted="at least 0", given=value)

    def share(self, p: float) -> None:
        """Require the share of what is dropped."""
        self.require(met=0 <= p < 1, argument="p", wanted="in [0, 1)", given=p)

    def schedule(self, schedule: Tensor, step: Tensor) -> None:
        """Require an optimiser's schedule, and its place there."""
        self.tensor("schedule", schedule, F32, (ANY, 3))
        self.tensor("step", step, I64, (1,))
        some = schedule.shape[0] > 0
        self.require(met=some, argument="schedule", wanted="of at least one step", given="empty")

    def weights(
        self, weights: Sequence[Tensor], gradients: Sequence[Tensor], shadows: Sequence[Tensor]
    ) -> None:
        """Require what an optimiser changes, and by what."""
        if shadows:
            self.lists(weights, shadows=shadows)
        for i, weight in enumerate(weights):
            self.tensor(f"weights[{i}]", weight, F32)
            self.tensor(f"gradients[{i}]", gradients[i], FLOATS, tuple(weight.shape))
            if shadows and shadows[i].numel():
                low = (torch.bfloat16, torch.float16)
                self.tensor(f"shadows[{i}]", shadows[i], low, tuple(weight.shape))


def _fits(sizes: Sequence[int], shape: Shape) -> bool:
    return len(sizes) == len(shape) and all(
        wanted in {ANY, size} for size, wanted in zip(sizes, shape, strict=True)
    )


def _written(shape: Sequence[int]) -> str:
    return "[" + ", ".join("*" if size == ANY else str(size) for size in shape) + "]"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _either(dtypes: Sequence[torch.dtype]) -> str:
    names = [_name(dtype) for dtype in dtypes]
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
