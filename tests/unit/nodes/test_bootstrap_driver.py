from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.node_stand_ins import Bench
from trialfleet.nodes.bootstrap import driver, system_packages
from trialfleet.nodes.bootstrap.host import Host, StepError

OPTION_LINE = "options nvidia NVreg_CheckPCIConfigSpace=0\n"

# These behave as the real programs do with a driver whose file is $ROOT/module.
MODINFO = """
test -e "$ROOT/module" || { echo "modinfo: ERROR: Module $3 not found." >&2; exit 1; }
name=$(cat "$ROOT/module")
case "$*" in
  "-F filename $name") echo "/lib/modules/6.8.0/updates/dkms/$name.ko.zst" ;;
  "-p $name")
    echo "NVreg_ResmanDebugLevel: (int)"
    test -e "$ROOT/old" && echo "NVreg_CheckPCIConfigSpace: (int)"
    exit 0 ;;
  *) echo "modinfo: ERROR: Module $3 not found." >&2; exit 1 ;;
esac
"""
# The output of `-D` was recorded from kmod 30, with /etc/modprobe.d of Debian's packages.
MODPROBE = """
name=$(cat "$ROOT/module")
if [ "$1" = -D ]; then
  test -e "$ROOT/module" || { echo "modprobe: FATAL: Module $2 not found" >&2; exit 1; }
  echo "insmod /lib/modules/6.8.0/kernel/drivers/video/backlight.ko.zst "
  test "$name" = nvidia && echo "insmod /lib/modules/6.8.0/updates/dkms/nvidia.ko.zst NVreg_X=1 "
  test "$name" = nvidia || echo "install modprobe -i $name \\$CMDLINE_OPTS "
  exit 0
fi
test "$1" = nvidia || exit 1
test -e "$ROOT/proc/driver/nvidia/params" && exit 0
mkdir -p "$ROOT/proc/driver/nvidia"
value=1
test ! -e "$ROOT/refuses" && grep -qsx "options $name NVreg_CheckPCIConfigSpace=0" \\
  "$ROOT"/etc/modprobe.d/*.conf && value=0
{ echo "ResmanDebugLevel: 4294967295"
  test -e "$ROOT/old" && echo "CheckPCIConfigSpace: $value"
  echo "PersistenceMode: 0"; } > "$ROOT/proc/driver/nvidia/params"
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path / "bench")
    bench.program("modinfo", MODINFO)
    bench.program("modprobe", MODPROBE)
    bench.program("nvidia-smi")
    bench.program("update-initramfs")
    monkeypatch.setenv("PATH", bench.path)
    return bench


def have_driver(bench: Bench, *, name: str = "nvidia", old: bool = True, value: int | None) -> None:
    """Put a driver onto the machine; loaded with the option's value unless that is None."""
    bench.file("module", name)
    if old:
        bench.file("old")
    if value is not None:
        line = f"CheckPCIConfigSpace: {value}\n" if old else ""
        bench.file("proc/driver/nvidia/params", f"ResmanDebugLevel: 4294967295\n{line}")


def prepare(bench: Bench) -> str:
    return driver.prepare(Host(bench.root))


def changes(calls: list[str]) -> list[str]:
    """Of calls, those that load or unload something, or write what the kernel starts from."""
    made = [call for call in calls if call.startswith(("modprobe", "update-initramfs"))]
    return [call for call in made if not call.startswith("modprobe -D ")]


def reboot(bench: Bench) -> None:
    """Load the driver again, as a boot does."""
    (bench.root / "proc/driver/nvidia/params").unlink()
    host = Host(bench.root)
    host.run("modprobe", "nvidia")


def test_a_machine_without_a_gpu_or_driver_is_left_unchanged(bench: Bench) -> None:
    assert prepare(bench) == "no driver"
    assert not (bench.root / "etc/modprobe.d").exists()


def test_the_option_is_set_in_a_driver_that_is_loaded_later(bench: Bench) -> None:
    have_driver(bench, value=None)
    assert prepare(bench) == "set"
    assert bench.text("etc/modprobe.d/trialfleet-nvidia.conf") == OPTION_LINE
    assert "update-initramfs -u" in bench.calls
    assert "nvidia-smi -pm 1" in bench.calls


def test_a_driver_with_the_option_at_0_is_kept(bench: Bench) -> None:
    have_driver(bench, value=0)
    assert prepare(bench) == "already 0"
    assert bench.text("etc/modprobe.d/trialfleet-nvidia.conf") == OPTION_LINE
    assert changes(bench.calls) == ["update-initramfs -u"]


def test_a_second_run_of_the_driver_step_changes_nothing(bench: Bench) -> None:
    have_driver(bench, value=None)
    prepare(bench)
    before = bench.calls
    assert prepare(bench) == "set"
    again = bench.calls[len(before) :]
    assert changes(again) == []


def test_a_loaded_driver_needs_one_reboot_to_set_the_option(bench: Bench) -> None:
    have_driver(bench, value=1)
    with pytest.raises(driver.RebootError):
        prepare(bench)
    assert bench.text("etc/modprobe.d/trialfleet-nvidia.conf") == OPTION_LINE
    reboot(bench)
    assert prepare(bench) == "set"


def test_a_driver_that_refuses_the_option_causes_one_reboot_only(bench: Bench) -> None:
    have_driver(bench, value=1)
    bench.file("refuses")
    with pytest.raises(driver.RebootError):
        prepare(bench)
    reboot(bench)
    assert prepare(bench) == "still 1: reboot needed"


def test_a_driver_without_the_option_still_gets_the_option_line(bench: Bench) -> None:
    have_driver(bench, old=False, value=1)
    assert prepare(bench) == "driver no longer checks"
    assert bench.text("etc/modprobe.d/trialfleet-nvidia.conf") == OPTION_LINE
    assert "update-initramfs -u" not in bench.calls


@pytest.mark.parametrize(
    "name", ["nvidia-current", "nvidia-current-open", "nvidia-tesla-535", "nvidia-tesla"]
)
def test_debians_modules_are_configured_by_own_name_and_loaded_as_nvidia(
    bench: Bench, name: str
) -> None:
    have_driver(bench, name=name, value=None)
    assert prepare(bench) == "set"
    line = bench.text("etc/modprobe.d/trialfleet-nvidia.conf")
    assert line == f"options {name} NVreg_CheckPCIConfigSpace=0\n"
    assert "modprobe nvidia" in bench.calls


def test_a_name_whose_module_was_never_compiled_is_no_driver(bench: Bench) -> None:
    """Debian's `install` line is there as soon as the package is unpacked."""
    have_driver(bench, name="nvidia-tesla-535", value=None)
    bench.program("modinfo", "echo 'modinfo: ERROR: Module not found.' >&2; exit 1")
    assert prepare(bench) == "no driver"


@pytest.mark.slow
@pytest.mark.parametrize("program", ["nvidia-smi", "modprobe"])
def test_a_gpu_that_hangs_the_drivers_programs_is_left_to_the_probe(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """They would use up the whole time to boot; so the node joins, and says what is sick."""
    monkeypatch.setattr(driver, "PATIENCE", 0.5)
    have_driver(bench, old=False, value=None)
    asks = 'test "$1" = -D && exec echo insmod /lib/nvidia.ko; '
    bench.program(program, f"{asks}exec sleep 600")
    assert prepare(bench) == "driver no longer checks"


def gpu_on_the_bus(bench: Bench, system: str) -> None:
    bench.file("sys/bus/pci/devices/0000:00:1e.0/vendor", "0x10de\n")
    bench.file("etc/os-release", f"ID={system}\nVERSION_CODENAME=jammy\n")


def test_ubuntus_driver_for_this_kernel_is_installed_newest_first(bench: Bench) -> None:
    gpu_on_the_bus(bench, "ubuntu")
    kernel = os.uname().release
    bench.program(
        "apt-get",
        'case "$*" in *570-server*) echo nvidia > "$ROOT/module" ;;'
        ' *install*) echo "E: Unable to locate package" >&2; exit 100 ;; esac',
    )
    assert prepare(bench) == "driver no longer checks"
    asked = [call for call in bench.calls if call.startswith("apt-get")]
    assert asked[0].endswith("update")
    assert f"linux-modules-nvidia-580-server-{kernel}" in asked[1]
    assert f"linux-modules-nvidia-570-server-{kernel} nvidia-headless-no-dkms-570" in asked[2]
    assert len(asked) == 3


DEBIANS = """
case "$*" in
  indextargets*) printf '%s\\n' {} ;;
  *install*) echo nvidia-current > "$ROOT/module" ;;
esac
"""


def test_debians_driver_is_compiled_for_this_kernel(bench: Bench) -> None:
    gpu_on_the_bus(bench, "debian")
    bench.program("apt-get", DEBIANS.format("main contrib non-free non-free-firmware main"))
    assert prepare(bench) == "driver no longer checks"
    assert bench.calls[-1] == "nvidia-smi -pm 1"
    wanted = f"linux-headers-{os.uname().release} nvidia-driver nvidia-smi"
    assert any(call.endswith(wanted) for call in bench.calls)


@pytest.mark.parametrize("components", ["main", "main contrib non-free-firmware"])
def test_sources_without_debians_driver_are_reported(bench: Bench, components: str) -> None:
    gpu_on_the_bus(bench, "debian")
    bench.program("apt-get", DEBIANS.format(components))
    listed = ", ".join(components.split())
    with pytest.raises(
        StepError,
        match=f"needs the components contrib and non-free, .* sources only have {listed}: .*image",
    ):
        prepare(bench)
    assert not any("nvidia-driver" in call for call in bench.calls)


@pytest.mark.slow
def test_the_real_apt_lists_the_components_of_the_sources() -> None:
    if not any(Path("/var/lib/apt/lists").glob("*Packages*")):
        pytest.skip("wants apt, and its lists")
    assert "main" in system_packages.components(Host())


def test_a_driver_that_cannot_be_installed_is_named(bench: Bench) -> None:
    gpu_on_the_bus(bench, "debian")
    sources = "indextargets*) printf '%s\\n' contrib non-free ;;"
    bench.program(
        "apt-get",
        f'case "$*" in {sources} *install*) echo "E: no nvidia-driver" >&2; exit 100;; esac',
    )
    with pytest.raises(StepError, match="E: no nvidia-driver"):
        prepare(bench)
