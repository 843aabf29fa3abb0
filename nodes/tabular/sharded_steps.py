"""Steps of ranks that hold a part of the embeddings each: for more codes than one machine holds.

Row r of the table lies with rank r mod n, and so do its gradient and the optimiser's means: all the
16 bytes that a number takes. For each batch a rank asks the others for the rows of the codes that
are in its part, and sends their gradients back: what travels is the batch's, whatever the size of
the table (as in GeePS: Cui et al., EuroSys 2016). The hidden layers are on every rank, and their
gradients are added up.

A step is that of one rank, but for the order of sums: the optimiser moves every row in each step,
and dropout drops what one rank would drop. Every rank takes part in each look at the table, so all
of them measure the validation rows together, and save together.

Shapes: V codes, e numbers of each, n ranks, u different codes in a rank's part of a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn
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


class ShardedSteps(PlainSteps):
    """See the module, and `steps.Steps`.

    Args:
        network: a whole one; its embedding is replaced by this rank's part.
        data: the region's rows.
        chosen: the settings.
        seed: of the order of the rows, and of dropout.
        team: the ranks.
    """

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
        dense = [w for w in self._optimizer.weights if w is not self._embedding.shard]
        gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in dense]
        *sums, total = self._team.sums([*gradients, loss.detach()])
        for w, gradient in zip(dense, sums, strict=True):
            w.grad = gradient
        epochs = self._epoch + self._next / len(self._batches)
        self._optimizer.step(learning_rate_at(epochs, self._settings))
        self._loss_sum += total.cpu()
        self._next += 1

    def _outputs(self, rows: dataset.Rows, first: int) -> Tensor:
        """Return the outputs [b, o] of a part of a batch, behind so many rows of it."""
        network, chosen = self._network, self._settings
        embedded = network.embedding(rows.categorical + network.first_code)
        x = torch.cat([rows.numeric, embedded.flatten(1)], 1)
        *hidden, last = [layer for layer in network.layers if isinstance(layer, nn.Linear)]
        random = torch.tensor([self._seed, self._optimizer.steps], device=x.device)
        for number, layer in enumerate(hidden):
            product, offset = functional.linear(x, layer.weight), first * layer.out_features
            x = ops.bias_relu_dropout(product, layer.bias, chosen.dropout, random, number, offset)
        outputs: Tensor = last(x)
        return outputs

    def state(self) -> dict[str, Any]:
        """See `Steps`; whole on rank 0. All ranks call it together."""
        state = self._optimizer.state()
        means = {name: [self._gathered(state[name][0]), *state[name][1:]] for name in ("m", "v")}
        return {**state, **means}

    def restore(self, state: dict[str, Any]) -> None:
        """See `Steps`."""
        means = {name: [self._own(state[name][0]), *state[name][1:]] for name in ("m", "v")}
        self._optimizer.restore({**state, **means})

    def whole(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `Steps`."""
        others = {name: weight for name, weight in weights.items() if name != _PART}
        return {_WHOLE: self._gathered(weights[_PART]), **others}

    def part(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `Steps`."""
        others = {name: weight for name, weight in weights.items() if name != _WHOLE}
        return {_PART: self._own(weights[_WHOLE]), **others}

    def _own(self, whole: Tensor) -> Tensor:
        return whole[self._team.rank :: self._team.count].clone()

    def _gathered(self, shard: Tensor) -> Tensor:
        """Return the whole table of which the ranks have parts; on others than rank 0 nothing."""
        team, rows = self._team, self._embedding.rows
        if team.count == 1:
            return shard
        most = -(-rows // team.count)
        padded = functional.pad(shard, (0, 0, 0, most - len(shard)))
        if not team.first:
            distributed.gather(padded, dst=0)
            return shard.new_empty(0)
        parts = [torch.empty_like(padded) for _ in range(team.count)]
        distributed.gather(padded, parts, dst=0)
        return torch.stack(parts, 1).flatten(0, 1)[:rows]  # row r of the table: r // n of r mod n
