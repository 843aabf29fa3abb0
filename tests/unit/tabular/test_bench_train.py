"""The trainer's benchmark: it measures training, and its goals fit the bound of a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.bench.train import __main__ as bench
from tests.bench.train import first_step, launches, rivals, roofline, workloads
from tests.bench.train.workloads import Workload
from trialfleet.nodes.tabular import loader

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
SMALL = replace(workloads.IN_2014, rows=512, numeric=8, hidden=16, layers=2, batch=32, dropout=0.5)
CEILINGS = roofline.Ceilings(bandwidth=1e10, flops=1e11, launch=1e-6)
EAGER_WAYS = {name: rivals.WAYS[name] for name in ("ours", "eager")}


HASTY = bench.Pace(window=0.01, windows=2, limit=1.0)


@pytest.mark.parametrize("make", EAGER_WAYS.values(), ids=EAGER_WAYS.keys())
def test_computing_the_validation_loss_does_not_change_the_training(
    make: Callable[..., rivals.Way],
) -> None:
    """Two trainings, one of them with a look within the epoch: the same bits."""
    data = workloads.make_data(SMALL)
    ends = []
    for look in (False, True):
        way = make(data, SMALL, CPU)
        way.advance(3)
        if look:
            bench.validation_loss(way, data)
        way.advance(3)
        ends.append([weight.detach().clone() for weight in way.network.parameters()])
    for without, with_look in zip(*ends, strict=True):
        assert torch.equal(without, with_look)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_number_of_launches_does_not_depend_on_the_batch_size(device: str) -> None:
    """Counted without a GPU, by the GPU's way of taking steps."""
    data = workloads.make_data(SMALL)
    larger = launches.plain_step if device == "cpu" else launches.fused_step
    count = launches.launches_of(SMALL, torch.device(device), torch.float32)
    assert count == larger(data, SMALL).operations.total()


@pytest.mark.parametrize(("dtype", "types"), [(torch.float32, 1), (torch.bfloat16, 2)])
def test_a_rank_of_two_launches_little_more_than_one_alone(dtype: torch.dtype, types: int) -> None:
    """Each type is joined and added up; the loss and its gradient get their share."""
    data = workloads.make_data(SMALL)
    alone = launches.fused_step(data, SMALL, dtype).operations
    of_two = launches.step_of_two(data, SMALL, dtype).operations
    assert of_two - alone == {"aten.cat": types, "c10d.allreduce_": types, "aten.mul": 2}
    assert not alone - of_two


def test_half_of_the_roofline_is_no_goal_where_launches_bound_the_step() -> None:
    goals = bench.GOALS["cuda"]
    assert "goal 50%" in bench.roofline_line({"bound": "bytes"}, 0.4, goals)
    assert "goal 50%" not in bench.roofline_line({"bound": "launches"}, 0.4, goals)


def all_ways(compiles: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Return each way's loss after an epoch and a half; `compiles` replaces torch.compile."""
    monkeypatch.setattr(torch, "compile", compiles)
    still = replace(SMALL, dropout=0.0)
    data = workloads.make_data(still)
    found = {}
    for name, make in rivals.WAYS.items():
        way = make(data, still, CPU)
        way.advance(still.steps * 3 // 2)
        found[name] = bench.validation_loss(way, data)
    return found


def test_every_way_takes_the_steps_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same batches at the same rates: without dropout, the same losses."""
    found = all_ways(lambda function, **_: function, monkeypatch)
    assert found == {name: pytest.approx(found["ours"], rel=1e-4) for name in rivals.WAYS}


def test_every_way_draws_the_order_of_an_epoch_in_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or a rival would wait for what ours does meanwhile."""
    drawn_by: set[str] = set()
    order_of = loader.epoch_order

    def noting(*given: int) -> torch.Tensor:
        drawn_by.add(threading.current_thread().name)
        return order_of(*given)

    monkeypatch.setattr(loader, "epoch_order", noting)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    for name in ("eager", "captured"):
        rivals.WAYS[name](workloads.make_data(SMALL), SMALL, CPU).advance(1)
    assert drawn_by
    assert threading.main_thread().name not in drawn_by


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # by torch.compile's imports
def test_compiled_steps_give_the_same_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = all_ways(torch.compile, monkeypatch)
    assert found == {name: pytest.approx(found["ours"], rel=1e-4) for name in rivals.WAYS}


def test_a_workload_is_measured_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    names = [*EAGER_WAYS]
    found = bench.measure_workload(SMALL, CPU, names, CEILINGS, torch.float32, HASTY)
    bench.print_workload(found, bench.GOALS["cpu"])
    output = capsys.readouterr().out
    assert "(c) eager, resident rows" in output
    assert "bound by launches" in output
    assert set(found["ratios"]) == {"eager", "roofline"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--ways", "ours,eagr"],
            "'eagr' is no way to train: choose from ours, autotuned, captured",
        ),
        (["--only", "2015"], "no workload has '2015' in its name; there are flights-like"),
        (["--device", "cuda"], "--device cuda: torch"),
    ],
)
def test_wrong_arguments_exit_2_and_say_what_there_is(
    arguments: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["bench_train", *arguments])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


def test_processor_time_can_be_counted_on_a_cpu_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(roofline.Clock, "now", roofline.Clock.now)  # put back at the end
    threads = torch.get_num_threads()
    with pytest.raises(ValueError, match="nothing of a GPU"):
        bench.count_processor_time(torch.device("cuda"))
    try:
        bench.count_processor_time(CPU)
    finally:
        torch.set_num_threads(threads)
    assert roofline.Clock.now is time.process_time


@pytest.mark.thorough
def test_the_time_until_the_first_steps_is_measured_in_a_new_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = first_step.child("ours", workloads.FLIGHTS, CPU, tmp_path)
    assert len(found) == first_step.STEPS
    assert 0 < found[0] < found[-1]
    case = first_step.measured("ours, again", workloads.FLIGHTS, CPU, 1)
    first_step.print_workload(workloads.FLIGHTS, {"ours": case})
    assert f"{case['first_step']:.2f}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("torch.compile, cold", [("0", 128), ("1", 128)]),
        ("torch.compile, another", [("0", 64), ("0", 128), ("1", 64), ("1", 128)]),
        ("torch.compile, warm", [("", 128), ("", 128), ("", 128)]),
    ],
)
def test_a_compilers_folder_is_as_its_case_says(
    name: str, expected: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[tuple[Path, int]] = []

    def only_noted(
        _way: str, workload: Workload, _device: torch.device, kept: Path, _folder: str = ""
    ) -> list[float]:
        began.append((kept, workload.hidden))
        return [1.0, 2.0, 3.0]

    monkeypatch.setattr(first_step, "child", only_noted)
    first_step.measured(name, workloads.FLIGHTS, CPU, 2)
    root = began[0][0] if "warm" in name else began[0][0].parent
    found = [(str(kept.relative_to(root)).strip("."), hidden) for kept, hidden in began]
    assert found == expected
