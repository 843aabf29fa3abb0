"""Hidden layers whose weights are divided among the ranks, by two methods that can be combined.

- Tensor parallelism (Shoeybi et al., 2019, "Megatron-LM"): the ranks of a group have the same rows
  of a batch. Each rank computes some units of every layer, and the ranks exchange the results.
- Sharding among groups (Rajbhandari et al., 2020, "ZeRO", stage 3): the groups train on different
  rows. Each rank's part of a layer is again divided among the groups, and is gathered only while
  the layer computes. On CPUs this costs about 10 ms per layer and step.

With offloading, weights, gradients and the optimiser's moments are in main memory. Then the GPU has
a layer's weights only while it computes this layer.

Shapes: b rows in a group's part of the batch, h units of a layer, n ranks.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
from torch.nn import functional

from trialfleet.nodes.kernels import ops
from trialfleet.nodes.tabular.network import Network
from trialfleet.nodes.tabular.ranks import Ranks


class HiddenLayer(nn.Linear):
    """A hidden layer, of which this rank may have only some units.

    Attributes:
        mesh: the ranks that compute the layer together, for the same rows. None: only this rank.
        first_unit: the number of this rank's first unit in the layer.
    """

    mesh: DeviceMesh | None = None
    first_unit = 0

    @staticmethod
    def from_linear(layer: nn.Linear) -> HiddenLayer:
        """Return a hidden layer with the weights of `layer`."""
        made = HiddenLayer(layer.in_features, layer.out_features, device="meta")
        made.weight, made.bias = layer.weight, layer.bias
        return made

    def split(self, mesh: DeviceMesh) -> None:
        """Keep only this rank's units. `mesh` has the ranks that compute the layer together."""
        for name, whole in list(self.named_parameters()):
            mine = distribute_tensor(whole.detach(), mesh, [Shard(0)], src_data_rank=None)
            setattr(self, name, nn.Parameter(mine))
        before = split_rows(torch.empty(self.out_features), mesh.size())[: mesh.get_local_rank()]
        self.mesh, self.first_unit = mesh, sum(map(len, before))

    def forward(self, x: Tensor) -> Tensor:
        """Return x weightᵀ + bias, [b, h], for all units."""
        return self._gather_units(
            functional.linear(x, _local_part(self.weight), _local_part(self.bias))
        )

    def train_rows(
        self, x: Tensor, probability: float, random: Tensor, number: int, first: int
    ) -> Tensor:
        """Return the layer's outputs [b, h] for x [b, inputs], with ReLU and dropout.

        `probability` is the share of outputs that dropout sets to 0. `random` [2] has dropout's
        seed and step number. `number` is the layer's number in the network. `first` is the number
        of x's first row in the batch.
        """
        product = functional.linear(x, _local_part(self.weight))
        place, width = first * self.out_features + self.first_unit, self.out_features
        return self._gather_units(
            ops.bias_relu_dropout(
                product, _local_part(self.bias), random, number, probability, place, width
            )
        )

    def _gather_units(self, units: Tensor) -> Tensor:
        """Return all units [b, h] of the ranks. Each rank has a part of their gradients' sum."""
        if self.mesh is None:
            return units
        shape, stride = torch.Size((len(units), self.out_features)), (self.out_features, 1)
        whole = DTensor.from_local(units, self.mesh, [Shard(1)], shape=shape, stride=stride)
        return whole.full_tensor(grad_placements=[Partial()])


class Layers(nn.Sequential):
    """All layers in one module, so that fully_shard prefetches the next layer's weights."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        *others, last = layers
        made = (
            HiddenLayer.from_linear(each) if isinstance(each, nn.Linear) else each
            for each in others
        )
        super().__init__(*made, last)

    @property
    def hidden(self) -> list[HiddenLayer]:
        """The hidden layers, in order."""
        return [layer for layer in self if isinstance(layer, HiddenLayer)]

    def train_rows(self, x: Tensor, probability: float, random: Tensor, first: int) -> Tensor:
        """Return the network's outputs [b, o] for x [b, inputs], with dropout.

        The arguments are as for `HiddenLayer.train_rows`.
        """
        for number, layer in enumerate(self.hidden):
            x = layer.train_rows(x, probability, random, number, first)
        outputs: Tensor = self[-1](x)
        return outputs


def _local_part(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight


def side_by_side(team: Ranks, wished: int, units: int) -> int:
    """Return how many ranks compute a layer together: `wished`, or fewer if this isn't possible.

    The result divides the number of all ranks. Each rank gets at least one of the layer's `units`.
    """
    return max(
        count
        for count in range(1, min(wished, team.count) + 1)
        if team.count % count == 0 and len(split_rows(torch.empty(units), count)[-1])
    )


def shard_layers(
    network: Network, team: Ranks, device: torch.device, *, tensor_parallel: int, offload: bool
) -> Layers:
    """Replace a network's layers by this rank's part of each layer, and return these parts.

    The layers must be in main memory. `tensor_parallel` is the number of ranks that compute a layer
    together, from `side_by_side`. `offload` keeps weights, gradients and the optimiser's moments in
    main memory. With `offload`, even a single rank needs a process group.
    """
    network.layers = layers = Layers(network.layers)
    if team.count == 1 and not offload:
        return layers.to(device)
    everyone = init_device_mesh(device.type, (team.count,))
    groups = everyone
    if tensor_parallel > 1:
        shape = (team.count // tensor_parallel, tensor_parallel)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("groups", "side_by_side"))
        groups = mesh["groups"]
        for layer in layers.hidden:
            layer.split(mesh["side_by_side"])
    # The last layer is small: all ranks gather it while it computes, on their rows.
    holders = {layers[-1]: everyone}
    if in_groups := groups.size() > 1 or offload:
        holders |= dict.fromkeys(layers.hidden, groups)
    for each, mesh in holders.items():
        sharded = fsdp.fully_shard(
            each,
            mesh=mesh,
            reshard_after_forward=True,
            mp_policy=fsdp.MixedPrecisionPolicy(reduce_dtype=team.wire),
            offload_policy=fsdp.CPUOffloadPolicy(pin_memory=device.type != "cpu")
            if offload
            else fsdp.OffloadPolicy(),
        )
        sharded.set_gradient_divide_factor(1.0)  # the gradients' sum, not their mean
        sharded.set_force_sum_reduction_for_comms(enable=True)  # gloo only supports sums
    if in_groups:
        fsdp.fully_shard(layers, mesh=everyone)
        for called in (layers, *layers.hidden):
            fsdp.register_fsdp_forward_method(called, "train_rows")
    return layers


def split_rows(whole: Tensor, *counts: int) -> list[Tensor]:
    """Return each rank's rows of `whole` as a view, in the order of the ranks.

    The ranks form a mesh of the sizes `counts`. The mesh's last dimension splits the rows first,
    then the dimension before it splits each part, and so on. A part may be empty.
    """
    if not counts:
        return [whole]
    *outer, count = counts
    size = -(-len(whole) // count)
    parts = [whole[rank * size : (rank + 1) * size] for rank in range(count)]
    within = [split_rows(part, *outer) for part in parts]
    return [part for row in zip(*within, strict=True) for part in row]
