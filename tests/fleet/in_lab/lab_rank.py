"""A trainer whose losses are known whatever happens to its ranks: a linear fit, by torch's gloo."""

from __future__ import annotations

import time

import torch
from torch import distributed

ROWS, COLUMNS, RATE, EVERY = 24, 8, 0.02, 10  # steps between two reports


def batch_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of a step, [rows, columns], and their values."""
    dealt = torch.Generator().manual_seed(step)
    x = torch.randn(ROWS, COLUMNS, generator=dealt, dtype=torch.float64)
    noise = torch.randn(ROWS, generator=dealt, dtype=torch.float64)
    return x, x @ torch.arange(1.0, COLUMNS + 1, dtype=torch.float64) + noise


def main() -> None:
    """Fit, on as many ranks as there are."""
    import trial  # it travels with the trial

    t = trial.start()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    weights, first = torch.zeros(COLUMNS, dtype=torch.float64), 0
    if saved := t.restore():
        state = torch.load(saved / "state.pt")
        weights, first = state["weights"], state["step"]
    loss = 0.0
    for step in range(first, t.params["steps"]):
        time.sleep(t.params["seconds"])
        x, y = (part[t.rank :: t.world] for part in batch_of(step))
        errors = x @ weights - y
        sums = torch.cat([x.T @ errors, errors.square().sum()[None]]) / ROWS
        distributed.all_reduce(sums)
        weights, loss = weights - RATE * sums[:-1], float(sums[-1])
        if t.rank == 0 and step % EVERY == 0:
            t.report(step, loss=loss)
        if t.rank == 0 and t.should_checkpoint():
            with t.checkpoint() as folder:
                torch.save({"weights": weights, "step": step + 1}, folder / "state.pt")
            if t.interrupted:
                t.yield_node()
    distributed.destroy_process_group()
    t.complete(loss=loss)


if __name__ == "__main__":
    main()
