from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import time
from dataclasses import fields
from pathlib import Path

import pytest

from trialfleet.infra.fleet.nodes import bundle
from trialfleet.infra.fleet.nodes import configuration as node_config
from trialfleet.infra.fleet.spec.fleet import Fleet, Probe
from trialfleet.infra.pool.htcondor_installation import find_htcondor
from trialfleet.nodes.probe.__main__ import parser
from trialfleet.nodes.probe.gpu_health import Thresholds

FLEET = Fleet.model_validate({"name": "demo", "aws_regions": ["eu-west-1"]})


def unpack(built: bundle.Bundle, folder: Path) -> Path:
    with tarfile.open(fileobj=io.BytesIO(built.data)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_the_same_code_gives_the_same_bytes_at_any_time_and_in_any_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, files = bundle.build("A = 1\n"), list(bundle.code())
    monkeypatch.setattr(time, "time", lambda: 1e9)
    monkeypatch.setattr(bundle, "code", lambda: reversed(files))
    assert bundle.build("A = 1\n") == before


def test_another_configuration_gives_another_bundle() -> None:
    assert bundle.build("A = 1\n").sha256 != bundle.build("A = 2\n").sha256


def test_a_bundles_key_names_its_content() -> None:
    built = bundle.build("")
    assert built.key("demo") == f"fleet/demo/bundle-{built.sha256}.tar.gz"


def test_a_bundle_holds_a_nodes_programs_and_nothing_of_the_manager(tmp_path: Path) -> None:
    lib = unpack(bundle.build("A = 1\n"), tmp_path) / "lib"
    files = {str(file.relative_to(lib)) for file in lib.rglob("*") if file.is_file()}
    assert {"trialfleet/__init__.py", "trialfleet/nodes/bootstrap/__main__.py"} <= files
    assert {name.split("/")[1] for name in files if name.count("/") > 1} == {"nodes"}
    assert not any("__pycache__" in name for name in files)
    assert (tmp_path / "node.conf").read_text() == "A = 1\n"


@pytest.mark.parametrize("module", ["bootstrap.steps", "bootstrap.__main__"])
def test_a_bare_python_can_import_a_bundle(tmp_path: Path, module: str) -> None:
    unpack(bundle.build(""), tmp_path)
    command = [sys.executable, "-S", "-c", f"import trialfleet.nodes.{module}"]
    done = subprocess.run(
        command,
        env={"PYTHONPATH": str(tmp_path / "lib"), "PATH": os.defpath},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.returncode == 0


def config_val(text: str, tmp_path: Path, *names: str) -> list[str]:
    """Return settings as HTCondor itself reads them."""
    release = find_htcondor().release
    file = tmp_path / "condor_config"
    file.write_text(f"RELEASE_DIR = {release}\nLOCAL_DIR = {tmp_path}\nLOG = /log\n{text}")
    done = subprocess.run(
        [release / "bin/condor_config_val", *names],
        env={"CONDOR_CONFIG": str(file), "PATH": os.defpath, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_htcondor_reads_the_configuration_as_it_is_meant(tmp_path: Path) -> None:
    text = node_config.render(FLEET, "10.0.0.1:9700")
    wanted = {
        "COLLECTOR_HOST": "10.0.0.1:9700",
        "CCB_ADDRESS": "10.0.0.1:9700",
        "DAEMON_LIST": "MASTER STARTD",
        "SLOT_TYPE_1_PARTITIONABLE": "true",
        "SEC_DEFAULT_ENCRYPTION": "REQUIRED",
        "SEC_READ_AUTHENTICATION": "REQUIRED",
        "TRUST_DOMAIN": "trialfleet",
        "STARTD_HISTORY": "/log/startd_history",
        "GPU_DISCOVERY_EXTRA": "-extra",
        "TrialfleetTrialsPerGpu": "1",
        "TrialfleetFleet": '"demo"',
    }
    assert config_val(text, tmp_path, *wanted) == list(wanted.values())
    (attributes,) = config_val(text, tmp_path, "STARTD_ATTRS")
    assert {"HAS_GPU", *node_config.ATTRIBUTES} <= set(attributes.split())
    (jobs,) = config_val(text, tmp_path, "STARTD_CRON_JOBLIST")
    assert {"TRIALFLEET_PROBE", "GPUs_MONITOR"} <= set(jobs.split())


def test_shared_gpus_and_probe_thresholds_are_in_the_configuration(tmp_path: Path) -> None:
    table = {"trials_per_gpu": 4, "probe": {"launch_rate": 5000, "ecc_uncorrected": 1}}
    fleet = Fleet.model_validate({**FLEET.model_dump(), **table})
    wanted = {
        "GPU_DISCOVERY_EXTRA": "-extra -divide 4",
        "TrialfleetTrialsPerGpu": "4",
        "TRIALFLEET_PYTHON": "/opt/p",
        "STARTD_CRON_TRIALFLEET_PROBE_ARGS": (
            "/opt/p -m trialfleet.nodes.probe --ecc-uncorrected 1 --launch-rate 5000.0"
        ),
    }
    text = node_config.render(fleet, "10.0.0.1:9618") + "TRIALFLEET_PYTHON = /opt/p\n"
    assert config_val(text, tmp_path, *wanted) == list(wanted.values())


def test_the_probe_takes_every_threshold_of_a_fleet() -> None:
    known = {field.name for field in fields(Thresholds)}
    assert set(Probe.model_fields) == known
    options = Probe.model_validate(dict.fromkeys(known, 1)).options().split()
    assert vars(parser().parse_args(options)).items() >= dict.fromkeys(known, 1).items()


def test_requests_from_outside_have_no_rights(tmp_path: Path) -> None:
    text = node_config.render(FLEET, "10.0.0.1:9618")
    levels = ("READ", "WRITE", "DAEMON", "NEGOTIATOR", "ADMINISTRATOR")
    allowed = config_val(text, tmp_path, *(f"ALLOW_{level}" for level in levels))
    assert set(allowed) == {"root@trialfleet, condor@trialfleet"}
