"""The lab's cloud, inside its namespaces: network, AWS, metadata, machines. `Lab.start` runs it.

It reads requests from standard input, a line of JSON each, and answers on standard output. The lab
ends with the input.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import boto3

from . import (
    cgroups,
    moto_side,
    mounting,
    remote,
    stand_in_dhcp,
    stand_in_nvidia,
    stand_in_website,
    switch,
)
from .hypervisor import Hypervisor, Machine
from .machine import USER
from .stand_in_imds import Notices, Service

PORT = 5000
ENDPOINT = f"http://{switch.ROUTER}:{PORT}"
CGROUPS = "cgroups"  # where the cloud sees the kernel's, in its folder
MANAGER_TYPE = "m5.large"
READINGS = {"TRIALFLEET_PROBE_READINGS": str(stand_in_nvidia.READINGS)}


class Cloud:
    """The requests that the lab accepts; every public method is one."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        """Start the network, AWS, the metadata service and the watch for machines.

        Args:
            folder: the lab's own.
            options: as `lab.Options` has them.
        """
        self.options, self._manager = options, ""
        disks, hosts = folder / "machines", folder / "hosts"
        mounting.memory(disks)
        hosts.write_text(f"127.0.0.1 localhost\n{switch.ROUTER} {stand_in_website.NAME}\n")
        hide_resolver(folder)
        socket.sethostname("cloud")
        switch.build()
        moto_side.configure(folder)
        moto_side.serve(switch.ROUTER, PORT)
        self._policy = options["policy"]
        self._caller = moto_side.make_user(moto_side.CALLER, self._policy)
        self._operator = moto_side.make_user(moto_side.OPERATOR, moto_side.EVERYTHING)
        for region in options["regions"]:
            moto_side.tell_images(region)
        self._authority = stand_in_website.serve(switch.ROUTER, folder)
        self._notices = Notices()
        Service(self._notices).start()
        if options["image"]:
            cgroups.mount(folder / CGROUPS)
            stand_in_dhcp.serve(addresses)
        self._cgroups = folder / CGROUPS / options["cgroup"]
        self._hypervisor = Hypervisor(disks, hosts, self._describe)
        self._hypervisor.start()

    def manager(self) -> str:
        """Boot the manager's machine, an instance like any other; return the instance's id."""
        answer = self.aws(
            "ec2",
            "run_instances",
            self.options["regions"][0],
            ImageId=moto_side.IMAGES[self.options["manager_image"]],
            InstanceType=MANAGER_TYPE,
            MinCount=1,
            MaxCount=1,
            MetadataOptions={"HttpTokens": "required", "InstanceMetadataTags": "enabled"},
            TagSpecifications=[
                {"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": "manager"}]}
            ],
        )
        self._manager = answer["Instances"][0]["InstanceId"]
        return self._manager

    def environment(self) -> dict[str, str]:
        """Return the variables by which commands on the manager find AWS."""
        return {
            "AWS_ENDPOINT_URL": ENDPOINT,
            "AWS_ACCESS_KEY_ID": self._caller.id,
            "AWS_SECRET_ACCESS_KEY": self._caller.secret,
            "AWS_DEFAULT_REGION": self.options["regions"][0],
        }

    def allow(self, policy: dict[str, Any]) -> None:
        """Replace the IAM policy of the caller, the user on the manager."""
        self._policy = policy
        self.permit()

    def permit(self) -> None:
        """Let the caller (the user on the manager) do all that its policy allows; end `deny`."""
        moto_side.allow(moto_side.CALLER, self._policy)

    def deny(self, action: str) -> None:
        """Let the caller do what its policy allows, except an action such as `ec2:CreateFleet`."""
        denied = {"Effect": "Deny", "Action": action, "Resource": "*"}
        statements = [*self._policy["Statement"], denied]
        moto_side.allow(moto_side.CALLER, {**self._policy, "Statement": statements})

    def full(self, zone: str) -> None:
        """Let the zone have no capacity for nodes."""
        moto_side.lack(zone=zone, message="none left")

    def room(self) -> None:
        """Let every zone have capacity again."""
        moto_side.restore()

    def configure(self, **options: Any) -> None:
        """Change options for the machines that boot from now on."""
        self.options |= options

    def aws(self, service: str, operation: str, region: str, **words: Any) -> Any:
        """Call AWS with all permissions."""
        client = boto3.client(  # type: ignore[call-overload]
            service,
            region_name=region,
            endpoint_url=ENDPOINT,
            aws_access_key_id=self._operator.id,
            aws_secret_access_key=self._operator.secret,
        )
        answer = getattr(client, operation)(**words)
        answer.pop("ResponseMetadata", None)
        return {k: v.read().decode() if hasattr(v, "read") else v for k, v in answer.items()}

    def instances(self) -> list[dict[str, Any]]:
        """Return the instances of all regions except the manager, and their machines' state."""
        machines = self._hypervisor.machines
        return [
            {
                "id": found.id,
                "region": found.ec2_backend.region_name,
                "zone": found.availability_zone,
                "type": found.instance_type,
                "lifecycle": found.lifecycle or "on-demand",
                "state": found.state,
                "reason": found.state_reason.code or "",
                "address": found.private_ip,
                "name": found.private_dns_name,
                "tags": {tag["key"]: tag["value"] for tag in found.get_tags()},
                "on": found.id in machines and machines[found.id].alive,
            }
            for found in moto_side.instances()
            if found.id != self._manager
        ]

    def pid(self, instance_id: str) -> int:
        """Return the pid of a machine's first process, in the lab's namespace."""
        return self._hypervisor.find(instance_id).pid

    def console(self, instance_id: str) -> str:
        """Return what a machine's console has printed."""
        return self._hypervisor.find(instance_id).console_output().decode(errors="replace")

    def kill(self, instance_id: str) -> None:
        """Kill a machine without notice: even AWS still reports that it is running."""
        self._hypervisor.find(instance_id).pull_the_plug()

    def power_off(self, instance_id: str) -> None:
        """Press the machine's power button."""
        self._hypervisor.find(instance_id).power_off()

    def partition(self, instance_id: str, seconds: float) -> None:
        """Drop every packet from and to a machine for some seconds."""
        address = self._hypervisor.find(instance_id).spec.address
        switch.cut(address)
        later(seconds, switch.reconnect, address)

    def part(self, instance_id: str, other_id: str, seconds: float) -> None:
        """Drop every packet between two machines for some seconds."""
        pair = [self._hypervisor.find(each).spec.address for each in (instance_id, other_id)]
        switch.part(*pair)
        later(seconds, switch.join, *pair)

    def rebalance(self, instance_id: str) -> None:
        """Send a spot instance AWS's recommendation to replace it."""
        self._notices.recommend(instance_id)

    def interrupt(self, instance_id: str, seconds: float) -> None:
        """Send a spot instance the notice of its end, and terminate it `seconds` later."""
        self._notices.interrupt(instance_id, seconds)
        later(seconds, self._end_by_spot, self._hypervisor.find(instance_id))

    def _end_by_spot(self, machine: Machine) -> None:
        code = "Server.SpotInstanceTermination"
        moto_side.ended(moto_side.find(machine.spec.id), code, f"{code}: Spot interruption")

    def _describe(self, instance: Any, spec: dict[str, Any]) -> dict[str, Any]:
        """Return the machine for an instance: hardware by its type, software by its image."""
        options = self.options
        is_manager = ("Name", "manager") in {(t["key"], t["value"]) for t in instance.get_tags()}
        learning = instance.image_id == moto_side.LEARNING
        real = bool(options["image"]) and not is_manager
        return spec | {
            "condor": options["condor"],
            "image": options["image"] if real else "",
            "cgroup": str(self._cgroups / instance.id) if real else "",
            "authority": self._authority,
            "torch": sys.executable if learning else "",
            "shown": options["shown"]
            + (options["repository"] if is_manager or (learning and options["users"]) else [])
            + (options["venv"] if is_manager or learning else []),
            "installed": [] if instance.image_id == moto_side.BARE else ["condor"],
            "hardware": {"gpus": 0 if is_manager else gpus(instance.instance_type)}
            | ({} if is_manager else options["hardware"]),
            "environment": {} if is_manager else READINGS | options["environment"],
            "files": self._users_settings() if is_manager else options["files"],
        }

    def _users_settings(self) -> dict[str, str]:
        """Return the files by which programs of the manager's user find AWS."""
        own = self.environment()
        keys = ("aws_access_key_id", "aws_secret_access_key")
        lines = [f"{key} = {own[key.upper()]}\n" for key in keys]
        where = f"region = {own['AWS_DEFAULT_REGION']}\nendpoint_url = {ENDPOINT}\n"
        return {
            f"/home/{USER}/.aws/credentials": "[default]\n" + "".join(lines),
            f"/home/{USER}/.aws/config": "[default]\n" + where,
        }


def addresses() -> dict[str, str]:
    """Return the IP address of each living instance by its machine's hardware address."""
    living = (found for found in moto_side.instances() if found.state == "running")
    return {switch.mac(found.private_ip): found.private_ip for found in living}


def gpus(instance_type: str) -> int:
    """Return the number of GPUs that AWS gives for an instance type."""
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    listed = INSTANCE_TYPES.get(instance_type, {}).get("GpuInfo", {}).get("Gpus", [])
    return sum(gpu["Count"] for gpu in listed)


def hide_resolver(folder: Path) -> None:
    """Configure no name server: there is none, and waiting for its answer takes seconds."""
    empty, own = folder / "resolv.conf", Path("/etc/resolv.conf").resolve()
    empty.touch()
    if own.exists():
        mounting.bind(empty, own)


def later(seconds: float, what: Any, *words: Any) -> None:
    timer = threading.Timer(seconds, what, words)
    timer.daemon = True
    timer.start()


def answered(cloud: Cloud, request: dict[str, Any]) -> dict[str, Any]:
    """Do what `request` asks and return the answer."""
    try:
        method = getattr(cloud, request["do"])
        return {"result": method(*request["words"], **request["named"])}
    except Exception as error:  # noqa: BLE001  every one goes to the caller
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Serve requests until the standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # all output goes to the log
    folder = Path(sys.argv[1])
    cloud = Cloud(folder, json.loads(sys.argv[2]))
    if cloud.options["remote"]:
        remote.serve(lambda request: answered(cloud, request))
    print(json.dumps({"result": "ready"}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answered(cloud, json.loads(line)), default=str), file=answers, flush=True)


if __name__ == "__main__":
    main()
