"""Hidden layers of which each rank holds a part of the rows.

torch's fully_shard has them whole on every rank while the layer works, forward and back, and no
longer (Rajbhandari et al., 2020, "ZeRO", stage 3). That costs some 10 ms a layer and step on CPUs:
it is for memory, not for speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

if __package__ == "trialfleet.nodes.tabular.sharded":
    from trialfleet.nodes.kernels import ops
    from trialfleet.nodes.tabular.network import Network
    from trialfleet.nodes.tabular.ranks import Ranks
elif not TYPE_CHECKING:  # travelling alone, in a trial's sandbox
    from kernels import ops
    from network import Network
    from ranks import Ranks


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
