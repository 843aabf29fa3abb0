"""The output of the GPU probe in the ad of a real startd."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pool.conftest import make_pool, session_folder  # noqa: F401
from tests.pool.watching import active
from trialfleet.infra.pool.embedded import Pool
from trialfleet.nodes.node_agent.htcondor_tools import run

pytestmark = pytest.mark.pool

# The program is env: STARTD_CRON calls its program by the job's name, and a Python that is called
# so finds neither itself nor its packages.
CRON = """
STARTD_CRON_JOBLIST = $(STARTD_CRON_JOBLIST) PROBE
STARTD_CRON_PROBE_MODE = Periodic
STARTD_CRON_PROBE_PERIOD = 2
STARTD_CRON_PROBE_EXECUTABLE = /usr/bin/env
STARTD_CRON_PROBE_ARGS = {python} -m trialfleet.nodes.probe
STARTD_CRON_PROBE_ENV = "TRIALFLEET_PROBE_READINGS={readings}"
HAS_GPU = TrialfleetGpuHealthy =?= True
"""
GPU = {"index": 0, "name": "NVIDIA A10G", "bandwidth": 480.5, "launch_microseconds": 12}
ATTRIBUTES = ("HAS_GPU", "TrialfleetGpuReason", "TrialfleetBandwidth")


def advertised() -> str:
    return run("condor_status", "-af:,", *ATTRIBUTES).strip()


def until(words: str) -> None:
    end = time.monotonic() + 30
    while advertised() != words:
        assert time.monotonic() < end, advertised()
        time.sleep(0.2)


def test_the_startd_replaces_all_attributes_of_the_previous_probe(
    make_pool: Callable[..., Pool],  # noqa: F811
    tmp_path: Path,
) -> None:
    readings = tmp_path / "readings.json"
    readings.write_text(json.dumps({"driver": "550.54", "gpus": [GPU], "xids": []}))
    with active(make_pool(extra=CRON.format(python=sys.executable, readings=readings))):
        until("true, , 480.5")
        sick = {"index": 0, "name": "NVIDIA A10G", "ecc_uncorrected": 3}
        readings.write_text(json.dumps({"driver": "550.54", "gpus": [sick]}))
        until("false, GPU 0: 3 memory errors that ECC could not correct, undefined")
        assert run("condor_status", "-constraint", "HAS_GPU", "-af", "Name") == ""
