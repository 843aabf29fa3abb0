"""The benchmark on a GPU: its timing, NPP for real, graphs, and the whole command."""

from __future__ import annotations

import json
import time

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)  # before the kernels are built for nothing

from tests.bench.kernels import __main__ as bench
from tests.bench.kernels import fused, mulc, npp, timing
from tests.bench.kernels import results as bench_results


@pytest.fixture
def meter() -> timing.CudaMeter:
    return timing.CudaMeter(torch.device("cuda:0"))


def test_cuda_events_measure_the_same_time_as_the_clock(meter: timing.CudaMeter) -> None:
    x = torch.ones(1 << 26, device="cuda")
    action = timing.repeated(lambda: x.mul_(1.0), 100)
    meter.rounds(action, 2)
    began = time.perf_counter()
    rounds = meter.rounds(action, 5)
    assert sum(rounds) == pytest.approx(time.perf_counter() - began, rel=0.2)


@pytest.mark.parametrize("manner", ["called", "graph"])
@pytest.mark.parametrize("name", [name for name in mulc.VARIANTS if name != "copy"])
@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # by torch.compile's imports
def test_every_variant_multiplies(
    name: str, manner: str, size: int, meter: timing.CudaMeter
) -> None:
    x = torch.ones(size, device="cuda")
    try:
        call = mulc.VARIANTS[name](x, meter)
    except mulc.UnavailableError as error:
        if name != "npp":
            raise
        pytest.skip(str(error))
    meter.rounds(call, 1)  # a graph's kernels must have run before
    action = meter.manners[manner](call, 7)
    assert mulc.multiplies(meter, x, action, 7)
    assert not mulc.multiplies(meter, x, action, 8)


def test_npp_runs_on_the_given_stream(meter: timing.CudaMeter) -> None:
    """Its work there waits for the stream's earlier work."""
    try:
        library = npp.load(torch.version.cuda)
    except npp.NppError as error:
        pytest.skip(str(error))
    x = torch.ones(1 << 20, device="cuda")
    call = library.mulc(x.data_ptr(), x.numel(), 3.0, npp.stream_context(meter.stream))
    torch.cuda.synchronize()
    with torch.cuda.stream(meter.stream):
        torch.cuda._sleep(10_000_000)  # type: ignore[no-untyped-call]
        x.fill_(2)
        npp.checked(call)
        y = x.clone()
    meter.stream.synchronize()
    assert y.eq(6).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_bench_command_measures_all_variants(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["implementation"] == "cuda"
    missing = [row for row in (*found["mulc"], *found["fused"]) if "skipped" in row]
    assert {row["variant"] for row in missing} <= {"npp"}
    assert {row["manner"] for row in found["fused"]} == {"called", "graph"}
    assert found["copy_gb_per_s"] > 0
    each = len(fused.FUSED)
    copies = 1 + each - len(bench_results.COMPUTING)
    assert len(found["goals"]) == copies + len(bench_results.NPP_GOALS) + 2 * each
