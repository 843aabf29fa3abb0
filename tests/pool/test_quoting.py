"""Rendered files, read back by HTCondor's own tools."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import classad2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trialfleet import Run, Study, plan
from trialfleet.render import needs_escape
from trialfleet.workflows.control.plan.trial_json_and_submit_file import (
    ONCE_BYTES,
    TrialFiles,
    TrialOrder,
)
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.names import TURNING, region_slug

pytestmark = pytest.mark.usefixtures("pool")
few = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

NAMES = st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters=TURNING)
REGIONS = st.text(NAMES, min_size=1, max_size=200).filter(lambda name: name == name.strip())
# Names of files: bytes of UTF-8 count, "/" parts, and HTCondor's lists know no comma or quote.
FILE_NAMES = (
    st.text(
        st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters='/,"\\'),
        min_size=1,
        max_size=40,
    )
    .filter(lambda name: name == name.strip() and name.isprintable() and name not in {".", ".."})
    .filter(lambda name: not needs_escape(name))
)
# DAGMan takes a "|" in the name of its configuration for a program; a plan refuses such a folder.
RUN_NAMES = FILE_NAMES.filter(lambda name: "|" not in name)


def make_study(folder: Path, **changes: Any) -> Study:
    (folder / "go.sh").touch()
    values = {
        "name": "demo",
        "regions": ["A"],
        "objective": {"metric": "loss", "direction": "minimize"},
        "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "trainer": {"command": ["sh", "go.sh"], "files": ["go.sh"]},
        "accelerator": "cpu",
    }
    return Study.model_validate({**values, **changes}).resolve(folder)


def job_of(run: Run, region: str) -> classad2.ClassAd:
    """Return the one job that condor_submit makes of a trial's submit file."""
    folder, slug = RunFolder(run.folder), region_slug(region)
    files = folder.region(slug).trial(f"{slug}.l1.t01")
    order = TrialOrder(
        region=region, node=files.root.name, trial=0, mode="tune", seed=1, params={"x": 0.5}
    )
    TrialFiles("r1", run.study, folder, files, order).write()
    done = subprocess.run(
        ["condor_submit", "-dry-run", "ads", "trial.sub"],
        cwd=files.node_root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ads = list(classad2.parseAds((files.node_root / "ads").read_text()))
    assert len(ads) == 1
    return ads[0]


def new_run(work: Path, study: Study, name: str = "run") -> Run:
    shutil.rmtree(work / name, ignore_errors=True)
    return plan(study, run="r1", out=work / name)


@few
@given(region=REGIONS)
def test_a_region_of_any_name_makes_one_job_of_its_own(work: Path, region: str) -> None:
    run = new_run(work, make_study(work, regions=[region]))
    ad = job_of(run, region)
    assert ad["TrialfleetRegion"] == region_slug(region)
    assert ad["TrialfleetFolder"] == str(run.folder)
    assert ad["TransferOutput"] == ""
    assert ad["TrialfleetNode"] == f"{region_slug(region)}.l1"


@few
@given(name=FILE_NAMES)
def test_a_data_file_of_any_name_is_sent_to_its_job(work: Path, name: str) -> None:
    (work / "data").mkdir(exist_ok=True)
    file = work / "data" / name
    file.write_bytes(b"")
    study = make_study(work, regions={"A": {"data": [f"data/{name}"]}})
    sent = str(file)
    ad = job_of(new_run(work, study), "A")
    assert ad.eval("TransferInput").endswith(f",{sent}")
    assert "CommonInputFiles" not in ad

    file.write_bytes(bytes(ONCE_BYTES + 1))
    ad = job_of(new_run(work, study), "A")
    assert ad.eval("CommonInputFiles") == sent
    assert sent not in ad.eval("TransferInput")
    ad["LastRemoteHost"] = "slot1@machine"  # it left a machine
    assert ad.eval("CommonInputFiles") == classad2.Value.Undefined
    assert ad.eval("TransferInput").endswith(f", {sent}")


@few
@given(name=RUN_NAMES)
def test_a_run_folder_of_any_name_is_an_attribute_of_its_jobs(work: Path, name: str) -> None:
    run = new_run(work, make_study(work), name)
    done = subprocess.run(
        ["condor_submit_dag", "-no_submit", "-force", run.folder / "study.dag"],
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    import htcondor2

    text = (run.folder / "study.dag.condor.sub").read_text()
    folder = htcondor2.Submit(text).expand("My.TrialfleetFolder")
    assert classad2.ExprTree(folder).eval() == str(run.folder)
    assert job_of(run, "A")["TrialfleetFolder"] == str(run.folder)
    shutil.rmtree(run.folder)


SLOT = {
    "Arch": platform.machine(),  # HTCondor writes it in capitals, and ignores case
    "OpSys": "LINUX",
    "CondorVersion": "$CondorVersion: 25.14.1 2026-11-01 $",
    "HasFileTransfer": True,
    "HasSelfCheckpointTransfers": True,
    "Memory": 64_000,
    "Disk": 100_000_000,
    "GPUs": 4,
    "HAS_GPU": True,
}


def node(**more: object) -> classad2.ClassAd:
    """Return a slot as the negotiator sees it."""
    return classad2.ClassAd({**SLOT, **more})


def test_requirements_of_a_study_are_added_to_has_gpu(work: Path) -> None:
    requirements = 'Memory > 1 || Machine == "it\'s"'
    study = make_study(work, accelerator="gpu", resources={"requirements": requirements})
    ad = job_of(new_run(work, study), "A")
    asked = ad.lookup("Requirements")
    assert ad["RequestGPUs"] == 1
    assert str(asked).count("HAS_GPU") == 1
    assert "&& (Memory > 1 ||" in str(asked)


@pytest.mark.parametrize(
    ("gpus", "asked", "divided", "fits"),
    [
        (1, 1, {}, True),
        (1, 1, {"TrialfleetTrialsPerGpu": 1}, True),
        (1, 1, {"TrialfleetTrialsPerGpu": 4}, False),
        (2, 2, {}, True),
        (0.25, 1, {"TrialfleetTrialsPerGpu": 4}, True),
        (0.25, 1, {"TrialfleetTrialsPerGpu": 2}, False),
        ("1/3", 1, {"TrialfleetTrialsPerGpu": 3}, True),
        (0.5, 1, {}, False),
        (0.5, 1, {"TrialfleetTrialsPerGpu": 2, "HAS_GPU": False}, False),
    ],
)
def test_a_share_matches_only_gpus_divided_into_such_shares(
    work: Path, gpus: object, asked: int, divided: dict[str, object], fits: bool
) -> None:
    study = make_study(work, accelerator="gpu", resources={"gpus": gpus})
    job = job_of(new_run(work, study), "A")
    assert job["RequestGPUs"] == asked
    assert job.lookup("Requirements").eval(job, node(**divided)) is fits


@pytest.mark.parametrize(
    ("slot", "worth"),
    [
        (node(), 0),
        (node(TrialfleetBandwidthPerDollar=1200.5), 1200.5),
        (node(TrialfleetBandwidthPerDollar=classad2.Value.Undefined), 0),
    ],
)
def test_a_gpu_trial_ranks_slots_by_bandwidth_per_dollar(
    work: Path, slot: classad2.ClassAd, worth: float
) -> None:
    job = job_of(new_run(work, make_study(work, accelerator="gpu")), "A")
    assert job.lookup("Rank").eval(job, slot) == worth


def test_a_users_rank_replaces_the_default_and_a_cpu_trial_has_none(work: Path) -> None:
    own = make_study(work, accelerator="gpu", resources={"rank": "Memory"})
    assert str(job_of(new_run(work, own), "A").lookup("Rank")) == "Memory"
    assert float(job_of(new_run(work, make_study(work)), "A")["Rank"]) == 0


def test_urls_are_fetched_by_the_node_with_the_keys_of_the_study(work: Path) -> None:
    for name in ("id", "secret"):
        (work / name).touch()
    keys = {"access_key_id_file": "id", "secret_access_key_file": "secret"}
    study = make_study(work, data="s3://bucket/{region}.npz", s3=keys)
    ad = job_of(new_run(work, study), "A")
    assert "s3://bucket/A.npz" in ad["TransferInput"].split(",")
    assert ad["EC2AccessKeyId"] == str(work / "id")


@pytest.mark.parametrize(
    "image", ["docker://ghcr.io/team/trainer:2", "team/trainer@sha256:" + "a" * 64]
)
def test_an_image_of_a_registry_makes_a_job_of_the_container_universe(
    work: Path, image: str
) -> None:
    ad = job_of(new_run(work, make_study(work, image=image)), "A")
    assert ad["WantContainer"] is True
    assert ad["ContainerImage"].removeprefix("docker://") == image.removeprefix("docker://")
