"""The user data as a real process; IMDS is played, S3 and SSM are moto's, programs stand-ins."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.node_stand_ins import Bench, ImdsStandIn, playing_imds
from trialfleet.errors import FleetError
from trialfleet.infra.fleet import bundle, names, node_config, user_data
from trialfleet.infra.fleet.spec import Fleet

FLEET = Fleet.model_validate({"name": "demo", "aws_regions": ["eu-west-1"]})
BUCKET = "trialfleet-demo-123456789012"
PARAMETER = names.token_parameter("demo")
THE_TOKEN = "eyJhbGciOiJIUzI1NiJ9.the-pools-token.signature"
LOG_KEY = names.log_key("demo", "i-0123456789abcdef0")
SYSTEMCTL = """
case "$*" in
  "restart condor.service") touch "$ROOT/condor-runs" ;;
  "is-active --quiet condor.service") test -e "$ROOT/condor-runs" || exit 3 ;;
esac
"""


@dataclass
class Cloud:
    """moto's server, with a client for each service that a node asks."""

    address: str

    def client(self, service: str) -> Any:
        return boto3.client(  # type: ignore[call-overload]
            service,
            region_name="eu-west-1",
            endpoint_url=self.address,
            aws_access_key_id="x",
            aws_secret_access_key="x",
        )

    def log(self) -> str:
        body = self.client("s3").get_object(Bucket=BUCKET, Key=LOG_KEY)["Body"]
        with body:
            text: str = body.read().decode()
        return text


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def cloud(server: str) -> Cloud:
    cloud = Cloud(server)
    subprocess.run(["curl", "-sf", "-X", "POST", f"{server}/moto-api/reset"], check=True)
    place = {"LocationConstraint": "eu-west-1"}
    cloud.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration=place)
    cloud.client("ssm").put_parameter(Name=PARAMETER, Value=THE_TOKEN, Type="SecureString")
    return cloud


@pytest.fixture
def imds() -> Iterator[ImdsStandIn]:
    with playing_imds(ImdsStandIn()) as stand_in:
        yield stand_in


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path / "bench")
    for name in ("shutdown", "sysctl"):
        bench.program(name)
    bench.program("systemctl", SYSTEMCTL)
    bench.program("condor_version", "echo '$CondorVersion: 25.14.1 2026-11-01 $'")
    bench.program("condor_status", "echo slot1@node")
    return bench


def settings(cloud: Cloud, built: bundle.Bundle, **changes: object) -> dict[str, object]:
    return {
        "schema": 1,
        "fleet": "demo",
        "run": "2026-11-20T10-00-00",
        "home": "eu-west-1",
        "bucket": BUCKET,
        "bundle": built.key("demo"),
        "bundle_sha256": built.sha256,
        "log_prefix": "fleet/demo/log/",
        "token_parameter": PARAMETER,
        "manager": "127.0.0.1:9618",
        "condor_version": "25.14.1",
        "idle_minutes": 10,
        "boot_minutes": 20,
        "endpoint_url": cloud.address,
        **changes,
    }


@pytest.fixture
def built(cloud: Cloud) -> bundle.Bundle:
    built = bundle.build(node_config.render(FLEET, "127.0.0.1"))
    cloud.client("s3").put_object(Bucket=BUCKET, Key=built.key("demo"), Body=built.data)
    return built


def boot(bench: Bench, imds: ImdsStandIn, script: str) -> subprocess.CompletedProcess[str]:
    """Run the user data as cloud-init does; it uses the first Python of its own choice."""
    file = bench.folder / "part-001"
    file.write_text(script)
    environment = bench.environment(AWS_EC2_METADATA_SERVICE_ENDPOINT=imds.address)
    environment.pop("PYTHONPATH", None)
    return subprocess.run(
        [sys.executable, "-S", file], env=environment, capture_output=True, text=True, timeout=120
    )


def everything_on(bench: Bench) -> dict[Path, str]:
    return {
        path: path.read_text(errors="replace") for path in bench.folder.rglob("*") if path.is_file()
    }


def test_a_bare_machine_becomes_a_node(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    done = boot(bench, imds, user_data.render(settings(cloud, built)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert bench.calls[0] == "shutdown -P +20"
    assert bench.text("etc/condor/tokens.d/trialfleet") == THE_TOKEN + "\n"
    assert 'TrialfleetInstance = "i-0123456789abcdef0"' in bench.text(
        "etc/condor/config.d/40-trialfleet-instance.conf"
    )
    shared = bench.text("etc/condor/config.d/50-trialfleet-node.conf")
    assert shared == node_config.render(FLEET, "127.0.0.1")
    assert "TrialfleetGpuHealthy = " in bench.text("etc/condor/config.d/45-trialfleet-probe.conf")
    assert "systemctl restart condor.service" in bench.calls
    assert "systemctl start trialfleet-agent.service" in bench.calls
    steps = [line.split()[1] for line in done.stdout.splitlines() if line.endswith(" s)")]
    assert steps[0] == "switch:"
    assert steps[-2:] == ["join:", "done"]
    assert "join: joined as slot1@node" in cloud.log()


def test_the_token_is_in_no_other_file_and_no_line_and_no_command(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    script = user_data.render(settings(cloud, built))
    done = boot(bench, imds, script)
    holding = [path for path, text in everything_on(bench).items() if "the-pools-token" in text]
    assert holding == [bench.root / "etc/condor/tokens.d/trialfleet"]
    assert holding[0].stat().st_mode & 0o777 == 0o600
    for text in (script, done.stdout, done.stderr, cloud.log(), *bench.calls):
        assert "the-pools-token" not in text
    keys = json.loads(imds.paths["meta-data/iam/security-credentials/trialfleet-demo"])
    secrets = (keys["SecretAccessKey"], keys["Token"])
    assert not [
        path for path, text in everything_on(bench).items() if any(key in text for key in secrets)
    ]


def test_the_bootstrap_run_again_changes_nothing(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    boot(bench, imds, user_data.render(settings(cloud, built)))
    before, calls = everything_on(bench), bench.calls
    again = subprocess.run(
        [sys.executable, "-S", "-m", "trialfleet.nodes.bootstrap"],
        env=bench.environment(
            AWS_EC2_METADATA_SERVICE_ENDPOINT=imds.address,
            PYTHONPATH=str(bench.root / "opt/trialfleet/lib"),
        ),
        cwd=bench.folder,
        capture_output=True,
        text=True,
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert "probe: left to the startd" in again.stdout
    changed = {path for path, text in everything_on(bench).items() if before.get(path) != text}
    noted = {bench.root / "var/log/trialfleet-bootstrap.log", bench.folder / "calls"}
    assert {path for path in changed if "__pycache__" not in path.parts} == noted
    assert bench.calls[len(calls) :].count("systemctl restart condor.service") == 0
    assert not any(call.startswith("shutdown") for call in bench.calls[len(calls) :])


def test_a_bundle_that_was_changed_on_its_way_is_not_run(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    other = bundle.build("ALLOW_READ = *\n")
    cloud.client("s3").put_object(Bucket=BUCKET, Key=built.key("demo"), Body=other.data)
    done = boot(bench, imds, user_data.render(settings(cloud, built)))
    assert done.returncode == 1
    assert not (bench.root / "opt").exists()
    assert f"the bundle's checksum is {other.sha256}, not {built.sha256}" in cloud.log()
    assert bench.calls == ["shutdown -P +20"]


def test_a_missing_bundle_is_told_to_the_bucket(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    done = boot(bench, imds, user_data.render(settings(cloud, built, bundle="fleet/demo/none")))
    assert done.returncode == 1
    assert "failed: s3: GET" in cloud.log()
    assert "NoSuchKey" in cloud.log()


def test_a_step_that_fails_is_told_to_the_bucket_and_the_switch_stays_set(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    cloud.client("ssm").delete_parameter(Name=PARAMETER)
    done = boot(bench, imds, user_data.render(settings(cloud, built)))
    assert done.returncode == 1
    assert cloud.log().splitlines()[-1].split(" ", 1)[1].startswith("failed: ssm: POST")
    assert "ParameterNotFound" in cloud.log()
    assert "shutdown -P +20" in bench.calls
    assert "systemctl restart condor.service" not in bench.calls


def test_a_node_that_does_not_join_says_why_before_it_ends_itself(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    bench.program("condor_status", "echo AUTHENTICATE:1004:Failed using IDTOKENS >&2; exit 1")
    script = user_data.render(settings(cloud, built, boot_minutes=0.3))
    done = boot(bench, imds, script)
    assert done.returncode == 1
    last = cloud.log().splitlines()[-1]
    assert "failed: not in the pool after " in last
    assert "1004:Failed using IDTOKENS" in last


def test_a_driver_that_wants_a_reboot_is_rebooted_for_before_anything_joins(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    option = "NVreg_CheckPCIConfigSpace: (int)"
    bench.program("modinfo", f'test "$1" = -p && echo "{option}" || echo /lib/nvidia.ko')
    bench.program("modprobe", 'test "$1" != -r')
    bench.file("proc/driver/nvidia/params", "CheckPCIConfigSpace: 1\n")
    done = boot(bench, imds, user_data.render(settings(cloud, built)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert bench.calls[-1] == "systemctl reboot"
    assert "systemctl enable trialfleet-bootstrap.service" in bench.calls
    assert "reboots, this once" in cloud.log()
    assert not (bench.root / "etc/condor").exists()


def test_user_data_is_python_that_the_oldest_image_reads() -> None:
    script = user_data.render({"boot_minutes": 20, "fleet": 'it\'s "quoted" \\ and {{ braced }}'})
    compile(script, "user-data", "exec")
    assert script.startswith("#!/usr/bin/python3\n")
    assert len(script.encode()) <= 16_384


def test_user_data_that_ec2_would_refuse_is_refused_here() -> None:
    with pytest.raises(FleetError, match=r"has \d+ bytes, EC2 takes 16384"):
        user_data.render({"run": "x" * 5_000})


def test_a_machine_for_an_image_is_prepared_and_joins_nothing(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    bench.program("cloud-init")
    done = boot(bench, imds, user_data.render(settings(cloud, built, image=True)))
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [line.split()[1] for line in done.stdout.splitlines() if line.endswith(" s)")]
    assert steps == ["driver:", "htcondor:", "kernels:", "image:", "done"]
    assert bench.calls[-1] == "cloud-init clean --logs"
    assert "shutdown -c" in bench.calls
    assert "systemctl disable --now condor.service" in bench.calls
    assert not (bench.root / "opt/trialfleet/settings.json").exists()
    assert not (bench.root / "etc/condor/tokens.d").exists()
