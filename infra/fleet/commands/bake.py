"""`fleet bake`: a script, or data for EC2 Image Builder, to make an image for the fleet's nodes."""

from __future__ import annotations

import textwrap
from typing import Any

from trialfleet.infra.fleet.aws import bucket, images
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.lifecycle import up
from trialfleet.infra.fleet.lifecycle.up import NodeInputs
from trialfleet.infra.fleet.nodes import user_data
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet

BUILD_MINUTES = 120  # after this time a machine ends itself, unless an image was made


def script(aws: Aws, fleet: Fleet, inputs: NodeInputs) -> str:
    """Return a shell script that prepares the machine from which an image is made.

    The script must run as root. It installs NVIDIA's driver, and the manager's HTCondor version.
    """
    name = names.resource_name(fleet.full_name)
    return (
        "#!/bin/sh\n"
        f"# Prepares an image for nodes of {fleet.full_name}: run it as root on an instance\n"
        f"# that has the instance profile {name}: the script reads the nodes' program from S3.\n"
        "# `trialfleet fleet up --nodes 0` makes the profile and the program's copy in S3.\n"
        "# After this script, make an image of the instance.\n"
        "set -eu\n"
        f"{_bake_script(aws, fleet, inputs)}"
    )


def image_builder(aws: Aws, fleet: Fleet, inputs: NodeInputs, architecture: str) -> dict[str, Any]:
    """Return the arguments of each call to EC2 Image Builder, by the call's name.

    Image Builder takes 16,000 characters as a component's data. The script has about 10,000.
    """
    name = names.resource_name(fleet.full_name)
    # A document for Image Builder: one phase, which runs the program.
    data = (
        "name: trialfleet\nschemaVersion: 1.0\nphases:\n  - name: build\n    steps:\n"
        "      - name: prepare\n        action: ExecuteBash\n        inputs:\n"
        "          commands:\n            - |\n"
        + textwrap.indent(_bake_script(aws, fleet, inputs), " " * 14)
    )
    owner = f"arn:{names.partition(fleet.home)}:imagebuilder:{fleet.home}:{aws.account(fleet.home)}"
    return {
        "create-component": {
            "name": name,
            "semanticVersion": "1.0.0",
            "platform": "Linux",
            "data": data,
        },
        "create-image-recipe": {
            "name": name,
            "semanticVersion": "1.0.0",
            "parentImage": images.find(aws, fleet, fleet.home, architecture).id,
            "components": [{"componentArn": f"{owner}:component/{name}/1.0.0"}],
        },
        "create-infrastructure-configuration": {
            "name": name,
            "instanceProfileName": name,
            "terminateInstanceOnFailure": True,
        },
        "create-image": {
            "imageRecipeArn": f"{owner}:image-recipe/{name}/1.0.0",
            "infrastructureConfigurationArn": f"{owner}:infrastructure-configuration/{name}",
        },
    }


def _bake_script(aws: Aws, fleet: Fleet, inputs: NodeInputs) -> str:
    """Return shell lines that run the nodes' user data, to prepare a machine for an image."""
    settings = up.node_settings(fleet, inputs, bucket.fleet_bucket(fleet, aws.account(fleet.home)))
    text = user_data.render({**settings, "run": "", "image": True, "boot_minutes": BUILD_MINUTES})
    lines = "\n".join(textwrap.wrap(user_data.pack(text), 100))
    return (
        "base64 --decode <<'END' | gunzip > /root/trialfleet-image.py\n"
        f"{lines}\nEND\n"
        "python3 /root/trialfleet-image.py\nrm /root/trialfleet-image.py\n"
    )
