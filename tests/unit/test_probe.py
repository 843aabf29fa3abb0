"""The probe: what it reads, how it judges, what it prints."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.recorded_gpus import AMPERE, GOOD, HEALTHY, PASCAL, TURING
from trialfleet.nodes.probe import kernel_log, nvidia_smi
from trialfleet.nodes.probe.__main__ import STAND_IN, main
from trialfleet.nodes.probe.classad import classad
from trialfleet.nodes.probe.readings import Gpu, Readings
from trialfleet.nodes.probe.verdict import Thresholds, Verdict, verdict


def with_gpu(**changes: Any) -> Readings:
    return replace(HEALTHY, gpus=(GOOD, replace(GOOD, index=1, **changes)))


def test_nvidia_smi_tells_of_each_gpu_of_todays_drivers() -> None:
    readings = nvidia_smi.parse(AMPERE)
    assert readings.driver == "550.54.15"
    first, second = readings.gpus
    assert first == Gpu(
        index=0,
        name="NVIDIA A10G",
        uuid="GPU-1",
        ecc_uncorrected=0,
        repair_pending=False,
        repair_failed=False,
        reset_required=False,
    )
    assert second.ecc_uncorrected == 3
    assert second.repair_pending
    assert second.repair_failed
    assert second.reset_required
    assert second.slowdowns == ("hw_slowdown", "hw_thermal_slowdown")
    assert second.processes == 1


def test_nvidia_smi_is_understood_in_the_words_of_older_drivers() -> None:
    (turing,) = nvidia_smi.parse(TURING).gpus
    assert turing.ecc_uncorrected == 4
    assert turing.repair_pending
    assert turing.repair_failed is None
    assert turing.slowdowns == ("hw_power_brake_slowdown",)
    pascal, virtual = nvidia_smi.parse(PASCAL).gpus
    assert pascal.ecc_uncorrected == 3
    assert virtual.ecc_uncorrected is None


def test_the_kernels_log_gives_the_drivers_errors() -> None:
    log = (
        "4,700,90,-;NVRM: GPU at PCI:0000:00:1e: GPU-1\n"
        "4,710,91,-;NVRM: Xid (PCI:0000:00:1e): 31, pid=1, MMU Fault\n"
        "4,711,92,-;NVRM: Xid (PCI:0000:00:1e): 79, GPU has fallen off the bus.\n"
    )
    assert kernel_log.xids(log) == (31, 79)


def test_a_log_that_may_not_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    assert kernel_log.read_xids(tmp_path / "missing") is None
    kept = tmp_path / "kmsg"
    kept.write_text("4,1,1,-;NVRM: Xid (0000:01:00): 13, 0005\n")
    assert kernel_log.read_xids(kept) == (13,)


def test_the_drivers_option_is_read_under_its_name_without_prefix(tmp_path: Path) -> None:
    params = tmp_path / "params"
    params.write_text('Mobile: 4294967295\nCheckPCIConfigSpace: 0\nRmMsg: ""\n')
    assert kernel_log.read_option("CheckPCIConfigSpace", params) == "0"
    assert kernel_log.read_option("PCIConfigSpace", params) is None
    assert kernel_log.read_option("CheckPCIConfigSpace", tmp_path / "missing") is None


def test_a_healthy_gpu_passes() -> None:
    assert verdict(HEALTHY) == Verdict(healthy=True)


def test_what_was_not_measured_is_not_held_against_a_gpu() -> None:
    assert verdict(Readings(gpus=(Gpu(index=0),))).healthy


SICK = {
    "1 memory errors that ECC": {"ecc_uncorrected": 1},
    "only at its next reset": {"repair_pending": True},
    "could not be set aside": {"repair_failed": True},
    "wants it reset": {"reset_required": True},
    "hardware: hw_slowdown": {"slowdowns": ("hw_slowdown",)},
    "a launch takes 2300 us, over 500": {"launch_microseconds": 2300.0},
    "moves 290 GB/s, under 300": {"bandwidth": 290.0},
    "product is wrong by 0.5": {"matmul_error": 0.5},
}


@pytest.mark.parametrize(("reason", "changes"), SICK.items(), ids=SICK)
def test_a_sick_gpu_fails_and_is_named(reason: str, changes: dict[str, Any]) -> None:
    judged = verdict(with_gpu(**changes))
    assert not judged.healthy
    assert judged.reason.startswith("GPU 1: ")
    assert reason in judged.reason


def test_an_error_of_the_hardware_fails_the_machine_and_one_of_a_program_does_not() -> None:
    assert verdict(replace(HEALTHY, xids=(13, 31, 43, 45))).healthy
    judged = verdict(replace(HEALTHY, xids=(31, 79, 79)))
    assert judged == Verdict(healthy=False, reason="Xid 79 in the kernel's log")


def test_a_machine_without_a_gpu_says_so() -> None:
    assert verdict(Readings()) == Verdict(healthy=False, reason="no GPU")
    assert verdict(Readings(problems=("why",))) == Verdict(healthy=False, reason="why")


def test_thresholds_are_parameters() -> None:
    slow = with_gpu(bandwidth=290.0, launch_microseconds=2300.0, ecc_uncorrected=1)
    generous = Thresholds(ecc_uncorrected=1, launch_microseconds=3000, bandwidth_share=0.4)
    assert verdict(slow, generous).healthy
    unlisted = replace(HEALTHY, gpus=(replace(GOOD, name="New One", bandwidth=10.0),))
    assert verdict(unlisted).healthy
    assert not verdict(unlisted, Thresholds(bandwidth=11)).healthy


def test_the_ad_has_every_attribute_and_the_line_that_ends_it() -> None:
    assert classad(HEALTHY, verdict(HEALTHY)).splitlines() == [
        "TrialfleetGpuHealthy = True",
        'TrialfleetGpuReason = ""',
        'TrialfleetGpuName = "NVIDIA A10G"',
        'TrialfleetGpuDriver = "550.54.15"',
        "TrialfleetBandwidth = 482.00",
        "TrialfleetLaunchMicroseconds = 18.25",
        'TrialfleetGpuNote = ""',
        "-",
    ]


def test_the_ad_tells_the_slowest_gpu_and_undefined_for_what_is_unknown() -> None:
    mixed = with_gpu(bandwidth=300.0, launch_microseconds=40.0)
    text = classad(mixed, verdict(mixed))
    assert "TrialfleetBandwidth = 300.00\n" in text
    assert "TrialfleetLaunchMicroseconds = 40.00\n" in text
    none = classad(Readings(), verdict(Readings()))
    for name in ("Name", "Driver"):
        assert f"TrialfleetGpu{name} = undefined\n" in none
    assert "TrialfleetBandwidth = undefined\n" in none


def test_no_text_can_break_out_of_the_ad() -> None:
    text = classad(Readings(), Verdict(healthy=False, reason='a "b" \\ c\nHAS_GPU = True'))
    assert 'TrialfleetGpuReason = "a \\"b\\" \\\\ c HAS_GPU = True"\n' in text
    assert "\nHAS_GPU" not in text


def test_every_attribute_stands_in_the_table() -> None:
    package = sys.modules["trialfleet.nodes.probe"]
    for line in classad(HEALTHY, verdict(HEALTHY)).splitlines()[:-1]:
        assert f"\n{line.split(' = ')[0]} " in str(package.__doc__)


def test_recorded_readings_stand_in_for_a_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "readings.json"
    monkeypatch.setenv(STAND_IN, str(file))
    file.write_text(json.dumps(with_gpu(ecc_uncorrected=2).as_json()))
    assert main(["--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["healthy"] is False
    assert Readings.of(told["readings"]) == with_gpu(ecc_uncorrected=2)
    file.write_text(json.dumps(HEALTHY.as_json()))
    assert main([]) == 0
    assert "TrialfleetGpuHealthy = True\n" in capsys.readouterr().out
    assert main(["--launch-microseconds", "10"]) == 0
    assert "TrialfleetGpuHealthy = False\n" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{", "[]", '{"gpu": []}', '{"gpus": [{"number": 0}]}'])
def test_recorded_readings_that_cannot_be_used_are_a_sick_machine(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "readings.json"
    file.write_text(text)
    monkeypatch.setenv(STAND_IN, str(file))
    assert main(["--classad"]) == 0
    out = capsys.readouterr().out
    assert "TrialfleetGpuHealthy = False\n" in out
    assert STAND_IN in out
