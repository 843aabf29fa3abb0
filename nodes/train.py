"""The reference trainer: a multi-layer perceptron for a table, on the CPU or on one GPU.

Read `main` first, then downwards. The whole table lives on the device; a step gathers its rows by
index. A trial interrupted at any step goes on from its checkpoint to the very same bits.

Shapes: n rows, b rows of a batch, d numeric columns, k categorical columns, e numbers per
categorical value, o outputs (1; one per class where there are more than two).
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

if __package__:
    from trialfleet.nodes import region, settings, table, trial
    from trialfleet.nodes.descent import Descent
elif not TYPE_CHECKING:  # travelling alone, in a trial's sandbox
    import region
    import settings
    import table
    import trial
    from descent import Descent

EVALUATION_ROWS = 65536  # at once, which bounds the memory
METRICS = {  # beside the loss; of the validation rows "val_…", of the test rows "test_…"
    "binary": ("auc", "accuracy"),
    "multiclass": ("accuracy",),
    "regression": ("rmse", "mae", "r2"),
}


def main() -> None:
    """Run the trial that `trial.json` describes."""
    t = trial.start()
    try:
        chosen = settings.Settings.of(t.params)
    except ValueError as error:
        t.reject(str(error))
    device = choose_device(t)
    data = region.load(t, chosen, device)
    torch.manual_seed(t.seed)
    network = Network(data.columns, chosen).to(device)
    try:
        fit(t, chosen, network, data)
    except torch.cuda.OutOfMemoryError as error:
        t.reject(f"out of GPU memory: {error}")
    if t.mode == "final":
        save_model(t.model, network, data, chosen)
    metrics = evaluate(network, data.validation, data, "val_")
    t.complete(**metrics, **evaluate(network, data.test, data, "test_"))


def choose_device(t: trial.Trial) -> torch.device:
    """Return the device of the study's accelerator, made deterministic; never another one."""
    if t.accelerator == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        sys.exit(
            f"The study wants a GPU; torch {torch.__version__} finds no usable CUDA device here "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')})."
        )
    t.device = torch.cuda.get_device_name()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return torch.device("cuda")


# Network


class Network(nn.Module):
    """Embeddings beside the numeric columns, then hidden layers of one width."""

    first_code: Tensor

    def __init__(self, columns: table.Columns, chosen: settings.Settings) -> None:
        super().__init__()
        # All vocabularies share one table of embeddings: column j's codes start at first_code[j].
        counts = [len(values) + 1 for values in columns.categorical.values()]
        sizes = torch.tensor(counts, dtype=torch.int64)
        first_code = (sizes.cumsum(0) - sizes).int()
        self.register_buffer("first_code", first_code, persistent=False)
        self.embedding = nn.Embedding(max(1, sum(counts)), chosen.embedding)
        nn.init.normal_(self.embedding.weight, std=0.1)
        with torch.no_grad():
            self.embedding.weight[first_code.long()] = 0.0  # unknown: no opinion, and stays so

        width = len(columns.numeric) + len(columns.categorical) * chosen.embedding
        layers: list[nn.Module] = []
        for _ in range(chosen.layers):
            layers += [nn.Linear(width, chosen.hidden), nn.ReLU(), nn.Dropout(chosen.dropout)]
            width = chosen.hidden
        outputs = len(columns.classes) if region.kind_of(columns) == "multiclass" else 1
        self.layers = nn.Sequential(*layers, nn.Linear(width, outputs))

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        """Return the outputs [b, o] of numeric [b, d] and categorical [b, k]."""
        embedded = self.embedding(categorical + self.first_code)  # [b, k, e]
        joined = torch.cat([numeric, embedded.flatten(1)], 1)  # [b, d + k * e]
        outputs: Tensor = self.layers(joined)
        return outputs


def loss_of(outputs: Tensor, target: Tensor, kind: str) -> Tensor:
    """Return the mean loss of outputs [b, o] against target [b]."""
    if kind == "multiclass":
        return functional.cross_entropy(outputs, target)
    flat = outputs.squeeze(1)  # [b, 1] -> [b]
    if kind == "binary":
        return functional.binary_cross_entropy_with_logits(flat, target)
    return functional.mse_loss(flat, target)


# Training


@dataclass(kw_only=True)
class Progress:
    """Where the training stands, beside weights, optimiser and random state."""

    epoch: int = 0
    step: int = 0  # within the epoch
    loss_sum: float = 0.0  # of the epoch's steps so far
    best_epoch: int = -1
    best_score: float = math.inf  # smaller is better

    def over(self, chosen: settings.Settings) -> bool:
        """Tell whether the last epoch, or the end of the patience, has come."""
        waited = self.epoch - 1 - self.best_epoch
        return self.epoch >= chosen.epochs or waited >= chosen.patience


def fit(t: trial.Trial, chosen: settings.Settings, network: Network, data: region.Region) -> None:
    """Train until the validation rows no longer gain, and leave the best epoch's weights."""
    run = Run(t, chosen, network, data)
    run.restore()
    while not run.progress.over(chosen):
        run.finish_epoch()
        run.judge_epoch()
    network.load_state_dict(run.best_weights)


class Run:
    """The training of one network: everything that a checkpoint has to hold."""

    def __init__(
        self, t: trial.Trial, chosen: settings.Settings, network: Network, data: region.Region
    ) -> None:
        self.trial, self.settings, self.network, self.data = t, chosen, network, data
        self.optimizer = Descent(network, chosen)
        self.on_gpu = data.train.target.is_cuda
        self.steps = math.ceil(len(data.train) / chosen.batch_size)  # per epoch
        self.progress = Progress()
        self.best_weights: dict[str, Tensor] = copy_weights(network)

    def finish_epoch(self) -> None:
        """Take the epoch's remaining steps; leave with a checkpoint when it is time."""
        progress, size = self.progress, self.settings.batch_size
        order = self._order()
        loss_sum = torch.tensor(progress.loss_sum, dtype=torch.float64, device=order.device)
        self.network.train()
        while progress.step < self.steps:
            batch = self.data.train.at(order[progress.step * size : (progress.step + 1) * size])
            loss_sum += self._step(batch)
            progress.step += 1
            if self.trial.should_checkpoint():
                progress.loss_sum = loss_sum.item()
                self.save()
                self.trial.yield_node()
        progress.loss_sum = loss_sum.item()

    def _step(self, batch: region.Rows) -> Tensor:
        """Move the weights by one batch and return its loss."""
        self.optimizer.clear()
        outputs = self.network(batch.numeric, batch.categorical)
        loss = loss_of(outputs, batch.target, self.data.kind)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step(self._learning_rate())
        return loss.detach()

    def _order(self) -> Tensor:
        """Return the epoch's order of the rows [n]; it hangs on seed and epoch alone."""
        generator = torch.Generator().manual_seed(self.trial.seed * 1_000_003 + self.progress.epoch)
        order = torch.randperm(len(self.data.train), generator=generator)
        return order.to(self.data.train.target.device)

    def _learning_rate(self) -> float:
        """Return the step's learning rate: along a cosine from its full value to 0."""
        done = (self.progress.epoch + self.progress.step / self.steps) / self.settings.epochs
        return self.settings.learning_rate * 0.5 * (1 + math.cos(math.pi * done))

    def judge_epoch(self) -> None:
        """Measure the epoch on the validation rows, report it, remember it if it is the best."""
        progress, t = self.progress, self.trial
        train_loss = progress.loss_sum / self.steps
        if not math.isfinite(train_loss):
            t.reject(f"the training loss is {train_loss} in epoch {progress.epoch}")
        metrics = evaluate(self.network, self.data.validation, self.data, "val_")
        t.report(progress.epoch, train_loss=train_loss, **metrics)
        # The study's own objective decides where it is measured on the validation rows.
        score = metrics["val_loss"]
        if t.metric in metrics:
            score = metrics[t.metric] * (-1 if t.direction == "maximize" else 1)
        if score < progress.best_score:
            progress.best_score, progress.best_epoch = score, progress.epoch
            self.best_weights = copy_weights(self.network)
        progress.epoch, progress.step, progress.loss_sum = progress.epoch + 1, 0, 0.0

    def save(self) -> None:
        """Write a checkpoint."""
        state = {
            "progress": dataclasses.asdict(self.progress),
            "network": self.network.state_dict(),
            "best_weights": self.best_weights,
            "optimizer": self.optimizer.state(),
            "random": torch.get_rng_state(),
            "cuda_random": torch.cuda.get_rng_state() if self.on_gpu else None,
        }
        with self.trial.checkpoint() as folder:
            torch.save(state, folder / "state.pt")

    def restore(self) -> None:
        """Go on from the checkpoint, if there is one."""
        if not (folder := self.trial.restore()):
            return
        state: dict[str, Any] = torch.load(
            folder / "state.pt", map_location="cpu", weights_only=True
        )
        self.progress = Progress(**state["progress"])
        self.network.load_state_dict(state["network"])
        self.best_weights = state["best_weights"]
        self.optimizer.restore(state["optimizer"])
        torch.set_rng_state(state["random"])
        if self.on_gpu:
            torch.cuda.set_rng_state(state["cuda_random"])


def copy_weights(network: Network) -> dict[str, Tensor]:
    """Return a copy of the weights that training leaves alone."""
    return {name: weight.detach().clone() for name, weight in network.state_dict().items()}


# Judging


@torch.no_grad()
def outputs_of(network: Network, numeric: Tensor, categorical: Tensor) -> Tensor:
    """Return the outputs [n, o] for all rows, in the network's evaluation mode."""
    network.eval()
    starts = range(0, len(numeric), EVALUATION_ROWS)
    parts = [slice(start, start + EVALUATION_ROWS) for start in starts]
    return torch.cat([network(numeric[part], categorical[part]) for part in parts])


def evaluate(
    network: Network, rows: region.Rows, data: region.Region, prefix: str
) -> dict[str, float]:
    """Return the loss and METRICS of `rows`, their names prefixed; regression in its own unit."""
    outputs = outputs_of(network, rows.numeric, rows.categorical)
    metrics = {"loss": loss_of(outputs, rows.target, data.kind).item()}
    if data.kind == "regression":
        error = (outputs.squeeze(1) - rows.target).double() * data.target_scale.deviation.item()
        spread = (rows.target.double() - rows.target.double().mean()).square().mean()
        spread = spread * data.target_scale.deviation.item() ** 2
        metrics["rmse"] = error.square().mean().sqrt().item()
        metrics["mae"] = error.abs().mean().item()
        metrics["r2"] = 1.0 - (error.square().mean() / spread).item()
    elif data.kind == "multiclass":
        metrics["accuracy"] = (outputs.argmax(1) == rows.target).double().mean().item()
    else:
        positive = rows.target > 0.5
        metrics["auc"] = auc(outputs.squeeze(1), positive)
        metrics["accuracy"] = ((outputs.squeeze(1) > 0) == positive).double().mean().item()
    return {prefix + name: value for name, value in metrics.items()}


def auc(score: Tensor, positive: Tensor) -> float:
    """Return the area under the ROC curve: how often a positive outranks a negative, ties half.

    By the ranks' sum (Mann and Whitney, 1947); NaN when one of the classes is missing.

    Args:
        score: [n], larger for positives.
        positive: [n] bool.
    """
    _, group, counts = torch.unique(score, return_inverse=True, return_counts=True)
    rank = (counts.cumsum(0) - (counts - 1) / 2.0).double()  # [groups], tied scores share one
    positives = int(positive.sum())
    pairs = positives * (len(score) - positives)
    if not pairs:
        return math.nan
    above = rank[group[positive]].sum().item() - positives * (positives + 1) / 2
    return float(above / pairs)


# The model's folder


def save_model(
    folder: Path, network: Network, data: region.Region, chosen: settings.Settings
) -> None:
    """Write what `predict.py` needs: weights.pt and model.json."""
    folder.mkdir(exist_ok=True)
    torch.save(
        {name: weight.cpu() for name, weight in copy_weights(network).items()},
        folder / "weights.pt",
    )
    description = {
        "schema": 1,
        "columns": dataclasses.asdict(data.columns),
        "numeric_scale": data.numeric_scale.describe(),
        "target_scale": data.target_scale.describe(),
        "settings": dataclasses.asdict(chosen),
    }
    text = json.dumps(description, indent=1, ensure_ascii=False) + "\n"
    (folder / "model.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
