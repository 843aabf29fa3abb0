"""`make gpu`: time limits, results of steps, the report, and a dry run on a bare machine."""

from __future__ import annotations

import contextlib
import copy
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import unkillable
from tests.bench.kernels import fused
from tests.gpu import compiled, counters, report, runner, steps
from tests.gpu.steps import PART, Step
from tests.unit.kernels.conftest import needs_compilers

ROOT = Path(__file__).parents[3]
WRITE = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('{\"a\": 1}')"


def step(name: str, program: str, *words: str, **changes: Any) -> Step:
    """Return a step of Python's."""
    words = (sys.executable, "-c", program, *(words or (PART,)))
    return replace(Step(name=name, title=name, command=words, seconds=60.0), **changes)


def run(folder: Path, *wanted: Step) -> tuple[bool, list[dict[str, Any]]]:
    """Run steps, and return their results as the file has them."""
    out = folder / "out" / "gpu.json"
    good = runner.Runner(folder / "work", out, "make gpu", dry=False).run(wanted)
    return good, json.loads(out.read_text())["steps"]


# The runner


@pytest.mark.slow
def test_a_late_step_is_ended_with_its_children_and_the_next_step_runs(
    tmp_path: Path,
) -> None:
    """Its findings until then are kept."""
    late = f"""{WRITE}
import subprocess, time
child = subprocess.Popen(["sleep", "600"])
print("child", child.pid, flush=True)
time.sleep(600)"""
    wanted = (step("late", late, seconds=6.0), step("next", WRITE))
    good, found = run(tmp_path, *wanted)
    assert not good
    assert [each["state"] for each in found] == [runner.LATE, runner.DONE]
    assert [each["found"] for each in found] == [{"a": 1}, {"a": 1}]
    (child,) = re.findall(r"child (\d+)", found[0]["said"])
    wait_until_gone(int(child))


def wait_until_gone(process: int) -> None:
    """Wait until a process is no more, or at least dead."""
    stat = Path(f"/proc/{process}/stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.05)


@pytest.mark.slow
def test_a_step_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    _, (found,) = run(tmp_path, step("stubborn", stubborn, seconds=4.0))
    assert found["state"] == runner.LATE
    assert found["found"] is None


@pytest.mark.slow
@unkillable.needs_tracing
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_step_that_survives_sigkill_does_not_block_the_next_step(tmp_path: Path) -> None:
    """It hangs in the driver: the next step begins all the same."""
    began = time.monotonic()
    wanted = (step("stuck", unkillable.PROGRAM, seconds=5.0), step("next", WRITE))
    _, found = run(tmp_path, *wanted)
    assert [each["state"] for each in found] == [runner.LATE, runner.DONE]
    assert "traced" in found[0]["said"]
    assert time.monotonic() - began < unkillable.SECONDS - 5.0


def test_a_failed_step_keeps_its_error_and_its_results(tmp_path: Path) -> None:
    good, (found,) = run(tmp_path, step("bad", f"{WRITE}; sys.exit('no such thing')"))
    assert not good
    assert (found["state"], found["exit_code"]) == (runner.FAILED, 1)
    assert "no such thing" in found["said"]
    assert found["found"] == {"a": 1}


def test_a_step_without_results_counts_as_failed(tmp_path: Path) -> None:
    _, (found,) = run(tmp_path, step("silent", "pass"))
    assert found["state"] == runner.FAILED
    assert "nothing to read" in found["said"]


def test_a_missing_tool_is_not_a_failure(tmp_path: Path) -> None:
    good, (found,) = run(tmp_path, step("x", WRITE, needs="no-such-tool"))
    assert good
    assert (found["state"], found["said"]) == (runner.ABSENT, "no no-such-tool here")


# The GPU meanwhile

SMI = """#!{python}
import itertools, sys, time
assert "--id=3" in sys.argv and "--loop-ms=500" in sys.argv
assert "--query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_throttle" in sys.argv[1]
for i in itertools.count():
    print("1980, 2619, [N/A], 41, 0x0000000000000001" if i < 1 else "1{i:03}, 2619, 690.5, 60, 0x4")
    time.sleep(0.01)
"""


def stand_in_nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """There is no GPU here to tell anything of."""
    program = folder / "nvidia-smi"
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")


def test_each_step_records_the_gpus_clocks_power_and_temperature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the driver's older name for the reasons; at once, though the program's output waits."""
    text = SMI.replace("{python}", sys.executable).replace('"1{', 'f"1{')
    stand_in_nvidia_smi(tmp_path, monkeypatch, text)
    wait = "import time; time.sleep(0.5)\n" + WRITE
    (first, second) = run(tmp_path, step("first", wait), step("second", wait))[1]
    assert first["gpu"]["looks"] > 1
    assert first["gpu"]["celsius"] == [41, 60, 60]
    assert first["gpu"]["watts"] == [690.5] * 3  # the first look had none
    assert {*first["gpu"]["reasons"]} == {"gpu_idle", "sw_power_cap"}
    assert second["gpu"]["reasons"] == {"sw_power_cap": 1.0}
    least, median, most = second["gpu"]["sm_mhz"]
    assert first["gpu"]["sm_mhz"][0] < least < median < most


@pytest.mark.parametrize("text", ["", "#!/bin/sh\nexit 9\n"])
def test_a_step_without_nvidia_smi_has_no_record_of_the_gpu(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_nvidia_smi(tmp_path, monkeypatch, text)
    good, (found,) = run(tmp_path, step("x", WRITE))
    assert good
    assert "gpu" not in found


# The steps


def test_a_dry_run_has_the_steps_of_a_real_one() -> None:
    names = [[each.name for each in steps.steps(dry=dry)] for dry in (True, False)]
    assert names[0] == names[1]


@pytest.mark.slow
def test_the_workspace_of_cublas_is_set_before_tests_are_imported(tmp_path: Path) -> None:
    """Torch reads it once, at the first product of matrices of the process."""
    words = [*steps.tests(dry=True).command[3:], "--ignore-glob", "*/test_*"]
    program = f"""
import os, pytest
pytest.main({words!r})
print(os.environ["CUBLAS_WORKSPACE_CONFIG"])"""
    usual = {name: value for name, value in os.environ.items() if name != "CUBLAS_WORKSPACE_CONFIG"}
    own = {"TRIALFLEET_GPU_TESTS": str(tmp_path / "tests.json")}
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=usual | own, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == ":4096:8"


@pytest.mark.parametrize(
    "line",
    [
        "========= ERROR SUMMARY: 0 errors",
        "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
    ],
)
def test_a_sanitizers_summary_is_found_in_its_output(line: str) -> None:
    found = steps.summary(Path(), f"========= COMPUTE-SANITIZER\n{line}\n")
    assert found == {"summary": line.removeprefix("========= ")}
    with pytest.raises(steps.NothingFoundError):
        steps.summary(Path(), "========= Device not supported")


HEAD = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
HEAD += '"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
FORWARD = "void trialfleet::cuda::<unnamed>::forward_kernel<(bool)1, float>(const T2 *, long)"


def nsight_lines(number: int, kernel: str, nanoseconds: str) -> str:
    """Two lines of Nsight Compute's."""
    begin = f'"{number}","1","python3","h","{kernel}","1","7","(256, 1, 1)","(9, 1, 1)","0","9.0",'
    section = '"Command line profiler metrics",'
    return (
        f'{begin}{section}"gpu__time_duration.sum","ns","{nanoseconds}"\n'
        f'{begin}{section}"dram__bytes.sum.per_second","byte/s","n/a"\n'
    )


def test_the_slowest_kernels_of_nsight_compute_are_reported(tmp_path: Path) -> None:
    rows = [nsight_lines(i, FORWARD if i == 2 else f"k{i}", f"{i + 1},000") for i in range(4)]
    part = tmp_path / "counters.json"
    part.write_text("==PROF== Connected to process 7\n" + HEAD + "\n" + "".join(rows))
    found = counters.read(part)
    assert found["kernels"] == 4
    assert [one["kernel"] for one in found["slowest"]] == [
        "k3",
        "forward_kernel<(bool)1, float>",
        "k1",
    ]
    assert found["slowest"][0] == {"kernel": "k3", "nanoseconds": 4000.0}


def test_nsight_computes_error_is_reported_if_it_lacks_permission(tmp_path: Path) -> None:
    part = tmp_path / "counters.json"
    part.write_text("==ERROR== ERR_NVGPUCTRPERM\n")
    with pytest.raises(LookupError, match="ERR_NVGPUCTRPERM"):
        counters.read(part)


# The report

RECORD: dict[str, Any] = {
    "schema": runner.SCHEMA,
    "dry": False,
    "command": "python3 -m tests.gpu",
    "commit": "0123456789ab",
    "when": "2030-01-01T00:00:00Z",
    "seconds": 321.0,
    "steps": [
        {
            "name": "machine",
            "title": "what the machine is",
            "state": runner.DONE,
            "seconds": 3.0,
            "limit": 15.0,
            "found": {
                "gpus": [
                    {
                        "name": "A GPU",
                        "capability": "9.0",
                        "memory_bytes": 1 << 36,
                        "cache_bytes": 50 << 20,
                        "multiprocessors": 100,
                    }
                ],
                "nvidia_smi": [],
                "torch": "2.11.0",
                "cuda": "13.0",
                "triton": None,
                "python": "3.12.1",
                "nvcc": "13.0",
                "processor": "A processor",
                "cores": 8,
                "memory_bytes": 1 << 35,
            },
        },
        {
            "name": "tests",
            "title": "tests/gpu",
            "state": runner.LATE,
            "seconds": 85.0,
            "limit": 85.0,
            "gpu": {
                "looks": 170,
                "sm_mhz": [345, 1980.0, 1980],
                "watts": [71.2, 402.5, 698.9],
                "reasons": {"gpu_idle": 0.5, "sw_power_cap": 0.1},
            },
            "said": "the end of what it said",
            "found": {
                "collected": 3,
                "passed": 1,
                "failed": [{"test": "test_a", "cause": "assert 1 == 2"}],
                "skipped": {},
                "running": "test_b",
            },
        },
    ],
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A BENCHMARKS.md to write into."""
    file = tmp_path / "BENCHMARKS.md"
    file.write_text(f"# Before\n\n{report.BEGIN}\n\nNone yet.\n\n{report.END}\n\n# After\n")
    monkeypatch.setattr(report, "PLACE", file)
    return file


def write(folder: Path, record: dict[str, Any]) -> str:
    """Return a file of make gpu's."""
    file = folder / "gpu.json"
    file.write_text(json.dumps(record))
    return str(file)


def test_the_report_shows_the_machine_and_the_failures(tmp_path: Path, place: Path) -> None:
    for _ in range(2):  # the second replaces the first
        assert report.main([write(tmp_path, RECORD)]) == 0
    text = place.read_text()
    assert text.startswith("# Before\n")
    assert text.endswith("# After\n")
    for words in (
        *("A GPU, compute capability 9.0", "2030-01-01", "`python3 -m tests.gpu`"),
        "| 345 / 1980 / 1980 | - | 71 / 402 / 699 | - | sw_power_cap 10% |",
        *("1 of 3 passed, 1 failed", "ended while test_b ran", "assert 1 == 2"),
    ):
        assert text.count(words) == 1, words
    assert "None yet" not in text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dry": True}, "a dry run's figures are the processor's"),
        ({"schema": 99}, "its schema is 99; known is 1"),
        ({"steps": []}, "no GPU was seen on that machine"),
    ],
)
def test_unusable_results_are_refused_and_not_written(
    changes: dict[str, Any],
    expected: str,
    tmp_path: Path,
    place: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = place.read_text()
    assert report.main([write(tmp_path, copy.deepcopy(RECORD) | changes)]) == 2
    assert expected in capsys.readouterr().err
    assert place.read_text() == before


def test_benchmarks_md_has_a_place_for_the_report() -> None:
    text = report.PLACE.read_text()
    assert report.inserted(text, "x") != text


# A dry run, with only the packages of a GPU's machine

BARE = """
import sys
from importlib.machinery import PathFinder

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        missing = name.partition(".")[0] in MISSING
        return None if missing else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Bare
"""


def missing() -> set[str]:
    """Every installed module that neither torch, numpy and pytest nor trialfleet bring."""
    there, wanted = {"trialfleet"}, ["torch", "numpy", "pytest"]
    while wanted:
        if (name := normal(wanted.pop())) in there:
            continue
        there.add(name)
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            lines = importlib.metadata.requires(name) or []
            wanted += [re.split(r"[^\w.-]", line)[0] for line in lines if "extra ==" not in line]
    packages = importlib.metadata.packages_distributions()
    return {top for top, names in packages.items() if not {*map(normal, names)} & there}


def normal(name: str) -> str:
    """Return a package's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def bare_machine(folder: Path) -> dict[str, str]:
    """Return the environment of a machine that has no more than torch, numpy and pytest."""
    names = missing() - {"tests"}
    assert {"pydantic", "optuna", "htcondor2", "click", "hypothesis"} <= names
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BARE.replace("MISSING", repr(names)))
    return {**os.environ, "PYTHONPATH": str(folder)}


def dry_run(folder: Path, *words: str, **environment: str) -> dict[str, Any]:
    """Run `make gpu DRY=1` there; its program alone, as nothing else may be there."""
    out = folder / "gpu.json"
    places = ("--out", str(out), "--work", str(folder / "work"))
    program = [sys.executable, "-m", "tests.gpu", "--dry", *places, *words]
    given = bare_machine(folder / "site") | environment
    ended = subprocess.run(program, cwd=ROOT, env=given, capture_output=True, text=True)
    record: dict[str, Any] = json.loads(out.read_text())
    assert ended.returncode == 0, ended.stdout + json.dumps(record, indent=1)[-6000:]
    return record


def check(record: dict[str, Any]) -> None:
    """Check that each step found the expected results."""
    found = {each["name"]: each["found"] for each in record["steps"]}
    assert record["dry"]
    assert found["probe"]["reason"] == "no GPU"
    assert found["tests"]["collected"] > 250
    assert not found["tests"]["failed"]
    assert [*found["compiled"]["seconds"]] == [compiled.MULC]
    assert {row["variant"] for row in found["mulc"]["mulc"]} >= {"copy", "ours", "eager"}
    assert len({row["operation"] for row in found["fused"]["fused"]}) == len(fused.FUSED)
    (workload,) = found["trainer"]["workloads"]
    assert workload["ways"]["ours"]["samples_per_second"] > 0
    check_report(record)


def check_report(record: dict[str, Any]) -> None:
    """Were it a GPU's, all of it would stand in the report."""
    for each in record["steps"]:
        if each["name"] == "machine":
            each["found"]["gpus"] = RECORD["steps"][0]["found"]["gpus"]
        if each["name"] == "counters":
            each["found"] = {"kernels": 1, "slowest": [{"kernel": "k", "nanoseconds": 1000.0}]}
    text = report.report(record)
    for words in (
        *("| 1 K | ", "| `adamw_step_` | ", "| flights-like | ours | ", "| `k` | 1.0 | "),
        *(
            "The probe: no GPU, in ",
            "| trainer, eager | 1.0 | ",
            "compute-sanitizer's memcheck: it ran on the processor",
        ),
    ):
        assert text.count(words) == (2 if words == "| 1 K | " else 1), words


@pytest.mark.thorough
@pytest.mark.slow
def test_a_dry_run_without_the_build_works_on_a_bare_machine(tmp_path: Path) -> None:
    check(dry_run(tmp_path, "--skip", "build", TRIALFLEET_PLAIN="1"))


@pytest.mark.slow
@pytest.mark.thorough
@needs_compilers
def test_a_dry_run_with_the_build_works_on_a_bare_machine(tmp_path: Path) -> None:
    check(dry_run(tmp_path, TRIALFLEET_PLAIN=""))
