"""Training steps on ranks that each hold a part of the model.

A step is the same as on one rank, except for the order in which numbers are summed. Looking up
embeddings needs all ranks, so the ranks measure the validation rows together. They also save a
checkpoint together, because each rank has only a part of the weights.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.nn import functional

from trialfleet.nodes.tabular import dataset, settings
from trialfleet.nodes.tabular.loader import send
from trialfleet.nodes.tabular.network import Network, compute_loss
from trialfleet.nodes.tabular.optimizers import cosine_learning_rate
from trialfleet.nodes.tabular.ranks import Ranks
from trialfleet.nodes.tabular.sharded.embedding import Rows, ShardedEmbedding
from trialfleet.nodes.tabular.sharded.host_rows import HostRows
from trialfleet.nodes.tabular.sharded.layers import (
    shard_layers,
    side_by_side,
    split_rows,
)
from trialfleet.nodes.tabular.steps import PlainSteps

_PIECE = 1 << 22  # maximum numbers that a rank sends at once when a tensor is gathered
_IN_FILE = 1 << 24  # a tensor with this many numbers or more is gathered into a file
_TABLE = "embedding.weight"  # the name of the table of embeddings in the network


class ShardedSteps(PlainSteps):
    """The training steps of one rank. `steps.Steps` describes the methods.

    `network` must be whole, and in main memory. It is reduced to this rank's parts. `offload` is
    the part of the model to keep in main memory: "none", "embeddings" or "all".
    """

    is_sharded = True

    def __init__(
        self,
        network: Network,
        data: dataset.Dataset,
        chosen: settings.Settings,
        seed: int,
        team: Ranks,
        *,
        device: torch.device | None = None,
        offload: str = "none",
    ) -> None:
        assert isinstance(network.embedding, nn.Embedding), "the network is sharded already"
        weight = network.embedding.weight
        self._team, self._device = team, device or torch.device("cpu")
        beside = side_by_side(team, chosen.tensor_parallel, chosen.hidden)
        self._beside, self._groups = beside, Ranks(team.rank // beside, team.count // beside)
        self._on_host = offload == "all"
        if self._on_host:
            _join_alone()
        self._codes = len(weight)
        # In main memory, so that a batch's rows are known in advance.
        self._categorical = data.train.categorical.cpu()
        self._first_code = network.first_code
        mine = weight.detach()[team.rank :: team.count]
        if offload == "none":
            self._rows = Rows(mine, self._device)
        else:
            per_epoch = math.ceil(len(data.train) / chosen.batch_size)

            def rate_at(step: int) -> float:
                return cosine_learning_rate((step - 1) / per_epoch, chosen)

            self._rows = HostRows(mine, chosen, rate_at, self._device)
        self._embedding = ShardedEmbedding(self._rows, team)
        network.embedding = self._embedding
        network.first_code = network.first_code.to(self._device)
        self._layers = shard_layers(
            network, team, self._device, tensor_parallel=beside, offload=self._on_host
        )
        super().__init__(network, data, chosen, seed)
        place = self._place_of_moved
        self._rows.bind(self._optimizer.m[place], self._optimizer.v[place])

    @property
    def _place_of_moved(self) -> int:
        return [*self._parts()].index(_TABLE)

    def take(self) -> None:
        """Update the weights with the next batch of the epoch.

        This does not wait for a GPU, unless layers are offloaded.
        """
        whole = self._batches[self._next]
        begin, end = self._groups.part(len(whole))
        self._network.zero_grad()
        target, outputs = self._outputs(whole[begin:end], begin)
        loss = outputs.sum() * 0.0  # a rank may have no rows of a small last batch
        if len(target):
            share = len(target) / len(whole) / self._beside  # ranks of a group have the same rows
            loss = compute_loss(outputs, target, self._data.kind) * share
        loss.backward()  # type: ignore[no-untyped-call]
        (total,) = self._team.sums([loss.detach()])
        epochs = self._epoch + self._next / len(self._batches)
        self._optimizer.step(cosine_learning_rate(epochs, self._settings))
        self._rows.put_back()
        self._loss_sum = self._loss_sum.to(total.device) + total
        self._next += 1

    def _outputs(self, index: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Return the targets [b] and the outputs [b, o] of a part of a batch.

        `index` [b], in main memory, has the numbers of the part's rows. `first` is the number of
        the batch's rows before this part.
        """
        source, device = self._data.train, self._device
        route = self._embedding.route(self._categorical[index] + self._first_code)
        there = send(index, source.target.device)
        numeric, target = (
            send(each.index_select(0, there), device) for each in (source.numeric, source.target)
        )
        embedded = self._embedding.lookup_with_gradient(route)
        x = torch.cat([numeric, embedded.flatten(1)], 1)
        random = send(torch.tensor([self._seed, self._optimizer.steps]), device)
        with _ActivationsOnHost(len(index)) if self._on_host else nullcontext():
            return target, self._layers.train_rows(x, self._settings.dropout, random, first)

    def state(self) -> dict[str, Any]:
        """Return the optimiser's state, which is complete only on rank 0.

        All ranks must call this together.
        """
        self._rows.settle()
        state = self._optimizer.state()
        for name, of_rows in zip(("m", "v"), self._rows.means(), strict=True):
            parts = dict(zip(self._parts(), state[name], strict=True)) | {_TABLE: of_rows}
            state[name] = [*self.full_state(parts).values()]
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `state()` has returned."""
        own: dict[str, Any] = {"steps": state["steps"]}
        for name, present in (("m", self._optimizer.m), ("v", self._optimizer.v)):
            own[name] = [  # the state of the table's rows is restored below
                now if part == _TABLE else self._own_part(part, whole)
                for part, now, whole in zip(self._parts(), present, state[name], strict=True)
            ]
        self._optimizer.restore(own)
        m, v = (self._own_part(_TABLE, state[name][self._place_of_moved]) for name in ("m", "v"))
        self._rows.load_means(m, v, self._optimizer.steps)

    def close(self) -> None:
        """Release main memory that the GPU accesses. No step may follow."""
        self._rows.close()

    def full_state(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the whole network's weights, put together from the `weights` of each rank.

        Only rank 0 gets all weights. All ranks must call this.
        """
        return {name: self._gather(name, part) for name, part in weights.items()}

    def part(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return this rank's part of `weights`, the weights of the whole network."""
        return {name: self._own_part(name, whole) for name, whole in weights.items()}

    def _gather(self, name: str, part: Tensor) -> Tensor:
        """Return all ranks' parts as one tensor on rank 0, and an empty tensor on the other ranks.

        The tensor is in main memory or in a file, because it may be too large for a GPU.
        """
        team, mine = self._team, part.to_local() if isinstance(part, DTensor) else part
        if team.count == 1:
            return mine.cpu()
        shape = part.shape if isinstance(part, DTensor) else (self._codes, *part.shape[1:])
        most = max(map(len, self._rank_views(name, torch.empty(shape, device="meta"), part)))
        whole = _allocate(shape if team.first else (0, *shape[1:]), part.dtype)
        views = self._rank_views(name, whole, part) if team.first else []
        step = max(1, _PIECE // max(1, math.prod(shape[1:])))
        for begin in range(0, most, step):
            piece = mine[begin : begin + step].cpu()
            size = min(step, most - begin)
            piece = functional.pad(piece, (0, 0) * (piece.ndim - 1) + (0, size - len(piece)))
            pieces = [torch.empty_like(piece) for _ in range(team.count)] if team.first else None
            distributed.gather(piece, pieces, dst=0)
            for view, arrived in zip(views, pieces or (), strict=True):
                place = view[begin : begin + size]
                place.copy_(arrived[: len(place)])
        return whole

    def _own_part(self, name: str, whole: Tensor) -> Tensor:
        like = self._parts()[name]
        mine = self._rank_views(name, whole, like)[self._team.rank].clone()
        if not isinstance(like, DTensor):
            return mine
        return DTensor.from_local(
            mine.to(like.to_local().device),
            like.device_mesh,
            like.placements,
            shape=like.shape,
            stride=like.stride(),
        )

    def _rank_views(self, name: str, whole: Tensor, like: Tensor) -> list[Tensor]:
        count = self._team.count
        if name == _TABLE:
            return [whole[rank::count] for rank in range(count)]
        return split_rows(whole, *like.device_mesh.shape) if isinstance(like, DTensor) else [whole]

    def _parts(self) -> dict[str, nn.Parameter]:
        return dict(self._network.named_parameters())


class _ActivationsOnHost(saved_tensors_hooks):
    """A context in which autograd saves activations [rows, *] in main memory.

    torch's save_on_cpu is not used, because it would also copy weights that fully_shard gathered.
    """

    def __init__(self, rows: int) -> None:
        def pack(saved: Tensor) -> tuple[torch.device, Tensor]:
            if saved.device.type == "cpu" or saved.shape[:1] != (rows,):
                return saved.device, saved
            waiting = torch.empty(saved.shape, dtype=saved.dtype, pin_memory=True)
            return saved.device, waiting.copy_(saved, non_blocking=True)

        def unpack(packed: tuple[torch.device, Tensor]) -> Tensor:
            device, waiting = packed
            return waiting.to(device, non_blocking=True)

        super().__init__(pack, unpack)


def _allocate(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor, which is in a file if it is large.

    The file's name is deleted at once, so that the file disappears together with the tensor.
    """
    if math.prod(shape) < _IN_FILE:
        return torch.empty(*shape, dtype=dtype)
    with tempfile.NamedTemporaryFile(dir=".") as file:
        # Reserve the space, so that a full disk is an error now instead of a fatal signal later.
        os.posix_fallocate(file.fileno(), 0, math.prod(shape) * dtype.itemsize)
        room = torch.from_file(file.name, shared=True, size=math.prod(shape), dtype=dtype)
    return room.view(*shape)


def _join_alone() -> None:
    """Make a process group for a single process, because fully_shard needs one."""
    if distributed.is_initialized():
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    store = distributed.HashStore()  # type: ignore[attr-defined]
    distributed.init_process_group(backend, store=store, rank=0, world_size=1)
