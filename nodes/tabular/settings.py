"""The built-in trainer's settings, and the rules by which a model is sharded or offloaded.

A sharded model is divided among the ranks. An offloaded model is partly in main memory instead of
the GPU's memory.

This module only imports the standard library, so that `trialfleet plan` can check settings.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any


class SettingError(ValueError):
    """The trainer has no setting `name`, or the setting's value is invalid."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


_TINY = 1e-12  # the lower limit of settings that must be above 0


def _range_field(default: float, low: float, high: float) -> Any:
    return dataclasses.field(default=default, metadata={"range": (low, high)})


def _choice_field(default: str, *others: str) -> Any:
    return dataclasses.field(default=default, metadata={"choices": (default, *others)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The hyperparameters and constants of `train.py`. A study may set or tune any of them."""

    # Learning rate of the first step; it falls to 0 along a cosine over `epochs`.
    learning_rate: float = _range_field(1e-3, _TINY, 100.0)
    hidden: int = _range_field(128, 1, 65536)  # width of each hidden layer
    layers: int = _range_field(2, 0, 64)  # number of hidden layers; 0 gives a linear model
    dropout: float = _range_field(0.0, 0.0, 0.99)  # probability after each hidden layer, in [0, 1)
    embedding: int = _range_field(8, 1, 4096)  # numbers per categorical value
    # Decoupled weight decay (biases don't decay).
    weight_decay: float = _range_field(0.0, 0.0, 100.0)
    batch_size: int = _range_field(256, 1, 1 << 24)  # rows per step, on all GPUs together
    optimizer: str = _choice_field("adamw", "sgd")
    momentum: float = _range_field(0.9, 0.0, 0.9999)  # of SGD
    # The type of the hidden layers' matrix products on a GPU: "bfloat16", "float16", "float32" or
    # "tf32". "tf32" is float32, but products use 10 bits of mantissa if the GPU's compute
    # capability is at least 8.0. "auto" is bfloat16 from capability 8.0 on, else float16 from 7.0
    # on (V100, T4), else float32. The weights, the last layer and the loss are always float32. On a
    # CPU everything is float32. A sharded or offloaded model uses float32 ("auto") or tf32.
    precision: str = _choice_field("auto", "float32", "tf32", "bfloat16", "float16")
    epochs: int = _range_field(10, 1, 1_000_000)  # maximum passes over the training rows
    # Stop after this number of epochs without a better validation result.
    patience: int = _range_field(3, 1, 1_000_000)
    # The share of the training rows used in mode "tune", in (0, 1]; the same rows for every trial.
    tune_fraction: float = _range_field(1.0, _TINY, 1.0)
    # Seconds between checkpoints (see `trial.py`).
    checkpoint_seconds: float = _range_field(300.0, 0.0, 1e9)
    # In a gang (`resources.nodes`), the number of steps that a machine takes by itself before the
    # weights are averaged. 1: each step uses the whole batch, for any number of machines.
    local_steps: int = _range_field(1, 1, 1_000_000)
    # With local_steps above 1, the factor by which the machines' mean update is applied.
    outer_learning_rate: float = _range_field(1.0, _TINY, 10.0)
    # The momentum of these updates. With an outer learning rate of 1 and a momentum of 0, the
    # machines' weights are just averaged. DiLoCo, with hundreds of updates, uses 0.7 and 0.9.
    outer_momentum: float = _range_field(0.0, 0.0, 0.9999)
    # The type in which gradients or weights are sent between ranks: "float32", or "bfloat16", which
    # halves the traffic.
    wire: str = _choice_field("float32", "bfloat16")
    # The part of the model that each machine of a gang, or each of several GPUs, has. "data": the
    # whole model. "sharded": a part of the embeddings and layers. "auto": the whole model if it
    # needs at most half of the memory, else a part.
    parallel: str = _choice_field("auto", "data", "sharded")
    # With a sharded model, the number of ranks that compute each hidden layer together, on the same
    # rows. If it doesn't divide the number of ranks, the next smaller divisor is used.
    tensor_parallel: int = _range_field(1, 1, 65536)
    # The part of the model in main memory, from which the GPU gets what it needs. "none": no part.
    # "embeddings": the GPU only has the embeddings of a step's batch. "all": all parameters with
    # the optimiser's state, and the activations that are saved for the backward pass. "auto": a
    # part if the whole model doesn't fit in the GPU.
    offload: str = _choice_field("auto", "none", "embeddings", "all")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            name, value, given = field.name, getattr(self, field.name), field.metadata
            _check_type(name, value, type(field.default))
            low, high = given.get("range", (value, value))
            if not low <= value <= high:
                raise SettingError(name, f"{name} is {value}; it must be from {low} to {high}")
            if value not in (choices := given.get("choices", (value,))):
                raise SettingError(name, f"{name} is {value!r}; choose {' or '.join(choices)}")
        for name, value in self._sharding_settings().items():
            self._check_sharing(name, value)

    def _sharding_settings(self) -> dict[str, str | int]:
        wanted = {
            "parallel": self.parallel == "sharded",
            "tensor_parallel": self.tensor_parallel > 1,
            "offload": self.offload not in {"auto", "none"},
        }
        return {name: getattr(self, name) for name, is_set in wanted.items() if is_set}

    def _check_sharing(self, name: str, value: str | int) -> None:
        if self.parallel == "data":
            text = (
                "with `parallel: data` a model is never sharded; choose `parallel: auto` or "
                "`parallel: sharded`"
            )
            raise SettingError("parallel", f"{name} is {value}, but {text}")
        if self.local_steps > 1:
            text = (
                f"with `{name}: {value}` the ranks take each step together; choose `local_steps: 1`"
            )
            raise SettingError("local_steps", f"local_steps is {self.local_steps}, but {text}")
        self._check_precision(f"with `{name}: {value}`")

    def _check_precision(self, where: str) -> None:
        if self.precision in {"bfloat16", "float16"}:
            text = f"{where}, training uses float32; choose auto, float32 or tf32"
            raise SettingError("precision", f"precision is {self.precision!r}, but {text}")

    def is_sharded(self, weights: int, memory: float) -> bool:
        """Return whether the network is divided among ranks, or is partly in main memory.

        If the settings leave this open, the network's size decides. `weights` is the number of
        parameters. `memory` is the smallest memory of all ranks, in bytes. Raise SettingError if
        the network must be sharded because of its size, but `precision` doesn't allow it.
        """
        if self._sharding_settings():
            return True
        if self.parallel != "auto" or self.local_steps > 1:
            return False
        if weights * STATE_BYTES <= memory * STATE_SHARE:
            return False
        self._check_precision("for a model that needs more than half of the memory")
        return True

    def check_row(self, numeric: int, categorical: int) -> None:
        """Raise SettingError if a row with its embeddings is too wide for a GPU's kernels.

        `numeric` and `categorical` are the numbers of columns of each kind.
        """
        if categorical > MOST_CATEGORICAL:
            raise SettingError(
                "embedding",
                f"the table has {categorical} categorical columns; a GPU allows at most "
                f"{MOST_CATEGORICAL}: leave columns out",
            )
        numbers = numeric + categorical * self.embedding
        if numbers <= MOST_NUMBERS:
            return
        most = (MOST_NUMBERS - numeric) // max(1, categorical)
        advice = f"choose an embedding of at most {most}" if most > 0 else "leave columns out"
        raise SettingError(
            "embedding",
            f"embedding is {self.embedding}, but {categorical} categorical columns and {numeric} "
            f"numeric columns then give {numbers} numbers per row; a GPU allows at most "
            f"{MOST_NUMBERS}: {advice}",
        )

    def offloaded_part(self, weights: int, embeddings: int, memory: float, ranks: int) -> str:
        """Return what a sharded network keeps in main memory: "none", "embeddings" or "all".

        With `offload: auto`, this is the smallest part without which the network fits into the
        ranks' GPUs. `weights` is the number of all parameters, and `embeddings` that of the
        embeddings. `memory` is the smallest memory of all ranks, in bytes, or infinity on CPUs.
        """
        if self.offload != "auto":
            return self.offload
        room = memory * STATE_SHARE * ranks / STATE_BYTES
        if weights <= room:
            return "none"
        return "embeddings" if weights - embeddings <= room else "all"

    def missing_condition(self, name: str) -> str:
        """Return the condition without which the setting `name` has no effect; "" if it has one."""
        if name == "momentum" and self.optimizer != "sgd":
            return "optimizer: sgd"
        is_outer = name in {"outer_learning_rate", "outer_momentum"}
        return "local_steps above 1" if is_outer and self.local_steps == 1 else ""

    @classmethod
    def from_params(cls, params: dict[str, Any]) -> Settings:
        """Return the settings from a trial's parameters, or raise SettingError."""
        known = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(set(params) - set(known)):
            near = difflib.get_close_matches(unknown[0], known, n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise SettingError(
                unknown[0],
                f"the tabular trainer has no setting {', '.join(unknown)}{meant}; it knows "
                f"{', '.join(known)}",
            )
        return cls(**params)


METRICS = {  # besides the loss; their names get the prefix val_ or test_, for the measured rows
    "binary": ("auc", "accuracy"),
    "multiclass": ("accuracy",),
    "regression": ("rmse", "mae", "r2"),
}
GAINS = {"auc", "accuracy", "r2"}  # metrics to maximise; all others are to be minimised


def metric_names(kind: str) -> list[str]:
    """Return the names of a trial's metrics, such as "val_auc".

    `kind` is the kind of task: "binary", "multiclass" or "regression".
    """
    names = ("loss", *METRICS[kind])
    return [part + name for part in ("val_", "test_") for name in names]


MOST_CATEGORICAL, MOST_NUMBERS = (1 << 16) - 1, (1 << 20) - 1  # of a row: kernels/csrc/checks.h
STATE_BYTES = 16  # per parameter: weight, gradient, the optimiser's two moments
STATE_SHARE = 0.5  # of the memory; the rest is for rows, activations and a checkpoint to send


def _check_type(name: str, value: object, expected: type) -> None:
    allowed = (int, float) if expected is float else (expected,)
    if isinstance(value, bool) or not isinstance(value, allowed):
        raise SettingError(name, f"{name} is {value!r}; its type must be {expected.__name__}")
