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
    """Return the loss and METRICS of `rows`, by name; each name begins with `prefix`.

    Outputs are computed in float32 on every device (with precision "tf32", in TF32 on a GPU), so
    that GPU and CPU results are comparable. METRICS of a regression are in the target's unit.
    """
    outputs = compute_outputs(network, rows.numeric, rows.categorical)  # [n, o]
    target = rows.target.to(outputs.device)
    metrics = compute_metrics(outputs, target, data.kind, data.target_scale.deviation.item())
    return {prefix + name: value for name, value in metrics.items()}


def compute_metrics(
    outputs: Tensor, target: Tensor, kind: str, deviation: float
) -> dict[str, float]:
    """Return the loss and METRICS of outputs [n, o] against target [n], all NaN if the loss is NaN.

    `deviation` converts a regression's METRICS to the target's own unit.
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
    """Return the area under the ROC curve, by the rank-sum formula (Mann and Whitney, 1947).

    score [n] is the network's output, larger where a positive is likelier. positive [n] is bool.
    Ties count half. The result is NaN if all rows are positive, or none.
    """
    _, group, counts = torch.unique(score, return_inverse=True, return_counts=True)
    rank = (counts.cumsum(0) - (counts - 1) / 2.0).double()  # [groups], tied scores share one
    positives = int(positive.sum())
    pairs = positives * (len(score) - positives)
    if not pairs:
        return math.nan
    above = rank[group[positive]].sum().item() - positives * (positives + 1) / 2
    return float(above / pairs)
