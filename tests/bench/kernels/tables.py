"""The benchmark's results as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from tests.bench.kernels.results import REFERENCE, Goal, Machine, Results, Row

NO_GOALS = "Goals are for a GPU, so none is judged here."


def text(results: Results) -> str:
    """Return all tables."""
    judged = results.goals()
    parts = (
        machine_lines(results.machine),
        seconds_table(results.mulc),
        reference_table(),
        detail_table(results),
        goal_table(judged) if judged else [NO_GOALS],
    )
    return "\n\n".join("\n".join(part) for part in parts)


def machine_lines(machine: Machine) -> Iterator[str]:
    """Yield lines that describe the machine."""
    cuda = f"CUDA {machine.cuda_version}" if machine.cuda_version else "no CUDA"
    why = f" ({machine.reason})" if machine.reason else ""
    yield f"{machine.when}  {machine.name} ({machine.device}, {machine.threads} threads)"
    yield f"driver {machine.driver or '-'}  CheckPCIConfigSpace {checks_in_words(machine)}"
    yield f"torch {machine.torch_version} ({cuda})  Python {machine.python_version}"
    yield f"NPP: {machine.npp}"
    yield f"ours: {machine.implementation}{why}"


def checks_in_words(machine: Machine) -> str:
    """Return, as text, the driver's option that the authors changed in 2014."""
    if machine.driver is None:
        return "- (no driver)"
    return machine.check_pci_config_space or "- (this driver has no such option)"


def seconds_table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield 2014's table with today's results: a row per size, a column per variant."""
    full = {(r.shape, r.label): r.seconds for r in rows if r.made_full}
    labels = [label for label in dict.fromkeys(r.label for r in rows) if label != "copy"]
    shown = [label for label in labels if any(own == label for _, own in full)]
    yield "Seconds for 128 x 1000 calls of MulC, float32 in place (-: fewer calls were made)"
    if not shown:
        yield "No array was multiplied so often in the time given; what a call took is below."
        return
    yield "".join([f"{'elements':>8}", *(f"{label:>15}" for label in shown)])
    for shape in dict.fromkeys(row.shape for row in rows):
        cells = (full.get((shape, label)) for label in shown)
        yield "".join([f"{shape:>8}", *(f"{'-' if c is None else f'{c:.2f}':>15}" for c in cells)])


def detail_table(results: Results) -> Iterator[str]:
    """Yield the lines of all rows, under headings with operation and size."""
    titles = ("us/call", "10-90 %", "GB/s", "of copy", "launches/s", "ours is", "calls")
    yield f"{'':<20}" + "{:>9} {:>19} {:>8} {:>8} {:>11} {:>9} {:>7}".format(*titles)
    rows = (*results.mulc, *results.fused)
    for (operation, shape), group in groupby(rows, key=attrgetter("operation", "shape")):
        own = list(group)
        dominates = results.dominates(own[0]) if own[0] in results.mulc else ""
        yield f"{operation}, {shape}{f': {dominates} dominates' if dominates else ''}"
        mine = {row.manner: row.microseconds for row in own if row.variant == "ours"}
        for row in own:
            yield f"  {row.label:<18}{columns(row, results.copy, mine.get(row.manner, 0.0))}"


def columns(row: Row, copy: float | None, mine: float) -> str:
    """Return a row's figures; "ours is" is our speed relative to the row's."""
    if row.skipped:
        return f"  - {row.skipped}"
    share = f"{row.share(copy):.1%}" if copy else "-"
    times = f"{row.microseconds / mine:.2f} x" if mine and row.variant != "ours" else ""
    return (
        f"{row.microseconds:9.2f} {f'{row.low:.2f}-{row.high:.2f}':>19} {row.gb_per_s:8.1f} "
        f"{share:>8} {row.launches_per_s:11.0f} {times:>9} {row.rounds * row.calls:>7}"
    )


def reference_table() -> Iterator[str]:
    """Yield the lines of 2014's table with the results of 2014."""
    yield "For reference, 2014: seconds for 128 x 1000 calls of MulC, by an own kernel and by NPP"
    yield "(Netflix Tech Blog, Distributed Neural Networks with GPUs in the AWS Cloud)"
    titles = ("machine", "GPU", "memory", "CheckPCIConfigSpace", "own", "NPP")
    yield "{:<12} {:<12} {:<9} {:>19} {:>8} {:>8}".format(*titles)
    for row in REFERENCE:
        yield (
            f"{row.machine:<12} {row.gpu:<12} {row.memory:<9} {row.check_pci_config_space:>19} "
            f"{row.own_kernel:>8.2f} {row.npp:>8.2f}"
        )


def goal_table(judged: Sequence[Goal]) -> Iterator[str]:
    """Yield the lines of the goals."""
    yield "Goals on an H200-class GPU, each judged where it was worst"
    for goal in judged:
        found = "" if goal.found is None else f"{goal.found:.3f} at {goal.where}"
        wanted = f"at least {goal.wanted:g}"
        yield f"{goal.name:<62} {wanted:<14} {found:<28} {goal.verdict}".rstrip()
