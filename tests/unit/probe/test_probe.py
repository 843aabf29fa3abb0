"""The probe: its readings, its verdicts and its output."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.probe.recorded_gpus import AMPERE, GOOD, HEALTHY, OTHER, PASCAL, TOLD, TURING
from trialfleet.attributes import PROBE
from trialfleet.nodes.probe import gpu_health, kernel_log, nvidia_smi, privileged_readings
from trialfleet.nodes.probe.__main__ import STAND_IN, main
from trialfleet.nodes.probe.classad import classad
from trialfleet.nodes.probe.gpu_health import Thresholds, Verdict, verdict
from trialfleet.nodes.probe.readings import Gpu, Readings

RECORDED = Path(__file__).parent / "probe_readings"


def two_gpus(**changes: Any) -> Readings:
    return replace(HEALTHY, gpus=(GOOD, replace(OTHER, **changes)))


def one_gpu(**changes: Any) -> Readings:
    return replace(HEALTHY, gpus=(replace(GOOD, **changes),))


def made(name: str) -> tuple[str, Readings]:
    """Return what recorded readings are made from, and the readings."""
    table = json.loads((RECORDED / f"{name}.json").read_text())
    return table["made_from"], Readings.from_table(table["readings"])


def test_the_output_of_current_drivers_is_parsed_for_each_gpu() -> None:
    readings = nvidia_smi.parse(AMPERE)
    assert (readings.driver, readings.cuda) == ("550.54.15", "12.4")
    first, second = readings.gpus
    uuid = "GPU-0a000000-0000-0000-0000-000000000001"
    assert first == replace(TOLD, uuid=uuid, pcie_width=8)
    assert first.id == "GPU-0a000000"
    assert second.watts is None
    assert second.ecc_uncorrected == 3
    assert second.repair_pending
    assert second.repair_failed
    assert second.reset_required
    assert second.slowdowns == ("hw_slowdown", "hw_thermal_slowdown")
    assert second.processes == 1


def test_the_output_of_older_drivers_is_parsed() -> None:
    (turing,) = nvidia_smi.parse(TURING).gpus
    assert turing.ecc_uncorrected == 4
    assert turing.repair_pending
    assert turing.repair_failed is None
    assert turing.slowdowns == ("hw_power_brake_slowdown",)
    assert (turing.watts, turing.watts_limit, turing.celsius) == (27.0, 70.0, None)
    assert turing.pcie_width_max is None
    assert turing.id == ""
    pascal, virtual = nvidia_smi.parse(PASCAL).gpus
    assert pascal.ecc_uncorrected == 3
    assert virtual.ecc_uncorrected is None


def test_the_kernels_log_gives_the_drivers_errors() -> None:
    log = (
        "4,700,90,-;NVRM: GPU at PCI:0000:00:1e: GPU-1\n"
        "4,710,91,-;NVRM: Xid (PCI:0000:00:1e): 31, pid=1, MMU Fault\n"
        "4,711,92,-;NVRM: Xid (PCI:0000:00:1e): 79, GPU has fallen off the bus.\n"
    )
    assert kernel_log.parse_xids(log) == (("0000:00:1e", 31), ("0000:00:1e", 79))


@pytest.mark.parametrize("text", ["00000000:00:1E.0", "0000:00:1e", "00:1e", "0000:00:1E.0"])
def test_a_pci_address_has_one_form(text: str) -> None:
    assert kernel_log.address(text) == "0000:00:1e"


def test_a_pci_address_keeps_its_domain_and_nonsense_gives_none() -> None:
    assert kernel_log.address("00000001:00:1E.0") == "0001:00:1e"
    assert kernel_log.address("N/A") == ""


def test_an_unreadable_log_differs_from_an_empty_one(tmp_path: Path) -> None:
    assert kernel_log.read_xids(tmp_path / "missing") is None
    kept = tmp_path / "kmsg"
    kept.write_text("4,1,1,-;NVRM: Xid (0000:01:00): 13, 0005\n")
    assert kernel_log.read_xids(kept) == (("0000:01:00", 13),)


def test_a_healthy_gpu_passes() -> None:
    assert verdict(HEALTHY) == Verdict(healthy=True)


def test_a_gpu_without_measurements_is_healthy() -> None:
    assert verdict(Readings(gpus=(Gpu(index=0),))).healthy


SICK = {
    "1 memory errors that ECC": {"ecc_uncorrected": 1},
    "only when the GPU is reset": {"repair_pending": True},
    "could not be replaced by spare memory": {"repair_failed": True},
    "requires a reset": {"reset_required": True},
    "hardware: hw_slowdown": {"slowdowns": ("hw_slowdown",)},
    "(2300 us until it is done instead of at most 500)": {"launch_microseconds": 2300.0},
    "launch is slow (900 per second instead of at least 10000)": {"launch_rate": 900.0},
    "(a copy moves 290 GB/s instead of at least 300, which is 50% of the": {"bandwidth": 290.0},
    "host sends 1.0 GB/s instead of at least 6.3, which is 20% of what": {"host_bandwidth": 1.0},
    "product is wrong by 0.5": {"matmul_error": 0.5},
    "Xid 79 in the kernel's log": {"xids": (31, 79, 79)},
    "the measurement hung": {"problem": "the measurement hung in the step 'measure bandwidth'"},
}


@pytest.mark.parametrize(("reason", "changes"), SICK.items(), ids=SICK)
def test_a_sick_gpu_is_named_and_excludes_only_itself(reason: str, changes: dict[str, Any]) -> None:
    health = verdict(two_gpus(**changes))
    assert health.healthy
    assert health.sick == (OTHER.id,)
    assert health.reason.startswith("GPU 1: ")
    assert reason in health.reason
    alone = verdict(one_gpu(**changes))
    assert not alone.healthy
    assert alone.sick == (GOOD.id,)


def test_a_problem_of_all_gpus_is_reported_once() -> None:
    blind = replace(HEALTHY, gpus=(replace(GOOD, problem="why"), replace(OTHER, problem="why")))
    health = verdict(blind)
    assert not health.healthy
    assert health.reason == "GPU 0, 1: why"


def test_a_sick_gpu_without_an_id_excludes_the_machine() -> None:
    assert not verdict(two_gpus(uuid="", reset_required=True)).healthy


def test_errors_of_the_hardware_count_and_errors_of_programs_do_not() -> None:
    assert verdict(one_gpu(xids=(13, 31, 43, 45))) == Verdict(healthy=True)
    health = verdict(replace(HEALTHY, xids=(31, 79, 79)))
    assert not health.healthy
    assert health.reason == "Xid 79 in the kernel's log, of a GPU that the driver doesn't list"


TRAPPED = (
    r"GPU 0: each small launch is slow \({rate} per second instead of at least 10000\) "
    r"although the memory is not slow \({bandwidth} GB/s\): perhaps a hypervisor traps the PCI "
    r"configuration space \(see TrialfleetDriverOption\)"
)
KINDS = {
    "2014-m2050-npp-check-1": TRAPPED.format(rate=1242, bandwidth=148),
    "2014-k520-npp-check-1": TRAPPED.format(rate=428, bandwidth=198),
    "2014-m2050-npp-check-0": "",
    "2014-k520-npp-check-0": "",
    "2014-m2050-own-check-1": "",
    "2014-k520-own-check-1": "",
    "2014-m2050-own-check-0": "",
    "2014-k520-own-check-0": "",
    "slow-memory-of-data-sheet": r"GPU 0: the memory is slow \(a copy moves 150 GB/s instead of "
    r"at least 300, which is 50% of the data sheet's 600\) although launches are not slow",
    "slow-memory-among-its-like": r"GPU 0: the memory is slow \(a copy moves 165 GB/s instead of "
    r"at least 178, which is 70% of the pool's median 255\) although launches are not slow",
    "slow-launches-and-memory": r"GPU 0: each small launch is slow \(428 per second .*\); "
    r"GPU 0: the memory is slow \(a copy moves 60 GB/s [^)]*\)",
}


@pytest.mark.parametrize(("name", "reason"), KINDS.items(), ids=KINDS)
def test_the_fault_of_2014_and_slow_memory_have_different_reasons(name: str, reason: str) -> None:
    made_from, readings = made(name)
    assert made_from.startswith("Made, not measured by us")
    health = verdict(readings)
    assert health.healthy is (not reason)
    assert re.fullmatch(reason, health.reason), health.reason


def test_every_recorded_reading_is_judged() -> None:
    assert {file.stem for file in RECORDED.iterdir()} == set(KINDS)


def test_the_launch_rates_of_2014_match_the_recorded_times() -> None:
    for name in (name for name in KINDS if name.startswith("2014")):
        made_from, readings = made(name)
        took = re.search(r"128 x 1000 calls took ([0-9.]+) s", made_from)
        assert took
        assert readings.gpus[0].launch_rate == pytest.approx(128_000 / float(took[1]), abs=0.1)


def test_slow_launches_have_no_stated_cause_if_memory_is_unknown() -> None:
    health = verdict(one_gpu(launch_rate=900.0, bandwidth=None))
    slow = "each small launch is slow (900 per second instead of at least 10000)"
    assert health.reason == f"GPU 0: {slow}"


def test_a_gpu_is_compared_only_with_three_or_more_of_its_model() -> None:
    slow = replace(HEALTHY, gpus=(replace(GOOD, name="New One", bandwidth=10.0),))
    assert verdict(replace(slow, pool={"New One": (100.0, 100.0)})).healthy
    assert verdict(replace(slow, pool={"Other": (100.0,) * 9})).healthy
    assert not verdict(replace(slow, pool={"New One": (100.0,) * 3})).healthy


def test_an_unknown_link_is_not_judged() -> None:
    assert verdict(one_gpu(host_bandwidth=0.1, pcie_width_max=None)).healthy
    assert gpu_health.link_capacity(4, 16) == pytest.approx(31.5, abs=0.1)
    assert gpu_health.link_capacity(9, 16) is None


@pytest.mark.parametrize(
    ("name", "sheet"),
    [
        ("NVIDIA B200", 8_000),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 1_597),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 1_792),
    ],
)
def test_blackwells_memory_is_judged_by_its_data_sheet(name: str, sheet: int) -> None:
    slow = verdict(one_gpu(name=name, bandwidth=0.49 * sheet))
    assert f"50% of the data sheet's {sheet})" in slow.reason
    assert verdict(one_gpu(name=name, bandwidth=0.51 * sheet)).healthy


def test_a_machine_without_a_gpu_says_so() -> None:
    assert verdict(Readings()) == Verdict(healthy=False, reason="no GPU")
    assert verdict(Readings(problems=("why",))) == Verdict(healthy=False, reason="why")


def test_thresholds_are_parameters() -> None:
    slow = one_gpu(
        bandwidth=290.0,
        launch_microseconds=2300.0,
        launch_rate=900.0,
        host_bandwidth=2.0,
        ecc_uncorrected=1,
    )
    generous = Thresholds(
        ecc_uncorrected=1,
        launch_microseconds=3000,
        launch_rate=500,
        bandwidth_share=0.4,
        host_share=0.05,
    )
    assert verdict(slow, generous).healthy
    assert len(verdict(slow).reason.split("; ")) == 4
    unlisted = replace(HEALTHY, gpus=(replace(GOOD, name="New One", bandwidth=10.0),))
    assert verdict(unlisted).healthy
    assert not verdict(unlisted, Thresholds(bandwidth=11)).healthy


def test_the_ad_has_every_attribute_and_the_line_that_ends_it() -> None:
    assert classad(HEALTHY, verdict(HEALTHY)).splitlines() == [
        "TrialfleetGpuHealthy = True",
        'TrialfleetGpuReason = ""',
        'TrialfleetSickGpus = ""',
        'TrialfleetGpuName = "NVIDIA A10G"',
        'TrialfleetGpuDriver = "550.54.15"',
        'TrialfleetGpuCuda = "12.4"',
        "TrialfleetBandwidth = 482.00",
        "TrialfleetBandwidthShare = 0.80",
        "TrialfleetLaunchMicroseconds = 18.25",
        "TrialfleetLaunchRate = 150000.00",
        "TrialfleetHostBandwidth = 12.50",
        "TrialfleetGpuWatts = 16.25",
        "TrialfleetGpuWattsLimit = 300.00",
        "TrialfleetGpuCelsius = 31.00",
        "TrialfleetPcieGeneration = 1",
        "TrialfleetPcieGenerationMax = 4",
        "TrialfleetPcieWidth = 16",
        "TrialfleetPcieWidthMax = 16",
        "TrialfleetKernels = True",
        'TrialfleetGpuNote = ""',
        "-",
    ]


def test_the_ad_has_the_worst_value_of_all_gpus_and_undefined_if_unknown() -> None:
    mixed = two_gpus(bandwidth=400.0, launch_microseconds=40.0, celsius=50.0)
    text = classad(mixed, verdict(mixed))
    assert "TrialfleetBandwidth = 400.00\n" in text
    assert "TrialfleetLaunchMicroseconds = 40.00\n" in text
    assert "TrialfleetGpuCelsius = 50.00\n" in text
    none = classad(Readings(), verdict(Readings()))
    for name in ("GpuName", "GpuDriver", "Bandwidth", "BandwidthShare", "Kernels", "PcieWidth"):
        assert f"Trialfleet{name} = undefined\n" in none


def test_a_sick_gpus_figures_are_left_out_unless_all_are_sick() -> None:
    one = two_gpus(bandwidth=100.0)
    text = classad(one, verdict(one))
    assert f'TrialfleetSickGpus = "{OTHER.id}"\n' in text
    assert "TrialfleetBandwidth = 482.00\n" in text
    alone = one_gpu(bandwidth=100.0)
    assert "TrialfleetBandwidth = 100.00\n" in classad(alone, verdict(alone))


def test_a_reason_cannot_add_lines_to_the_ad() -> None:
    text = classad(Readings(), Verdict(healthy=False, reason='a "b" \\ c\nHAS_GPU = True'))
    assert 'TrialfleetGpuReason = "a \\"b\\" \\\\ c HAS_GPU = True"\n' in text
    assert "\nHAS_GPU" not in text


def test_the_ad_has_exactly_the_attributes_of_the_table() -> None:
    lines = classad(HEALTHY, verdict(HEALTHY)).splitlines()[:-1]
    assert [line.split(" = ")[0] for line in lines] == [attribute.name for attribute in PROBE]


def test_recorded_readings_replace_a_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "readings.json"
    monkeypatch.setenv(STAND_IN, str(file))
    pool = {"NVIDIA A10G": (480.0, 481.0)}
    readings = replace(two_gpus(ecc_uncorrected=2), pool=pool)
    file.write_text(json.dumps(asdict(readings)))
    assert main(["--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["healthy"], printed["sick"]) == (True, [OTHER.id])
    assert Readings.from_table(printed["readings"]) == readings
    file.write_text(json.dumps(asdict(HEALTHY)))
    assert main([]) == 0
    assert "TrialfleetGpuHealthy = True\n" in capsys.readouterr().out
    assert main(["--launch-microseconds", "10"]) == 0
    assert "TrialfleetGpuHealthy = False\n" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{", "[]", '{"gpu": []}', '{"gpus": [{"number": 0}]}'])
def test_unusable_recorded_readings_make_the_machine_unhealthy(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "readings.json"
    file.write_text(text)
    monkeypatch.setenv(STAND_IN, str(file))
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "TrialfleetGpuHealthy = False\n" in out
    assert STAND_IN in out


def test_every_threshold_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    usage = capsys.readouterr().out
    for each in fields(Thresholds):
        assert f"--{each.name.replace('_', '-')} " in usage


def test_privileged_readings_are_read_as_written_and_damaged_ones_ignored(tmp_path: Path) -> None:
    file = tmp_path / "privileged.json"
    for readings in (
        privileged_readings.PrivilegedReadings(
            xids=(kernel_log.Xid("0000:00:1e", 79),), pool={"NVIDIA L4": (1.0, 2.0)}
        ),
        privileged_readings.PrivilegedReadings(),
    ):
        file.write_text(readings.text())
        assert privileged_readings.read(file) == readings
    for text in ("", "[]", '{"xids": 3}', '{"xids": [[1]], "pool": {}}', '{"xids": [], "pool": 1}'):
        file.write_text(text)
        assert privileged_readings.read(file) == privileged_readings.PrivilegedReadings()
    assert (
        privileged_readings.read(tmp_path / "missing") == privileged_readings.PrivilegedReadings()
    )


def test_a_node_is_not_compared_with_itself() -> None:
    ads = [
        {"TrialfleetGpuName": name, "TrialfleetBandwidth": value, "TrialfleetInstance": instance}
        for name, value, instance in [("A", 3, "i-1"), ("A", 1.5, "i-2"), ("B", 9.0, "i-3")]
    ]
    assert privileged_readings.bandwidths([*ads, {"TrialfleetGpuName": "A"}], "i-1") == {
        "A": (1.5,),
        "B": (9.0,),
    }
