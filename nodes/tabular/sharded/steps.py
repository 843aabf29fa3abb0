"""Steps of ranks that hold a part of the model each.

A step is that of one rank, but for the order of sums: the optimiser moves every row in each step,
and dropout drops what one rank would drop. Every rank takes part in each look at the table, so all
of them measure the validation rows together, and save together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional

if __package__ == "trialfleet.nodes.tabular.sharded":
    from trialfleet.nodes.tabular import dataset, settings
    from trialfleet.nodes.tabular.network import Network, loss_of
    from trialfleet.nodes.tabular.optimizers import learning_rate_at
    from trialfleet.nodes.tabular.ranks import Ranks
    from trialfleet.nodes.tabular.sharded.embedding import ShardedEmbedding
    from trialfleet.nodes.tabular.sharded.layers import HiddenLayer, shard_layers
    from trialfleet.nodes.tabular.steps import PlainSteps
elif not TYPE_CHECKING:  # travelling alone, in a trial's sandbox
    import dataset
    import settings
    from network import Network, loss_of
    from optimizers import learning_rate_at
    from ranks import Ranks
    from sharded.embedding import ShardedEmbedding
    from sharded.layers import HiddenLayer, shard_layers
    from steps import PlainSteps

_PART, _WHOLE = "embedding.shard", "embedding.weight"  # in the network's state
_PIECE = 1 << 22  # numbers of a rank that travel at once where a table is gathered


class ShardedSteps(PlainSteps):
    """See the module, and `steps.Steps`.

    Args:
        network: a whole one; its embedding and layers are replaced by this rank's parts.
        data: the region's rows.
        chosen: the settings.
        seed: of the order of the rows, and of dropout.
        team: the ranks.
    """

    is_sharded = True

    def __init__(
        self,
        network: Network,
        data: dataset.Dataset,
        chosen: settings.Settings,
        seed: int,
        team: Ranks,
    ) -> None:
        weight = network.embedding.weight
        assert isinstance(weight, Tensor), "it has been replaced already"
        self._embedding = ShardedEmbedding(weight, team)
        network.embedding = self._embedding
        shard_layers(network, team)
        self._team = team
        super().__init__(network, data, chosen, seed)

    def take(self) -> None:
        """See `Steps`."""
        batch = self._batches[self._next]
        begin, end = self._team.part(len(batch))
        rows = self._data.train.at(batch[begin:end].to(self._data.train.target.device))
        self._optimizer.clear()
        outputs = self._outputs(rows, begin)
        loss = outputs.sum() * 0.0  # of a small tail a rank may have nothing
        if end > begin:
            loss = loss_of(outputs, rows.target, self._data.kind) * ((end - begin) / len(batch))
        loss.backward()  # type: ignore[no-untyped-call]
        (total,) = self._team.sums([loss.detach()])
        epochs = self._epoch + self._next / len(self._batches)
        self._optimizer.step(learning_rate_at(epochs, self._settings))
        self._loss_sum += total.cpu()
        self._next += 1

    def _outputs(self, rows: dataset.Rows, first: int) -> Tensor:
        """Return the outputs [b, o] of a part of a batch, behind so many rows of it."""
        network = self._network
        embedded = network.embedding(rows.categorical + network.first_code)
        x = torch.cat([rows.numeric, embedded.flatten(1)], 1)
        random = torch.tensor([self._seed, self._optimizer.steps], device=x.device)
        hidden = [layer for layer in network.layers if isinstance(layer, HiddenLayer)]
        for number, layer in enumerate(hidden):
            x = layer.train_rows(x, self._settings.dropout, random, number, first)
        outputs: Tensor = network.layers[-1](x)
        return outputs

    def state(self) -> dict[str, Any]:
        """See `Steps`; whole on rank 0. All ranks call it together."""
        state = self._optimizer.state()
        for name in ("m", "v"):
            parts = dict(zip(self._parts(), state[name], strict=True))
            state[name] = [*self.whole(parts).values()]
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """See `Steps`."""
        names = [_WHOLE if name == _PART else name for name in self._parts()]
        state = dict(state)
        for name in ("m", "v"):
            state[name] = [*self.part(dict(zip(names, state[name], strict=True))).values()]
        self._optimizer.restore(state)

    def whole(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `Steps`."""
        return {
            _WHOLE if name == _PART else name: (
                self._gathered(weight) if name == _PART else self._unsharded(weight)
            )
            for name, weight in weights.items()
        }

    def part(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `Steps`."""
        parts = {}
        for name, like in self._parts().items():
            if name == _PART:
                parts[name] = weights[_WHOLE][self._team.rank :: self._team.count].clone()
            elif isinstance(like, DTensor):
                parts[name] = distribute_tensor(
                    weights[name], like.device_mesh, like.placements, src_data_rank=None
                )
            else:
                parts[name] = weights[name]
        return parts

    def _parts(self) -> dict[str, nn.Parameter]:
        return dict(self._network.named_parameters())

    def _unsharded(self, part: Tensor) -> Tensor:
        """Return the whole of a layer's tensor, in main memory; on others than rank 0 nothing."""
        whole = part.full_tensor() if isinstance(part, DTensor) else part
        return whole.cpu() if self._team.first else whole.new_empty(0)

    def _gathered(self, shard: Tensor) -> Tensor:
        """Return the whole table of which the ranks have parts; on others than rank 0 nothing.

        It comes together in main memory, piece by piece: a GPU never holds it.
        """
        team, rows = self._team, self._embedding.rows
        if team.count == 1:
            return shard.cpu()
        whole = torch.empty(rows if team.first else 0, shard.shape[1], dtype=shard.dtype)
        most = -(-rows // team.count)
        step = max(1, _PIECE // shard.shape[1])
        for begin in range(0, most, step):
            piece = shard[begin : begin + step]
            size = min(step, most - begin)
            piece = functional.pad(piece, (0, 0, 0, size - len(piece)))
            pieces = [torch.empty_like(piece) for _ in range(team.count)] if team.first else None
            distributed.gather(piece, pieces, dst=0)
            for rank, arrived in enumerate(pieces or ()):  # row r of the table: r // n of r mod n
                places = whole[rank + begin * team.count :: team.count][:size]
                places.copy_(arrived[: len(places)])
        return whole
