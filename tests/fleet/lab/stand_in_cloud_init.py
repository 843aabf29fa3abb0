"""Imitates cloud-init: unpacks an instance's user data and runs it once; standard library only."""

from __future__ import annotations

import gzip
import subprocess
import sys
import urllib.request
from pathlib import Path

IMDS = "http://169.254.169.254/latest"
INSTANCES = Path("/var/lib/cloud/instances")
LOG = Path("/var/log/cloud-init-output.log")
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def ask(path: str, headers: dict[str, str], method: str = "GET") -> bytes:
    """Return the metadata service's answer."""
    request = urllib.request.Request(f"{IMDS}/{path}", headers=headers, method=method)  # noqa: S310
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        content: bytes = answer.read()
        return content


def environment() -> dict[str, str]:
    """Return the variables for the user data; /etc/environment's apply to all processes anyway."""
    lines = Path("/etc/environment").read_text().splitlines()
    return ENVIRONMENT | dict(line.split("=", 1) for line in lines if "=" in line)


def main() -> int:
    """Run the user data unless it has run before; return its exit code."""
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = {"X-aws-ec2-metadata-token": ask("api/token", ttl, "PUT").decode()}
    instance = INSTANCES / ask("meta-data/instance-id", token).decode()
    if instance.exists():
        return 0
    script = instance / "scripts" / "part-001"
    script.parent.mkdir(parents=True)
    try:
        data = ask("user-data", token)
    except urllib.error.HTTPError:  # there is none
        return 0
    script.write_bytes(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    script.chmod(0o700)
    if not script.read_bytes().startswith(b"#!"):
        print(f"cloud-init (stand-in) runs scripts alone, and {script} is none", file=sys.stderr)
        return 1
    return run(script)


def run(script: Path) -> int:
    """Run a script, whose output goes to a file and to the console; return its exit code."""
    with LOG.open("ab") as log, Path("/dev/console").open("wb", buffering=0) as console:
        process = subprocess.Popen(
            [script],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        for line in process.stdout:
            for place in (log, console):
                place.write(line)
                place.flush()
        return process.wait()


if __name__ == "__main__":
    sys.exit(main())
