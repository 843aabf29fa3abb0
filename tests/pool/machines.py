"""Machines of a pool of several, each an HTCondor of its own in a folder, all on loopback.

Each has the paths and the security that the packages of Debian and of HTCondor bring, and behind
them, as on a real machine, a file of ours. As root its processes run in a user namespace, as those
of the embedded pool do.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

from trialfleet.infra.manager.config import KEY
from trialfleet.infra.pool import signing
from trialfleet.infra.pool.htcondor_installation import (
    extended_path,
    find_htcondor,
    inherited_environment,
)
from trialfleet.infra.pool.user_namespace import identity

PACKAGE = """
RELEASE_DIR = {release}
BIN = $(RELEASE_DIR)/bin
SBIN = $(RELEASE_DIR)/sbin
LIB = $(RELEASE_DIR)/lib/condor
LIBEXEC = {libexec}
LOCAL_DIR = {folder}
ETC = $(LOCAL_DIR)/etc
RUN = $(LOCAL_DIR)/run
LOG = $(LOCAL_DIR)/log
LOCK = $(LOCAL_DIR)/lock
SPOOL = $(LOCAL_DIR)/spool
EXECUTE = $(LOCAL_DIR)/execute
LOCAL_CONFIG_DIR = $(ETC)/config.d
USER_CONFIG_FILE =
use security:recommended
# Several machines on one.
NETWORK_INTERFACE = 127.0.0.1
BIND_ALL_INTERFACES = False
ENABLE_IPV6 = False
DISCARD_SESSION_KEYRING_ON_STARTUP = False
{ids}
"""
FOLDERS = ("etc/config.d", "etc/passwords.d", "etc/tokens.d", "run", "log", "lock", "spool")


class Machine:
    """One machine; `start` runs its daemons, `stop` ends them."""

    def __init__(self, folder: Path, configuration: str) -> None:
        self.folder = folder
        self._installation = find_htcondor()
        for name in FOLDERS:
            (folder / name).mkdir(parents=True, mode=0o700)
        (folder / "execute").mkdir(mode=0o755)
        ids = "CONDOR_IDS = 0.0" if identity().root else ""
        places = {"release": self._installation.release, "libexec": self._installation.libexec}
        package = PACKAGE.format(folder=folder, ids=ids, **places)
        (folder / "condor_config").write_text(package)
        (folder / "etc" / "config.d" / "50-trialfleet.conf").write_text(configuration)
        self._master: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "log" / "start.out").open("w") as output:
            self._master = subprocess.Popen(
                [*identity().prefix, self._installation.sbin / "condor_master", "-f"],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def stop(self) -> None:
        if self._master is None:
            return
        self._master.terminate()
        try:
            self._master.wait(30)
        except subprocess.TimeoutExpired:
            self._master.kill()
            self._master.wait()

    def environment(self) -> dict[str, str]:
        path = extended_path(os.environ.get("PATH", os.defpath), self._installation)
        config = {"CONDOR_CONFIG": str(self.folder / "condor_config"), "PATH": path}
        return {
            **inherited_environment(),
            **config,
            "HOME": str(self.folder),
        }  # no tokens of the user's

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a tool as a user of this machine would."""
        return subprocess.run(
            [*identity().prefix, *command],
            env=self.environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def make_key(self) -> None:
        self._secret("passwords.d", KEY, signing.new_key())

    def give_token(self, token: str) -> None:
        self._secret("tokens.d", "pool", token.encode())

    def _secret(self, folder: str, name: str, content: bytes) -> None:
        path = self.folder / "etc" / folder / name
        path.write_bytes(content)
        path.chmod(0o600)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
    return port
