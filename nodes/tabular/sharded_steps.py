"""Steps of ranks that hold a part of the model each: for one that is more than a machine holds.

Row r of the table of embeddings lies with rank r mod n, and so do its gradient and the optimiser's
means: all the 16 bytes that a number takes. For each batch a rank asks the others for the rows of
the codes that are in its part, and sends their gradients back: what travels is the batch's,
whatever the size of the table (as in GeePS: Cui et al., EuroSys 2016).

Of each layer, too, a rank holds a part of the rows: torch's fully_shard has them whole on every
rank while the layer works, forward and back, and no longer (Rajbhandari et al., 2020, "ZeRO", stage
3). That costs some 10 ms a layer and step on CPUs: it is for memory, not for speed.

A step is that of one rank, but for the order of sums: the optimiser moves every row in each step,
and dropout drops what one rank would drop. Every rank takes part in each look at the table, so all
of them measure the validation rows together, and save together.

Shapes: V codes, e numbers of each, n ranks, u different codes in a rank's part of a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional

if __package__:
    from trialfleet.nodes.kernels import ops
    from trialfleet.nodes.tabular import dataset, settings
    from trialfleet.nodes.tabular.network import Network, loss_of
    from trialfleet.nodes.tabular.optimizers import learning_rate_at
    from trialfleet.nodes.tabular.ranks import Ranks
    from trialfleet.nodes.tabular.steps import PlainSteps
elif not TYPE_CHECKING:  # travelling alone, in a trial's sandbox
    import dataset
    import settings
    from kernels import ops
    from network import Network, loss_of
    from optimizers import learning_rate_at
    from ranks import Ranks
    from steps import PlainSteps

_PART, _WHOLE = "embedding.shard", "embedding.weight"  # in the network's state
_PIECE = 1 << 22  # numbers of a rank that travel at once where a table is gathered


class ShardedEmbedding(nn.Module):
    """A rank's rows of a table of embeddings, and the way to the others'.

    Args:
        weight: [V, e], the same on all ranks.
        team: the ranks.
    """

    def __init__(self, weight: Tensor, team: Ranks) -> None:
        super().__init__()
        self.rows, self._team = len(weight), team
        self.shard = nn.Parameter(weight.detach()[team.rank :: team.count].clone())

    def forward(self, codes: Tensor) -> Tensor:
        """Return the embeddings [*, e] of codes [*]. All ranks call it together."""
        different, place = torch.unique(codes, return_inverse=True)  # [u], [*]
        rows = _Exchange.apply(self.shard, different, self._team)  # type: ignore[no-untyped-call]
        return functional.embedding(place, rows)


class _Exchange(torch.autograd.Function):
    """The rows [u, e] of different codes [u], rising, from the ranks that have them."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, codes: Tensor, team: Ranks) -> Tensor:
        count = team.count
        order = torch.argsort(codes % count, stable=True)  # by rank
        asked = [int(n) for n in torch.bincount(codes % count, minlength=count)]
        given = _exchange_counts(asked, codes.device, team)
        wanted = _to_all(codes[order] // count, asked, given, team)  # of this rank's rows
        rows = shard.new_empty(len(codes), shard.shape[1])
        rows[order] = _to_all(shard[wanted], given, asked, team)
        ctx.save_for_backward(order, wanted)
        ctx.routes, ctx.shape, ctx.team = (asked, given), shard.shape, team
        return rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        order, wanted = ctx.saved_tensors
        asked, given = ctx.routes
        arrived = _to_all(grads[0][order], asked, given, ctx.team)
        mine = grads[0].new_zeros(ctx.shape)
        return mine.index_add_(0, wanted, arrived), None, None


def _exchange_counts(asked: list[int], device: torch.device, team: Ranks) -> list[int]:
    """Return how many rows each rank asks this one for."""
    if team.count == 1:
        return asked
    given = torch.empty(team.count, dtype=torch.int64, device=device)
    distributed.all_to_all_single(given, torch.tensor(asked, device=device))
    return [int(n) for n in given]


def _to_all(values: Tensor, to: list[int], of: list[int], team: Ranks) -> Tensor:
    """Send so many of the values to each rank, return so many of each."""
    if team.count == 1:
        return values
    arrived = values.new_empty(sum(of), *values.shape[1:])
    distributed.all_to_all_single(arrived, values.contiguous(), of, to)
    return arrived


class HiddenLayer(nn.Linear):
    """A hidden layer that can also be trained by our kernel, with dropout.

    Both ways are calls of the module, around which fully_shard gathers the weights.
    """

    @staticmethod
    def of(layer: nn.Linear) -> HiddenLayer:
        """Return a layer with the weights of another."""
        made = HiddenLayer(layer.in_features, layer.out_features, device="meta")
        made.weight, made.bias = layer.weight, layer.bias
        return made

    def train_rows(
        self, x: Tensor, probability: float, random: Tensor, number: int, first: int
    ) -> Tensor:
        """Return the activations [b, hidden] of x [b, inputs], whose batch has `first` before."""
        product, offset = functional.linear(x, self.weight), first * self.out_features
        return ops.bias_relu_dropout(product, self.bias, probability, random, number, offset)


def shard_layers(network: Network, team: Ranks) -> None:
    """Leave each rank its part of each layer."""
    linear = [place for place, layer in enumerate(network.layers) if isinstance(layer, nn.Linear)]
    for place in linear[:-1]:
        layer = network.layers[place]
        assert isinstance(layer, nn.Linear)
        network.layers[place] = HiddenLayer.of(layer)
    if team.count == 1:
        return
    mesh = init_device_mesh(network.first_code.device.type, (team.count,))
    policy = fsdp.MixedPrecisionPolicy(reduce_dtype=team.wire)
    for place in linear:
        layer = network.layers[place]
        sharded = fsdp.fully_shard(layer, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
        sharded.set_gradient_divide_factor(1.0)  # the gradients' sum, not their mean
        sharded.set_force_sum_reduction_for_comms(enable=True)  # gloo has no other
        if isinstance(layer, HiddenLayer):
            fsdp.register_fsdp_forward_method(layer, "train_rows")


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
