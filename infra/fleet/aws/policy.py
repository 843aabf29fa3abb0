"""IAM policies with the least permissions for the user of a fleet, and for the fleet's nodes.

IAM can't restrict EC2's resources by name. So the policies require that new EC2 resources get the
fleet's tag, and only allow changes to resources with this tag. Network interfaces are an exception,
because the manager's interface has no tag. `caller_policy` allows changes to all of them in the
fleet's AWS regions. Resources of IAM, SSM and S3 are restricted by name.

IAM allows at most 6,144 characters. Therefore some actions are patterns, whose star matches nothing
but the actions that a fleet needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trialfleet.infra.fleet.aws.images import BY_PARAMETER
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet

Document = dict[str, Any]
VERSION = "2012-10-17"
OWN_TAG = f"aws:RequestTag/{names.FLEET_TAG}"
ITS_TAG = f"aws:ResourceTag/{names.FLEET_TAG}"
PUBLIC = "/aws/service/"  # prefix of AWS's own SSM parameters


def _actions(service: str, *names: str) -> list[str]:
    return [f"{service}:{name}" for name in names]


# IAM's names of the API calls that a fleet needs; for S3 they differ from the calls' own names.
# AWS can't restrict these, which only read, to certain resources.
LOOK = [
    *_actions("ec2", "DescribeImages", "DescribeInstances", "DescribeInstanceType*"),
    *_actions("ec2", "DescribeLaunchTemplate*", "DescribeNetworkInterfaces"),
    *_actions("ec2", "DescribePlacementGroups", "DescribeSecurityGroupRules"),
    *_actions("ec2", "DescribeSecurityGroups", "DescribeSpotPriceHistory", "DescribeSubnets"),
    *("pricing:GetProducts", "servicequotas:GetServiceQuota", "ssm:DescribeParameters"),
]
RULES = "ec2:*SecurityGroupIngress"  # Authorize, Revoke
EFA_RULES = "ec2:*SecurityGroupEgress"
LAUNCH = ["CreateFleet", "RunInstances"]  # EC2 Fleet calls RunInstances in the caller's name
LAUNCH_ACTIONS = _actions("ec2", *LAUNCH)
OWN = [
    *_actions("ec2", "CreateLaunchTemplateVersion", "DeleteLaunchTemplate"),
    *_actions("ec2", "DeletePlacementGroup", "DeleteSecurityGroup", "GetConsoleOutput"),
    *(*LAUNCH_ACTIONS, "ec2:TerminateInstances"),
]
IDENTITY = [
    *_actions("iam", "CreateRole", "DeleteRole", "DeleteRolePolicy", "GetRole", "GetRolePolicy"),
    *_actions("iam", "ListRolePolicies", "PutRolePolicy", "TagRole", "UpdateAssumeRolePolicy"),
    *_actions("iam", "AddRoleToInstanceProfile", "CreateInstanceProfile", "DeleteInstanceProfile"),
    *_actions("iam", "GetInstanceProfile", "RemoveRoleFromInstanceProfile", "TagInstanceProfile"),
]
READS = ("iam:Get", "iam:List")
DELETE_BUCKET = "s3:DeleteBucket"
BUCKET = [
    *_actions("s3", "CreateBucket", "*BucketPublicAccessBlock", "*BucketTagging"),  # Get, Put
    *("s3:*LifecycleConfiguration", DELETE_BUCKET),
]
OBJECTS = _actions("s3", "DeleteObject", "GetObject", "PutObject")
PARAMETER = _actions("ssm", "AddTagsToResource", "*Parameter")  # Delete, Get, Put

START_SHELL = "ssm:StartSession"
OWN_SHELLS = ["ssm:*Session", "ssmmessages:OpenDataChannel"]  # Resume, Start, Terminate
SSM_AGENT = [
    "ssm:UpdateInstanceInformation",
    *_actions("ssmmessages", "CreateControlChannel", "CreateDataChannel"),
    *_actions("ssmmessages", "OpenControlChannel", "OpenDataChannel"),
]


def caller_policy(fleet: Fleet, account: str) -> Document:
    """Return the policy for a user who creates, uses and removes the fleet."""
    within = _Arns(fleet, account)
    statements = [
        _allow("Look", LOOK),
        *_create_statements(fleet, within),
        *_untagged_statements(fleet, within),
        *_own_statements(fleet, within),
        *_identity(fleet, within),
        *_storage(fleet, within),
        *_secrets_and_shells(fleet, within),
    ]
    return {"Version": VERSION, "Statement": statements}


def daily_policy(fleet: Fleet, account: str) -> Document:
    """Return the policy for the users of a fleet that an administrator has created.

    The administrator has run `fleet up` on the manager. So the policy lacks three permissions of
    `caller_policy`:

    - Writing the nodes' role. A user could give the role any permission, and use this permission on
      a node.
    - Changing network interfaces. This would allow changes to all interfaces in the fleet's AWS
      regions.
    - Deleting the bucket, which has the record of costs.
    """
    document = caller_policy(fleet, account)
    kept = [one for one in document["Statement"] if one["Sid"] != "Join"]
    for statement in kept:
        actions = statement["Action"]
        if statement["Sid"] == "Identity":
            actions = [one for one in actions if one.startswith(READS)]
        statement["Action"] = [one for one in actions if one != DELETE_BUCKET]
    return {**document, "Statement": [one for one in kept if one["Action"]]}


def reap_policy(fleet: Fleet, account: str) -> Document:
    """Return the policy for `fleet reap`, which terminates nodes of any fleet of the account."""
    nodes = _Arns(fleet, account).ec2("instance")
    return {
        "Version": VERSION,
        "Statement": [
            _allow("Look", ["ec2:DescribeInstances"]),
            _allow("End", ["ec2:TerminateInstances"], nodes, StringLike={ITS_TAG: "*"}),
        ],
    }


def node_trust(fleet: Fleet) -> Document:
    """Return the policy that lets EC2 give the nodes' role to instances."""
    ec2 = {"Service": _ec2(fleet)}
    statement = {"Effect": "Allow", "Principal": ec2, "Action": "sts:AssumeRole"}
    return {"Version": VERSION, "Statement": [statement]}


def node_policy(fleet: Fleet, account: str) -> Document:
    """Return the policy for the fleet's nodes.

    Nodes may read their program and the pool's token, and write logs. If the fleet has `ssm: true`,
    they may also make the calls of SSM's agent.
    """
    within = _Arns(fleet, account)
    return {
        "Version": VERSION,
        "Statement": [
            _allow("Program", ["s3:GetObject"], [within.objects("bundle-*")]),
            _allow("Log", ["s3:PutObject"], [within.objects("log/*")]),
            _allow("Token", ["ssm:GetParameter"], [within.token]),
            *([_allow("Shell", SSM_AGENT)] if fleet.ssm else []),
        ],
    }


class _Arns:
    def __init__(self, fleet: Fleet, account: str) -> None:
        self._fleet, self._account = fleet, account
        self._name = names.resource_name(fleet.full_name)
        self._partition = names.partition(fleet.home)
        self.own_bucket = self._s3(names.bucket_name(fleet.full_name, account))
        self.buckets = [self.own_bucket, *([self._s3(fleet.bucket)] if fleet.bucket else [])]
        self.token = self.parameter(names.token_parameter(fleet.full_name), fleet.home)
        self.role = self._iam("role")
        self.profile = self._iam("instance-profile")

    def ec2(self, *kinds: str) -> list[str]:
        """Return ARNs of EC2 resources of these kinds (TYPE or TYPE/ID) in any AWS region."""
        return [
            f"arn:{self._partition}:ec2:*:{self._account}:{kind if '/' in kind else f'{kind}/*'}"
            for kind in kinds
        ]

    def images(self) -> list[str]:
        """Return the ARNs of the nodes' images; of all images if an SSM parameter names one."""
        named = [ami for ami in _amis(self._fleet) if not ami.startswith(BY_PARAMETER)]
        known = named if len(named) == len(_amis(self._fleet)) else ["*"]
        return [f"arn:{self._partition}:ec2:*::image/{ami}" for ami in known]

    def parameter(self, path: str, aws_region: str = "*") -> str:
        owner = "" if path.startswith(PUBLIC) else self._account
        return f"arn:{self._partition}:ssm:{aws_region}:{owner}:parameter{path}"

    def ssm(self, what: str) -> str:
        return f"arn:{self._partition}:ssm:*:{self._account}:{what}"

    def objects(self, pattern: str) -> str:
        return f"{self.buckets[-1]}/{names.prefix(self._fleet.full_name)}{pattern}"

    def _s3(self, bucket: str) -> str:
        return f"arn:{self._partition}:s3:::{bucket}"

    def _iam(self, kind: str) -> str:
        return f"arn:{self._partition}:iam::{self._account}:{kind}/{self._name}"


def _allow(
    called: str,
    actions: Iterable[str],
    resources: Iterable[str] = ("*",),
    **conditions: Any,
) -> Document:
    statement: Document = {
        "Sid": called,
        "Effect": "Allow",
        "Action": list(actions),
        "Resource": list(resources),
    }
    return statement | ({"Condition": conditions} if conditions else {})


def _create_statements(fleet: Fleet, arns: _Arns) -> list[Document]:
    tagged = {OWN_TAG: fleet.full_name, "aws:RequestedRegion": fleet.aws_regions}
    creators = ["CreateLaunchTemplate", "CreateSecurityGroup"]
    groups = ["launch-template", "security-group"]
    if fleet.clusters:
        creators.append("CreatePlacementGroup")
        groups.append("placement-group")
    by = {"ec2:CreateAction": [*creators, *LAUNCH]}
    nodes_and_fleet = arns.ec2("fleet", "instance", "volume")
    return [
        _allow("Make", _actions("ec2", *creators), arns.ec2(*groups), StringEquals=tagged),
        _allow("Launch", LAUNCH_ACTIONS, nodes_and_fleet, StringEquals=tagged),
        _allow("Tag", ["ec2:CreateTags"], arns.ec2("*/*"), StringEquals=by),
    ]


def _untagged_statements(fleet: Fleet, arns: _Arns) -> list[Document]:
    """Return statements for actions that also need access to resources without the fleet's tag."""
    subnets = [f"subnet/{subnet}" for subnet in fleet.subnets] or ["subnet"]
    keys = [f"key-pair/{fleet.key_pair}"] if fleet.key_pair else []
    nodes = arns.ec2("network-interface", "spot-instances-request", *subnets, *keys)
    rules = ["ec2:CreateSecurityGroup", RULES, *([EFA_RULES] if fleet.efa else [])]
    # The manager's instance, its network interface, and the interface's other groups.
    manager = arns.ec2("instance", "network-interface", "security-group")
    join, here = ["ec2:ModifyNetworkInterfaceAttribute"], {"aws:RequestedRegion": fleet.aws_regions}
    return [
        _allow("LaunchOn", LAUNCH_ACTIONS, [*nodes, *arns.images()]),
        _allow("RulesIn", rules, arns.ec2("security-group-rule", "vpc")),
        _allow("Join", join, manager, StringEquals=here),
    ]


def _own_statements(fleet: Fleet, arns: _Arns) -> list[Document]:
    its = {ITS_TAG: fleet.full_name}
    lease = {"ForAllValues:StringEquals": {"aws:TagKeys": [names.EXPIRES_TAG, names.PRICE_TAG]}}
    # If the fleet had gangs before, it may still have a placement group that must be removed.
    own = arns.ec2("instance", "launch-template", "placement-group", "security-group")
    shells = [START_SHELL] if fleet.ssm else []
    actions = [*OWN, RULES, *([EFA_RULES] if fleet.efa else []), *shells]
    return [
        _allow("Own", actions, own, StringEquals=its),
        _allow("Lease", ["ec2:CreateTags"], arns.ec2("instance"), StringEquals=its, **lease),
    ]


def _identity(fleet: Fleet, arns: _Arns) -> list[Document]:
    service = {"iam:PassedToService": _ec2(fleet)}
    # The first EC2 Fleet and the first spot node of an account create a service-linked role.
    kinds = ["ec2fleet", *(["spot"] if fleet.spot.share > 0 else [])]
    first = {"iam:AWSServiceName": [f"{kind}.amazonaws.com" for kind in kinds]}
    roles = ["arn:*:iam::*:role/aws-service-role/*"]
    return [
        _allow("Identity", IDENTITY, [arns.role, arns.profile]),
        _allow("PassRole", ["iam:PassRole"], [arns.role], StringEquals=service),
        _allow("First", ["iam:CreateServiceLinkedRole"], roles, StringEquals=first),
    ]


def _storage(fleet: Fleet, arns: _Arns) -> list[Document]:
    objects = [f"{bucket}/{names.prefix(fleet.full_name)}*" for bucket in arns.buckets]
    # The fleet's own bucket may be left from a time when the user named no bucket.
    own = [DELETE_BUCKET] if fleet.bucket else BUCKET
    return [
        _allow("Bucket", own, [arns.own_bucket]),
        _allow("List", ["s3:ListBucket"], arns.buckets),
        _allow("Objects", OBJECTS, objects),
    ]


def _secrets_and_shells(fleet: Fleet, arns: _Arns) -> list[Document]:
    paths = [ami.removeprefix(BY_PARAMETER) for ami in _amis(fleet) if ami.startswith(BY_PARAMETER)]
    images = sorted({arns.parameter(path.replace("{architecture}", "*")) for path in paths})
    own = [f"session/{who}-*" for who in ("${aws:userid}", "${aws:username}")]
    resources = [arns.ssm(what) for what in ("document/SSM-SessionManagerRunShell", *own)]
    return [
        _allow("Token", PARAMETER, [arns.token]),
        *([_allow("Image", ["ssm:GetParameter"], images)] if images else []),
        *([_allow("Shell", OWN_SHELLS, resources)] if fleet.ssm else []),
    ]


def _amis(fleet: Fleet) -> list[str]:
    return [fleet.ami] if isinstance(fleet.ami, str) else list(fleet.ami.values())


def _ec2(fleet: Fleet) -> str:
    """Return IAM's name of EC2 as a service, which is different in China."""
    china = ".cn" if names.partition(fleet.home) == "aws-cn" else ""
    return f"ec2.amazonaws.com{china}"
