"""A real apptainer, and a small image for it: Debian's own, unpacked into the user's cache."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import platformdirs
import pytest

from trialfleet.errors import PoolError
from trialfleet.files import lock_file
from trialfleet.infra.pool import elf, private_apt
from trialfleet.infra.pool.htcondor_installation import find_loader

RELEASE = "sid"  # the one release of Debian that has apptainer
PATH_OF_IMAGE = "/opt/own/bin"  # its python3 is found there first
_SECONDS = 300.0
_WRAPPER = """\
#!/bin/sh
# A job's PATH has none of the programs that apptainer calls.
PATH={usr}/bin:/usr/sbin:/usr/bin:/bin exec {usr}/bin/apptainer "$@"
"""


def folder_with_apptainer() -> Path:
    """Return a folder to put first on PATH; skips the test where there can be none."""
    if found := shutil.which("apptainer"):
        return Path(found).parent
    cache = _cache()
    try:
        with lock_file(cache / "lock", wait=True):
            if not (cache / "bin/apptainer").exists():
                _unpack(cache)
    except PoolError as error:
        pytest.skip(f"there is no apptainer here, and Debian's can't be unpacked: {error}")
    return cache / "bin"


def small_image(apptainer: Path) -> Path:
    """Return a SIF file with Python and a shell, 30 MB; skips the test where none can be made."""
    if not shutil.which("mmdebstrap"):
        pytest.skip("there is no mmdebstrap here, which makes the image")
    cache = _cache()
    image = cache / "small.sif"
    with lock_file(cache / "lock", wait=True):
        if not image.exists():
            _build(apptainer, image)
    return image


def _cache() -> Path:
    cache = platformdirs.user_cache_path("trialfleet") / "apptainer"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def _unpack(cache: Path) -> None:
    shutil.rmtree(cache / "root", ignore_errors=True)
    mirror, processor = private_apt.mirrors()[0], private_apt.machine_architecture()
    apt = private_apt.PrivateApt(cache / "apt", mirror, processor, RELEASE)
    apt.prepare()
    apt.update()
    private_apt.extract(apt.download(apt.closure("apptainer")), cache / "root")
    usr = cache / "root/usr"
    loader = find_loader(usr)
    own = loader.parent / "apptainer/bin"
    programs = elf.dynamic_programs([usr / "bin", own])
    elf.relocate(programs, loader=loader, libraries=[loader.parent, usr / "lib"])
    # it looks for these in its own folder
    (usr / "etc").symlink_to("../etc")
    (usr / "lib/etc").symlink_to("../../etc")
    for place in (usr, usr / "lib"):
        (place / "var/lib/apptainer/mnt/session").mkdir(parents=True)
    settings = cache / "root/etc/apptainer/apptainer.conf"
    text = settings.read_text().replace(
        "root default capabilities = full", "root default capabilities = no"
    )
    settings.write_text(text)
    shutil.rmtree(cache / "apt")
    program = cache / "bin/apptainer"
    program.parent.mkdir(exist_ok=True)
    part = program.with_suffix(".part")
    part.write_text(_WRAPPER.format(usr=usr))
    part.chmod(0o755)
    part.replace(program)


def _build(apptainer: Path, image: Path) -> None:
    root, part = image.with_suffix(".root"), image.with_suffix(".part.sif")
    shutil.rmtree(root, ignore_errors=True)
    packages = "--include=python3,dash,coreutils"
    _run("mmdebstrap", "-q", "--variant=extract", packages, "bookworm", root)
    own = root / PATH_OF_IMAGE.lstrip("/")
    own.mkdir(parents=True)
    (own / "python3").symlink_to("/usr/bin/python3")
    environment = root / ".singularity.d/env/90-environment.sh"
    environment.parent.mkdir(parents=True)
    environment.write_text(f'export PATH="{PATH_OF_IMAGE}:$PATH"\n')
    fast = "-Xcompression-level 1"
    _run(apptainer / "apptainer", "-q", "build", "--force", "--mksquashfs-args", fast, part, root)
    shutil.rmtree(root)
    part.replace(image)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    if done.returncode:
        pytest.skip(f"{command[0]} can't make the image here: {done.stderr.strip()[-300:]}")
