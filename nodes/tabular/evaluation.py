"""The metrics of a network's outputs: loss, auc, accuracy, rmse, mae and r2."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trialfleet.nodes.tabular import dataset
from trialfleet.nodes.tabular.network import Network, compute_loss, compute_outputs
from trialfleet.nodes.tabular.settings import METRICS


def evaluate(
    network: Network, rows: dataset.Rows, data: dataset.Dataset, prefix: str
) -> dict[str, float]:
    """Return the network's loss and other metrics on `rows`. Their names begin with `prefix`.

    In a regression, the loss is that of the standardised target. The rmse and mae are in the
    target's own unit. Outputs are computed in float32, so that the results of GPUs and CPUs are
    comparable. If the setting `precision` is "tf32", a GPU uses TF32 instead.
    """
    outputs = compute_outputs(network, rows.numeric, rows.categorical)  # [n, o]
    target = rows.target.to(outputs.device)
    metrics = compute_metrics(outputs, target, data.kind, data.target_scale.deviation.item())
    return {prefix + name: value for name, value in metrics.items()}


def compute_metrics(
    outputs: Tensor, target: Tensor, kind: str, deviation: float
) -> dict[str, float]:
    """Return the loss and the other metrics of outputs [n, o] for target [n], by name.

    In a regression, `deviation` is the target's deviation. It converts rmse and mae to the target's
    own unit. If the loss is NaN, all metrics are NaN.
    """
    metrics = {"loss": compute_loss(outputs, target, kind).item()}
    if math.isnan(metrics["loss"]):
        metrics |= dict.fromkeys(METRICS[kind], math.nan)
    elif kind == "regression":
        error = (outputs.squeeze(1) - target).double() * deviation
        spread = (target.double() - target.double().mean()).square().mean()
        spread = spread * deviation**2
        metrics["rmse"] = error.square().mean().sqrt().item()
        metrics["mae"] = error.abs().mean().item()
        metrics["r2"] = 1.0 - (error.square().mean() / spread).item()
    elif kind == "multiclass":
        metrics["accuracy"] = (outputs.argmax(1) == target).double().mean().item()
    else:
        positive = target > 0.5
        metrics["auc"] = auc(outputs.squeeze(1), positive)
        metrics["accuracy"] = ((outputs.squeeze(1) > 0) == positive).double().mean().item()
    return metrics


def auc(score: Tensor, positive: Tensor) -> float:
    """Return the area under the ROC curve, or NaN if one class has no rows.

    `positive` [n] is True for rows of the second class. Each of these rows forms a pair with each
    row of the first class. The area is the share of pairs in which the positive row has the larger
    score. Pairs with equal scores count half (the rank-sum formula of Mann and Whitney, 1947).
    """
    _, group, counts = torch.unique(score, return_inverse=True, return_counts=True)
    rank = (counts.cumsum(0) - (counts - 1) / 2.0).double()  # [groups] of equal scores
    positives = int(positive.sum())
    pairs = positives * (len(score) - positives)
    if not pairs:
        return math.nan
    above = rank[group[positive]].sum().item() - positives * (positives + 1) / 2
    return float(above / pairs)
