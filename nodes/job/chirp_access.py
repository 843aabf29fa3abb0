"""A job's channel to its access point, which only the job's first process can use.

HTCondor's starter, the process that runs the job, is also a proxy for chirp. It writes the proxy's
address and cookie into a file, which the variable _CONDOR_CHIRP_CONFIG names. A program that has
this file can read and write the job owner's files on the access point. So the job's first process
removes the file before it starts any program. The process also asks the kernel to protect its own
memory, environment and open files from other programs of the same account.

After exit code 85 HTCondor starts the job again in the same sandbox, but does not write the file
again. So `Channel.give_back` restores the file, and also the agent's program, which the trainer may
have changed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

from trialfleet.nodes import AGENT
from trialfleet.nodes.job.chirp import Chirp

CONFIG = "_CONDOR_CHIRP_CONFIG"  # in a job's environment
# HTCondor's names for the script RUN/agent, and the archive that it runs. They need no other files.
PROGRAMS = ("condor_exec.exe", "agent", AGENT)
_SET_DUMPABLE, _SET_CHILD_SUBREAPER = 4, 36  # prctl's PR_…


class Channel:
    """The job's channel to its access point.

    `file` is HTCondor's chirp file, and `text` is its content. The constructor raises ValueError if
    `text` is invalid.
    """

    def __init__(self, file: Path, text: str) -> None:
        self._file, self._text = file, text
        self._host, port, self._cookie = text.split()
        self._port = int(port)
        self._programs = {
            program: program.read_bytes() for program in map(Path, PROGRAMS) if program.is_file()
        }

    @staticmethod
    def take() -> Channel:
        """Take the job's channel, so that programs started by this process can't use it.

        Raise OSError on failure, for example outside of an HTCondor job, or if the job's submit
        file lacks want_io_proxy = true.
        """
        config = os.environ.pop(CONFIG, None)
        if config is None:
            raise OSError(
                f"${CONFIG} is not set, because this is not an HTCondor job, or because the job's "
                "submit file lacks want_io_proxy = true"
            )
        file = Path(config)
        try:
            _set_process_option(_SET_DUMPABLE, 0)
            # Orphans become this process's children, so that it finds them at the job's end.
            _set_process_option(_SET_CHILD_SUBREAPER, 1)
            return Channel(file, file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise OSError(f"{config} is not a chirp configuration: {error}") from error
        finally:
            file.unlink(missing_ok=True)

    def chirp(self) -> Chirp:
        """Return a client of the access point, which connects at its first use."""
        return Chirp(self._host, self._port, self._cookie)

    def give_back(self) -> None:
        """Restore the chirp file and the agent's program, for the job's restart.

        This process must have no descendants, because they could read the file. Raise OSError on
        failure, for example on a full disk. The restarted job then has no channel.
        """
        for program, content in self._programs.items():
            _replace(program, content, 0o755)
        _replace(self._file, self._text.encode(), 0o600)


def _replace(path: Path, content: bytes, mode: int) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


def _set_process_option(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")
