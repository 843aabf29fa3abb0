"""trialfleet's CUDA kernels, compiled before the first trial needs them."""

from __future__ import annotations

from trialfleet.nodes.bootstrap import configuration
from trialfleet.nodes.bootstrap.host import HOME, Host

PLACE = "/var/lib/trialfleet/kernels"  # where nodes/kernels/build.py looks first
UNIT = "trialfleet-kernels.service"
# Without importing torch, which takes seconds on a machine that has just booted.
_HAS_CUDA_TORCH = (
    "import sys, importlib.util as u; from pathlib import Path; torch = u.find_spec('torch'); "
    "sys.exit(not torch or not (Path(torch.origin).parent / 'lib/libtorch_cuda.so').exists())"
)
# The node takes trials meanwhile; one that needs the kernels at once compiles its own. The startd
# probes as it starts, and wouldn't measure a GPU that a program holds: that is let pass.
_SERVICE = """\
[Unit]
Description=trialfleet: compiles the CUDA kernels ahead of the trials

[Service]
Type=oneshot
Nice=19
IOSchedulingClass=idle
Environment=PYTHONPATH={home}/lib
ExecStartPre=/bin/sleep 30
ExecStart=-{python} -m trialfleet.nodes.kernels build --into {place}
StandardOutput=journal+console
"""


def python(host: Host) -> str | None:
    """Return the jobs' Python if its torch has CUDA; else there is nothing to compile for."""
    found = configuration.jobs_python(host)
    return found if host.ask(found, "-c", _HAS_CUDA_TORCH) is not None else None


def build(host: Host, jobs_python: str) -> bool:
    """Compile now, and say whether it went well; if not, the log says why."""
    into = str(host.place(PLACE))
    return host.succeeds(jobs_python, "-m", "trialfleet.nodes.kernels", "build", "--into", into)


def build_in_background(host: Host, jobs_python: str) -> None:
    """Compile beside everything else, at the lowest priority; the journal has how it went."""
    home, place = host.place(HOME), host.place(PLACE)
    text = _SERVICE.format(home=home, python=jobs_python, place=place)
    host.write(f"/etc/systemd/system/{UNIT}", text)
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "start", "--no-block", UNIT)
