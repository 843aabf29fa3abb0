"""The settings of the reference trainer; standard library only, so that `plan` can check them."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any


class SettingError(ValueError):
    """A setting that the trainer doesn't have, or a value that it can't have."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Hyperparameters and constants of `train.py`; a study's search space may name each of them.

    Attributes:
        learning_rate: of the first step; falls to 0 along a cosine over `epochs`.
        hidden: width of each hidden layer.
        layers: number of hidden layers; 0 gives a linear model.
        dropout: probability after each hidden layer, in [0, 1).
        embedding: numbers per categorical value.
        weight_decay: decoupled decay of the weights (not of biases).
        batch_size: rows per step, of all GPUs together.
        optimizer: "adamw" or "sgd".
        momentum: of SGD.
        precision: of the hidden layers' products on a GPU: "bfloat16", "float16", "float32", or
            "tf32", which is float32 of which products read 10 bits, where the GPU can (compute
            capability 8.0). "auto" is bfloat16 where the GPU has it (8.0), else float16 where that
            is fast (7.0: V100, T4), else float32. The weights, the last layer and the loss are
            float32 always, and so is everything on a CPU.
        epochs: at most so many passes over the training rows.
        patience: stop after so many epochs without a better validation result.
        tune_fraction: the share of the training rows used in mode "tune", in (0, 1]; the same
            rows for every trial.
        checkpoint_seconds: yield a checkpoint that often (see `trial.py`).
        local_steps: in a gang (`resources.nodes`), how many steps a machine takes by itself until
            the weights are brought together. 1: each step is that of the whole batch, whatever the
            number of machines.
        outer_learning_rate: with local_steps above 1, the share of the machines' mean way that the
            weights go.
        outer_momentum: the same, of those ways. 1 and 0 give the mean of the machines' weights;
            with hundreds of meetings DiLoCo has 0.7 and 0.9.
        parallel: in a gang, what of the model a machine holds: "data": all of it; "sharded": its
            part of the embeddings and layers; "auto": all of it where it takes no more than half of
            the memory. The same of several GPUs of a machine.
        tensor_parallel: with the model shared out, how many ranks compute each hidden layer side by
            side, on the same rows: as many as that, or the most below that divide the ranks.
        offload: what of the model lies in main memory, from where a GPU has what it works on:
            "none"; "embeddings", whose rows in use are on the GPU; "all" that the optimiser moves,
            and what the way forward leaves to the way back. "auto": what a GPU has no room for.
        hot_rows: with the embeddings in main memory, how many rows of them the GPU has at once; 0:
            as many as a quarter of its memory takes, on a CPU as many as a batch may want.
        wire: the type in which gradients, or weights, travel between ranks: "float32" or
            "bfloat16", which halves what is sent.
    """

    learning_rate: float = 1e-3
    hidden: int = 128
    layers: int = 2
    dropout: float = 0.0
    embedding: int = 8
    weight_decay: float = 0.0
    batch_size: int = 256
    optimizer: str = "adamw"
    momentum: float = 0.9
    precision: str = "auto"
    epochs: int = 10
    patience: int = 3
    tune_fraction: float = 1.0
    checkpoint_seconds: float = 300.0
    local_steps: int = 1
    outer_learning_rate: float = 1.0
    outer_momentum: float = 0.0
    wire: str = "float32"
    parallel: str = "auto"
    tensor_parallel: int = 1
    offload: str = "auto"
    hot_rows: int = 0

    def __post_init__(self) -> None:
        """Raise SettingError for a setting of the wrong type, or out of range."""
        for field in dataclasses.fields(self):
            _check_type(field.name, getattr(self, field.name), type(field.default))
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingError(name, f"{name} is {value}; it must lie in {low} … {high}")
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise SettingError(name, f"{name} is {value!r}; choose {' or '.join(choices)}")
        for name, value in self._sharing().items():
            self._check_sharing(name, value)

    def _sharing(self) -> dict[str, str | int]:
        """Return the settings that need the model shared out."""
        wanted = {
            "parallel": self.parallel == "sharded",
            "tensor_parallel": self.tensor_parallel > 1,
            "offload": self.offload not in {"auto", "none"},
        }
        return {name: getattr(self, name) for name, is_set in wanted.items() if is_set}

    def _check_sharing(self, name: str, value: str | int) -> None:
        """Raise SettingError where a setting needs the model shared out, and another forbids it."""
        if self.parallel == "data":
            text = "with parallel: data each rank has all of the model; choose auto or sharded"
            raise SettingError("parallel", f"{name} is {value}, but {text}")
        if self.local_steps > 1:
            text = f"with {name}: {value} every step is taken together"
            raise SettingError("local_steps", f"local_steps is {self.local_steps}; {text}")

    def shards(self, weights: int, memory: float) -> bool:
        """Tell whether each rank holds a part of the network only, or in main memory.

        The network has so many numbers; memory is the bytes of the rank that has least.
        """
        if self._sharing():
            return True
        if self.parallel != "auto" or self.local_steps > 1:
            return False
        return weights * STATE_BYTES > memory * STATE_SHARE

    def offloads(self, weights: int, embeddings: int, memory: float, ranks: int) -> str:
        """Return what of a network that is shared out lies in main memory, as `offload` names it.

        Args:
            weights: how many numbers the network has.
            embeddings: how many of them are of categorical values.
            memory: bytes, of the rank that has least; infinity where it is main memory.
            ranks: how many share it out.
        """
        if self.offload != "auto":
            return self.offload
        room = memory * STATE_SHARE * ranks / STATE_BYTES
        if weights <= room:
            return "none"
        # Of the half that a model may take, hot rows have one half (HOT_SHARE), layers the other.
        return "embeddings" if weights - embeddings <= room / 2 else "all"

    @classmethod
    def of(cls, params: dict[str, Any]) -> Settings:
        """Return the settings that a trial's parameters give; SettingError if they give none."""
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


METRICS = {  # beside the loss; of the validation rows "val_…", of the test rows "test_…"
    "binary": ("auc", "accuracy"),
    "multiclass": ("accuracy",),
    "regression": ("rmse", "mae", "r2"),
}
GAINS = {"auc", "accuracy", "r2"}  # the greater, the better; of all others the smaller


def metrics_of(kind: str) -> list[str]:
    """Return every metric of a trial whose kind is "binary", "multiclass" or "regression"."""
    names = ("loss", *METRICS[kind])
    return [part + name for part in ("val_", "test_") for name in names]


STATE_BYTES = 16  # of a number: weight, gradient, the optimiser's two means
HOT_SHARE = 0.25  # of a GPU's memory, for the rows of embeddings that lie in main memory
STATE_SHARE = 0.5  # of the memory; the rest is for rows, activations, a checkpoint on its way

_CHOICES = {
    "optimizer": ("adamw", "sgd"),
    "precision": ("auto", "float32", "tf32", "bfloat16", "float16"),
    "wire": ("float32", "bfloat16"),
    "parallel": ("auto", "data", "sharded"),
    "offload": ("auto", "none", "embeddings", "all"),
}
_TINY = 1e-12  # stands for "above zero"
_RANGES: dict[str, tuple[float, float]] = {
    "learning_rate": (_TINY, 100.0),
    "hidden": (1, 65536),
    "layers": (0, 64),
    "dropout": (0.0, 0.99),
    "embedding": (1, 4096),
    "weight_decay": (0.0, 100.0),
    "batch_size": (1, 1 << 24),
    "momentum": (0.0, 0.9999),
    "epochs": (1, 1_000_000),
    "patience": (1, 1_000_000),
    "tune_fraction": (_TINY, 1.0),
    "checkpoint_seconds": (0.0, 1e9),
    "local_steps": (1, 1_000_000),
    "outer_learning_rate": (_TINY, 10.0),
    "outer_momentum": (0.0, 0.9999),
    "tensor_parallel": (1, 65536),
    "hot_rows": (0, 1 << 40),
}


def _check_type(name: str, value: object, expected: type) -> None:
    """Raise SettingError unless `value` is of `expected`; an int may stand for a float."""
    allowed = (int, float) if expected is float else (expected,)
    if isinstance(value, bool) or not isinstance(value, allowed):
        raise SettingError(name, f"{name} is {value!r}; it must be a {expected.__name__}")
