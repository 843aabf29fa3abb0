"""`python -m tests.fleet.lab [--real]`: start a lab and open a shell on its manager."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from . import debian_image
from .lab import REPOSITORY, Lab
from .machine import USER
from .moto_side import LEARNING
from .namespaces import why_none
from .project import HOME, PROGRAM, Project
from .remote import USAGE

FLIGHTS = REPOSITORY / "workflows" / "examples" / "flights"
FLEET: dict[str, Any] = {
    "aws_regions": ["us-east-1"],
    "instance_types": ["g5.xlarge"],
    "ami": LEARNING,
    "nodes": {"max": 4},
}
PRIVATE = ("/tmp", "/var/tmp", "/dev/shm")  # each job has its own on a node
WELCOME = f"""
This is the manager of a pool in a cloud that exists on this machine alone. It is installed; AWS is
moto, an instance is a machine of namespaces, its user data is the real one. Try:

    cd flights
    trialfleet fleet up study.yaml --nodes 3 --wait
    trialfleet run study.yaml        and, in the meantime, in another terminal: see below
    trialfleet fleet status study.yaml
    trialfleet fleet down study.yaml

{USAGE}

exit ends everything. Another shell here:  {{another}}
"""


def main() -> None:
    """Start a lab, install the manager, and run a shell on it."""
    if reason := why_none() or why_not_here(REPOSITORY):
        sys.exit(f"no lab: {reason}")
    real = "--real" in sys.argv
    if real and debian_image.why_none():
        sys.exit(f"no lab with real nodes: {debian_image.why_none()}")
    folder = Path(tempfile.mkdtemp(prefix="lab-"))
    print("starting the cloud and the manager ...")
    with Lab.start(folder, manager_image="prepared", remote=True, real=real) as lab:
        project = Project(lab)
        project.install()
        write_flights(lab)
        write_programs(lab)
        shell = [*lab.manager.entering(USER, variables(project)), "bash", "--login", "-i"]
        print(WELCOME.format(another=" ".join(shell)))
        subprocess.run(shell)


def why_not_here(repository: Path) -> str:
    """Return why a lab would not work from the clone `repository`; empty if it would."""
    place = next((each for each in PRIVATE if repository.is_relative_to(each)), "")
    return place and (
        f"{repository} is in {place}, which is each job's own on the lab's nodes: jobs would not "
        "find its Python; clone it elsewhere"
    )


def variables(project: Project) -> dict[str, str]:
    """Return the environment variables of the shell."""
    path = f"{PROGRAM.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {**project.variables, "PATH": path, "TERM": "xterm-256color"}


def write_flights(lab: Lab) -> None:
    """Write the example study `flights`, with a fleet, into the user's home on the manager."""
    yaml = YAML()
    study = yaml.load((FLIGHTS / "study.yaml").read_text())
    study["fleet"] = FLEET
    folder = f"{HOME}/flights"
    lab.manager.write(f"{folder}/prepare.py", (FLIGHTS / "prepare.py").read_text(), user=USER)
    with tempfile.TemporaryFile("w+") as text:
        yaml.dump(study, text)
        text.seek(0)
        lab.manager.write(f"{folder}/study.yaml", text.read(), user=USER)
    copy = f"cp -r {FLIGHTS}/data {folder}/ 2>/dev/null || {sys.executable} {folder}/prepare.py"
    lab.manager.run(copy, user=USER, check=True)


def write_programs(lab: Lab) -> None:
    """Install the command `lab` on the manager, in a folder of its PATH."""
    call = "exec env PYTHONPATH=/opt /usr/bin/python3 -m lab.remote"
    lab.manager.write("/usr/local/bin/lab", f'#!/bin/sh\n{call} "$@"\n')
    lab.manager.run(["chmod", "+x", "/usr/local/bin/lab"], check=True)
    profile = f"export PATH={PROGRAM.parent}:$PATH PS1='manager:\\w\\$ '\n"
    lab.manager.write(f"{HOME}/.profile", profile, user=USER)


if __name__ == "__main__":
    main()
