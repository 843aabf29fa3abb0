"""The accelerator (GPU or CPU) and the Python of trials, chosen if the study does not set them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.errors import PoolError
from trialfleet.infra.pool.connection import connect, use
from trialfleet.infra.pool.embedded import embedded_folder
from trialfleet.infra.pool.processes import run_captured
from trialfleet.workflows.facts.dagman.pool_slots import gpus, has_gpu, pool_slots
from trialfleet.workflows.study.image import is_sif
from trialfleet.workflows.study.paths import Problem, UnusableStudyError
from trialfleet.workflows.study.spec import Study
from trialfleet.workflows.study.trainer_command import PYTHONS

if TYPE_CHECKING:
    from classad2 import ClassAd

OLDEST_PYTHON = (3, 10)  # the oldest that nodes/trial.py supports
_ASKING = "import sys; print(*sys.version_info[:3], sep='.')"
_NOT_THERE = re.compile(r"executable file not found|no such file or directory", re.IGNORECASE)
_SECONDS = 20.0  # limit for the start of a Python


@dataclass(frozen=True, kw_only=True)
class PoolFacts:
    """Facts about the pool, for planning a run.

    Attributes:
        trouble: the reason why the pool is unreachable; "" if the pool answers.
        on_this_machine: True for an embedded pool: its jobs run here, as this account.
        job_path: the PATH of jobs in an embedded pool.
    """

    slots: tuple[ClassAd, ...] = ()
    trouble: str = ""
    on_this_machine: bool = False
    job_path: str = ""


def inspect_pool() -> PoolFacts:
    """Return facts about this process's pool. If it is unreachable, only `trouble` is set."""
    try:
        environment = connect()
        use(environment)
        is_embedded = embedded_folder(environment.get("CONDOR_CONFIG", "")) is not None
        return PoolFacts(
            slots=tuple(pool_slots().whole),
            on_this_machine=is_embedded,
            job_path=_job_path() if is_embedded else "",
        )
    except PoolError as error:
        return PoolFacts(trouble=str(error))


def _job_path() -> str:
    import htcondor2

    found = re.search(r"'PATH=((?:[^']|'')*)'", htcondor2.param.get("STARTER_JOB_ENVIRONMENT", ""))
    return found[1].replace("''", "'").replace('""', '"') if found else ""


def settle(study: Study, pool: PoolFacts) -> tuple[Study, tuple[str, ...]]:
    """Choose the accelerator and the Python of trials; return the study with both, and notes.

    The notes say what was chosen, and why. An accelerator that the study sets stays.
    UnusableStudyError if the chosen Python is missing, fails or is too old.
    """
    accelerator, why = _choose_accelerator(study, pool)
    python, which = _python(study, pool)
    settled = study.model_copy(update={"accelerator": accelerator, "python": python})
    return settled, tuple(filter(None, (why, which)))


def is_settled(settled: Study, study: Study) -> bool:
    """Return whether `settled` can be the result of `settle` for `study` and some pool.

    The two studies may differ only in the accelerator and the Python.
    """
    decided: dict[str, str | None] = {}
    if study.accelerator == "auto":
        decided["accelerator"] = settled.accelerator
    if study.python is None or study.python == Path(settled.python or "").name:
        decided["python"] = settled.python
    return settled == study.model_copy(update=decided)


def _choose_accelerator(study: Study, pool: PoolFacts) -> tuple[str, str]:
    if study.accelerator != "auto":
        return study.accelerator, ""
    if study.fleet and study.fleet.brings_gpus:
        return "gpu", "accelerator: gpu, because the study's fleet has GPUs"
    if pool.trouble:
        return "cpu", (
            "accelerator: cpu, because no pool answers; "
            "if the trials need GPUs, write accelerator: gpu"
        )
    if have := sum(map(has_gpu, pool.slots)):
        return "gpu", f"accelerator: gpu, because {have} of {len(pool.slots)} slot(s) have HAS_GPU"
    if silent := sum(gpus(slot) > 0 for slot in pool.slots):
        return "cpu", (
            f"accelerator: cpu, because none of the {silent} slot(s) with GPUs advertises HAS_GPU "
            "(docs/gpu.md)"
        )
    return "cpu", "accelerator: cpu, because no slot of the pool has a GPU"


# -- Python ------------------------------------------------------------------------------------


def _python(study: Study, pool: PoolFacts) -> tuple[str | None, str]:
    """Return the Python that runs trials (None: each node's python3), and a line about it."""
    if study.image:
        return study.python, _python_of_image(study.python or PYTHONS[0], study.image)
    if not pool.on_this_machine:
        if study.python:
            return study.python, f"python: {study.python} on the nodes; not checked from here"
        unknown = ", because no pool answers" if pool.trouble else ""
        return None, f"python: python3 of the node where a trial runs{unknown}"
    if study.python is None:
        return sys.executable, f"python: {sys.executable} ({_version(sys.executable)})"
    found = shutil.which(study.python, path=pool.job_path)
    if found is None:
        raise _unusable_error(
            f"{study.python!r} {_missing_python_reason(study.python, pool)}; name another Python, "
            f"such as {sys.executable}, or leave `python` out"
        )
    return found, f"python: {found} ({_version(found)})"


def _python_of_image(python: str, image: str) -> str:
    """Return a line about an image's Python. If apptainer can run the image here, test it.

    UnusableStudyError if the image lacks this Python, or if the Python is too old.
    """
    text, apptainer = f"python: {python} of the image", shutil.which("apptainer")
    if not is_sif(image):
        return f"{text}, which each node fetches; not checked from here"
    if apptainer is None:
        return f"{text}; not checked, because apptainer is not installed here"
    command = [apptainer, "-s", "exec", "--contain", image, python, "-I", "-c", _ASKING]
    try:
        done = run_captured(command, timeout=_SECONDS)
        said = done.stderr.strip().splitlines()
        if done.returncode and _NOT_THERE.search(done.stderr):
            raise _unusable_error(f"{python!r} is not in {image!r}; name a Python of the image")
    except (OSError, subprocess.SubprocessError) as error:
        said = [str(error)]
    else:
        if done.returncode == 0:
            return f"{text} ({_check_version(python, done.stdout.strip())})"
    return f"{text}; apptainer can't run it here: {' '.join(said[-1:])}"


def _unusable_error(text: str) -> UnusableStudyError:
    return UnusableStudyError(Problem(("python",), text))


def _missing_python_reason(python: str, pool: PoolFacts) -> str:
    if "/" not in python:
        return f"is not on a job's PATH, {pool.job_path}"
    return "is not executable" if Path(python).exists() else "does not exist"


def _version(python: str) -> str:
    try:
        done = run_captured([python, "-I", "-c", _ASKING], timeout=_SECONDS)
        done.check_returncode()
    except (OSError, subprocess.SubprocessError) as error:
        raise _unusable_error(f"{python!r} does not run as a Python: {error}") from error
    return _check_version(python, done.stdout.strip())


def _check_version(python: str, version: str) -> str:
    try:
        parts = tuple(int(part) for part in version.split("."))
    except ValueError as error:
        raise _unusable_error(f"{python!r} does not run as a Python: {error}") from error
    if parts < OLDEST_PYTHON:
        least = ".".join(map(str, OLDEST_PYTHON))
        raise _unusable_error(f"{python!r} is {version}; trials need {least} or newer")
    return version
