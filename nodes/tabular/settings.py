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


_TINY = 1e-12  # stands for "above zero"


def _between(default: float, low: float, high: float) -> Any:
    return dataclasses.field(default=default, metadata={"range": (low, high)})


def _one_of(default: str, *others: str) -> Any:
    return dataclasses.field(default=default, metadata={"choices": (default, *others)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Hyperparameters and constants of `train.py`; a study's search space may name each of them."""

    # Of the first step; falls to 0 along a cosine over `epochs`.
    learning_rate: float = _between(1e-3, _TINY, 100.0)
    hidden: int = _between(128, 1, 65536)  # width of each hidden layer
    layers: int = _between(2, 0, 64)  # number of hidden layers; 0 gives a linear model
    dropout: float = _between(0.0, 0.0, 0.99)  # probability after each hidden layer, in [0, 1)
    embedding: int = _between(8, 1, 4096)  # numbers per categorical value
    # Decoupled decay of the weights (not of biases).
    weight_decay: float = _between(0.0, 0.0, 100.0)
    batch_size: int = _between(256, 1, 1 << 24)  # rows per step, of all GPUs together
    optimizer: str = _one_of("adamw", "sgd")
    momentum: float = _between(0.9, 0.0, 0.9999)  # of SGD
    # Of the hidden layers' products on a GPU: "bfloat16", "float16", "float32", or "tf32", which is
    # float32 of which products read 10 bits, where the GPU can (compute capability 8.0). "auto" is
    # bfloat16 where the GPU has it (8.0), else float16 where that is fast (7.0: V100, T4), else
    # float32. The weights, the last layer and the loss are float32 always, and so is everything on
    # a CPU. A model that is shared out, or in main memory, has float32 or tf32; "auto" is float32.
    precision: str = _one_of("auto", "float32", "tf32", "bfloat16", "float16")
    epochs: int = _between(10, 1, 1_000_000)  # at most so many passes over the training rows
    # Stop after so many epochs without a better validation result.
    patience: int = _between(3, 1, 1_000_000)
    # The share of the training rows used in mode "tune", in (0, 1]; the same rows for every trial.
    tune_fraction: float = _between(1.0, _TINY, 1.0)
    # Yield a checkpoint that often (see `trial.py`).
    checkpoint_seconds: float = _between(300.0, 0.0, 1e9)
    # In a gang (`resources.nodes`), how many steps a machine takes by itself until the weights are
    # brought together. 1: each step is that of the whole batch, whatever the number of machines.
    local_steps: int = _between(1, 1, 1_000_000)
    # With local_steps above 1, the share of the machines' mean way that the weights go.
    outer_learning_rate: float = _between(1.0, _TINY, 10.0)
    # The same, of those ways. 1 and 0 give the mean of the machines' weights; with hundreds of
    # meetings DiLoCo has 0.7 and 0.9.
    outer_momentum: float = _between(0.0, 0.0, 0.9999)
    # The type in which gradients, or weights, travel between ranks: "float32" or "bfloat16", which
    # halves what is sent.
    wire: str = _one_of("float32", "bfloat16")
    # In a gang, what of the model a machine holds: "data": all of it; "sharded": its part of the
    # embeddings and layers; "auto": all of it where it takes no more than half of the memory. The
    # same of several GPUs of a machine.
    parallel: str = _one_of("auto", "data", "sharded")
    # With the model shared out, how many ranks compute each hidden layer side by side, on the same
    # rows: as many as that, or the most below that divide the ranks.
    tensor_parallel: int = _between(1, 1, 65536)
    # What of the model lies in main memory, from where a GPU has what it works on: "none";
    # "embeddings", of which a step has its batch's rows on the GPU; "all" that the optimiser moves,
    # and what the way forward leaves to the way back. "auto": what a GPU has no room for.
    offload: str = _one_of("auto", "none", "embeddings", "all")

    def __post_init__(self) -> None:
        """Raise SettingError for a setting of the wrong type, or out of range."""
        for field in dataclasses.fields(self):
            name, value, given = field.name, getattr(self, field.name), field.metadata
            _check_type(name, value, type(field.default))
            low, high = given.get("range", (value, value))
            if not low <= value <= high:
                raise SettingError(name, f"{name} is {value}; it must be in {low} … {high}")
            if value not in (choices := given.get("choices", (value,))):
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
        self._check_precision(f"with {name}: {value}")

    def _check_precision(self, where: str) -> None:
        """Raise SettingError for a precision that a model that is shared out can't have."""
        if self.precision in {"bfloat16", "float16"}:
            text = f"{where} it is trained in float32; choose auto, float32 or tf32"
            raise SettingError("precision", f"precision is {self.precision!r}, but {text}")

    def shards(self, weights: int, memory: float) -> bool:
        """Tell whether each rank holds a part of the network only, or in main memory.

        Args:
            weights: the number of the network's parameters.
            memory: bytes, of the rank that has least.

        Raises:
            SettingError: it has to, and the precision is one that a shared model can't have.
        """
        if self._sharing():
            return True
        if self.parallel != "auto" or self.local_steps > 1:
            return False
        if weights * STATE_BYTES <= memory * STATE_SHARE:
            return False
        self._check_precision("where the model takes more than half of the memory")
        return True

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
        return "embeddings" if weights - embeddings <= room else "all"

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


REMOVED = {"hot_rows"}  # settings of former versions that say nothing of a model's network

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
STATE_SHARE = 0.5  # of the memory; the rest is for rows, activations, a checkpoint on its way


def _check_type(name: str, value: object, expected: type) -> None:
    """Raise SettingError unless `value` is of `expected`; an int may stand for a float."""
    allowed = (int, float) if expected is float else (expected,)
    if isinstance(value, bool) or not isinstance(value, allowed):
        raise SettingError(name, f"{name} is {value!r}; it must be a {expected.__name__}")
