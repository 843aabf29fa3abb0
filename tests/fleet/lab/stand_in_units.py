"""Imitates systemd's unit files: finds, reads and enables services; standard library only."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system",
           "/usr/lib/systemd/system", "/lib/systemd/system")  # fmt: skip
OWN = Path(FOLDERS[0])
UNITS_OF_TIME = {"": 1.0, "s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 0.001, "m": 60.0,
                 "min": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0}  # fmt: skip


class NoUnitError(Exception):
    """There is no unit of that name."""


@dataclass
class Unit:
    """A service as its files describe it: keys such as `Service.ExecStart`, values in order."""

    name: str
    settings: dict[str, list[str]] = field(default_factory=dict)

    def first(self, key: str, default: str = "") -> str:
        """Return the last value set for a key, or `default`."""
        return (self.settings.get(key) or [default])[-1]

    def commands(self, key: str) -> list[list[str]]:
        """Return the command lines of a key, without systemd's prefixes such as `-`."""
        lines = self.settings.get(f"Service.{key}", [])
        return [shlex.split(line.lstrip("-@:+!")) for line in lines if line]

    def seconds(self, key: str, default: float) -> float:
        """Return a key's time span in seconds."""
        text = self.first(f"Service.{key}")
        if text == "infinity":
            return 1e9
        parts = re.findall(r"([\d.]+)\s*([a-z]*)", text)
        return sum(float(n) * UNITS_OF_TIME[unit] for n, unit in parts) if parts else default

    def yes(self, key: str) -> bool:
        """Return whether a key's switch is on."""
        return self.first(f"Service.{key}") in {"yes", "true", "on", "1"}

    def environment(self) -> dict[str, str]:
        """Return the variables that the unit sets; those in its files take precedence."""
        found = dict(
            word.split("=", 1)
            for line in self.settings.get("Service.Environment", [])
            for word in shlex.split(line)
        )
        for name in self.settings.get("Service.EnvironmentFile", []):
            found |= assignments(Path(name.lstrip("-")))
        return found


def assignments(path: Path) -> dict[str, str]:
    """Return the NAME=VALUE lines of a file; none if the file is missing."""
    lines = path.read_text().splitlines() if path.is_file() else []
    pairs = [line.strip().split("=", 1) for line in lines if "=" in line]
    return {name: value.strip("\"'") for name, value in pairs if not name.startswith("#")}


def full(name: str) -> str:
    """Return the unit's full name: `condor` is `condor.service`."""
    return name if "." in name else f"{name}.service"


def find(name: str) -> Path:
    """Return the unit's file.

    Raises:
        NoUnitError: there is none.
    """
    found = next((Path(f, full(name)) for f in FOLDERS if Path(f, full(name)).exists()), None)
    if found is None:
        raise NoUnitError(f"Unit {full(name)} could not be found.")
    return found


def read(name: str) -> Unit:
    """Return a unit with its drop-ins; NoUnitError if there is none."""
    unit = Unit(full(name))
    drop_ins = [p for f in FOLDERS for p in sorted(Path(f, f"{unit.name}.d").glob("*.conf"))]
    for path in (find(name), *drop_ins):
        _add(unit, path.read_text())
    return unit


def _add(unit: Unit, text: str) -> None:
    section = ""
    for raw in text.replace("\\\n", " ").splitlines():
        line = raw.strip()
        if line.startswith("["):
            section = line.strip("[]")
        elif "=" in line and line[0] not in "#;":
            key, value = (part.strip() for part in line.split("=", 1))
            values = unit.settings.setdefault(f"{section}.{key}", [])
            if not value:  # an empty value forgets the earlier ones
                values.clear()
            else:
                values.append(value)


def enable(name: str) -> None:
    for target in read(name).settings.get("Install.WantedBy", []):
        link = OWN / f"{target}.wants" / full(name)
        link.parent.mkdir(exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(find(name))


def disable(name: str) -> None:
    for link in OWN.glob(f"*.wants/{full(name)}"):
        link.unlink()


def enabled(name: str = "*") -> list[str]:
    """Return the units that are started at boot; with a `name`, only that one."""
    pattern = name if name == "*" else full(name)
    return sorted({link.name for link in OWN.glob(f"*.wants/{pattern}") if link.exists()})
