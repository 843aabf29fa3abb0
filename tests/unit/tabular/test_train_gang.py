"""The reference trainer as the ranks of a gang: processes that meet by TCP."""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import replace
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from tests import gang_rank
from tests.one_process import world_of_one
from tests.unit.tabular.small_trials import (
    make_sandbox,
    make_table,
    progress,
    read_result,
    weights,
    write_order,
)
from trialfleet.nodes import trial
from trialfleet.nodes.tabular import dataset, loader, settings, train
from trialfleet.nodes.tabular.graph_steps import GraphSteps
from trialfleet.nodes.tabular.local_steps import LocalSteps
from trialfleet.nodes.tabular.network import Network
from trialfleet.nodes.tabular.ranks import Ranks
from trialfleet.nodes.tabular.sharded.steps import ShardedSteps

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
thorough = partial(pytest.param, marks=pytest.mark.thorough)


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    return make_sandbox(tmp_path / "sandbox", kernels=True)


class Gang:
    """The given number of ranks, each in a sandbox of its own."""

    def __init__(
        self, sandbox: Path, place: Path, world: int, program: str = "train.py", **changes: Any
    ) -> None:
        place.mkdir()
        self.program = program
        self.folders = [place / str(rank) for rank in range(world)]
        for folder in self.folders:
            shutil.copytree(sandbox, folder)
            write_order(folder, mode="final", **changes)
        self.processes: list[ForkServerProcess] = []

    @property
    def first(self) -> Path:
        return self.folders[0]

    def start(self) -> None:
        self.processes = gang_rank.start(self.folders, self.program)

    def codes(self) -> list[int | None]:
        for process in self.processes:
            process.join(60)
        return [process.exitcode for process in self.processes]

    def call_back(self, after: int) -> None:
        """Have rank 0 save and leave after this number of epochs, as a gang's keeper does."""
        while not (self.first / "progress.jsonl").exists() or len(progress(self.first)) < after:
            assert self.processes[0].is_alive(), (self.first / "err").read_text()
            time.sleep(0.005)
        pid = self.processes[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)  # to rank 0 alone
        self.processes[0].join(60)
        assert self.processes[0].exitcode == 85, (self.first / "err").read_text()
        for process in self.processes[1:]:
            process.kill()  # by its agent

    def trained(self) -> Path:
        """Train to the end; return rank 0's sandbox."""
        self.start()
        codes = self.codes()
        said = [(folder / "err").read_text() for folder in self.folders]
        assert codes == [0] * len(self.folders), said
        return self.first


DROPPING = {"dropout": 0.3, "epochs": 6, "patience": 6, "batch_size": 50}


def assert_near(ours: Path, theirs: Path, *, relative: float) -> None:
    assert len(progress(ours)) == len(progress(theirs))
    for mine, its in zip(progress(ours), progress(theirs), strict=True):
        assert mine["metrics"] == pytest.approx(its["metrics"], rel=relative)


def test_the_losses_are_the_same_whatever_the_number_of_ranks(
    sandbox: Path, tmp_path: Path
) -> None:
    alone = Gang(sandbox, tmp_path / "1", 1, params=DROPPING).trained()
    three = Gang(sandbox, tmp_path / "3", 3, params=DROPPING).trained()
    assert_near(three, alone, relative=1e-6)
    assert read_result(three)["metrics"] == pytest.approx(read_result(alone)["metrics"], rel=1e-5)
    ours, theirs = weights(three), weights(alone)
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6)


def test_an_interrupted_gang_continues_with_more_ranks_to_the_same_losses(
    sandbox: Path, tmp_path: Path
) -> None:
    params = {**DROPPING, "epochs": 60, "patience": 60}
    whole = Gang(sandbox, tmp_path / "whole", 1, params=params).trained()
    two = Gang(sandbox, tmp_path / "two", 2, params=params)
    two.start()
    two.call_back(after=5)
    assert 5 <= len(progress(two.first)) < 60
    three = Gang(two.first, tmp_path / "three", 3, params=params).trained()
    assert_near(three, whole, relative=1e-4)
    assert read_result(three)["metrics"] == pytest.approx(read_result(whole)["metrics"], rel=1e-4)


@pytest.mark.parametrize("parallel", ["data", thorough("sharded")])
def test_a_checkpoint_in_between_does_not_end_a_gang(
    sandbox: Path, tmp_path: Path, parallel: str
) -> None:
    params = {**DROPPING, "checkpoint_seconds": 0.0, "parallel": parallel}
    gang = Gang(sandbox, tmp_path / "gang", 2, params=params).trained()
    assert (gang / "checkpoint/complete.json").exists()
    assert len(progress(gang)) == DROPPING["epochs"]


def test_a_batch_of_fewer_rows_than_ranks_is_refused(sandbox: Path, tmp_path: Path) -> None:
    gang = Gang(sandbox, tmp_path / "3", 3, params={"epochs": 1, "batch_size": 2})
    gang.start()
    codes = gang.codes()
    assert codes == [64, 64, 64], (gang.first / "err").read_text()
    words = "batch_size is 2, but 3 ranks share each batch: choose a batch_size of 3 or more"
    assert [read_result(folder)["error"] for folder in gang.folders] == [words] * 3


@pytest.mark.thorough
def test_gradients_sent_in_bfloat16_give_similar_losses(sandbox: Path, tmp_path: Path) -> None:
    alone = Gang(sandbox, tmp_path / "1", 1, params=DROPPING).trained()
    two = Gang(sandbox, tmp_path / "2", 2, params={**DROPPING, "wire": "bfloat16"}).trained()
    assert_near(two, alone, relative=3e-2)
    assert progress(two) != progress(alone)


def test_ranks_with_local_steps_learn(sandbox: Path, tmp_path: Path) -> None:
    params = {**DROPPING, "epochs": 12, "patience": 12, "local_steps": 2}
    gang = Gang(sandbox, tmp_path / "2", 2, params=params)
    losses = [line["metrics"]["val_loss"] for line in progress(gang.trained())]
    assert losses[-1] < 0.7 * losses[0]
    together = Gang(sandbox, tmp_path / "1", 2, params={**params, "local_steps": 1}).trained()
    assert losses[-1] == pytest.approx(progress(together)[-1]["metrics"]["val_loss"], rel=0.25)


# Shards of the embeddings

SHARDED = {**DROPPING, "parallel": "sharded", "embedding": 3}
IN_PIECES = """
import trial_imports
from trialfleet.nodes.tabular import ranks, train
from trialfleet.nodes.tabular.sharded import steps

steps._PIECE = 3  # numbers: a row of each rank at a time
steps._IN_FILE = 1
ranks.run(train.main)
"""


def test_ranks_with_shards_of_the_embeddings_give_the_result_of_one_rank(
    sandbox: Path, tmp_path: Path
) -> None:
    data = {**SHARDED, "parallel": "data"}
    alone = Gang(sandbox, tmp_path / "1", 1, params=data).trained()
    (sandbox / "in_pieces.py").write_text(IN_PIECES)
    three = Gang(sandbox, tmp_path / "3", 3, "in_pieces.py", params=SHARDED).trained()
    assert_near(three, alone, relative=1e-6)
    assert read_result(three)["metrics"] == pytest.approx(read_result(alone)["metrics"], rel=1e-5)
    ours, theirs = weights(three), weights(alone)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sandbox of one rank that held all of an uneven network."""
    place = tmp_path_factory.mktemp("alone")
    sandbox = make_sandbox(place / "sandbox", kernels=True)
    return Gang(sandbox, place / "1", 1, params={**UNEVEN, "parallel": "data"}).trained()


# Units and rows that go by no number of ranks.
UNEVEN = {**DROPPING, "hidden": 15, "layers": 3, "embedding": 3, "weight_decay": 0.1}


@pytest.mark.parametrize(
    ("ranks", "params"),
    [
        (2, {"tensor_parallel": 2}),
        thorough(4, {"tensor_parallel": 2}),
        thorough(3, {"tensor_parallel": 64}),  # 3 side by side
        thorough(1, {"offload": "all"}),
        thorough(3, {"offload": "all"}),
        thorough(4, {"offload": "all", "tensor_parallel": 2}),
        (2, {"offload": "all", "tensor_parallel": 2}),
        thorough(4, {"tensor_parallel": 4}),
        thorough(1, {"offload": "embeddings"}),
        (3, {"offload": "embeddings"}),
        thorough(2, {"offload": "embeddings", "tensor_parallel": 2}),
    ],
    ids=str,
)
def test_every_way_of_sharding_the_model_gives_the_losses_of_one_rank(
    sandbox: Path, tmp_path: Path, alone: Path, ranks: int, params: dict[str, Any]
) -> None:
    ours = Gang(sandbox, tmp_path / "gang", ranks, params={**UNEVEN, **params}).trained()
    assert_near(ours, alone, relative=1e-6)
    assert read_result(ours)["metrics"] == pytest.approx(read_result(alone)["metrics"], rel=1e-5)
    whole = weights(alone)
    assert weights(ours).keys() == whole.keys()
    for name, weight in weights(ours).items():
        torch.testing.assert_close(weight, whole[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        thorough((3, {}), (2, {})),
        thorough((4, {"tensor_parallel": 2}), (2, {"offload": "all"})),
        ((2, {"offload": "all"}), (3, {"tensor_parallel": 3})),
        thorough((3, {}), (2, {"offload": "embeddings"})),
    ],
    ids=str,
)
def test_a_sharded_checkpoint_is_continued_by_other_numbers_of_ranks(
    sandbox: Path, tmp_path: Path, first: tuple[int, Any], then: tuple[int, Any]
) -> None:
    make_table(sandbox / "r.npz", kinds=120)
    params = {**UNEVEN, "parallel": "sharded", "epochs": 24, "patience": 24}
    whole = Gang(sandbox, tmp_path / "whole", 1, params=params).trained()
    begun = Gang(sandbox, tmp_path / "begun", first[0], params={**params, **first[1]})
    begun.start()
    begun.call_back(after=3)
    later = Gang(begun.first, tmp_path / "later", then[0], params={**params, **then[1]})
    later.start()
    later.call_back(after=8)
    last = Gang(later.first, tmp_path / "last", 1, params={**params, "parallel": "data"}).trained()
    assert_near(last, whole, relative=1e-4)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_offloaded_rows_equal_rows_that_were_not_offloaded(
    tmp_path: Path, optimizer: str, weight_decay: float
) -> None:
    make_table(tmp_path / "r.npz", kinds=120)
    chosen = settings.Settings(
        hidden=8,
        embedding=3,
        batch_size=10,
        dropout=0.2,
        epochs=6,
        learning_rate=0.02,
        optimizer=optimizer,
        weight_decay=weight_decay,
        parallel="sharded",
    )
    data = dataset.load(trial.Trial(tmp_path, {"data": ["r.npz"]}), chosen)

    def steps_of(offload: str) -> tuple[Network, ShardedSteps]:
        torch.manual_seed(3)
        network = Network(data.columns, chosen)
        return network, ShardedSteps(network, data, chosen, 3, Ranks(), offload=offload)

    (network, stayed), (other, moving) = steps_of("none"), steps_of("embeddings")
    per_epoch = -(-len(data.train) // chosen.batch_size)
    for epoch in range(chosen.epochs):
        for steps in (stayed, moving):
            steps.begin(epoch, 0, 0.0)
        for step in range(per_epoch):
            stayed.take()
            moving.take()
            if (epoch, step) in {(1, 0), (3, 7), (5, per_epoch - 1)}:
                ours, theirs = moving.state(), stayed.state()
                for name in ("m", "v"):
                    torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-8)
                ours, theirs = (
                    moving.full_state(other.state_dict()),
                    stayed.full_state(network.state_dict()),
                )
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
            if (epoch, step) == (3, 7):  # as at a checkpoint, whole
                taken = moving.state(), {**moving.full_state(other.state_dict())}, moving.loss_sum()
                other, moving = steps_of("embeddings")
                other.load_state_dict(moving.part(taken[1]))
                moving.restore(taken[0])
                moving.begin(epoch, step + 1, taken[2])
        assert moving.loss_sum() == pytest.approx(stayed.loss_sum(), rel=1e-6)


def test_a_model_that_takes_more_than_half_of_the_slots_memory_is_sharded(
    sandbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ad = tmp_path / "machine.ad"
    ad.write_text('Cpus = 1\nMemory = 64\nMyAddress = "<127.0.0.1:9618>"\n')
    monkeypatch.setenv("_CONDOR_MACHINE_AD", str(ad))
    torch.manual_seed(0)
    t = trial.Trial(sandbox, {"data": ["r.npz"]})
    kinds = []
    # about h² numbers of 16 bytes in 32 MiB
    for hidden, parallel in ((1350, "auto"), (1500, "auto"), (1500, "data"), (8, "sharded")):
        chosen = settings.Settings(hidden=hidden, parallel=parallel)
        data = dataset.load(t, chosen)
        network = Network(data.columns, chosen)
        team = Ranks(0, 1, in_gang=True)
        steps = train.build_steps(t, chosen, network, data, team, torch.device("cpu"))
        kinds.append(steps.is_sharded)
    assert kinds == [False, True, False, True]


@pytest.mark.parametrize(
    ("columns", "embedding", "first", "last"),
    [
        (256, 4096, "embedding is 4096, but 256 categorical columns and 2 numeric", "most 4095"),
        (65_536, 1, "the table has 65536 categorical columns", "leave columns out"),
    ],
)
def test_a_row_too_wide_for_the_gpus_kernels_is_a_wrong_setting(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
    embedding: int,
    first: str,
    last: str,
) -> None:
    """Else the kernels' own check fails, which counts as a fault of the trainer."""
    monkeypatch.setattr(loader, "trial_memory", lambda *_: 1e12)
    make_table(tmp_path / "r.npz")
    t = trial.Trial(tmp_path, {"data": ["r.npz"]})
    chosen = settings.Settings(layers=0, embedding=embedding)
    data = dataset.load(t, chosen)
    kinds = data.columns.categorical["kind"]
    wide = {f"kind{number}": kinds for number in range(columns)}
    data = replace(data, columns=replace(data.columns, categorical=wide))
    network = Network(data.columns, chosen)
    with pytest.raises(settings.SettingError, match=f"^{first}.* a GPU allows at most .*{last}$"):
        train.build_steps(t, chosen, network, data, Ranks(), torch.device("cuda"))


def test_layers_are_fetched_by_one_root_so_the_next_one_may_come_ahead(tmp_path: Path) -> None:
    make_table(tmp_path / "r.npz")
    chosen = settings.Settings(hidden=8, layers=3, offload="all")
    data = dataset.load(trial.Trial(tmp_path, {"data": ["r.npz"]}), chosen)
    network = Network(data.columns, chosen)
    with world_of_one():
        steps = ShardedSteps(network, data, chosen, 3, Ranks(), offload="all")
        steps.begin(0, 0, 0.0)
        steps.take()
    shared = [each for each in network.layers.modules() if isinstance(each, FSDPModule)]
    assert len(shared) == 1 + 4
    assert [each._get_fsdp_state()._is_root for each in shared] == [True, *[False] * 4]


AS_ON_A_GPU = """
import trial_imports
from trialfleet.nodes.tabular import loader, ranks, train

train.check = lambda *_: None  # whatever the precision
loader.trial_memory = lambda *_: 1e4
ranks.run(train.main)
"""


def test_a_model_too_large_for_its_precision_is_rejected(sandbox: Path, tmp_path: Path) -> None:
    (sandbox / "as_on_a_gpu.py").write_text(AS_ON_A_GPU)
    params = {"precision": "bfloat16"}
    gang = Gang(sandbox, tmp_path / "gang", 1, "as_on_a_gpu.py", params=params)
    gang.start()
    assert gang.codes() == [64]
    assert read_result(gang.first)["error"].startswith("precision is 'bfloat16', but for a model")


def test_a_sharded_model_may_use_tf32(sandbox: Path) -> None:
    before = torch.get_float32_matmul_precision()
    chosen = settings.Settings(hidden=8, parallel="sharded", precision="tf32")
    t = trial.Trial(sandbox, {"data": ["r.npz"]})
    data = dataset.load(t, chosen)
    team, network = Ranks(0, 1, in_gang=True), Network(data.columns, chosen)
    try:
        assert train.build_steps(t, chosen, network, data, team, torch.device("cpu")).is_sharded
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("rank", "called_back", "saves"), [(0, False, True), (1, False, False), (1, True, True)]
)
def test_rank_0_says_when_all_save_and_who_is_called_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, called_back: bool, saves: bool
) -> None:
    make_table(tmp_path / "r.npz")
    order = {"data": ["r.npz"], "params": {"checkpoint_seconds": 0.0}}
    t = trial.Trial(tmp_path, order)
    chosen = settings.Settings(hidden=4, parallel="sharded")
    data = dataset.load(t, chosen)
    team = Ranks(rank, 1, in_gang=True)
    network = Network(data.columns, chosen)
    steps = ShardedSteps(network, data, chosen, 3, Ranks())
    training = train.Training(t, chosen, network, data, steps, team)
    saved: list[bool] = []
    monkeypatch.setattr(training, "save", lambda: saved.append(True))
    monkeypatch.setattr(t, "yield_node", lambda: None)
    t.interrupted = called_back
    steps.begin(0, 0, 0.0)
    training.save_if_due()
    assert bool(saved) is saves


HELD = """
import pathlib, ranks, train

fit = train.Training.fit

def told(training):
    optimizer = training.steps._optimizer
    tensors = [*optimizer.weights, *optimizer.m, *optimizer.v]
    own = [each.to_local() if hasattr(each, "to_local") else each for each in tensors]
    pathlib.Path("held").write_text(str(sum(each.numel() for each in own)))
    fit(training)

train.Training.fit = told
ranks.run(train.main)
"""


def test_each_rank_holds_its_part_of_weights_and_means(sandbox: Path, tmp_path: Path) -> None:
    (sandbox / "held.py").write_text(HELD)
    params = {"hidden": 30, "epochs": 1, "parallel": "sharded"}
    gang = Gang(sandbox, tmp_path / "gang", 3, "held.py", params=params)
    first = gang.trained()
    held = [int((folder / "held").read_text()) for folder in gang.folders]
    assert sum(held) == 3 * sum(w.numel() for w in weights(first).values())
    assert max(held) < 1.1 * sum(held) / 3  # rows of a tensor do not always go by three


# Local steps, in one process


def own_steps(folder: Path, chosen: settings.Settings) -> tuple[GraphSteps, int]:
    """Return a rank's own steps from the same weights each time, and how many an epoch has."""
    data = dataset.load(trial.Trial(folder, {"data": ["r.npz"]}), settings.Settings())
    torch.manual_seed(3)
    network = Network(data.columns, chosen)
    orders = loader.RowOrders(3, len(data.train), chosen.batch_size, Ranks())
    source = loader.ResidentLoader(data.train, orders)
    steps = GraphSteps(network, chosen, data.kind, source, seed=3, together=False)
    return steps, len(source.sizes)


def test_a_meeting_is_a_step_of_sgd_with_nesterovs_momentum(tmp_path: Path) -> None:
    make_table(tmp_path / "r.npz")
    chosen = settings.Settings(
        hidden=16, batch_size=25, local_steps=3, outer_learning_rate=0.6, outer_momentum=0.8
    )
    inner, count = own_steps(tmp_path, chosen)
    ours = LocalSteps(inner, chosen, Ranks(), count)
    alike, _ = own_steps(tmp_path, chosen)
    met = [w.detach().clone().requires_grad_() for w in alike.weights]
    outer = torch.optim.SGD(met, lr=0.6, momentum=0.8, nesterov=True)
    assert count == 8
    for epoch in range(2):
        ours.begin(epoch, 0, 0.0)
        alike.begin(epoch, 0, 0.0)
        for step in range(count):
            ours.take()
            alike.take()
            assert ours.in_step is (step in {2, 5, 7})
            if ours.in_step:
                with torch.no_grad():
                    for g, w in zip(met, alike.weights, strict=True):
                        g.grad = g - w
                    outer.step()
                    for g, w in zip(met, alike.weights, strict=True):
                        w.copy_(g)
            for mine, its in zip(inner.weights, alike.weights, strict=True):
                torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-7)


def test_local_steps_continue_from_a_saved_state_to_the_same_bits(tmp_path: Path) -> None:
    make_table(tmp_path / "r.npz")
    chosen = settings.Settings(
        hidden=16, batch_size=25, local_steps=2, dropout=0.2, outer_momentum=0.5
    )
    whole, halves = (
        LocalSteps(inner, chosen, Ranks(), count)
        for inner, count in (own_steps(tmp_path, chosen), own_steps(tmp_path, chosen))
    )
    whole.begin(0, 0, 0.0)
    halves.begin(0, 0, 0.0)
    for _ in range(4):
        whole.take()
        halves.take()
    inner, count = own_steps(tmp_path, chosen)
    again = LocalSteps(inner, chosen, Ranks(), count)
    with torch.no_grad():
        for mine, its in zip(inner.weights, halves.weights, strict=True):
            mine.copy_(its)
    again.restore(halves.state())
    again.begin(0, 4, halves.loss_sum())
    for _ in range(4):
        whole.take()
        again.take()
    assert all(torch.equal(a, b) for a, b in zip(whole.weights, again.weights, strict=True))
    assert whole.loss_sum() == again.loss_sum()
