"""The program `python -m trialfleet.nodes.kernels`: compiles the kernels, or shows their state."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trialfleet.nodes.kernels import build, toolchain


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command `build` or `status`, print JSON, and return the exit code.

    The code is 1 if `build` fails, else 0. Wrong arguments end the process with code 2.
    """
    made = argparse.ArgumentParser(prog="trialfleet.nodes.kernels", description=__doc__)
    commands = made.add_subparsers(dest="command", required=True)
    words = "compile the kernels for this machine's torch and GPUs, unless that is done already"
    building = commands.add_parser("build", help=words, description=words)
    words = "default: TRIALFLEET_KERNELS, or trialfleet/kernels in the user's cache"
    building.add_argument("--into", metavar="FOLDER", help=f"build into FOLDER; {words}")
    words = "show which kernels trials would load here, and why no faster kernels can be loaded"
    commands.add_parser("status", help=words, description=words)
    chosen = made.parse_args(arguments)
    if chosen.command == "status":
        values = status()
    else:
        values = build_now(Path(chosen.into) if chosen.into else None)
    print(json.dumps(values, indent=1))
    return 1 if "error" in values else 0


def build_now(place: Path | None) -> dict[str, Any]:
    """Build this machine's library of kernels, load it as a test, and return a report.

    `place` is the folder to build into, by default `build.cache()`. A library that is already there
    is not built again. If building or loading fails, the report only has "error".
    """
    os.umask(0o022)  # if root builds, every user can load the library
    recipe = build.Recipe.for_this_machine()
    try:
        place = place or build.cache()
        there = build.find(recipe, [place])
        library = build.build(recipe, place, again=True)
        build.load(library)
    except (toolchain.BuildError, OSError) as error:
        return {"error": f"no usable library: {error}"}
    recorded = json.loads((library.parent / "build.json").read_text(encoding="utf-8"))
    return {"library": str(library), "built": there is None, **recorded}


def status() -> dict[str, Any]:
    """Print which kernels `ops` would load here, without compiling any. Return the exit code 0."""
    recipe = build.Recipe.for_this_machine()
    found = chosen = None
    implementation: str
    implementation, reason = build.best()
    try:
        found = build.find_usable(recipe)
        if found:
            build.load(found)
        else:
            chosen = toolchain.compilers()
    except (toolchain.BuildError, OSError) as error:
        implementation, reason = "plain", str(error)
    return {
        "implementation": implementation,
        "reason": reason,
        "library": str(found) if found else None,
        "compiled_first_by": [chosen.cxx, chosen.nvcc] if chosen else None,
        "looked_in": [str(place / f"{recipe.key}-*") for place in build.places()],
        "torch": recipe.torch,
        "cuda": recipe.cuda,
        "architectures": list(recipe.architectures),
    }


if __name__ == "__main__":
    sys.exit(main())
