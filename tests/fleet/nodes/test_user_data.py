"""The user data as a real process; IMDS and programs are stand-ins, S3 and SSM are moto's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.moto_server import empty_account, moto_server
from tests.node_stand_ins import HANG_UP, IP, Bench, ImdsStandIn, playing_imds
from trialfleet.infra.fleet.nodes import bundle, user_data
from trialfleet.infra.fleet.nodes import configuration as node_config
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet

FLEET = Fleet.model_validate({"name": "demo", "aws_regions": ["eu-west-1"]})
BUCKET = "trialfleet-demo-123456789012"
PARAMETER = names.token_parameter("demo")
THE_TOKEN = "eyJhbGciOiJIUzI1NiJ9.the-pools-token.signature"
LOG_KEY = names.log_key("demo", "i-0123456789abcdef0")
# A stand-in that makes the accounts of a given list.
SYSUSERS = """
while read -r _ name ids _ home; do
    grep -q "^$name:" "$ROOT/etc/passwd" 2>/dev/null ||
        echo "$name:x:${ids%:*}:${ids#*:}::$home:/usr/sbin/nologin" >> "$ROOT/etc/passwd"
done < "$2"
"""
SYSTEMCTL = """
case "$*" in
  "restart condor.service") touch "$ROOT/condor-runs" ;;
  "is-active --quiet condor.service") test -e "$ROOT/condor-runs" || exit 3 ;;
  "start --no-block trialfleet-bootstrap.service")
    unit="$ROOT/etc/systemd/system/trialfleet-bootstrap.service"
    exec $(sed -n s/^ExecStart=//p "$unit") > "$ROOT/console" 2>&1 ;;
esac
"""
SERVICE = "etc/systemd/system/trialfleet-bootstrap.service"


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
    with moto_server() as address:
        yield address


@pytest.fixture
def cloud(server: str) -> Cloud:
    cloud = Cloud(server)
    empty_account(server)
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
    bench.program("systemd-sysusers", SYSUSERS)
    bench.program("ip", IP)
    bench.program("condor_version", "echo '$CondorVersion: 25.14.1 2026-11-01 $'")
    bench.program("condor_status", "echo slot1@node")
    return bench


def settings(cloud: Cloud, built: bundle.Bundle, **changes: object) -> dict[str, object]:
    return {
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
    built = bundle.build(node_config.render(FLEET, "127.0.0.1:9618"))
    cloud.client("s3").put_object(Bucket=BUCKET, Key=built.key("demo"), Body=built.data)
    return built


@dataclass
class Boot:
    """The exit code and output of the service that the user data installed."""

    code: int
    output: str

    @property
    def steps(self) -> list[str]:
        return [line.split()[1] for line in self.output.splitlines() if line.endswith(" s)")]


def boot(bench: Bench, imds: ImdsStandIn, script: str) -> Boot:
    """Run the user data as cloud-init does; the stand-in for systemd waits for its service."""
    file = bench.folder / "part-001"
    file.write_text(script)
    return ran(bench, imds, sys.executable, "-S", str(file))


def reboot(bench: Bench, imds: ImdsStandIn) -> Boot:
    """Boot the machine again: /run is empty, and systemd starts what is enabled."""
    shutil.rmtree(bench.root / "run", ignore_errors=True)
    (bench.root / "condor-runs").unlink(missing_ok=True)
    (bench.root / "fence").unlink(missing_ok=True)
    return restart_service(bench, imds)


def restart_service(bench: Bench, imds: ImdsStandIn) -> Boot:
    """Start the service as systemd does after it has failed."""
    assert "systemctl enable trialfleet-bootstrap.service" in bench.calls
    assert "WantedBy=multi-user.target\n" in bench.text(SERVICE)
    assert "Restart=on-failure\n" in bench.text(SERVICE)
    return ran(bench, imds, "systemctl", "start", "--no-block", "trialfleet-bootstrap.service")


def ran(bench: Bench, imds: ImdsStandIn, *command: str) -> Boot:
    environment = bench.environment(AWS_EC2_METADATA_SERVICE_ENDPOINT=imds.address)
    environment.pop("PYTHONPATH", None)
    console = bench.file("console")
    console.unlink()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    output = done.stdout + done.stderr + (console.read_text() if console.exists() else "")
    return Boot(done.returncode, output)


def everything_on(bench: Bench) -> dict[Path, str]:
    return {
        path: path.read_text(errors="replace") for path in bench.folder.rglob("*") if path.is_file()
    }


def test_a_bare_machine_becomes_a_node(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    done = boot(bench, imds, user_data.render(settings(cloud, built)))
    assert done.code == 0, done.output
    assert bench.calls[:2] == ["systemctl is-active --quiet dbus.service", "shutdown -P +20"]
    assert bench.text("etc/condor/tokens.d/trialfleet") == THE_TOKEN + "\n"
    assert 'TrialfleetInstance = "i-0123456789abcdef0"' in bench.text(
        "etc/condor/config.d/40-trialfleet-instance.conf"
    )
    shared = bench.text("etc/condor/config.d/50-trialfleet-node.conf")
    assert shared == node_config.render(FLEET, "127.0.0.1:9618")
    assert "TrialfleetGpuHealthy = " in bench.text("etc/condor/config.d/45-trialfleet-probe.conf")
    assert "systemctl restart condor.service" in bench.calls
    assert "systemctl start trialfleet-agent.service" in bench.calls
    assert done.steps[0] == "services:"
    assert done.steps[-2:] == ["join:", "done"]
    assert "join: joined as slot1@node" in cloud.log()


def test_the_token_is_only_in_its_file_and_in_no_log_or_command(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    script = user_data.render(settings(cloud, built))
    done = boot(bench, imds, script)
    holding = [path for path, text in everything_on(bench).items() if "the-pools-token" in text]
    assert holding == [bench.root / "etc/condor/tokens.d/trialfleet"]
    assert holding[0].stat().st_mode & 0o777 == 0o600
    for text in (script, done.output, cloud.log(), *bench.calls):
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
    again = restart_service(bench, imds)
    assert again.code == 0, again.output
    assert "probe: skipped: HTCondor runs" in again.output
    changed = {path for path, text in everything_on(bench).items() if before.get(path) != text}
    noted = {bench.root / "var/log/trialfleet-bootstrap.log", bench.folder / "calls"}
    noted.add(bench.root / "console")
    assert {path for path in changed if "__pycache__" not in path.parts} == noted
    assert bench.calls[len(calls) :].count("systemctl restart condor.service") == 0
    assert not any(call.startswith("shutdown") for call in bench.calls[len(calls) :])


def test_a_bundle_that_was_changed_in_transit_is_not_run(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    other = bundle.build("ALLOW_READ = *\n")
    cloud.client("s3").put_object(Bucket=BUCKET, Key=built.key("demo"), Body=other.data)
    done = boot(bench, imds, user_data.render(settings(cloud, built)))
    assert done.code == 1
    assert not (bench.root / "opt/trialfleet/lib").exists()
    assert f"the bundle's checksum is {other.sha256}, not {built.sha256}" in cloud.log()
    assert bench.calls[:2] == ["systemctl is-active --quiet dbus.service", "shutdown -P +20"]
    assert not any("condor" in call for call in bench.calls)


def test_a_missing_bundle_is_logged_to_the_bucket(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    done = boot(bench, imds, user_data.render(settings(cloud, built, bundle="fleet/demo/none")))
    assert done.code == 1
    assert "failed: s3: GET" in cloud.log()
    assert "NoSuchKey" in cloud.log()


def test_a_failing_step_is_logged_and_the_shutdown_remains_scheduled(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    cloud.client("ssm").delete_parameter(Name=PARAMETER)
    done = boot(bench, imds, user_data.render(settings(cloud, built)))
    assert done.code == 1
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
    assert done.code == 1  # of `systemctl start` here
    last = cloud.log().splitlines()[-1]
    assert "failed: not in the pool after " in last
    assert "1004:Failed using IDTOKENS" in last


def test_the_node_reboots_for_its_driver_before_it_joins(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    option = "NVreg_CheckPCIConfigSpace: (int)"
    bench.program("modinfo", f'test "$1" = -p && echo "{option}" || echo /lib/nvidia.ko')
    bench.program("modprobe", 'test "$1" = -D && echo insmod /lib/nvidia.ko; test "$1" != -r')
    bench.file("proc/driver/nvidia/params", "CheckPCIConfigSpace: 1\n")
    done = boot(bench, imds, user_data.render(settings(cloud, built)))
    assert done.code == 0, done.output
    assert bench.calls[-1] == "systemctl reboot"
    assert "systemctl enable trialfleet-bootstrap.service" in bench.calls
    assert "rebooting once" in cloud.log()
    assert not (bench.root / "etc/condor").exists()


def test_a_reboot_schedules_the_shutdown_before_any_request(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    boot(bench, imds, user_data.render(settings(cloud, built)))
    cloud.client("s3").delete_object(Bucket=BUCKET, Key=built.key("demo"))  # it isn't fetched again
    before = len(bench.calls)
    imds.troubles = [403]  # a refusal, which asking again doesn't change
    again = reboot(bench, imds)
    assert again.code == 1, again.output
    assert "can't read the instance metadata meta-data/instance-id: HTTP 403" in again.output
    assert bench.calls[before + 1 :][1:] == ["shutdown -P +20"]

    late = restart_service(bench, imds)
    assert late.code == 0, late.output
    assert late.steps[-2:] == ["join:", "done"]
    assert bench.calls.count("shutdown -P +20") == 2, "once in a boot: each time puts the end off"
    assert "systemctl start trialfleet-agent.service" in bench.calls[before:]


def test_the_shutdown_is_scheduled_only_after_dbus_has_started(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    late = '"is-active --quiet dbus.service") echo x >> "$ROOT/asked"; test -e "$ROOT/dbus" ||'
    late += ' { test $(grep -c x "$ROOT/asked") -lt 3 || touch "$ROOT/dbus"; exit 3; } ;;'
    bench.program("systemctl", SYSTEMCTL.replace("esac", f"{late}\nesac"))
    bench.program("shutdown", 'test -e "$ROOT/dbus" || touch "$ROOT/off"')
    assert boot(bench, imds, user_data.render(settings(cloud, built))).code == 0
    assert "shutdown -P +20" in bench.calls
    assert not (bench.root / "off").exists()


def test_metadata_that_are_busy_for_a_moment_are_no_failure(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    imds.troubles = [503, HANG_UP, 429]
    done = boot(bench, imds, user_data.render(settings(cloud, built)))
    assert done.code == 0, done.output
    assert imds.troubles == []
    assert "failed" not in done.output


def test_metadata_that_are_busy_when_it_boots_again_are_no_failure(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    """The bundle is there by then, so that the bootstrap is the first to ask."""
    boot(bench, imds, user_data.render(settings(cloud, built)))
    imds.troubles = [503, HANG_UP, 429]
    again = reboot(bench, imds)
    assert again.code == 0, again.output
    assert imds.troubles == []
    assert "failed" not in again.output


def test_the_last_failure_is_logged_at_each_step_of_the_next_attempt(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    cloud.client("ssm").delete_parameter(Name=PARAMETER)
    boot(bench, imds, user_data.render(settings(cloud, built)))
    bench.program("ip", "exit 1")
    cloud.client("ssm").put_parameter(Name=PARAMETER, Value=THE_TOKEN, Type="SecureString")
    assert restart_service(bench, imds).code == 1
    lines = [line.split(" ", 1)[1] for line in cloud.log().splitlines()]
    (driver_line,) = (line for line in lines if line.startswith("driver ... ("))
    assert driver_line.startswith("driver ... (again; the last attempt failed: ssm: POST ")
    assert "ParameterNotFound" in driver_line
    assert lines[-1].startswith("failed: jobs could reach the instance's metadata")


def test_a_boot_over_its_time_limit_is_not_retried_and_logs_the_reason(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    bench.program("condor_status", "echo AUTHENTICATE:1004:Failed using IDTOKENS >&2; exit 1")
    boot(bench, imds, user_data.render(settings(cloud, built, boot_minutes=0.3)))
    assert "RestartPreventExitStatus=3\n" in bench.text(SERVICE)
    late = ran(bench, imds, *bench.text(SERVICE).partition("ExecStart=")[2].splitlines()[0].split())
    assert late.code == 3, late.output
    assert "1004:Failed using IDTOKENS" in cloud.log().splitlines()[-1]


def test_an_interrupted_unpacking_is_repeated_after_a_reboot(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    """The settings are written last: without them, whatever else is there counts for nothing."""
    boot(bench, imds, user_data.render(settings(cloud, built)))
    (bench.root / "opt/trialfleet/settings.json").unlink()
    shutil.rmtree(bench.root / "opt/trialfleet/lib/trialfleet/nodes/probe")
    again = reboot(bench, imds)
    assert again.code == 0, again.output
    assert "probe: TrialfleetGpuHealthy" in again.output


def test_the_bootstrap_does_not_begin_until_the_shutdown_is_scheduled(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    bench.program("shutdown", "echo no bus yet >&2; exit 1")
    done = boot(bench, imds, user_data.render(settings(cloud, built)))
    assert done.code == 1
    assert "failed: `shutdown -P +20`: no bus yet" in done.output
    assert not (bench.root / "opt/trialfleet/lib").exists()
    bench.program("shutdown")
    assert restart_service(bench, imds).code == 0


def test_a_machine_for_an_image_is_prepared_and_joins_nothing(
    bench: Bench, imds: ImdsStandIn, cloud: Cloud, built: bundle.Bundle
) -> None:
    for name in ("cloud-init", "sync"):
        bench.program(name)
    for file in ("etc/machine-id", "var/lib/dbus/machine-id"):
        bench.file(file, "1234567890abcdef1234567890abcdef\n")
    done = boot(bench, imds, user_data.render(settings(cloud, built, image=True)))
    assert done.code == 0, done.output
    assert done.steps == ["driver:", "htcondor:", "kernels:", "image:", "done"]
    assert [call.strip() for call in bench.calls[-2:]] == ["cloud-init clean --logs", "sync"]
    # Empty, and not "uninitialized": systemd would enable every service, HTCondor, too.
    assert bench.text("etc/machine-id") == ""
    assert not (bench.root / "var/lib/dbus/machine-id").exists()
    assert not (bench.root / SERVICE).exists()
    assert "shutdown -c" in bench.calls
    assert "systemctl disable --now condor.service" in bench.calls
    assert not (bench.root / "opt/trialfleet/settings.json").exists()
    assert not (bench.root / "etc/condor/tokens.d").exists()
