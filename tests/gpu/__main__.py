"""Everything that a GPU has to show, within eight minutes: `make gpu`, `python3 -m tests.gpu`.

It needs Python, torch, numpy and pytest, and an nvcc for torch's CUDA. Run it in the tree's root.
`python3 -m tests.gpu.report FILE` makes BENCHMARKS.md of its file. With --dry all of it runs on the
processor, on the smallest cases.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.runner import ROOT, Runner
from tests.gpu.steps import steps

BUILD = ROOT / "build" / "gpu"


def main(arguments: Sequence[str]) -> int:
    """Run the steps.

    Returns:
        0; 1 if a step failed or was too late; 2 for wrong arguments.
    """
    reader = argparse.ArgumentParser(
        prog="python3 -m tests.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    reader.add_argument("--dry", action="store_true", help="on the processor: no figure counts")
    reader.add_argument(
        "--out", type=Path, metavar="FILE", default=BUILD / "gpu.json", help="default: %(default)s"
    )
    reader.add_argument(
        "--work",
        type=Path,
        metavar="FOLDER",
        default=BUILD / "work",
        help="for the kernels, and what each step said; default: %(default)s",
    )
    reader.add_argument("--only", metavar="STEP,STEP", help="these steps alone")
    reader.add_argument("--skip", metavar="STEP,STEP", default="", help="all but these")
    chosen = reader.parse_args(arguments)
    every = [*steps(dry=chosen.dry)]
    names = [step.name for step in every]
    only, skip = (
        (chosen.only or ",".join(names)).split(","),
        [*filter(None, chosen.skip.split(","))],
    )
    for name in (*only, *skip):
        if name not in names:
            reader.error(f"{name!r} is no step; there are {', '.join(names)}")
    if not (ROOT / "src" / "trialfleet" / "nodes").is_dir():
        reader.error("src/trialfleet/nodes leads nowhere: copy the tree with its symbolic links")
    given = [f"--{name} {value}" for name in ("only", "skip") if (value := getattr(chosen, name))]
    command = " ".join(["python3 -m tests.gpu", *given])  # not the place of its results
    runner = Runner(chosen.work.absolute(), chosen.out, command, dry=chosen.dry)
    good = runner.run([step for step in every if step.name in only and step.name not in skip])
    print(
        f"{'all done' if good else 'NOT all done'}, in {runner.record['seconds']} s: {chosen.out}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
