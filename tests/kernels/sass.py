"""What a GPU's instructions come to, counted without one: `python -m tests.kernels.sass`.

    python -m tests.kernels.sass activation.cu --kernel forward_kernel --through 0x2daee0ad

compiles one file of csrc/cuda for an architecture and prints for each kernel how many instructions
it has, how many the shortest way through it takes, and how many each further round of its loop:
what a thread does where all is aligned. `--through` is a text that one of them must have, such as
Philox's multiplier, which a layer without dropout jumps over. Needs nvcc and cuobjdump.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.kernels.stand_in import CUDA

FUNCTION = re.compile(r"Function : (\S+)")
LINE = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+) )?([\w.]+)(.*?);")
ENDS = ("EXIT", "RET", "BRA", "CALL", "BRX", "JMP")


@dataclass(frozen=True)
class Instruction:
    """One instruction: what it is, where it may lead, and whether to the next one."""

    name: str
    text: str
    target: int | None
    falls: bool


@dataclass
class Kernel:
    """A kernel's instructions by their addresses."""

    name: str
    code: dict[int, Instruction] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(each.name != "NOP" for each in self.code.values())

    def way(self, through: str = "") -> int | None:
        """Return the instructions of the shortest way to the end that has such a text in it."""
        ends = {at for at, each in self.code.items() if each.name == "EXIT"}
        return self._shortest(min(self.code), ends, through)

    def round(self, through: str = "") -> int | None:
        """Return those of one more round of the loop: back to where it began."""
        back = {(each.target, at) for at, each in self.code.items() if (each.target or at) < at}
        rounds = (self._shortest(begin, {end}, through) for begin, end in back if begin is not None)
        return min(filter(None, rounds), default=None)

    def _shortest(self, begin: int, ends: set[int], through: str) -> int | None:
        steps, here = 0, {(begin, not through)}
        seen = set(here)
        while here:
            steps += 1
            onward: set[tuple[int, bool]] = set()
            for at, met in here:
                now = met or through in self.code[at].text
                if now and at in ends:
                    return steps
                onward |= {(to, now) for to in self.after(at)}
            here = onward - seen
            seen |= here
        return None

    def after(self, at: int) -> Iterator[int]:
        """Yield where an instruction leads."""
        each = self.code[at]
        following = at + 16
        if each.target in self.code and each.target is not None:
            yield each.target
        if each.falls and following in self.code:
            yield following


def kernels(listing: str) -> Iterator[Kernel]:
    """Yield the kernels of cuobjdump's listing."""
    kernel: Kernel | None = None
    for line in listing.splitlines():
        if found := FUNCTION.search(line):
            if kernel is not None:
                yield kernel
            kernel = Kernel(found[1])
        elif kernel is not None and (found := LINE.match(line)):
            address, guard, name, rest = found.groups()
            end = name.split(".")[0] in ENDS
            to = re.search(r"0x([0-9a-f]+)\s*$", rest) if end else None
            falls = not end or guard is not None
            kernel.code[int(address, 16)] = Instruction(
                name, line, int(to[1], 16) if to else None, falls
            )
    if kernel is not None:
        yield kernel


def listing(source: Path, architecture: str) -> str:
    """Compile a file and return its instructions.

    Raises:
        subprocess.CalledProcessError: nvcc refuses it.
    """
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernels.cubin"
        flags = ["-O3", "-std=c++17", f"-arch={architecture}", "-cubin"]
        subprocess.run(["nvcc", *flags, "-o", cubin, source], check=True)
        shown = subprocess.run(
            ["cuobjdump", "-sass", cubin], check=True, capture_output=True, text=True
        )
    return shown.stdout


def demangled(name: str) -> str:
    """Return a kernel's name without namespaces and arguments."""
    if not shutil.which("c++filt"):
        return name
    output = subprocess.run(["c++filt", name], capture_output=True, text=True, check=False).stdout
    plain = re.sub(r"(?:\w+|\(anonymous namespace\))::|^void ", "", output.strip())
    return re.sub(r"(?<!<|,| )\((?!\w+\)\d).*", "", plain)


def main() -> None:
    """Count and print."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("file", help="in csrc/cuda")
    reader.add_argument("--architecture", default="sm_90")
    reader.add_argument("--kernel", default="", help="those with this in the name")
    reader.add_argument("--through", default="", metavar="TEXT")
    chosen = reader.parse_args()
    print(" all  way  round")
    for kernel in kernels(listing(CUDA / chosen.file, chosen.architecture)):
        if chosen.kernel in kernel.name:
            counts = (kernel.way(chosen.through), kernel.round(chosen.through))
            print(f"{len(kernel):4}" + "".join(f"{count or '-':>6}" for count in counts), end="  ")
            print(demangled(kernel.name))


if __name__ == "__main__":
    main()
