"""The benchmark's results: rows, figures computed from them, and goals. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = 1
FULL = 128 * 1000  # calls
LAUNCH_BOUND = 1.0  # µs at the copy's speed: less than any launch takes
MEMORY_BOUND = 100.0  # µs at the copy's speed: so much that a launch no longer shows
CACHES = 4  # and this multiple of the last cache; less would not measure the memory

COPY_GOAL = 0.9  # of the copy's bandwidth, where memory dominates
STREAMING = (  # those that read and write in order and compute little
    *("mulc", "adamw_step_", "sgd_step_"),
    *("mean_squared_error", "bias_relu_dropout"),
)
STREAMING_GOAL = 0.95
NPP_GOALS = (  # variant, reference, least ratio of speeds, where launches dominate
    ("ours", "npp", 1.0),
    ("ours, graph", "npp", 1.6),  # the calls' time that a graph saves
)
COMPUTING = ("linear, bias_relu_dropout",)  # bounded by a matrix product, not by its bytes
COMPILE_GOAL = 1.0  # times as fast as torch.compile, each fused operation
COMPUTING_GOAL = 0.97  # both call the same product, and one has another epilogue
SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20}


def in_words(elements: int) -> str:
    """Return a number in short form, such as 4096 as "4 K"."""
    for suffix in ("M", "K"):
        if elements % SUFFIXES[suffix] == 0:
            return f"{elements // SUFFIXES[suffix]} {suffix}"
    return str(elements)


@dataclass(frozen=True)
class Machine:
    """The machine of a measurement; unknown values are null in JSON and "-" in text."""

    when: str
    device: str
    name: str
    cache_bytes: int | None
    driver: str | None
    check_pci_config_space: str | None
    torch_version: str
    cuda_version: str | None
    python_version: str
    threads: int
    implementation: str
    reason: str
    npp: str


@dataclass(frozen=True)
class Row:
    """One measurement, or why there is none.

    Attributes:
        operation: "mulc", or the fused operation's name.
        shape: its size in words.
        variant: name of the implementation.
        manner: "called" from Python each time; "graph", a round's calls in one CUDA graph.
        bytes: the least that a call reads and writes.
        rounds: number of timed rounds.
        calls: number of calls in a round.
        seconds: of all rounds; comparable with 2014's figure if they are 128 x 1000 calls.
        microseconds: of a call, the median of the rounds.
        low: of a call, the rounds' first decile.
        high: of a call, the rounds' last decile.
        skipped: why nothing was measured, or "".
    """

    operation: str
    shape: str
    variant: str
    manner: str
    bytes: int
    rounds: int = 0
    calls: int = 0
    seconds: float = 0.0
    microseconds: float = 0.0
    low: float = 0.0
    high: float = 0.0
    skipped: str = ""

    @property
    def label(self) -> str:
        """Variant and manner."""
        return self.variant if self.manner == "called" else f"{self.variant}, {self.manner}"

    @property
    def made_full(self) -> bool:
        """True if 128 x 1000 calls were made as in 2014, so that the seconds compare."""
        return self.rounds * self.calls == FULL

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes per second."""
        return self.bytes / self.microseconds / 1000 if self.microseconds else 0.0

    @property
    def launches_per_s(self) -> float:
        """Calls per second."""
        return 1e6 / self.microseconds if self.microseconds else 0.0

    def share(self, copy: float) -> float:
        """Return this row's GB/s divided by `copy`, those of the copy."""
        return self.gb_per_s / copy

    def as_json(self, copy: float | None) -> dict[str, Any]:
        """Return the row as plain data; null for what was not measured (128,000 times)."""
        if self.skipped:
            known = ("operation", "shape", "variant", "manner", "bytes", "skipped")
            return {name: value for name, value in asdict(self).items() if name in known}
        full = self.seconds if self.made_full else None
        return {
            **{name: value for name, value in asdict(self).items() if name != "skipped"},
            "seconds_of_128000": full,
            "gb_per_s": self.gb_per_s,
            "share": self.share(copy) if copy else None,
            "launches_per_s": self.launches_per_s,
        }


@dataclass(frozen=True)
class Goal:
    """A ratio that the kernels should reach on a GPU.

    Attributes:
        name: what is compared.
        wanted: the least ratio that meets the goal.
        found: the worst that was measured; None if nothing was measured.
        where: the size at which the worst was measured.
    """

    name: str
    wanted: float
    found: float | None
    where: str

    @property
    def verdict(self) -> str:
        """Whether the goal is met, as text."""
        if self.found is None:
            return "not judged"
        return "met" if self.found >= self.wanted else "not met"


@dataclass(frozen=True)
class Then:
    """A row of the benchmark of 2014: seconds for 128 x 1000 calls."""

    machine: str
    gpu: str
    memory: str
    check_pci_config_space: int
    own_kernel: float
    npp: float


REFERENCE = (
    Then("cg1.4xlarge", "Tesla M2050", "148 GB/s", 1, 3.37, 103.04),
    Then("cg1.4xlarge", "Tesla M2050", "148 GB/s", 0, 2.56, 6.17),
    Then("g2.2xlarge", "GRID K520", "198 GB/s", 1, 2.01, 299.23),
    Then("g2.2xlarge", "GRID K520", "198 GB/s", 0, 0.97, 3.48),
)


@dataclass(frozen=True)
class Results:
    """One run of the benchmark.

    Attributes:
        machine: on which it was measured.
        mulc: the rows of MulC.
        fused: the rows of the fused operations.
    """

    machine: Machine
    mulc: tuple[Row, ...] = ()
    fused: tuple[Row, ...] = ()

    @property
    def copy(self) -> float | None:
        """GB/s of the copy to which shares are relative; None if it was not measured."""
        return copy_bandwidth(self.mulc, self.machine.cache_bytes)

    def dominates(self, row: Row) -> str:
        """Return what dominates a row: "launch", "memory", or ""."""
        return regime(row.bytes, self.copy, self.machine.cache_bytes)

    def goals(self) -> list[Goal]:
        """Return each goal with the worst measured ratio; none for the CPU."""
        if self.machine.cache_bytes is None:
            return []
        large = [row for row in self.mulc if self.dominates(row) == "memory"]
        small = [row for row in self.mulc if self.dominates(row) == "launch"]
        return [
            copy_goal("mulc", large, self.copy, "MulC"),
            *(npp_goal(small, *pair) for pair in NPP_GOALS),
            *self.fused_copy_goals(),
            *compile_goals(self.fused),
        ]

    def fused_copy_goals(self) -> Iterator[Goal]:
        """Yield each fused operation's share of the copy's bandwidth, if memory dominates it."""
        for name in dict.fromkeys(row.operation for row in self.fused):
            if name in COMPUTING:
                continue
            own = [row for row in self.fused if row.operation == name]
            large = [row for row in own if self.dominates(row) == "memory"]
            yield copy_goal(name, large, self.copy)

    def as_json(self) -> dict[str, Any]:
        """Return everything as BENCHMARKS.md describes it."""
        return {
            "schema": SCHEMA,
            "machine": asdict(self.machine),
            "copy_gb_per_s": self.copy,
            "mulc": [row.as_json(self.copy) for row in self.mulc],
            "fused": [row.as_json(self.copy) for row in self.fused],
            "goals": [{**asdict(goal), "verdict": goal.verdict} for goal in self.goals()],
            "reference_2014": [asdict(row) for row in REFERENCE],
        }


def copy_bandwidth(rows: Iterable[Row], cache: int | None) -> float | None:
    """Return the GB/s of the copy of the largest array; None if it may have fit into a cache."""
    beyond = CACHES * (cache or 0)
    copies = [r for r in rows if r.label == "copy" and not r.skipped and r.bytes / 2 >= beyond]
    return max(copies, key=lambda row: row.bytes).gb_per_s if copies else None


def regime(moved: int, copy: float | None, cache: int | None) -> str:
    """Return what dominates a call: "launch", "memory", or "" if it is both or unknown.

    Args:
        moved: bytes that the call reads and writes; for MulC twice the array.
        copy: GB/s of the device's copy; None if unknown.
        cache: bytes of the device's last cache; None if unknown.
    """
    if cache is None or not copy:
        return ""
    microseconds = moved / copy / 1000
    if microseconds < LAUNCH_BOUND:
        return "launch"
    if microseconds >= MEMORY_BOUND and moved / 2 >= CACHES * cache:
        return "memory"
    return ""


def copy_goal(operation: str, large: Sequence[Row], copy: float | None, title: str = "") -> Goal:
    """Return the goal for the share of the copy's bandwidth, over rows that memory dominates."""
    found = [
        (row.share(copy), row.shape)
        for row in large
        if copy and row.label == "ours" and not row.skipped
    ]
    wanted = STREAMING_GOAL if operation in STREAMING else COPY_GOAL
    return Goal(f"{title or operation}, share of the device copy", wanted, *worst(found))


def npp_goal(small: Sequence[Row], mine: str, theirs: str, wanted: float) -> Goal:
    """Return the goal for the speed relative to NPP, over rows that launches dominate."""
    found = ratios(small, mine, theirs)
    return Goal(f"MulC, times as fast as NPP: {mine} / {theirs}", wanted, *worst(found))


def compile_goals(rows: Sequence[Row]) -> Iterator[Goal]:
    """Yield for each fused operation the goal for its speed relative to torch.compile."""
    for name in dict.fromkeys(row.operation for row in rows):
        for graph in ("", ", graph"):
            own = [row for row in rows if row.operation == name]
            found = ratios(own, f"ours{graph}", f"compile{graph}")
            title = f"{name}, times as fast as torch.compile{graph}"
            wanted = COMPUTING_GOAL if name in COMPUTING else COMPILE_GOAL
            yield Goal(title, wanted, *worst(found))


def ratios(rows: Sequence[Row], mine: str, theirs: str) -> list[tuple[float, str]]:
    """Return the time of variant `theirs` divided by that of `mine`, for each common shape."""
    measured = [row for row in rows if not row.skipped]
    other = {row.shape: row.microseconds for row in measured if row.label == theirs}
    return [
        (other[row.shape] / row.microseconds, row.shape)
        for row in measured
        if row.label == mine and row.shape in other
    ]


def worst(found: Sequence[tuple[float, str]]) -> tuple[float | None, str]:
    """Return the least of some ratios, and the place that belongs to it."""
    return min(found) if found else (None, "")
