"""One of several fleets of the lab's manager, with its own role, bucket and token, in one pool."""

from __future__ import annotations

import base64
import gzip
import json
import shlex
import sys
from dataclasses import dataclass
from subprocess import CompletedProcess
from typing import Any

from tests.fleet.lab.lab import Lab, Machine
from tests.fleet.lab.machine import USER
from tests.fleet.lab.moto_side import ACCOUNT, BARE
from tests.fleet.lab.project import HOME, PROGRAM, Project
from trialfleet.infra.fleet.spec import names

KIND = "g5.xlarge"
# `trialfleet`, with something done before.
ALTERED = "{}\nfrom trialfleet.workflows.cli.main import main\nmain()"


@dataclass(frozen=True)
class Fleet:
    """A fleet of this name, whose file stands in the user's home."""

    project: Project
    name: str

    @classmethod
    def of(cls, project: Project, name: str) -> Fleet:
        """Write the file of a fleet."""
        spec = {
            "name": name,
            "aws_regions": ["us-east-1"],
            "zones": ["us-east-1a", "us-east-1b"],
            "instance_types": [KIND],
            "ami": BARE,
        }
        project.manager.write(f"{HOME}/{name}.yaml", json.dumps(spec), user=USER)  # it is YAML
        return cls(project, name)

    @property
    def lab(self) -> Lab:
        """The lab in which it is."""
        return self.project.lab

    def call(self, verb: str, *words: str, altered: str = "") -> CompletedProcess[str]:
        """Run `trialfleet fleet VERB` on it, after a piece of Python that alters something."""
        program = [sys.executable, "-c", ALTERED.format(altered)] if altered else [str(PROGRAM)]
        line = [*program, "fleet", verb, *words, f"{self.name}.yaml"]
        done = self.project.manager.run(line, user=USER, env=self.project.variables)
        print(f"$ trialfleet fleet {shlex.join([verb, *words, line[-1]])}: {done.returncode}")
        print(f"{done.stdout}{done.stderr}")
        return done

    def up(self, nodes: int, *words: str, altered: str = "") -> str:
        """Bring it to this number of nodes; return the command's output."""
        done = self.call("up", "--nodes", str(nodes), *words, altered=altered)
        assert done.returncode == 0
        return done.stdout

    def launch(self, user_data: str = "") -> Machine:
        """Launch a node as `up` does but for its price, or with other user data; it boots yet."""
        name = names.resource_name(self.name)
        tags = [{"Key": names.FLEET_TAG, "Value": self.name}]
        made = self.lab.aws(
            "ec2",
            "run_instances",
            LaunchTemplate={"LaunchTemplateName": f"{name}-x86_64"},
            IamInstanceProfile={"Name": name},
            InstanceType=KIND,
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
            **({"UserData": user_data} if user_data else {}),
        )
        return self.switched_on(self.lab.machine(made["Instances"][0]["InstanceId"]))

    def switched_on(self, node: Machine) -> Machine:
        """Return a node when its machine is on: from here on its hardware is what it is."""
        self.lab.ask("pid", node.id)
        return node

    def user_data(self) -> str:
        """Return what its nodes run at their first boot."""
        versions = self.lab.aws(
            "ec2",
            "describe_launch_template_versions",
            LaunchTemplateName=f"{names.resource_name(self.name)}-x86_64",
            Versions=["$Latest"],
        )
        encoded = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]["UserData"]
        return gzip.decompress(base64.b64decode(encoded)).decode()

    def nodes(self) -> list[Machine]:
        """Return its living nodes."""
        return [
            self.lab.machine(found["id"])
            for found in self.lab.instances("pending", "running")
            if found["tags"].get(names.FLEET_TAG) == self.name
        ]

    def status(self, node: Machine) -> dict[str, Any]:
        """Return what `fleet status` says of a node."""
        line = f"{PROGRAM} fleet status --json {self.name}.yaml"
        content = json.loads(self.project.run(line))["nodes"]
        return next(one for one in content if one["instance"]["id"] == node.id)

    def log(self, node: Machine) -> str:
        """Return the log that a node has put into the bucket."""
        bucket, key = names.bucket_name(self.name, ACCOUNT), names.log_key(self.name, node.id)
        return str(self.lab.aws("s3", "get_object", Bucket=bucket, Key=key)["Body"])

    def wait_until_joined(self, node: Machine) -> dict[str, Any]:
        """Return the ad of a node as soon as the pool has it."""
        condition = f'TrialfleetInstance == "{node.id}"'
        found = self.lab.wait_for(lambda: self.project.slots(condition), f"{node.id} in the pool")
        return dict(found[0])

    def end(self) -> None:
        """Terminate its nodes."""
        self.lab.aws("ec2", "terminate_instances", InstanceIds=[node.id for node in self.nodes()])
