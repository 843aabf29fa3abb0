"""Fit a small network to a region's points with torch's DDP, on all ranks."""

import csv
from pathlib import Path

import torch
import trial
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

BATCH = (
    24  # rows per step on all ranks together, so that a step doesn't depend on the number of ranks
)


def main() -> None:
    """Train with this trial's parameters and report the error."""
    t = trial.start()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    distributed.init_process_group("gloo")  # gets rank, world size and address from the environment
    x, y = read(t.data[0])
    torch.manual_seed(t.seed)
    width = t.params["width"]
    network = torch.nn.Sequential(
        torch.nn.Linear(1, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)
    )
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), t.params["learning_rate"])
    first = 0
    if saved := t.restore():  # saved by this generation of ranks or a previous one
        state = torch.load(saved / "state.pt")
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    for step in range(first, t.params["steps"]):
        shuffled = torch.Generator().manual_seed(t.seed + step)
        rows = torch.randperm(60, generator=shuffled)[:BATCH][t.rank :: t.world]
        errors = model(x[rows]) - y[rows]
        loss = errors.square().sum() * t.world / BATCH  # DDP averages over the ranks
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if t.rank == 0 and step % 50 == 49:
            t.report(step, val_error=error_of(network, x[60:90], y[60:90]))
        if t.rank == 0 and t.should_checkpoint():
            with t.checkpoint() as folder:
                state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "step": step + 1}, folder / "state.pt")
            if t.interrupted:  # this generation ends; the next one continues from here
                t.yield_node()
    if t.mode == "final":
        torch.save(network.state_dict(), t.model / "network.pt")
    distributed.destroy_process_group()
    t.complete(
        val_error=error_of(network, x[60:90], y[60:90]),
        test_error=error_of(network, x[90:], y[90:]),
    )


def error_of(network: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the mean squared error of `network` on the points `x`, `y`."""
    with torch.no_grad():
        return float((network(x) - y).square().mean())


def read(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the points of a CSV file: x and y, with one row per point."""
    with path.open() as file:
        points = [(float(row["x"]), float(row["y"])) for row in csv.DictReader(file)]
    table = torch.tensor(points)
    return table[:, :1], table[:, 1:]


if __name__ == "__main__":
    main()
