"""Where a model is: whole on each rank or sharded (divided among ranks), in GPU or main memory."""

from __future__ import annotations

from trialfleet.nodes.tabular.settings import Settings

STATE_BYTES = 16  # per parameter: weight, gradient, the optimiser's two means
STATE_SHARE = 0.5  # of the memory; the rest is for rows, activations, a checkpoint being sent


def is_sharded(chosen: Settings, weights: int, memory: float) -> bool:
    """Return whether the network is sharded: divided among ranks, or in main memory.

    `weights` is the number of parameters, and `memory` is the smallest memory of a rank in bytes.
    SettingError if the network must be sharded, but `precision` doesn't allow this.
    """
    if chosen.sharding_settings():
        return True
    if chosen.parallel != "auto" or chosen.local_steps > 1:
        return False
    if weights * STATE_BYTES <= memory * STATE_SHARE:
        return False
    chosen.check_precision("where the model takes more than half of the memory")
    return True


def offloaded_part(
    chosen: Settings, weights: int, embeddings: int, memory: float, ranks: int
) -> str:
    """Return the part of a sharded network to keep in main memory, as a value of `offload`.

    `weights` is the number of parameters, and `embeddings` is the number of those in the
    embeddings. `memory` is the smallest memory of a rank in bytes, or infinity if the ranks train
    on CPUs.
    """
    if chosen.offload != "auto":
        return chosen.offload
    room = memory * STATE_SHARE * ranks / STATE_BYTES
    if weights <= room:
        return "none"
    return "embeddings" if weights - embeddings <= room else "all"
