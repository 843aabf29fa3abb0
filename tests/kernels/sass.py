"""A GPU's instructions, counted without a GPU: `python -m tests.kernels.sass`.

    python -m tests.kernels.sass [activation.cu …] [--kernel forward_kernel] [--architecture sm_90]

compiles the files of csrc/cuda for an architecture and prints for each kernel a line for each of
its loops that moves data: the instructions of a round, all those that lie between the loop's
beginning and its jump back, a branch that is seldom taken too; the bytes that a thread reads from
global memory and writes there in a round; and the instructions by 16 of these bytes, which are four
numbers of float32 or eight of bfloat16. A loop that moves nothing counts once, in the one around
it. A kernel that has no such loop has the line "way": from its beginning to its end through its
widest read and store. Needs nvcc and cuobjdump (of nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.kernels.stand_in import CUDA
from trialfleet.nodes.kernels.toolchain import PACKAGES

FUNCTION = re.compile(r"Function : (\S+)")
LINE = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+) )?([\w.]+)(.*?);")
# For elsewhere, unless they have a condition. Calls are the rare cases of divisions and roots.
LEAVES = ("EXIT", "RET", "BRA", "BRX", "JMP", "CALL")
JUMPS = ("BRA", "JMP")
WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}  # bytes; else 4
READS = ("LDG", "LD")  # from global memory, and the writes to it
WRITES = ("STG", "ST", "RED", "ATOM", "ATOMG")
PACK = 16  # bytes


@dataclass(frozen=True)
class Instruction:
    """One instruction: what it is, where it may jump, and whether it may lead to the next one."""

    name: str
    target: int | None
    falls: bool

    def bytes(self, kinds: tuple[str, ...]) -> int:
        """Return how many a thread moves by it, if it is of such a kind."""
        kind, *details = self.name.split(".")
        return next((WIDTHS[d] for d in details if d in WIDTHS), 4) if kind in kinds else 0


@dataclass(frozen=True)
class Round:
    """Instructions and bytes of a thread, in one round of a loop or one pass through a kernel."""

    what: str
    instructions: int
    read: int
    written: int

    @property
    def moved(self) -> int:
        """Bytes, both ways."""
        return self.read + self.written

    @property
    def per_pack(self) -> float:
        """Instructions by 16 bytes that are moved."""
        return self.instructions * PACK / self.moved


@dataclass
class Kernel:
    """A kernel's instructions by their addresses."""

    name: str
    code: dict[int, Instruction] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(each.name != "NOP" for each in self.code.values())

    def rounds(self) -> list[Round]:
        """Return those of the loops that move data, the inner ones; or the way through."""
        moving = [loop for loop in self._loops() if self._round("", loop).moved]
        inner = [loop for loop in moving if not any(other < loop for other in moving)]
        return [self._round("round", loop) for loop in inner] or [*self._way()]

    def _round(self, what: str, places: Iterable[int]) -> Round:
        each = [self.code[place] for place in places]
        return Round(
            what=what,
            instructions=sum(one.name != "NOP" for one in each),
            read=sum(one.bytes(READS) for one in each),
            written=sum(one.bytes(WRITES) for one in each),
        )

    def _loops(self) -> list[frozenset[int]]:
        """Return the addresses of each: what leads to its jump back, and not to its beginning."""
        before = defaultdict(list)
        for at in self.code:
            for to in self.after(at):
                before[to].append(at)
        loops: dict[int, set[int]] = defaultdict(set)
        for at, each in self.code.items():
            begin = each.target
            if begin is None or not min(self.code) < begin < at:
                continue
            loop, ahead = loops[begin] | {begin}, [at]
            while ahead:
                if (here := ahead.pop()) not in loop:
                    loop.add(here)
                    ahead += before[here]
            loops[begin] = loop
        return [frozenset(loop) for loop in loops.values()]

    def _way(self) -> Iterator[Round]:
        """Yield the shortest way to the end through the widest read and then the widest store."""
        ends = {at for at, each in self.code.items() if each.name == "EXIT"}
        way = [min(self.code)]
        for aims in (self._widest(READS), self._widest(WRITES), ends):
            way = way[:-1] + self._shortest(way[-1], aims)
            if not way or way[-1] not in aims:
                return
        yield self._round("way", way)

    def _widest(self, kinds: tuple[str, ...]) -> set[int]:
        """Return the addresses of the instructions that move most of their kinds."""
        most = max(each.bytes(kinds) for each in self.code.values())
        return {at for at, each in self.code.items() if each.bytes(kinds) == most > 0}

    def _shortest(self, begin: int, ends: set[int]) -> list[int]:
        """Return the addresses from one to one of some; none where nothing leads there."""
        ways, seen = {begin: [begin]}, {begin}
        while ways:
            if found := next((way for at, way in ways.items() if at in ends), None):
                return found
            ways = {to: [*way, to] for at, way in ways.items() for to in self.after(at)}
            ways = {to: way for to, way in ways.items() if to not in seen}
            seen |= {*ways}
        return []

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
            kind = name.split(".")[0]
            to = re.search(r"0x([0-9a-f]+)\)?\s*$", rest) if kind in JUMPS else None
            kernel.code[int(address, 16)] = Instruction(
                name, int(to[1], 16) if to else None, kind not in LEAVES or guard is not None
            )
    if kernel is not None:
        yield kernel


def tools() -> str:
    """Return PATH with the folders of NVIDIA's Python packages behind it."""
    return os.pathsep.join([os.environ["PATH"], *map(str, PACKAGES.glob("nvidia/*/bin"))])


def listing(source: Path, architecture: str) -> str:
    """Compile a file and return its instructions.

    Raises:
        subprocess.CalledProcessError: nvcc refuses it.
    """
    with tempfile.TemporaryDirectory() as folder:
        cubin, environment = Path(folder) / "kernels.cubin", {**os.environ, "PATH": tools()}
        flags = ["-O3", "-std=c++17", f"-arch={architecture}", "-cubin"]
        subprocess.run(["nvcc", *flags, "-o", cubin, source], check=True, env=environment)
        shown = subprocess.run(
            ["cuobjdump", "-sass", cubin],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
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
    every = sorted(path.name for path in CUDA.glob("*.cu"))
    reader.add_argument("files", nargs="*", default=every, help="in csrc/cuda; default: all")
    reader.add_argument("--architecture", default="sm_90")
    reader.add_argument("--kernel", default="", help="those with this in the name")
    chosen = reader.parse_args()
    print("| kernel | all | | instructions | bytes read | written | by 16 bytes |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for file in chosen.files:
        for kernel in kernels(listing(CUDA / file, chosen.architecture)):
            name = demangled(kernel.name)
            for each in kernel.rounds() if chosen.kernel in name else ():
                print(
                    f"| `{name}` | {len(kernel)} | {each.what} | {each.instructions} | "
                    f"{each.read} | {each.written} | {each.per_pack:.1f} |"
                )


if __name__ == "__main__":
    main()
