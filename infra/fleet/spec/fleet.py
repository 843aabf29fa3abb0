"""The `fleet:` table of a study, or a separate fleet file: its keys, defaults and checks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trialfleet.errors import InputError
from trialfleet.infra.pool.machines import ec2_type_has_gpus
from trialfleet.sections import (
    OneLine,
    Pattern,
    Positive,
    Refused,
    Section,
    Share,
    Size,
    refusal,
)

# AWS's own image, with NVIDIA's open driver and torch. A study may name another image.
# AWS retires each series of images after about a year: then change this to the next series.
DEFAULT_AMI = (
    "ssm:/aws/service/deeplearning/ami/{architecture}/oss-nvidia-driver-gpu-pytorch-2.9"
    "-ubuntu-24.04/latest/ami-id"
)
_NAME = r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"
_AWS_REGION = r"[a-z]{2}(-[a-z]+)+-[0-9]+"
_ZONE = _AWS_REGION + r"(-[a-z0-9-]+)?[a-z]"
_TYPE = r"[a-z0-9-]+\.[a-z0-9-]+"
_AMI = r"(ami-[0-9a-f]{8,17}|ssm:/[A-Za-z0-9_./{}-]+)"
_SUBNET = r"subnet-[0-9a-f]{8,17}"
_PORT = r"6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3}"
_HOST = rf"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:({_PORT}))?"
_BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_RESERVED_PREFIXES = ("trialfleet:", "aws:")


def _tags(value: Any) -> Any:
    for key in value if isinstance(value, dict) else ():
        if not re.fullmatch(r"[A-Za-z0-9+=._:@-]{1,128}", str(key)):
            raise refusal(f"tag {key!r}: use at most 128 letters, digits and + - = . _ : @")
        if key == "Name" or str(key).startswith(_RESERVED_PREFIXES):
            reserved = f"Name and all names that begin with {' or '.join(_RESERVED_PREFIXES)}"
            raise refusal(f"tag {key!r}: {reserved} are reserved; choose another name")
    return value


FleetName = Annotated[
    str,
    Pattern(
        _NAME, "lower-case letters, digits and '-', 32 at most, a letter or digit at both ends"
    ),
]
AwsRegion = Annotated[str, Pattern(_AWS_REGION, "an AWS region such as eu-west-1")]
Zone = Annotated[str, Pattern(_ZONE, "an availability zone such as eu-west-1a")]
TypeName = Annotated[str, Pattern(_TYPE, "an instance type such as g5.xlarge")]
Ami = Annotated[str, Pattern(_AMI, "ami-…, or ssm:/the/path/of/a/parameter that contains an ami-…")]
Subnet = Annotated[str, Pattern(_SUBNET, "a subnet such as subnet-0123456789abcdef0")]
Host = Annotated[
    str,
    Pattern(
        _HOST, "a host name or address, followed by :PORT (1 to 65535) unless the port is 9618"
    ),
]
Bucket = Annotated[str, Pattern(_BUCKET, "the name of an S3 bucket")]


def check_regions(given: Iterable[str]) -> list[str]:
    """Return the AWS regions that a person typed, each once. InputError if one is invalid."""
    regions = list(dict.fromkeys(given))
    for region in regions:
        if not re.fullmatch(_AWS_REGION, region):
            raise InputError(f"{region!r} is not an AWS region; write one such as eu-west-1")
    return regions


class Needs(Section):
    """The required hardware of instances, for a fleet that lists no instance types."""

    gpus: int = Field(
        1,
        ge=0,
        le=16,
        description="Exact number of GPUs of an instance. For a fleet without GPUs, list "
        "instance_types.",
    )
    gpu_memory: Size = Field("16GB", description="Minimum memory of each GPU.")
    architecture: Literal["x86_64", "arm64"] = Field(
        "x86_64", description="Architecture of the processors."
    )


class Spot(Section):
    """The share of spot instances, and their maximum price."""

    share: float = Field(
        1.0, ge=0, le=1, description="Share of spot nodes; the rest are on-demand."
    )
    base: int = Field(
        0,
        ge=0,
        le=1_000,
        description="Number of nodes that are always on-demand. `share` applies to the other "
        "nodes.",
    )
    ceiling: Positive | None = Field(
        None, description="Maximum price of a spot instance in USD per hour."
    )

    lost_minutes: float = Field(
        10,
        ge=0,
        le=10_080,
        description="Minutes of work that an interruption costs: the time since the last "
        "checkpoint or, without checkpoints, half a trial. The higher this number, "
        "the more trialfleet avoids spot capacity with many interruptions.",
    )

    def nodes(self, total: int) -> int:
        """Return how many of `total` nodes are spot.

        The first `base` nodes are on-demand. Of the others, the share `share` is spot, rounded up.
        """
        return math.ceil(self.share * max(0, total - self.base) - 1e-9)

    @property
    def has_on_demand(self) -> bool:
        """True if some of the fleet's nodes may be on-demand."""
        return self.share < 1 or self.base > 0


class Nodes(Section):
    """The minimum and maximum number of nodes."""

    min: int = Field(
        0, ge=0, le=1_000, description="Number of nodes that are kept even if no trial needs them."
    )
    max: int = Field(4, ge=1, le=1_000, description="Maximum number of nodes.")

    def problems(self) -> Iterator[Refused]:
        """Yield a problem if the minimum exceeds the maximum."""
        if self.min > self.max:
            yield ("min",), f"must be at most max, which is {self.max}", self.min


class Gangs(Section):
    """EC2's options for nodes of gangs. Between these nodes all TCP ports are open in any case."""

    placement_group: bool = Field(
        default=True,
        description="Nodes are close together in a cluster placement group, if their instance type "
        "allows this.",
    )
    efa: bool = Field(
        default=True,
        description="Nodes get an Elastic Fabric Adapter, if their instance type has one. With "
        "true, the security group allows all protocols among its members; with false, only TCP.",
    )


class PriceCap(Section):
    """The caps on costs in USD. At a cap, nodes are drained, and no more nodes are requested."""

    hour: Positive | None = Field(None, description="USD per hour of all nodes together.")
    run: Positive | None = Field(
        None,
        description="USD of all nodes together since the run began. Only a run's autoscaler keeps "
        "this cap: see autoscale.",
    )
    reserve: float = Field(
        0.2,
        ge=0,
        le=0.9,
        description="The share of `run` that is reserved for the full trainings.",
    )

    def problems(self) -> Iterator[Refused]:
        """Yield a problem if `reserve` is set without `run`."""
        if self.run is None and self.reserve != type(self).model_fields["reserve"].default:
            yield ("reserve",), "requires run", self.reserve


class Probe(Section):
    """The limits beyond which the GPU probe calls a GPU sick. The probe has a default for each."""

    ecc_uncorrected: int | None = Field(
        None, ge=0, description="Maximum number of uncorrectable memory errors."
    )
    launch_microseconds: Positive | None = Field(
        None,
        description="Maximum microseconds from a kernel's launch until the host knows that "
        "the kernel has ended.",
    )
    launch_rate: float | None = Field(
        None, ge=0, description="Minimum number of kernel launches per second."
    )
    bandwidth: float | None = Field(
        None, ge=0, description="Minimum GB/s of a copy within a GPU's memory, read plus written."
    )
    bandwidth_share: Share | None = Field(
        None,
        description="Minimum memory bandwidth, as a share of the bandwidth in the GPU's data "
        "sheet. Not checked if that is unknown.",
    )
    pool_share: Share | None = Field(
        None,
        description="Minimum memory bandwidth, as a share of the median of the pool's other nodes "
        "with the same GPU.",
    )
    host_share: Share | None = Field(
        None,
        description="Minimum speed of copies from the host to the GPU, as a share of the PCIe "
        "link's capacity.",
    )

    def options(self) -> str:
        """Return the thresholds that are set, as the GPU probe's command-line options."""
        given = self.model_dump(exclude_none=True)
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in given.items())


class Fleet(Section):
    """A fleet of EC2 instances."""

    name: FleetName | None = Field(None, description="The fleet's name (default: the study's).")
    aws_regions: list[AwsRegion] = Field(
        min_length=1,
        description="AWS regions of nodes. The first one also has the fleet's bucket and the "
        "pool's token.",
    )
    zones: list[Zone] = Field(
        [], description="Zones of nodes (default: all zones of the AWS regions)."
    )
    instance_types: list[TypeName] = Field(
        [], description="Instance types of nodes (default: all that meet `needs`)."
    )
    needs: Needs = Needs()
    spot: Spot = Spot()
    nodes: Nodes = Nodes()
    price_cap: PriceCap = PriceCap()
    trials_per_gpu: int | None = Field(
        None,
        ge=1,
        le=16,
        description="Trials that share each GPU (default: from the study's resources.gpus).",
    )
    gangs: Gangs | None = Field(
        None,
        description="For gangs (docs/gangs.md): all nodes are in one zone and reach each other "
        "on every port (default: `{}` if the study has gangs, otherwise off).",
    )
    probe: Probe = Probe()
    idle_minutes: float = Field(
        10,
        gt=0,
        le=1_440,
        description="A node that is idle for this many minutes is drained and removed.",
    )
    lease_minutes: float = Field(
        60,
        ge=5,
        le=10_080,
        description="A node shuts down if the manager does not renew the node's lease for this "
        "many minutes.",
    )
    ami: Ami | dict[AwsRegion, Ami] = Field(
        DEFAULT_AMI,
        description="The nodes' image, or a table with an image for each AWS region. "
        "{architecture} stands for the architecture of the instance type.",
    )
    subnets: list[Subnet] = Field(
        [], description="Subnets of the nodes (default: those of the default VPC)."
    )
    key_pair: OneLine | None = Field(
        None, description="An EC2 key pair for ssh to the nodes (default: none)."
    )
    ssm: bool = Field(
        default=False,
        description="The nodes' role allows AWS's session manager, for `trialfleet fleet ssh`.",
    )
    disk: Size = Field("100GB", description="Size of each node's root volume.")
    tags: Annotated[dict[str, OneLine], BeforeValidator(_tags)] = Field(
        {}, description="Additional tags for all resources in AWS."
    )
    manager: Host | None = Field(
        None,
        description="Address at which nodes reach the manager (default: the address of this EC2 "
        "instance).",
    )
    bucket: Bucket | None = Field(
        None, description="S3 bucket of the fleet (default: trialfleet-NAME-ACCOUNT)."
    )
    autoscale: Literal["off", "service", "provisioner"] = Field(
        "off",
        description="How a run scales its fleet: not at all (off), or by an autoscaler that is a "
        "job of the run (service, provisioner). With provisioner, the run's other jobs "
        "begin when the first node has joined.",
    )

    @property
    def home(self) -> str:
        """The AWS region that has the fleet's bucket and the pool's token."""
        return self.aws_regions[0]

    @property
    def full_name(self) -> str:
        """The fleet's name, which is by default the name of its study."""
        assert self.name is not None, "the fleet was not given a name"
        return self.name

    @property
    def shares(self) -> int:
        """The number of trials that share a GPU, or 1 if each trial has its own."""
        return self.trials_per_gpu or 1

    @property
    def brings_gpus(self) -> bool:
        """True if the names of the fleet's types, or its `needs`, show that nodes may have GPUs."""
        if self.instance_types:
            return any(map(ec2_type_has_gpus, self.instance_types))
        return self.needs.gpus > 0

    @property
    def clusters(self) -> bool:
        """True if nodes go into a cluster placement group where their type allows this."""
        return self.gangs is not None and self.gangs.placement_group

    @property
    def efa(self) -> bool:
        """True if nodes get an Elastic Fabric Adapter where their type allows this."""
        return self.gangs is not None and self.gangs.efa

    def problems(self) -> Iterator[Refused]:
        """Yield doubled names, useless `needs`, zones elsewhere, and regions without an image."""
        for key in ("aws_regions", "zones", "instance_types", "subnets"):
            given = getattr(self, key)
            for i, one in enumerate(given):
                if one in given[:i]:  # AWS's answers would count twice
                    yield (key, i), f"{one} is listed twice", one
        for i, zone in enumerate(self.zones):
            if not zone.startswith(tuple(self.aws_regions)):
                text = f"is in none of aws_regions: {', '.join(self.aws_regions)}"
                yield ("zones", i), text, zone
        # `fleet bake` reads `needs.architecture` in any case
        useless = self.needs.model_copy(update={"architecture": "x86_64"})
        if self.instance_types and useless != Needs():
            yield ("needs",), "has no effect with instance_types; leave one of the two out", {}
        yield from self._image_problems()

    def _image_problems(self) -> Iterator[Refused]:
        if isinstance(self.ami, dict):
            missing = [region for region in self.aws_regions if region not in self.ami]
            if missing:
                yield ("ami",), f"has no image for {', '.join(missing)}", self.ami
        elif self.ami.startswith("ami-") and len(self.aws_regions) > 1:
            text = "an image belongs to one AWS region; give a table or an `ssm:` parameter"
            yield ("ami",), text, self.ami
