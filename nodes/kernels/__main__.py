"""The program `python -m trialfleet.nodes.kernels`: compiles the kernels, or shows their state."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from trialfleet.nodes.kernels import build, toolchain


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command `build` or `status`, and return its exit code.

    The code is 1 if `build` fails, else 0. Wrong arguments end the process with code 2.
    """
    chosen = parser().parse_args(arguments)
    if chosen.command == "status":
        return status(as_json=chosen.json)
    return build_now(Path(chosen.into) if chosen.into else None, as_json=chosen.json)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="trialfleet.nodes.kernels", description=__doc__)
    commands = made.add_subparsers(dest="command", required=True)
    words = "compile the kernels for this machine's torch and GPUs, unless that is done already"
    building = commands.add_parser("build", help=words, description=words)
    words = "default: TRIALFLEET_KERNELS, or trialfleet/kernels in the user's cache"
    building.add_argument("--into", metavar="FOLDER", help=f"build into FOLDER; {words}")
    words = "show which kernels trials would load here, and why no faster kernels can be loaded"
    telling = commands.add_parser("status", help=words, description=words)
    for command in (building, telling):
        command.add_argument("--json", action="store_true", help="print JSON")
    return made


def build_now(place: Path | None, *, as_json: bool) -> int:
    """Build this machine's library of kernels, load it as a test, and print a report.

    `place` is the folder to build into, by default `build.cache()`. A library that is already there
    is not built again. Return the exit code: 1 if building or loading fails, else 0.
    """
    os.umask(0o022)  # if root builds, every user can load the library
    recipe = build.Recipe.for_this_machine()
    try:
        place = place or build.cache()
        there = build.find(recipe, [place])
        library = build.build(recipe, place, again=True)
        build.load(library)
    except (toolchain.BuildError, OSError) as error:
        print(json.dumps({"error": str(error)}) if as_json else f"No usable library: {error}")
        return 1
    recorded = json.loads((library.parent / "build.json").read_text(encoding="utf-8"))
    values = {"library": str(library), "built": there is None, **recorded}
    if as_json:
        print(json.dumps(values, indent=1))
    else:
        how = f"built in {values['seconds']} s" if values["built"] else "built before"
        print(f"{library}: {how}, for torch {recipe.torch}, {', '.join(values['architectures'])}")
    return 0


def status(*, as_json: bool) -> int:
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
    values: dict[str, str | list[str] | None] = {
        "implementation": implementation,
        "reason": reason,
        "library": str(found) if found else None,
        "compiled_first_by": [chosen.cxx, chosen.nvcc] if chosen else None,
        "looked_in": [str(place / f"{recipe.key}-*") for place in build.places()],
        "torch": recipe.torch,
        "cuda": recipe.cuda,
        "architectures": list(recipe.architectures),
    }
    print(json.dumps(values, indent=1) if as_json else _format_values(values))
    return 0


def _format_values(values: dict[str, str | list[str] | None]) -> str:
    words = {n: ", ".join(filter(None, v)) if isinstance(v, list) else v for n, v in values.items()}
    return "\n".join(f"{name:19}{value}" for name, value in words.items() if value)


if __name__ == "__main__":
    sys.exit(main())
