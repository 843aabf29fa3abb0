"""Compiles trialfleet's CUDA kernels before the first trial needs them."""

from __future__ import annotations

from trialfleet.nodes.bootstrap import configuration
from trialfleet.nodes.bootstrap.host import HOME, Host

PLACE = "/var/lib/trialfleet/kernels"  # the folder in which nodes/kernels/build.py looks first
UNIT = "trialfleet-kernels.service"
# This doesn't import torch, which takes seconds on a machine that has just booted.
_HAS_CUDA_TORCH = (
    "import sys, importlib.util as u; from pathlib import Path; torch = u.find_spec('torch'); "
    "sys.exit(not torch or not (Path(torch.origin).parent / 'lib/libtorch_cuda.so').exists())"
)
# Meanwhile the node takes trials; a trial that needs the kernels at once compiles its own. The
# service sleeps first, because the startd runs the GPU probe at its start, and the probe measures
# no GPU that is in use.
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
    """Return the path of the jobs' Python, or None if it has no torch with CUDA."""
    found = configuration.jobs_python(host)
    return found if host.ask(found, "-c", _HAS_CUDA_TORCH) is not None else None


def build_in_background(host: Host, jobs_python: str) -> None:
    """Start to compile the kernels in the background. The output goes to systemd's log."""
    home, place = host.place(HOME), host.place(PLACE)
    text = _SERVICE.format(home=home, python=jobs_python, place=place)
    host.write(f"/etc/systemd/system/{UNIT}", text)
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "start", "--no-block", UNIT)
