"""The built-in trainer's program, which trains a multi-layer perceptron on a region's table.

A trial may be interrupted at any step, and continues from its checkpoint. An interruption changes
the model's bits only if the number of ranks changes, if `local_steps` is above 1, or if embeddings
are in main memory: a checkpoint applies their postponed updates earlier. Earlier trials in the same
process don't change the bits.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

if not __package__:  # in a trial's folder
    importlib.import_module("trial_imports")

import torch
from torch import Tensor

from trialfleet.nodes import trial
from trialfleet.nodes.tabular import dataset, loader, ranks, settings
from trialfleet.nodes.tabular.evaluation import evaluate
from trialfleet.nodes.tabular.network import Network, copy_weights
from trialfleet.nodes.tabular.steps import PlainSteps, Steps

TYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def main() -> NoReturn:
    """Train this process's trials, one after another."""
    trial.run(train_one)


def train_one(t: trial.Trial) -> None:
    """Train one trial, and exit with its result.

    In mode "evaluate", measure the trial's models instead.
    """
    if t.mode == "evaluate":
        measure_models(t)
    try:
        chosen = settings.Settings.from_params(t.params)
        check(chosen, t)
    except ValueError as error:
        t.reject(str(error))
    if t.accelerator == "gpu":
        require_gpus(t)
        if t.gpus > 1 and not ranks.is_rank() and not ranks.in_gang():
            ranks.launch(t.gpus)
    team = ranks.Ranks.join()
    team.wire = TYPES[chosen.wire]
    device = choose_device(t, team)
    try:
        train(t, chosen, device, team)
    except settings.SettingError as error:  # of settings that do not fit the rows
        t.reject(str(error))
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        if t.gpu_share < 1:  # another trial may use the memory, so don't reject the parameters
            sys.exit(f"out of GPU memory on a GPU that trials share: {error}")
        t.reject(f"out of GPU memory: {error}")


def measure_models(t: trial.Trial) -> NoReturn:
    """Measure the trial's models in this process alone, even if the trial has several GPUs."""
    from trialfleet.nodes.tabular.model_measurement import compare

    if t.accelerator == "gpu":
        require_gpus(t)
    compare(t, choose_device(t, ranks.Ranks()))


def check(chosen: settings.Settings, t: trial.Trial) -> None:
    """Raise ValueError if the settings need a GPU, but the trial trains on CPUs."""
    if t.accelerator == "cpu" and chosen.precision not in {"auto", "float32"}:
        raise ValueError(
            f"precision is {chosen.precision!r}, which needs a GPU; choose auto or float32"
        )


def require_gpus(t: trial.Trial) -> None:
    """Exit unless the trial's GPUs are usable.

    A trial for GPUs never trains on CPUs instead.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < t.gpus:
        sys.exit(
            f"The study wants {t.gpus} GPUs for a trial, but torch {torch.__version__} has {count} "
            "usable CUDA devices here "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')})."
        )


def choose_device(t: trial.Trial, team: ranks.Ranks) -> torch.device:
    """Return the device on which this rank trains: the CPU or its GPU.

    For a GPU, this also makes torch deterministic, and limits the memory to the trial's share.
    """
    if t.accelerator == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", team.local_rank)
    count = team.count if team.in_gang else t.gpus
    t.device = torch.cuda.get_device_name(device) + (f" x {count}" if count > 1 else "")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.set_float32_matmul_precision("highest")
    torch.cuda.set_device(device)
    torch.cuda.empty_cache()  # free the previous trial's memory: `loader` measures the free memory
    if t.gpu_share < 1:  # the trial must not use other trials' memory
        torch.cuda.set_per_process_memory_fraction(t.gpu_share, device)
    return device


def out_of_memory(error: BaseException | None) -> bool:
    """Return whether `error` or one of its causes is a lack of GPU memory."""
    while error is not None:
        words = str(error)
        if "CUDA" in words and ("out of memory" in words or "ALLOC_FAILED" in words):
            return True
        error = error.__cause__ or error.__context__
    return False


def _reject_together(t: trial.Trial, team: ranks.Ranks, why: str) -> NoReturn:
    """Reject the trial. All ranks must call this."""
    team.barrier()  # if one rank ended while another rank still connects, that rank would fail
    t.reject(why)


def train(
    t: trial.Trial, chosen: settings.Settings, device: torch.device, team: ranks.Ranks
) -> None:
    """Train the trial's network, and exit with the result."""
    if chosen.batch_size < team.count:
        _reject_together(
            t,
            team,
            f"batch_size is {chosen.batch_size}, but {team.count} ranks share each batch: "
            f"choose a batch_size of {team.count} or more",
        )
    data = loader.load_rows(t, chosen, device)
    if len(data.train) < team.count:
        words = f"{len(data.train)} training rows are too few for {team.count} ranks to share"
        _reject_together(t, team, words)
    torch.manual_seed(t.seed)
    network = Network(data.columns, chosen)
    with closing(build_steps(t, chosen, network, data, team, device)) as steps:
        training = Training(t, chosen, network, data, steps, team)
        training.fit()
        weights = steps.full_state(copy_weights(network))
    metrics = evaluate(network, data.validation, data, "val_")
    if not training.stopped:
        metrics |= evaluate(network, data.test, data, "test_")
    if not team.first:
        sys.exit(0)
    if training.stopped:
        t.stop(**metrics)
    if t.mode == "final":
        save_model(t.model, weights, data, chosen)
    t.complete(**metrics)


def build_steps(
    t: trial.Trial,
    chosen: settings.Settings,
    network: Network,
    data: dataset.Dataset,
    team: ranks.Ranks,
    device: torch.device,
) -> Steps:
    """Move the network to the device, and return the training steps for it.

    Raise SettingError if the settings do not fit the rows or the device.
    """
    if device.type == "cpu" and not team.in_gang:
        return PlainSteps(network, data, chosen, t.seed)
    if device.type == "cpu":  # compiling kernels for the CPU would take longer than they save
        os.environ.setdefault("TRIALFLEET_PLAIN", "1")
    if chosen.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    memory = team.least(loader.trial_memory(device, t.gpu_share))
    if chosen.is_sharded(weights := count_parameters(network), memory):
        # Imported here, because this imports parts of torch that take as long as torch itself.
        from trialfleet.nodes.tabular.sharded.steps import ShardedSteps

        t.stays = False  # torch keeps a process group and other state
        most = math.inf if device.type == "cpu" else memory
        offload = chosen.offloaded_part(
            weights, count_parameters(network.embedding), most, team.count
        )
        return ShardedSteps(network, data, chosen, t.seed, team, device=device, offload=offload)
    if device.type != "cpu":  # plain torch, on a CPU, has no limit
        chosen.check_row(len(data.columns.numeric), len(data.columns.categorical))
    network.to(device)
    # Imported here, because only trials for GPUs and gangs have the kernels.
    from trialfleet.nodes.tabular.graph_steps import GraphSteps
    from trialfleet.nodes.tabular.local_steps import LocalSteps

    # In addition to its loader and the batch, a step needs a workspace: for each chunk of the
    # batch, 4 bytes for each number of the embeddings' table (see `cut_up` in embedding.cu). If
    # this is too much, the trial is rejected for lack of memory.
    source = loader.build_loader(data, chosen, device, t, team)
    dtype = matmul_dtype(chosen, device)
    is_local = team.in_gang and chosen.local_steps > 1
    steps = GraphSteps(
        network,
        chosen,
        data.kind,
        source,
        seed=t.seed,
        dtype=dtype,
        team=team,
        together=not is_local,
    )
    return LocalSteps(steps, chosen, team, len(source.sizes)) if is_local else steps


def count_parameters(module: torch.nn.Module) -> int:
    """Return the number of parameters of a network or of a part of it."""
    return sum(weight.numel() for weight in module.parameters())


def matmul_dtype(chosen: settings.Settings, device: torch.device) -> torch.dtype:
    """Return the type of the hidden layers' matrix products.

    On a CPU it is float32. On a GPU the setting `precision` decides.
    """
    if device.type == "cpu":
        return torch.float32
    if chosen.precision != "auto":
        return TYPES[chosen.precision]
    capability = torch.cuda.get_device_capability(device)
    if capability >= (8, 0):
        return torch.bfloat16
    return torch.float16 if capability >= (7, 0) else torch.float32


# Epochs


@dataclass(kw_only=True)
class TrainingProgress:
    """The numbers that say how far a training has come, for its checkpoint."""

    epoch: int = 0
    step: int = 0  # within the epoch
    loss_sum: float = 0.0  # of the epoch's steps so far
    best_epoch: int = -1
    best_score: float = math.inf  # smaller is better

    def is_over(self, chosen: settings.Settings) -> bool:
        """Return True after the last epoch, or after `patience` epochs without improvement."""
        waited = self.epoch - 1 - self.best_epoch
        return self.epoch >= chosen.epochs or waited >= chosen.patience


class Training:
    """The training of one network, which can be saved in a checkpoint and continued."""

    def __init__(
        self,
        t: trial.Trial,
        chosen: settings.Settings,
        network: Network,
        data: dataset.Dataset,
        steps: Steps,
        team: ranks.Ranks | None = None,
    ) -> None:
        self.trial, self.settings, self.network, self.data = t, chosen, network, data
        self.steps, self.team = steps, team or ranks.Ranks()
        self.steps_per_epoch = math.ceil(len(data.train) / chosen.batch_size)
        self.progress = TrainingProgress()
        self.best_weights: dict[str, Tensor] = copy_weights(network)
        self.stopped = False  # True if the study has stopped the trial early

    def fit(self) -> None:
        """Train, and load the weights of the best epoch into the network.

        If the study stops the trial early, the training saves a checkpoint and ends after the
        current epoch.
        """
        self.restore()
        while not self.progress.is_over(self.settings):
            self.finish_epoch()
            self.evaluate_epoch()
            if self.team.broadcast_first(float(self.trial.should_stop())):
                self.stopped = True
                self.save()
                break
        self.network.load_state_dict(self.best_weights)

    def finish_epoch(self) -> None:
        """Take the epoch's remaining steps, with `save_if_due` after each."""
        progress = self.progress
        self.steps.begin(progress.epoch, progress.step, progress.loss_sum)
        while progress.step < self.steps_per_epoch:
            self.steps.take()
            progress.step += 1
            self.save_if_due()
        progress.loss_sum = self.steps.loss_sum()

    def save_if_due(self) -> None:
        """If a checkpoint is due, save it, and exit so that it is sent to the access point.

        In a gang, the save itself sends the checkpoint. There the process only exits if the trial
        was interrupted.
        """
        if not self.is_due():
            return
        self.progress.loss_sum = self.steps.loss_sum()
        self.save()
        if not self.team.in_gang or self.trial.interrupted:
            self.trial.yield_node()

    def is_due(self) -> bool:
        """Return whether to save a checkpoint now.

        If the ranks must save together, all of them get the same answer.
        """
        team, t = self.team, self.trial
        if not team.in_gang:
            return team.any_wished(wish=t.should_checkpoint())
        if self.steps.is_sharded:  # only rank 0 measures the time since the last save
            return team.any_wished(wish=t.should_checkpoint() if team.first else t.interrupted)
        # Only rank 0 saves; the others wait in the next step.
        return team.first and self.steps.in_step and t.should_checkpoint()

    def evaluate_epoch(self) -> None:
        """Measure the network on the validation rows, and report the metrics.

        If this epoch is the best one so far, keep a copy of the weights. Then go to the next epoch.
        Reject the trial if a loss is not finite.
        """
        progress, t = self.progress, self.trial
        train_loss = progress.loss_sum / self.steps_per_epoch
        metrics = evaluate(self.network, self.data.validation, self.data, "val_")
        for name, loss in (("training", train_loss), ("validation", metrics["val_loss"])):
            if not math.isfinite(loss):
                t.reject(f"the {name} loss is {loss} in epoch {progress.epoch}")
        if self.team.first:
            t.report(progress.epoch, train_loss=train_loss, **metrics)
        # Use the study's objective if it is measured on the validation rows.
        score = metrics["val_loss"]
        if t.metric in metrics:
            score = metrics[t.metric] * (-1 if t.direction == "maximize" else 1)
        score = self.team.broadcast_first(score)
        if score < progress.best_score:
            progress.best_score, progress.best_epoch = score, progress.epoch
            self.best_weights = copy_weights(self.network)
        progress.epoch, progress.step, progress.loss_sum = progress.epoch + 1, 0, 0.0

    def save(self) -> None:
        """Write a checkpoint, from which any device can continue.

        Only rank 0 writes it. Except in a gang, the other ranks wait until it is written.
        """
        if self.team.first or self.steps.is_sharded:
            state = {
                "progress": dataclasses.asdict(self.progress),
                "network": self.steps.full_state(self.network.state_dict()),
                "best_weights": self.steps.full_state(self.best_weights),
                "optimizer": self.steps.state(),
                "random": torch.get_rng_state(),  # for dropout on a CPU
            }
        if self.team.first:
            with self.trial.checkpoint() as folder:
                torch.save(state, folder / "state.pt")
        if not self.team.in_gang:
            self.team.barrier()

    def restore(self) -> None:
        """Continue from the checkpoint, if there is one."""
        if not (folder := self.trial.restore()):
            return
        state: dict[str, Any] = torch.load(
            folder / "state.pt", map_location="cpu", weights_only=True, mmap=True
        )  # mmap, because a rank may only need its part of the file
        self.progress = TrainingProgress(**state["progress"])
        self.network.load_state_dict(self.steps.part(state["network"]))
        self.best_weights = self.steps.part(state["best_weights"])
        self.steps.restore(state["optimizer"])
        torch.set_rng_state(state["random"])


# The model's folder


def save_model(
    folder: Path, weights: dict[str, Tensor], data: dataset.Dataset, chosen: settings.Settings
) -> None:
    """Write the model's files, weights.pt and model.json, which `predict.py` reads."""
    folder.mkdir(exist_ok=True)
    torch.save({name: weight.cpu() for name, weight in weights.items()}, folder / "weights.pt")
    description = {
        "schema": 1,
        "columns": dataclasses.asdict(data.columns),
        "numeric_scale": data.numeric_scale.describe(),
        "target_scale": data.target_scale.describe(),
        "settings": dataclasses.asdict(chosen),
    }
    text = json.dumps(description, indent=1, ensure_ascii=False) + "\n"
    (folder / "model.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    ranks.run(main)
