"""Fit a deep network to a region's points, with some of its layers on each rank (a pipeline)."""

import csv
from pathlib import Path
from typing import Any

import torch
import trial
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

BATCH, PARTS = 24, 4  # rows per step, and the number of microbatches in the pipeline
HIDDEN = 4  # layers
VOTE = 10  # steps between rank 0's decisions whether to save


def main() -> None:
    """Train with this trial's parameters and report the error."""
    t = trial.start()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    distributed.init_process_group("gloo")  # gets rank, world size and address from the environment
    x, y = read(t.data[0])
    torch.manual_seed(t.seed)
    model = Model(t)
    first = model.restore(saved) if (saved := t.restore()) else 0
    for step in range(first, t.params["steps"]):
        shuffled = torch.Generator().manual_seed(t.seed + step)
        rows = torch.randperm(60, generator=shuffled)[:BATCH]
        model.train(x[rows], y[rows])
        if step % VOTE:
            continue
        saves, reports = decided_by_first(t.should_checkpoint(), step % 50 == 0)
        state = model.gathered() if saves or reports else []
        if t.rank == 0 and reports:
            t.report(step, val_error=model.error(state, x[60:90], y[60:90]))
        if t.rank == 0 and saves:
            with t.checkpoint() as folder:
                torch.save({"layers": state, "step": step + 1}, folder / "state.pt")
        if saves and t.interrupted:  # this generation ends; the next one continues from here
            t.yield_node()
    state = model.gathered()
    distributed.destroy_process_group()
    if t.rank > 0:
        return
    if t.mode == "final":
        torch.save([layer for layer, _ in state], t.model / "layers.pt")
    t.complete(
        val_error=model.error(state, x[60:90], y[60:90]),
        test_error=model.error(state, x[90:], y[90:]),
    )


class Model:
    """This rank's layers. Each layer has its own optimiser, so any rank can restore the layer."""

    def __init__(self, t: trial.Trial) -> None:
        width = t.params["width"]
        layers = [nn.Sequential(nn.Linear(1, width), nn.Tanh())]
        layers += [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(HIDDEN)]
        layers += [nn.Sequential(nn.Linear(width, 1))]
        if t.world > len(layers):
            t.reject(f"{len(layers)} layers are too few for {t.world} ranks")
        self.all = layers  # initially the same on all ranks; this rank only trains its own
        self.begin, self.end = (len(layers) * rank // t.world for rank in (t.rank, t.rank + 1))
        self.own = layers[self.begin : self.end]
        rate = t.params["learning_rate"]
        self.optimizers = [torch.optim.Adam(layer.parameters(), rate) for layer in self.own]
        self.is_first, self.is_last = t.rank == 0, t.rank == t.world - 1
        stage = PipelineStage(nn.Sequential(*self.own), t.rank, t.world, torch.device("cpu"))
        self.schedule = ScheduleGPipe(stage, PARTS, loss_fn=nn.functional.mse_loss)

    def train(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Do one training step. The first rank reads `x`, and the last rank reads `y`."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.schedule.step(*([x] if self.is_first else []), target=y if self.is_last else None)
        for optimizer in self.optimizers:
            optimizer.step()

    def gathered(self) -> list[Any]:
        """Return all layers' states on rank 0, and an empty list on the other ranks.

        All ranks must call this together. A state is a pair: the layer's weights, and its
        optimiser's state.
        """
        own = [
            (layer.state_dict(), optimizer.state_dict())
            for layer, optimizer in zip(self.own, self.optimizers, strict=True)
        ]
        parts: list[Any] = [None] * distributed.get_world_size()
        distributed.gather_object(own, parts if self.is_first else None)
        return [layer for part in parts for layer in part] if self.is_first else []

    def restore(self, saved: Path) -> int:
        """Restore this rank's layers from the checkpoint in `saved`, and return the next step."""
        state = torch.load(saved / "state.pt")
        for layer, optimizer, (weights, means) in zip(
            self.own, self.optimizers, state["layers"][self.begin : self.end], strict=True
        ):
            layer.load_state_dict(weights)
            optimizer.load_state_dict(means)
        return int(state["step"])

    def error(self, state: list[Any], x: torch.Tensor, y: torch.Tensor) -> float:
        """Return the whole model's mean squared error with the weights in `state`."""
        for layer, (weights, _) in zip(self.all, state, strict=True):
            layer.load_state_dict(weights)
        with torch.no_grad():
            return float((nn.Sequential(*self.all)(x) - y).square().mean())


def decided_by_first(*wishes: bool) -> list[bool]:
    """Return rank 0's `wishes` on every rank.

    Only rank 0 gets SIGTERM, but all ranks must save together.
    """
    decisions = torch.tensor(wishes)
    distributed.broadcast(decisions, 0)
    return [bool(decision) for decision in decisions]


def read(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the points of a CSV file: x and y, with one row per point."""
    with path.open() as file:
        points = [(float(row["x"]), float(row["y"])) for row in csv.DictReader(file)]
    table = torch.tensor(points)
    return table[:, :1], table[:, 1:]


if __name__ == "__main__":
    main()
