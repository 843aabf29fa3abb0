"""The kernels' benchmark: its arithmetic, its timing, NPP's binding, and the whole command."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.bench.kernels import __main__ as bench
from tests.bench.kernels import fused, mulc, npp, run, tables, timing
from tests.bench.kernels import results as bench_results
from tests.bench.kernels.results import Goal, Machine, Results, Row, regime
from trialfleet.nodes.kernels import build, toolchain

CPU = torch.device("cpu")
MI = 1 << 20
COPY = Row("mulc", "256 M", "copy", "called", bytes=2048 * MI, microseconds=512.0)
LARGE = replace(COPY, variant="ours", microseconds=520.0)
SMALL = replace(LARGE, shape="1 K", bytes=8192, microseconds=3.0, rounds=128, calls=1000)
CACHE = 50 * MI


def results(*mulc: Row, cache: int | None = CACHE) -> Results:
    """Return a run on a GPU."""
    machine = Machine(
        when="2030-01-01T00:00:00Z",
        device="cuda:0",
        name="GPU",
        cache_bytes=cache,
        driver="580.65.06",
        check_pci_config_space=None,
        torch_version="2.13.0",
        cuda_version="13.0",
        python_version="3.12.1",
        threads=8,
        implementation="cuda",
        reason="",
        npp="nvidia-npp 13.2.0.93",
    )
    return Results(machine=machine, mulc=mulc, fused=())


# --- Arithmetic and goals -----------------------------------------------------------------------


def test_a_row_gives_bandwidth_share_and_launches_per_second() -> None:
    row = Row("mulc", "1 M", "ours", "called", bytes=8_000_000, microseconds=4.0)
    assert row.gb_per_s == 2000.0
    assert row.share(2500.0) == 0.8
    assert row.launches_per_s == 250_000


def test_the_copy_bandwidth_is_that_of_the_largest_array_without_a_graph() -> None:
    small = replace(COPY, bytes=512 * MI, microseconds=0.1)
    in_graph = replace(COPY, manner="graph", microseconds=1.0)
    failed = replace(COPY, bytes=4096 * MI, microseconds=0.0, skipped="out of memory")
    rows = [small, COPY, in_graph, failed, LARGE]
    assert bench_results.copy_bandwidth(rows, CACHE) == COPY.gb_per_s
    assert bench_results.copy_bandwidth([LARGE], CACHE) is None


def test_a_copy_within_the_cache_gives_no_bandwidth_and_no_verdict() -> None:
    """A run that was cut off has but small arrays: their copy never comes to the memory."""
    cached = replace(COPY, shape="32 M", bytes=256 * MI, microseconds=40.0)
    assert bench_results.copy_bandwidth([cached], None) == cached.gb_per_s  # on a processor
    found = results(cached, replace(cached, variant="ours"), SMALL)
    assert found.copy is None
    assert {row["share"] for row in found.as_json()["mulc"]} == {None}
    assert {goal.verdict for goal in found.goals()} == {"not judged"}
    assert list(tables.detail_table(found))[2].split()[4] == "-"


def test_the_largest_array_is_measured_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing.Meter, "warm_up", 0.0)
    wanted = run.Wanted(sizes=(8, 64), budget=0.0, tables=("mulc",), without=("compile", "npp"))
    rows = [*run.mulc_rows(timing.Meter(CPU), wanted)]
    assert [*dict.fromkeys(row.shape for row in rows)] == ["64", "8"]


def test_the_copied_values_differ_from_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal numbers ask less of a GPU than those that a program has."""
    copied = []
    monkeypatch.setattr(mulc, "VARIANTS", {"copy": lambda x, _: lambda: copied.append(x)})
    wanted = run.Wanted(sizes=(64,), budget=0.0, tables=())
    [*run.mulc_rows(timing.Meter(CPU), wanted)]
    assert copied[0].unique().numel() > 32


@pytest.mark.parametrize(
    ("moved", "cache", "dominates"),
    [
        (8 << 10, CACHE, "launch"),  # 1 K elements: 2 ns of copying at 4000 GB/s
        (8 * MI, CACHE, ""),  # 2 µs
        (600 * MI, CACHE, "memory"),  # an array of 300 MiB, 157 µs
        (600 * MI, 100 * MI, ""),  # a good part of it stays in the cache
        (8 << 10, None, ""),
    ],
)
def test_launches_dominate_small_arrays_and_memory_dominates_large_ones(
    moved: int, cache: int | None, dominates: str
) -> None:
    assert regime(moved, 4000.0, cache) == dominates


def test_the_copy_goal_is_judged_at_the_worst_large_array() -> None:
    nearly = replace(LARGE, shape="64 M", bytes=512 * MI, microseconds=COPY.microseconds / 4 / 0.94)
    met = results(COPY, LARGE, SMALL).goals()[0]
    assert (met.verdict, met.where) == ("met", "256 M")
    missed = results(COPY, LARGE, nearly, SMALL).goals()[0]
    assert (missed.verdict, missed.where) == ("not met", "64 M")
    assert missed.found == pytest.approx(0.94)


def test_our_kernel_is_compared_with_npp_only_where_launches_dominate() -> None:
    """Its kernel as Python calls it, and what a graph saves of the calls."""
    npps = replace(SMALL, variant="npp", microseconds=4.8)
    large = replace(LARGE, variant="npp", microseconds=6000.0)
    called = replace(SMALL, microseconds=5.0)
    in_graph = replace(SMALL, manner="graph", microseconds=2.0)
    goals = results(COPY, LARGE, npps, large, called, in_graph).goals()[1:3]
    names = [goal.name.rpartition(": ")[2] for goal in goals]
    assert names == ["ours / npp", "ours, graph / npp"]
    assert [goal.found for goal in goals] == pytest.approx([0.96, 2.4])
    assert [(goal.wanted, goal.verdict) for goal in goals] == [(1.0, "not met"), (1.6, "met")]


def test_each_fused_operation_has_a_goal_with_and_without_a_graph() -> None:
    ours = Row("sgd_step_", "8", "ours", "called", bytes=8, microseconds=10.0)
    rows = [
        *(ours, replace(ours, variant="compile", microseconds=9.0)),
        *(replace(ours, manner="graph"), replace(ours, variant="compile", manner="graph")),
    ]
    called, in_graph = bench_results.compile_goals(rows)
    assert (called.verdict, called.found) == ("not met", 0.9)
    assert (in_graph.verdict, in_graph.found) == ("met", 1.0)
    products = [replace(row, operation="linear, bias_relu_dropout") for row in rows]
    assert [goal.wanted for goal in bench_results.compile_goals(products)] == [0.97, 0.97]


@pytest.mark.parametrize(
    ("operation", "wanted"),
    [("sgd_step_", 0.95), ("bias_relu_dropout", 0.95), ("bias_relu_dropout_backward", 0.9)],
)
def test_a_fused_operation_is_compared_with_the_copy_where_memory_dominates(
    operation: str, wanted: float
) -> None:
    large = replace(LARGE, operation=operation, microseconds=COPY.microseconds / 0.92)
    found = replace(results(COPY), fused=(large, replace(large, shape="1 K", bytes=8192)))
    (goal,) = found.fused_copy_goals()
    assert goal.wanted == wanted
    assert (goal.verdict, goal.where) == ("met" if wanted < 0.92 else "not met", large.shape)
    assert goal.found == pytest.approx(0.92)


def test_the_benchmark_has_every_streaming_and_computing_operation() -> None:
    names = {make(fused.scales(CPU)[0]).name for make in fused.FUSED}
    assert {*bench_results.STREAMING} - {"mulc"} < names
    assert {*bench_results.COMPUTING} < names


@pytest.mark.parametrize(
    "make", [make for make in fused.FUSED if make not in {fused.linear, fused.adamw, fused.sgd}]
)
def test_memory_dominates_the_larger_arrays_on_an_h200(
    make: Callable[[fused.Scale], fused.Fused],
) -> None:
    """By the shapes alone: nothing is computed on the meta device."""
    meta = fused.Scale(torch.device("meta"), torch.bfloat16, **shapes_of_a_gpu())
    assert regime(make(meta).bytes, 4800.0, 60 * MI) == "memory"


def shapes_of_a_gpu() -> dict[str, int]:
    """Return the larger scale's numbers."""
    scale = fused.scales(torch.device("cuda"))[1]
    return {name: value for name, value in vars(scale).items() if isinstance(value, int)}


def test_goals_without_a_measurement_are_not_judged() -> None:
    skipped = replace(SMALL, variant="npp", microseconds=0.0, skipped="not installed")
    assert {goal.verdict for goal in results(COPY, SMALL, skipped).goals()} == {"not judged"}
    assert results(COPY, SMALL, cache=None).goals() == []
    assert Goal("x", 0.95, 0.9499, "").verdict == "not met"


def test_seconds_are_shown_only_if_all_calls_of_2014_were_made() -> None:
    full = replace(SMALL, seconds=0.384)
    fewer = replace(LARGE, seconds=4.1, rounds=8, calls=900)
    assert full.as_json(1.0)["seconds_of_128000"] == 0.384
    assert fewer.as_json(1.0)["seconds_of_128000"] is None
    lines = list(tables.seconds_table([full, fewer]))
    assert lines[2].split() == ["1", "K", "0.38"]
    assert lines[3].split() == ["256", "M", "-"]
    assert "below" in list(tables.seconds_table([fewer]))[-1]


def test_the_details_show_ratios_and_the_reasons_of_skipped_rows() -> None:
    npps = replace(SMALL, variant="npp", microseconds=6.0)
    missing = replace(SMALL, variant="compile", skipped="no compiler")
    lines = list(tables.detail_table(results(COPY, SMALL, npps, missing)))
    assert lines[1] == "mulc, 256 M: memory dominates"
    assert lines[3] == "mulc, 1 K: launch dominates"
    assert "2.00 x" in lines[5]
    assert lines[6].split() == ["compile", "-", "no", "compiler"]


@pytest.mark.parametrize(
    ("driver", "value", "expected"),
    [
        (None, None, "- (no driver)"),
        ("580.65.06", None, "- (this driver has no such option)"),
        ("367.57", "1", "1"),
    ],
)
def test_the_drivers_option_or_the_reason_for_its_absence_is_shown(
    driver: str | None, value: str | None, expected: str
) -> None:
    machine = replace(results().machine, driver=driver, check_pci_config_space=value)
    lines = list(tables.machine_lines(machine))
    assert lines[1] == f"driver {driver or '-'}  CheckPCIConfigSpace {expected}"


# --- Timing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "budget", "rounds", "calls"),
    [
        (5e-6, 4.0, 128, 1000),
        (2**-14, 4.0, 65, 1000),
        (1e-3, 4.0, 8, 500),
        (10.0, 4.0, 8, 1),
        (0.0, 4.0, 128, 1000),
    ],
)
def test_rounds_and_calls_fit_the_budget(
    seconds: float, budget: float, rounds: int, calls: int
) -> None:
    assert timing.scaled(seconds, budget) == (rounds, calls)


def test_a_timing_gives_the_deciles_of_a_call() -> None:
    low, middle, high = timing.Timing(1000, tuple(i / 1000 for i in range(11))).microseconds
    assert (low, middle, high) == pytest.approx((1.0, 5.0, 9.0))


def test_a_measurement_makes_exactly_the_calls_that_it_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timing.Meter, "warm_up", 0.001)
    made = 0

    class Counting(timing.Meter):
        def rounds(self, action: timing.Call, count: int) -> tuple[float, ...]:
            nonlocal made
            made = 0
            return super().rounds(action, count)

    def call() -> None:
        nonlocal made
        made += 1

    found = timing.measured(Counting(CPU), call, timing.repeated, 0.01)
    assert made == found.calls * len(found.rounds)
    assert found.seconds == pytest.approx(sum(found.rounds))


# --- MulC and the fused operations ----------------------------------------------------------------


def test_a_wrong_number_of_multiplications_is_detected() -> None:
    meter, x = timing.Meter(CPU), torch.ones(1000)
    call = mulc.VARIANTS["eager"](x, meter)
    assert mulc.multiplies(meter, x, timing.repeated(call, 1000), 1000)
    assert not mulc.multiplies(meter, x, timing.repeated(call, 999), 1000)
    assert not mulc.multiplies(meter, x, timing.repeated(call, 4), 3)
    assert not mulc.multiplies(meter, x, lambda: x[1:].mul_(mulc.CONSTANT), 1)
    assert len({*x.tolist()}) > 900  # the values that are multiplied when it is timed


def test_a_wrong_variant_is_shown_as_wrong() -> None:
    meter, x = timing.Meter(CPU), torch.ones(8)
    blank = Row("mulc", "8", "ours", "called", bytes=64)

    def right(action: timing.Call, calls: int) -> bool:
        return mulc.multiplies(meter, x, action, calls)

    (row,) = run.rows_of(meter, blank, lambda: x.exp_, 0.01, right)
    assert row.skipped == run.WRONG


def tensors(value: Any) -> list[Tensor]:
    """Every tensor in what a call takes or gives."""
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in tensors(part)]
    return [value] if isinstance(value, Tensor) else []


DROPOUT = fused.activation  # random, and by another generator than torch's


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [make for make in fused.FUSED if make != DROPOUT], ids=lambda make: make.__name__
)
def test_our_operation_computes_the_plain_formula(
    make: Callable[[fused.Scale], fused.Fused],
) -> None:
    torch.manual_seed(0)
    case = make(fused.Scale(CPU, torch.float32, 64, 32, 64, 8, 128, 64, 256))
    before = [tensor.clone() for tensor in tensors(case.arguments)]
    plain = [t.clone() for t in tensors([case.plain(*case.arguments), case.arguments])]
    for now, then in zip(tensors(case.arguments), before, strict=True):
        now.copy_(then)
    ours = tensors([case.ours(), case.arguments])
    for mine, theirs in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine, theirs.to(mine.dtype))


def test_the_embeddings_gradient_is_compared_with_torchs_dense_backward() -> None:
    """Both come to what it should be."""
    torch.manual_seed(0)
    case = fused.gather_backward(fused.scales(CPU)[0])
    made = case.implementations()
    assert [*made] == ["ours", "compile", "eager", "embedding_dense_backward"]
    expected = case.plain(*case.arguments)
    torch.testing.assert_close(made["embedding_dense_backward"]()(), expected)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_our_kernel_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(build, "architectures", lambda: ("sm_90",))
    monkeypatch.setenv("TRIALFLEET_KERNELS", str(tmp_path / "cache"))
    made = mulc.library()
    symbols = subprocess.run(["nm", "-D", made], capture_output=True, text=True, check=True).stdout
    assert re.search(r" T mulc$", symbols, re.MULTILINE)
    monkeypatch.setattr(toolchain, "run", None)
    assert mulc.library() == made
    assert [*made.parent.iterdir()] == [made]


def test_the_row_of_our_kernel_says_that_it_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing.Meter, "warm_up", 0.0)
    wanted = run.Wanted(sizes=(8,), budget=0.0, tables=("mulc",), without=("compile", "npp"))
    rows = [*run.mulc_rows(timing.Meter(CPU), wanted)]
    reasons = {row.variant: row.skipped for row in rows}
    assert reasons == {"copy": "", "ours": "needs a GPU", "eager": ""}


# --- NPP ------------------------------------------------------------------------------------------

# As nppdefs.h of nvidia-npp 13.2 and nvidia-npp-cu12 12.0 and 12.4 declares them; in 13.2 the last
# field is a union with the equally large NppWorkspace. The "device" is the processor's memory.
STAND_IN = """
#include <stddef.h>
typedef void *cudaStream_t;
typedef struct {
  cudaStream_t hStream;
  int nCudaDeviceId;
  int nMultiProcessorCount;
  int nMaxThreadsPerMultiProcessor;
  int nMaxThreadsPerBlock;
  size_t nSharedMemPerBlock;
  int nCudaDevAttrComputeCapabilityMajor;
  int nCudaDevAttrComputeCapabilityMinor;
  unsigned int nStreamFlags;
  int nReserved0;
} NppStreamContext;
NppStreamContext seen;
size_t size_of_context(void) { return sizeof(NppStreamContext); }
int nppsMulC_32f_I_Ctx(float value, float *data, LENGTH length, NppStreamContext context) {
  if (!data) return -8;
  if (length <= 0) return -6;
  seen = context;
  for (LENGTH i = 0; i < length; ++i) data[i] *= value;
  return 0;
}
"""
CONTEXT = npp.StreamContext(0x7F00DEADBEEF, 1, 132, 2048, 1024, 49152, 9, 0, 1, 0)


def install_npp(folder: Path, wheel: str, version: str, place: str, length: str) -> None:
    """Lay a stand-in for one of NVIDIA's wheels into a folder, as pip would."""
    library = folder / place
    library.parent.mkdir(parents=True)
    command = ["cc", "-shared", "-fPIC", f"-DLENGTH={length}", "-xc", "-", "-o", str(library)]
    subprocess.run(command, input=STAND_IN, text=True, check=True)
    info = folder / f"{wheel.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {wheel}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{place.replace('libnpps', 'libnppc')},,\n{place},,\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that packages are looked for in."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install_12(site: Path) -> None:
    install_npp(site, "nvidia-npp-cu12", "12.0.0.30", "nvidia/npp/lib/libnpps.so.12", "int")


def install_13(site: Path) -> None:
    install_npp(site, "nvidia-npp", "13.2.0.93", "nvidia/cu13/lib/libnpps.so.13", "size_t")


def test_the_stream_context_is_laid_out_as_in_the_headers() -> None:
    """By a C compiler, from the headers of both versions."""
    assert ctypes.sizeof(npp.StreamContext) == 48
    offsets = [getattr(npp.StreamContext, name).offset for name, _ in npp.StreamContext._fields_]
    assert offsets == [0, 8, 12, 16, 20, 24, 32, 36, 40, 44]


@pytest.mark.parametrize("install", [install_12, install_13])
def test_npp_gets_its_arguments(site: Path, install: Callable[[Path], None]) -> None:
    install(site)
    found = npp.load(None)
    x = torch.ones(1000)
    call = npp.checked(found.mulc(x.data_ptr(), 999, 2.5, CONTEXT))
    assert x.tolist() == [2.5] * 999 + [1.0]
    assert call() == npp.SUCCESS
    assert x[0] == 6.25
    assert found.library.size_of_context() == ctypes.sizeof(CONTEXT)
    assert bytes(npp.StreamContext.in_dll(found.library, "seen")) == bytes(CONTEXT)


def test_an_error_of_npp_shows_its_status(site: Path) -> None:
    install_13(site)
    with pytest.raises(npp.NppError, match="status -8"):
        npp.checked(npp.load("13.0").mulc(None, 10, 2.0, CONTEXT))


def test_the_npp_of_torchs_cuda_version_is_preferred(site: Path) -> None:
    install_12(site)
    assert npp.load("13.0").wheel == "nvidia-npp-cu12 12.0.0.30"
    install_13(site)
    assert npp.load("13.0").wheel == "nvidia-npp 13.2.0.93"
    assert npp.load("12.8").wheel == "nvidia-npp-cu12 12.0.0.30"


def test_the_toolkits_npp_is_used_if_there_is_no_wheel(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_npp(site, "no-wheel", "1", "lib64/libnpps.so.13", "size_t")
    monkeypatch.setattr(npp, "TOOLKIT", site / "lib64")
    assert npp.load("13.0").wheel == str(site / "lib64" / "libnpps.so.13")
    with pytest.raises(npp.NppError, match="nvidia-npp-cu12"):
        npp.load("12.8")


@pytest.mark.parametrize(
    ("cuda", "wheel"), [("12.8", "nvidia-npp-cu12"), ("13.0", "nvidia-npp"), (None, "nvidia-npp")]
)
def test_the_error_without_npp_names_the_wheel_to_install(
    cuda: str | None, wheel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npp, "library_of", lambda _wheel: None)
    monkeypatch.setattr(npp, "TOOLKIT", Path("no-such-folder"))
    with pytest.raises(npp.NppError, match=f"pip install {wheel}$"):
        npp.load(cuda)


def test_an_npp_that_can_not_be_loaded_is_named(site: Path) -> None:
    install_13(site)
    (library,) = site.rglob("libnpps.so.13")
    library.write_bytes(b"not a library")
    with pytest.raises(npp.NppError, match=r"libnpps\.so\.13 can't be loaded"):
        npp.load("13.0")


# --- The command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--sizes", "1K,x"], "'1K,x' is not a list of sizes"),
        (["--sizes", "0"], "'0' is not a list of sizes"),
        (["--sizes", "1000000M"], "memory is enough for"),
        (["--device", "tpu"], "--device tpu: choose auto, cpu, cuda or cuda:N"),
        (["--device", "cuda:99"], "--device cuda:99: torch"),
        (["--frequently"], "unrecognized arguments"),
    ],
)
def test_wrong_arguments_exit_with_2_and_a_message_of_one_line(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(arguments if "--device" in arguments else [*arguments, "--device", "cpu"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


def test_every_field_of_the_json_is_documented() -> None:
    npps = replace(SMALL, variant="npp", microseconds=6.0)
    found = results(COPY, SMALL, npps, replace(npps, skipped="not installed"))
    text = (Path(bench.__file__).parents[1] / "BENCHMARKS.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^### `--json`$(.*?)^## ", text, re.DOTALL | re.MULTILINE)
    first_columns = "\n".join(re.findall(r"^\| (.*?) \|", section, re.MULTILINE))
    fields = set(re.findall(r"[a-z0-9_]{2,}", first_columns)) - {"field"}
    assert fields == names(found.as_json())


def names(found: object) -> set[str]:
    """Return the names of all fields."""
    if isinstance(found, list):
        return set().union(*map(names, found))
    if isinstance(found, dict):
        return set(found).union(*map(names, found.values()))
    return set()


def test_sizes_are_sorted_without_duplicates_and_k_means_1024() -> None:
    assert bench.sizes_of("16M,1K,1000,1K") == (1000, 1 << 10, 1 << 24)
    assert [bench_results.in_words(size) for size in (1000, 1 << 10, 1 << 24)] == [
        "1000",
        "1 K",
        "16 M",
    ]


def test_arrays_too_large_for_the_memory_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.fitting([1 << 10, 1 << 44], CPU) == [1 << 10]
    assert f"{1 << 24} M elements" in capsys.readouterr().err


@pytest.mark.slow
def test_the_benchmark_needs_only_numpy_and_torch() -> None:
    program = """
        import importlib.metadata, re, sys
        import tests.bench.kernels.__main__, tests.bench.kernels.run
        lines = importlib.metadata.requires("trialfleet")
        needs = {re.match(r"[\\w.-]+", line)[0] for line in lines}
        modules = importlib.metadata.packages_distributions()
        loaded = {name for top in sys.modules for name in modules.get(top, ())}
        print(*(needs & loaded) - {"numpy", "torch"})
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    environment = {**os.environ, "TRIALFLEET_PLAIN": "1"}
    root = Path(__file__).parents[3]
    ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "\n"), ended.stderr


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures for a moment only, and compiles MulC alone."""
    monkeypatch.setattr(timing.Meter, "warm_up", 0.001)
    monkeypatch.setattr(bench, "QUICK_SECONDS", 0.01)
    monkeypatch.setattr(fused, "freshly_compiled", lambda function: function)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # by torch.compile's imports
def test_the_complete_command_runs_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--device", "cpu", "--quick", "--sizes", "1K,64K", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["shape"] for row in found["mulc"]} == {"1 K", "64 K"}
    measured = {row["variant"] for row in found["mulc"] if "skipped" not in row}
    assert measured == {"copy", "eager", "compile"}
    assert not any("skipped" in row for row in found["fused"])
    assert found["goals"] == []
    assert len(found["reference_2014"]) == 4
