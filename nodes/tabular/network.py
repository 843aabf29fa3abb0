"""The built-in trainer's network, its loss, and its outputs for evaluation.

Shapes: n rows, b rows of a batch, d numeric columns, k categorical columns, e numbers per
categorical value, o outputs (1, or one per class if there are more than two classes).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from trialfleet.nodes.tabular import settings, table

EVALUATION_NUMBERS = 1 << 23  # numbers of the widest layer at once; this limits the memory


class Network(nn.Module):
    """A multi-layer perceptron, whose hidden layers all have the same width.

    Its inputs are the numeric columns and the embeddings of the categorical columns.
    """

    first_code: Tensor

    def __init__(self, columns: table.Columns, chosen: settings.Settings) -> None:
        super().__init__()
        # All vocabularies share one table of embeddings: column j's codes start at first_code[j].
        counts = [len(values) + 1 for values in columns.categorical.values()]
        sizes = torch.tensor(counts, dtype=torch.int64)
        first_code = (sizes.cumsum(0) - sizes).int()
        self.register_buffer("first_code", first_code, persistent=False)
        table = nn.Embedding(max(1, sum(counts)), chosen.embedding)
        nn.init.normal_(table.weight, std=0.1)
        with torch.no_grad():
            table.weight[first_code.long()] = 0.0  # unknown values get 0, which is not trained
        self.embedding: nn.Module = table  # in sharded/: only the rank's part of the table

        width = len(columns.numeric) + len(columns.categorical) * chosen.embedding
        layers: list[nn.Module] = []
        for _ in range(chosen.layers):
            layers += [nn.Linear(width, chosen.hidden), nn.ReLU(), nn.Dropout(chosen.dropout)]
            width = chosen.hidden
        outputs = len(columns.classes) if columns.kind == "multiclass" else 1
        self.layers = nn.Sequential(*layers, nn.Linear(width, outputs))

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        """Return the outputs [b, o] for numeric [b, d] and categorical [b, k]."""
        embedded = self.embedding(categorical + self.first_code)  # [b, k, e]
        joined = torch.cat([numeric, embedded.flatten(1)], 1)  # [b, d + k * e]
        outputs: Tensor = self.layers(joined)
        return outputs


def compute_loss(outputs: Tensor, target: Tensor, kind: str, reduction: str = "mean") -> Tensor:
    """Return the mean loss of outputs [b, o] for target [b].

    The loss is the squared error if `kind` is "regression", else the cross-entropy. If `reduction`
    is "none", return each row's loss [b] instead of the mean.
    """
    if kind == "multiclass":
        return functional.cross_entropy(outputs, target, reduction=reduction)
    flat = outputs.squeeze(1)  # [b, 1] -> [b]
    if kind == "binary":
        return functional.binary_cross_entropy_with_logits(flat, target, reduction=reduction)
    return functional.mse_loss(flat, target, reduction=reduction)


def copy_weights(network: Network) -> dict[str, Tensor]:
    """Return a copy of the weights, which further training doesn't change."""
    return {name: weight.detach().clone() for name, weight in network.state_dict().items()}


@torch.no_grad()
def compute_outputs(network: Network, numeric: Tensor, categorical: Tensor) -> Tensor:
    """Return the outputs [n, o] without dropout, on the network's device.

    The rows may be on another device.
    """
    device, training = network.first_code.device, network.training
    widest = max(max(w.shape) for w in network.layers.parameters() if w.ndim > 1)
    rows = max(1, EVALUATION_NUMBERS // widest)
    parts = [slice(start, start + rows) for start in range(0, len(numeric), rows)]
    network.eval()
    try:
        return torch.cat(
            [network(numeric[part].to(device), categorical[part].to(device)) for part in parts]
        )
    finally:
        network.train(training)
