"""The benchmark of 2014 on today's GPUs: `python -m tests.bench.kernels`.

It times 128 x 1000 calls of MulC (`x *= c`) by several implementations. The arrays range from sizes
where launches take all the time to sizes where memory does. Then each fused operation is compared
with torch.compile. BENCHMARKS.md describes the method and the output of `--json`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch

from tests.bench.kernels import tables
from tests.bench.kernels.results import SUFFIXES, Results, in_words
from trialfleet.nodes.kernels import build

SIZES = tuple(1 << power for power in range(10, 29, 2))  # 1 K to 256 M elements
QUICK_SIZES = (1 << 10, 1 << 20, 1 << 26)
SECONDS, QUICK_SECONDS = 4.0, 0.2  # for one row of MulC
MEMORY = 0.8  # of the free memory, for two arrays
TABLES = ("mulc", "fused")
COMMAND = "python -m tests.bench.kernels"


def main(arguments: Sequence[str]) -> int:
    """Measure and print.

    Returns:
        0; 1 if a result was wrong; 2 for wrong arguments.
    """
    reader = parser()
    chosen = reader.parse_args(arguments)
    try:
        device = device_of(chosen.device)
        sizes = fitting(chosen.sizes or (QUICK_SIZES if chosen.quick else SIZES), device)
    except ValueError as error:
        reader.error(str(error))
    budget = chosen.seconds or (QUICK_SECONDS if chosen.quick else SECONDS)
    from tests.bench.kernels import run  # it loads the kernels, and builds them first

    wanted = run.Wanted(
        sizes=tuple(sizes),
        budget=budget,
        tables=TABLES if chosen.only is None else (chosen.only,),
        quick=chosen.quick,
        without=tuple(chosen.without),
    )
    results = Results(machine=run.machine_of(device))
    for so_far in run.growing(device, wanted, results):
        results = so_far
        if chosen.out:
            replace(chosen.out, json.dumps(results.as_json(), indent=1))
    print(json.dumps(results.as_json(), indent=1) if chosen.json else tables.text(results))
    return 1 if any(row.skipped == run.WRONG for row in results.mulc) else 0


def replace(path: Path, text: str) -> None:
    """Replace a file atomically by one with the text `text`."""
    beside = path.with_suffix(".new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = Parser(
        prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--device", default="auto", help="cuda, cuda:1, cpu; default: a GPU if there is one"
    )
    made.add_argument(
        "--sizes",
        type=sizes_of,
        metavar="N,N",
        help="elements of MulC's arrays, such as 1K,64K,16M",
    )
    made.add_argument(
        "--quick",
        action="store_true",
        help="three sizes, the smaller of the fused operations', fewer calls than 128 x 1000",
    )
    made.add_argument("--only", choices=TABLES, help="one of the two tables")
    made.add_argument(
        "--seconds", type=float, metavar="S", help="for one row at most, instead of the usual"
    )
    made.add_argument(
        "--without",
        metavar="VARIANT",
        action="append",
        default=[],
        help="leave out: compile, npp …",
    )
    made.add_argument("--json", action="store_true", help="everything, as JSON")
    made.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write the JSON to this file, too, again after each row",
    )
    return made


def sizes_of(text: str) -> tuple[int, ...]:
    """Return the sizes in a text such as "1K,64K,16M" (2^10, 2^16, 2^24), in rising order.

    Raises:
        argparse.ArgumentTypeError: the text is not such a list.
    """
    found = [re.fullmatch(r"([1-9][0-9]*)([KM]?)", word) for word in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of sizes, such as 1K,64K,16M")
    return tuple(sorted({int(match[1]) * SUFFIXES[match[2]] for match in found if match}))


def device_of(name: str) -> torch.device:
    """Return the device `name`; for "auto" a GPU, or the CPU if there is none.

    Raises:
        ValueError: this machine has no such device.
    """
    count = torch.cuda.device_count()
    if name == "auto":
        if not count:
            build.print_progress(
                f"no GPU here: these are the processor's figures; a GPU's: {COMMAND} there"
            )
        return torch.device("cuda:0" if count else "cpu")
    if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", name):
        raise ValueError(f"--device {name}: choose auto, cpu, cuda or cuda:N")
    device = torch.device("cuda:0" if name == "cuda" else name)
    if device.type == "cuda" and device.index >= count:
        has = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
        raise ValueError(
            f"--device {name}: torch {torch.__version__} ({has}) sees {count} GPUs here"
        )
    return device


def fitting(sizes: Sequence[int], device: torch.device) -> list[int]:
    """Return those sizes of which two arrays fit into the device's memory.

    Raises:
        ValueError: not even the smallest size fits.
    """
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = int(free * MEMORY) // (2 * torch.float32.itemsize)
    kept = [size for size in sizes if size <= limit]
    if not kept:
        raise ValueError(f"--sizes: memory is enough for {limit} elements, not for {min(sizes)}")
    if left := [in_words(size) for size in sizes if size > limit]:
        build.print_progress(
            f"too large for the memory here, so left out: {', '.join(left)} elements"
        )
    return kept


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
