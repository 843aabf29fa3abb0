"""Imitates NVIDIA's kernel module, its files in /proc and /sys, and the tools around it.

`hardware.json` says what the machine has; nothing here reaches a real GPU. Standard library only.

    gpus       number of NVIDIA GPUs on the bus (0)
    gpu        their name in nvidia-smi ("Stand-in GPU")
    installed  True if the image has the driver (gpus > 0)
    module     the name of the module's file: nvidia, or nvidia-current, nvidia-current-open,
               nvidia-tesla-535 as Debian has them (nvidia)
    version    the driver's version (580.95.05)
    option     NVreg_CheckPCIConfigSpace is "absent" in this driver, "known", or "refused": known,
               but always 1 (absent)
    in_use     True: the module can't be unloaded (False)
    readings   what the GPU probe finds instead of healthy GPUs
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

HARDWARE = Path("/var/lib/lab/hardware.json")
READINGS = HARDWARE.with_name("readings.json")  # $TRIALFLEET_PROBE_READINGS of the nodes
PROC = Path("/proc/driver/nvidia")
MODULES = Path("/proc/modules")
PCI = Path("/sys/bus/pci/devices")
OPTIONS = Path("/etc/modprobe.d")
SMI = Path("/usr/bin/nvidia-smi")
DISCOVERY = Path("/etc/condor/config.d/99-stand-in-gpus.conf")
OPTION = "NVreg_CheckPCIConfigSpace"
DEFAULTS: dict[str, Any] = {
    "gpus": 0,
    "gpu": "Stand-in GPU",
    "module": "nvidia",
    "version": "580.95.05",
    "option": "absent",
    "in_use": False,
}


def hardware() -> dict[str, Any]:
    """Return the machine's hardware, with defaults for what `hardware.json` lacks."""
    content = json.loads(HARDWARE.read_text())
    return {**DEFAULTS, "installed": bool(content.get("gpus")), **content}


def readings(have: dict[str, Any]) -> dict[str, Any]:
    """Return what the GPU probe finds: by default, all GPUs healthy."""
    healthy = {"name": have["gpu"], "launch_microseconds": 6.0, "bandwidth": 500.0}
    found = {
        "driver": have["version"],
        "gpus": [{"index": n, "uuid": uuid(n), **healthy} for n in range(have["gpus"])],
        "xids": [],
    }
    given: dict[str, Any] = have.get("readings", {})
    return found | given


def uuid(number: int) -> str:
    """Return the name of GPU `number`, as HTCondor's stand-in gives it."""
    return f"GPU-{chr(ord('a') + number)}{number}223334-4445-5667-899a-abbccddeeff0"


def has_module(name: str) -> bool:
    """Return whether `name` is the driver's module, and the module is installed."""
    have = hardware()
    return bool(have["installed"]) and name in {"nvidia", have["module"]}


def loaded() -> bool:
    """Return whether the module is in the kernel."""
    return PROC.exists()


def load() -> None:
    """Load the module into the kernel, with the options in /etc/modprobe.d for its name."""
    have = hardware()
    PROC.mkdir()
    (PROC / "version").write_text(
        f"NVRM version: NVIDIA UNIX x86_64  {have['version']}  stand-in\n"
    )
    lines = ["ResmanDebugLevel: 4294967295", "PersistenceMode: 0"]
    if have["option"] != "absent":
        asked = option_asked(have["module"])
        lines.append(f"CheckPCIConfigSpace: {asked if have['option'] == 'known' else 1}")
    (PROC / "params").write_text("\n".join(lines) + "\n")
    if have["gpus"]:  # HTCondor's own stand-in for GPUs
        DISCOVERY.parent.mkdir(parents=True, exist_ok=True)
        simulated = f"-simulate:4,{have['gpus']}"
        DISCOVERY.write_text(f"GPU_DISCOVERY_EXTRA = $(GPU_DISCOVERY_EXTRA) {simulated}\n")
    write_modules(f"nvidia 60000000 {int(have['in_use'])} - Live 0x0000000000000000 (PO)\n")


def option_asked(module: str) -> int:
    """Return the option's value in /etc/modprobe.d; 1, the driver's default, if not set."""
    text = "\n".join(path.read_text() for path in sorted(OPTIONS.glob("*.conf")))
    found = re.findall(rf"^options\s+{re.escape(module)}\s.*\b{OPTION}=(\d)", text, re.MULTILINE)
    return int(found[-1]) if found else 1


def unload() -> None:
    """Remove the module from the kernel."""
    DISCOVERY.unlink(missing_ok=True)
    for path in PROC.iterdir():
        path.unlink()
    PROC.rmdir()
    write_modules("")


def write_modules(text: str) -> None:
    """Set the content of /proc/modules; a kernel without modules has no such file."""
    if MODULES.exists():
        MODULES.write_text(text)


def at_boot() -> int:
    """Put GPUs on the bus, and load the installed driver."""
    have = hardware()
    for number in range(have["gpus"]):
        device = PCI / f"0000:00:{0x1E - number:02x}.0"
        device.mkdir(parents=True, exist_ok=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
    if loaded():
        unload()
    READINGS.write_text(json.dumps(readings(have)))
    SMI.unlink(missing_ok=True)
    if have["installed"]:
        load()
        write_smi()
    return 0


def write_smi() -> None:
    """Install nvidia-smi."""
    export, words = f"PYTHONPATH={Path(__file__).parents[1]}", "-m lab.stand_in_nvidia nvidia-smi"
    SMI.write_text(f'#!/bin/sh\nexec env {export} {sys.executable} {words} "$@"\n')
    SMI.chmod(0o755)


def modprobe(words: list[str]) -> int:
    """Load or, with -r, unload modules."""
    if "--at-boot" in words:
        return at_boot()
    names = [word for word in words if not word.startswith("-") and "=" not in word]
    if "-D" in words:
        return what_loads(names[0])
    if "-r" in words or "--remove" in words:
        return rmmod(names)
    for name in names:
        if not has_module(name) and not name.startswith("nvidia-"):
            return missing(name)
        if has_module(name) and not loaded():
            load()
    return 0


def what_loads(name: str) -> int:
    """Print what modprobe would load; a line in /etc/modprobe.d may rename nvidia."""
    module = hardware()["module"]
    if not has_module(name):
        return missing(name)
    own = f"insmod /lib/modules/stand-in/updates/dkms/{module}.ko "
    print(own if module == name else f"install modprobe -i {module} $CMDLINE_OPTS ")
    return 0


def missing(name: str) -> int:
    """Print that there is no such module."""
    print(f"modprobe: FATAL: Module {name} not found in directory /lib/modules", file=sys.stderr)
    return 1


def rmmod(words: list[str]) -> int:
    """Unload the module, unless something uses it."""
    for name in words:
        if name not in {"nvidia", hardware()["module"]} or not loaded():
            print(f"modprobe: FATAL: Module {name} is not currently loaded.", file=sys.stderr)
            return 1
        if hardware()["in_use"]:
            print(f"modprobe: FATAL: Module {name} is in use.", file=sys.stderr)
            return 1
        unload()
    return 0


def modinfo(words: list[str]) -> int:
    """Print the module's file, version or parameters."""
    name = words[-1]
    if not has_module(name):
        print(f"modinfo: ERROR: Module {name} not found.", file=sys.stderr)
        return 1
    have = hardware()
    file = f"/lib/modules/stand-in/updates/dkms/{have['module']}.ko"
    parameters = ["NVreg_ResmanDebugLevel:int", "NVreg_EnableMSI:int"]
    if have["option"] != "absent":
        parameters.append(f"{OPTION}:int")
    if "-p" in words:
        print("\n".join(line.replace(":int", ": (int)") for line in parameters))
    elif "-F" in words:
        fields = {"filename": file, "version": have["version"], "parm": "\n".join(parameters)}
        print(fields.get(words[words.index("-F") + 1], ""))
    else:
        print(f"filename: {file}\nversion: {have['version']}")
        print("\n".join(f"parm: {line}" for line in parameters))
    return 0


def lsmod(_words: list[str]) -> int:
    """List the kernel's modules."""
    print("Module                  Size  Used by")
    if loaded():
        print(f"nvidia              60000000  {int(hardware()['in_use'])}")
    return 0


def nvidia_smi(words: list[str]) -> int:
    """Answer -pm, -L and --query-gpu; a value that is not known here is N/A."""
    have = hardware()
    if not loaded() or not have["gpus"]:
        print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
        return 9
    asked = next((w.partition("=")[2] for w in words if w.startswith("--query-gpu=")), "")
    for number in range(have["gpus"]):
        known = {
            "index": str(number),
            "name": have["gpu"],
            "driver_version": have["version"],
            "uuid": uuid(number),
            "persistence_mode": "Enabled",
            "memory.total": "16384",
            "pci.bus_id": f"00000000:00:{0x1E - number:02X}.0",
        }
        if asked:
            print(", ".join(known.get(name.strip(), "[N/A]") for name in asked.split(",")))
        elif "-L" in words:
            print(f"GPU {number}: {known['name']} (UUID: {known['uuid']})")
    return 0


def lspci(_words: list[str]) -> int:
    """List the devices on the bus."""
    for device in sorted(PCI.iterdir() if PCI.is_dir() else []):
        print(f"{device.name[5:]} 3D controller: NVIDIA Corporation {hardware()['gpu']} (stand-in)")
    return 0


def nothing(_words: list[str]) -> int:
    """Do nothing, for commands that have no effect here."""
    return 0


PROGRAMS = {
    "modprobe": modprobe,
    "rmmod": rmmod,
    "modinfo": modinfo,
    "lsmod": lsmod,
    "nvidia-smi": nvidia_smi,
    "lspci": lspci,
    "update-initramfs": nothing,
    "depmod": nothing,
}

if __name__ == "__main__":
    sys.exit(PROGRAMS[sys.argv[1]](sys.argv[2:]))
