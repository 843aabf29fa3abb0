"""Measure and print: `python -m tests.bench.train [--json] [--only NAME] [--ways ours,eager]`.

For each workload and each way to train: seconds until the first steps are done (imports, compiling,
capture), samples per second after that, and seconds of training until the validation loss that ours
has after an epoch. A CPU trains in float32, a GPU in the type that the trainer chooses there.
"""

from __future__ import annotations

import argparse
import json
import math
import operator
import platform
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tests.bench.train import launches, rivals, roofline, workloads
from tests.bench.train.workloads import Workload
from trialfleet.nodes.tabular import dataset, evaluation, settings, train

WARM_UP = 3  # steps
LOOKS = 8  # at the validation loss, in an epoch
# What is wanted: the ratio of samples per second to a way's; of the least possible time to ours,
# where flops or bytes bound the step.
GOALS = {
    "cuda": {"autotuned": 1.1, "captured": 1.1, "roofline": 0.5},
    "cpu": {"eager": 1.0},
}
LABELS = {
    "ours": "ours",
    "autotuned": "(a) torch.compile, max-autotune, one CUDA graph",
    "captured": "(b) torch.compile, default, one CUDA graph",
    "eager": "(c) eager, resident rows",
}


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The times and numbers of measurements.

    Attributes:
        window: seconds of steps between two readings of the clock.
        windows: number of windows; their median counts.
        limit: maximum seconds to reach our loss; 0: this is not measured.
        repeats: of each ceiling (a limit of the hardware), the best of which counts.
    """

    window: float = 0.5
    windows: int = 12
    limit: float = 120.0
    repeats: int = 20


QUICK = Pace(window=0.2, windows=5, limit=0.0, repeats=5)


def main() -> None:
    """Measure and print."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--device", choices=["cpu", "cuda"], help="else a GPU where there is one")
    reader.add_argument(
        "--only", metavar="WORD", action="append", help="workloads with this in the name"
    )
    reader.add_argument("--ways", default=",".join(rivals.WAYS), help="in any order: %(default)s")
    reader.add_argument(
        "--processor-time",
        action="store_true",
        help="count the time that this process had of the CPU, where others want it too",
    )
    reader.add_argument(
        "--quick", action="store_true", help="fewer and shorter windows, and no losses to come to"
    )
    reader.add_argument("--json", action="store_true", help="one object, nothing else")
    reader.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write that object to this file, again after each workload",
    )
    chosen = reader.parse_args()
    try:
        device = device_of(chosen.device)
        names = names_of(chosen.ways)
        wanted = workloads_of(chosen.only or [""], device)
        if chosen.processor_time:
            count_processor_time(device)
    except ValueError as error:
        reader.error(str(error))
    rivals.quiet()
    rivals.prepare(device)
    pace = QUICK if chosen.quick else Pace()
    results: dict[str, Any] = {}
    for results in measure(device, wanted, names, pace):
        if chosen.out:
            chosen.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
        if not chosen.json:
            print_latest(results)
    if chosen.json:
        print(json.dumps(results, indent=1))


def device_of(name: str | None) -> torch.device:
    """Return the device `name`, by default a GPU if there is one."""
    here = torch.cuda.is_available()
    if name == "cuda" and not here:
        raise ValueError(f"--device cuda: torch {torch.__version__} finds no GPU here")
    return torch.device("cpu") if name == "cpu" or not here else torch.device("cuda", 0)


def count_processor_time(device: torch.device) -> None:
    """Measure by this process's processor time, with one thread, because threads' times add up."""
    if device.type != "cpu":
        raise ValueError("--processor-time says nothing of a GPU; add --device cpu")
    torch.set_num_threads(1)
    roofline.Clock.now = staticmethod(time.process_time)


def names_of(ways: str) -> list[str]:
    """Return the names in a comma-separated list of ways, in the order of `rivals.WAYS`."""
    asked = ways.split(",")
    for name in asked:
        if name not in rivals.WAYS:
            raise ValueError(f"{name!r} is no way to train: choose from {', '.join(rivals.WAYS)}")
    return [name for name in rivals.WAYS if name in asked]


def workloads_of(words: list[str], device: torch.device) -> list[Workload]:
    """Return the workloads whose names contain one of the words."""
    every = workloads.workloads(device)
    for word in words:
        if not any(word in workload.name for workload in every):
            there = "; ".join(workload.name for workload in every)
            raise ValueError(f"no workload has {word!r} in its name; there are {there}")
    return [workload for workload in every if any(word in workload.name for word in words)]


def measure(
    device: torch.device, wanted: list[Workload], names: list[str], pace: Pace
) -> Iterator[dict[str, Any]]:
    """Yield the results so far: first the machine, then again after each workload."""
    dtype = torch.float32
    if device.type == "cuda":
        dtype = train.matmul_dtype(settings.Settings(), device)
    ceilings = roofline.measure_ceilings(device, dtype, pace.repeats)
    machine = describe(device) | {"dtype": str(dtype).removeprefix("torch."), **asdict(ceilings)}
    done: list[dict[str, Any]] = []
    results = {"machine": machine, "goals": GOALS[device.type], "workloads": done}
    yield results
    for workload in wanted:
        done.append(measure_workload(workload, device, names, ceilings, dtype, pace))
        yield results


def measure_workload(
    workload: Workload,
    device: torch.device,
    names: list[str],
    ceilings: roofline.Ceilings,
    dtype: torch.dtype,
    pace: Pace,
) -> dict[str, Any]:
    """Return the results of each way, and how near ours is to the hardware's limit."""
    data = workloads.make_data(workload)
    target = loss_after_an_epoch(workload, data, device) if pace.limit else None
    started = {name: start(name, workload, data, device) for name in names}
    to_loss = {
        name: None if target is None else seconds_to(target, way, workload, data, pace.limit)
        for name, (way, _) in started.items()
    }
    rates = rates_of({name: way for name, (way, _) in started.items()}, workload, pace)
    step = roofline.Step(
        flops=roofline.flops_of(workload),
        bytes=roofline.bytes_of(workload, dtype.itemsize),
        launches=launches.launches_of(workload, device, dtype),
    )
    result: dict[str, Any] = {
        "workload": asdict(workload) | {"parameters": workload.parameters},
        "loss": target,
        "ways": {
            name: {
                "label": LABELS[name],
                "seconds_until_ready": started[name][1],
                "samples_per_second": statistics.median(rates[name]),
                "slowest_and_fastest": [min(rates[name]), max(rates[name])],
                "seconds_to_loss": to_loss[name],
            }
            for name in names
        },
        "step": asdict(step) | {"seconds": ceilings.times(step), "bound": ceilings.bound(step)},
    }
    if "ours" in names:
        least = ceilings.roofline(step)
        shares = [rate * least / workload.batch for rate in rates["ours"]]
        result["ratios"] = {
            name: statistics.median(map(operator.truediv, rates["ours"], rates[name]))
            for name in names
            if name != "ours"
        } | {"roofline": statistics.median(shares)}
    return result


def loss_after_an_epoch(workload: Workload, data: dataset.Dataset, device: torch.device) -> float:
    """Return our loss, rounded up in the third digit, which all ways must reach."""
    ours = rivals.Ours(data, workload, device)
    ours.advance(workload.steps)
    return math.ceil(validation_loss(ours, data) * 1000) / 1000


def validation_loss(way: rivals.Way, data: dataset.Dataset) -> float:
    """Return the loss of the validation rows."""
    return evaluation.evaluate(way.network, data.validation, data, "")["loss"]


def start(
    name: str, workload: Workload, data: dataset.Dataset, device: torch.device
) -> tuple[rivals.Way, float]:
    """Return a way after its first steps, and the seconds for these."""
    begin = roofline.Clock.now()
    way = rivals.WAYS[name](data, workload, device)
    way.advance(WARM_UP)
    return way, roofline.Clock.now() - begin


def seconds_to(
    target: float, way: rivals.Way, workload: Workload, data: dataset.Dataset, limit: float
) -> float | None:
    """Return the training seconds until the validation loss is `target`, without evaluations."""
    spent, steps = 0.0, max(1, workload.steps // LOOKS)
    while spent < limit:
        spent += seconds_for(steps, way)
        if validation_loss(way, data) <= target:
            return spent
    return None


def rates_of(ways: dict[str, rivals.Way], workload: Workload, pace: Pace) -> dict[str, list[float]]:
    """Return samples per second in several windows; the ways alternate, as machines fluctuate."""
    steps = {name: steps_within(pace.window, way) for name, way in ways.items()}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(pace.windows):
        for name, way in ways.items():
            seconds = seconds_for(steps[name], way)
            rates[name].append(steps[name] * workload.batch / seconds)
    return rates


def steps_within(seconds: float, way: rivals.Way) -> int:
    """Return about how many steps take `seconds`."""
    steps = 1
    while (taken := seconds_for(steps, way)) < seconds / 2:
        steps *= 2
    return max(1, round(steps * seconds / taken))


def seconds_for(steps: int, way: rivals.Way) -> float:
    """Return the seconds of `steps` steps."""
    begin = roofline.Clock.now()
    way.advance(steps)
    return roofline.Clock.now() - begin


# The output


def describe(device: torch.device) -> dict[str, Any]:
    """Return the facts of the machine on which the figures depend."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def processor() -> str:
    """Return the CPU's name, or its architecture if the name is unknown."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def print_latest(results: dict[str, Any]) -> None:
    """Print the workload that was measured last; if there is none, the machine."""
    if results["workloads"]:
        print_workload(results["workloads"][-1], results["goals"])
    else:
        print_machine(results["machine"])


def print_machine(machine: dict[str, Any]) -> None:
    """Print the machine and its ceilings (limits of the hardware)."""
    print(
        f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}, "
        f"{machine['dtype']}\n"
        f"measured: a copy {machine['bandwidth'] / 1e9:.1f} GB/s, "
        f"a matrix product {machine['flops'] / 1e12:.3f} Tflop/s, "
        f"an empty launch {machine['launch'] * 1e6:.2f} us",
        flush=True,
    )


def print_workload(result: dict[str, Any], goals: dict[str, float]) -> None:
    """Print one workload's table."""
    workload, ratios = result["workload"], result.get("ratios", {})
    print(
        f"\n{workload['name']}: {workload['rows']:,} rows, batch {workload['batch']:,}, "
        f"{workload['layers']} x {workload['hidden']}, {workload['parameters']:,} parameters\n"
        f"{'':48}{'ready':>8}{'samples/s':>13}{titled(result['loss']):>17}"
    )
    for name, way in result["ways"].items():
        seconds = way["seconds_to_loss"]
        to_loss = "not reached" if seconds is None else f"{seconds:.2f} s"
        if result["loss"] is None:
            to_loss = ""
        print(
            f"{LABELS[name]:<48}{way['seconds_until_ready']:6.1f} s"
            f"{way['samples_per_second']:13,.0f}{to_loss:>17}"
            + compared(ratios.get(name), goals.get(name))
        )
    print(step_line(result["step"]))
    if ratios:
        print(roofline_line(result["step"], ratios["roofline"], goals), flush=True)


def titled(loss: float | None) -> str:
    """Return the title of the column of seconds to a loss; empty if none was to be reached."""
    return "" if loss is None else f"to loss {loss}"


def step_line(step: dict[str, Any]) -> str:
    """Return a step's flops, bytes and launches, the least time of each, and the longest."""
    times = {name: f"{seconds * 1e3:.3f} ms" for name, seconds in step["seconds"].items()}
    return (
        f"at least: {step['flops'] / 1e9:.2f} Gflop {times['flops']}, "
        f"{step['bytes'] / 1e6:.1f} MB {times['bytes']}, "
        f"{step['launches']} launches {times['launches']}; bound by {step['bound']}"
    )


def roofline_line(step: dict[str, Any], share: float, goals: dict[str, float]) -> str:
    """Return our share of the roofline; the goal is only for steps that the roofline bounds."""
    goal = f" (goal {goals['roofline']:.0%})" if "roofline" in goals else ""
    if step["bound"] == "launches":
        goal = ", which is no goal where launches bound the step"
    return f"ours is at {share:.0%} of the roofline{goal}"


def compared(ratio: float | None, goal: float | None) -> str:
    """Return our speed relative to another way, and the goal for it."""
    if ratio is None:
        return ""
    return f"   ours {ratio:.2f} x" + (f" (goal {goal:g})" if goal else "")


if __name__ == "__main__":
    main()
