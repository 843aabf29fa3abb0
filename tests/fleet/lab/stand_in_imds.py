"""Imitates the instance metadata service, version 2; the source address shows who asks.

Version 1 (without a session token) is refused, as in the nodes' launch template.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import moto_side, switch

TOKEN = "X-aws-ec2-metadata-token"
KEYS_LAST = 1_800  # seconds; moto's own last twice as long
VERSION = re.compile(r"latest|20\d\d-\d\d-\d\d")  # all alike here
FORMAT = "%Y-%m-%dT%H:%M:%SZ"


@dataclass
class Notices:
    """AWS's notices to spot instances, by the instance's id."""

    actions: dict[str, dict[str, str]] = field(default_factory=dict)
    rebalance: dict[str, dict[str, str]] = field(default_factory=dict)

    def interrupt(self, instance_id: str, seconds: float) -> None:
        """Announce that a spot instance will be terminated after `seconds`."""
        moment = time.strftime(FORMAT, time.gmtime(time.time() + seconds))
        self.actions[instance_id] = {"action": "terminate", "time": moment}

    def recommend(self, instance_id: str) -> None:
        """Announce that a spot instance is at a higher risk of interruption."""
        self.rebalance[instance_id] = {"noticeTime": time.strftime(FORMAT, time.gmtime())}


class Service(ThreadingHTTPServer):
    """The metadata service; `places` has the instance of each IP address."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, notices: Notices) -> None:
        self.notices = notices
        self.tokens: dict[str, str] = {}  # session token -> address that asked for it
        self.keys: dict[tuple[str, str], tuple[float, dict[str, str] | None]] = {}
        super().__init__((switch.METADATA, 80), Handler)

    def start(self) -> None:
        """Serve in a thread of this process."""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def keys_of(self, instance: Any) -> dict[str, str] | None:
        """Return keys of the instance's role, the same for some time; None without a role."""
        role = moto_side.role_of(instance)
        if not role:
            return None
        made, keys = self.keys.get((instance.id, role), (0.0, None))
        if time.monotonic() - made > KEYS_LAST or keys is None:
            keys = moto_side.assume(role, instance.id)
            self.keys[instance.id, role] = (time.monotonic(), keys)
        return keys


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_PUT(self) -> None:
        """Answer with a new session token."""
        if self.path != "/latest/api/token" or f"{TOKEN}-ttl-seconds" not in self.headers:
            return self.send_error(400)
        token = secrets.token_urlsafe(40)
        self.server.tokens[token] = self.client_address[0]
        return self.reply(token)

    def do_GET(self) -> None:
        """Answer an instance's question about itself."""
        if self.server.tokens.get(self.headers.get(TOKEN, "")) != self.client_address[0]:
            return self.send_error(401)
        instance = instance_at(self.client_address[0])
        found = None if instance is None else look_up(self.server, instance, self.path)
        return self.send_error(404) if found is None else self.reply(found)

    def reply(self, content: str | bytes) -> None:
        body = content.encode() if isinstance(content, str) else content
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: object) -> None:
        """Keep quiet."""


def instance_at(address: str) -> Any:
    """Return the living instance with an IP address; None if there is none."""
    found = (x for x in moto_side.instances() if x.private_ip == address and x.state == "running")
    return next(found, None)


def look_up(service: Service, instance: Any, path: str) -> str | bytes | None:
    """Return the metadata at a path; None if there is none."""
    version, _, place = path.removeprefix("/").partition("/")
    if not VERSION.fullmatch(version):
        return None
    if place == "user-data":
        user_data = instance.user_data  # moto's own type, or the launch template's text
        encoded = user_data.as_bytes() if hasattr(user_data, "as_bytes") else user_data
        return base64.b64decode(encoded) if encoded else None
    tree = {
        "meta-data": meta_data(service, instance),
        "dynamic": {"instance-identity": {"document": identity(instance)}},
    }
    return at(tree, place)


def at(tree: Any, path: str) -> str | None:
    """Return the text at a path in a tree; for a folder, the names in it, a line each."""
    for name in filter(None, path.split("/")):
        if not isinstance(tree, dict) or name not in tree:
            return None
        tree = tree[name]
    if isinstance(tree, dict):
        return "\n".join(
            f"{name}/" if isinstance(below, dict) else name for name, below in tree.items()
        )
    return str(tree)


def meta_data(service: Service, instance: Any) -> dict[str, Any]:
    """Return the metadata of an instance as a tree."""
    mac = switch.mac(instance.private_ip)
    interface = {
        "device-number": "0",
        "local-hostname": instance.private_dns_name,
        "local-ipv4s": instance.private_ip,
        "mac": mac,
        "subnet-ipv4-cidr-block": f"{instance.private_ip}/{switch.NETWORK}",
    }
    tree: dict[str, Any] = {
        "ami-id": instance.image_id,
        "hostname": instance.private_dns_name,
        "instance-id": instance.id,
        "instance-life-cycle": instance.lifecycle or "on-demand",
        "instance-type": instance.instance_type,
        "local-hostname": instance.private_dns_name,
        "local-ipv4": instance.private_ip,
        "mac": mac,
        "network": {"interfaces": {"macs": {mac: interface}}},
        "placement": {
            "availability-zone": instance.availability_zone,
            "region": instance.ec2_backend.region_name,
        },
        "security-groups": "\n".join(group.name for group in instance.security_groups),
    }
    if instance.metadata_options.instance_metadata_tags == "enabled":
        tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
        tree["tags"] = {"instance": {k: v for k, v in tags.items() if not k.startswith("aws:")}}
    keys = service.keys_of(instance)
    if keys:
        role = moto_side.role_of(instance)
        tree["iam"] = {"security-credentials": {role: json.dumps(keys)}}
    notices = service.notices
    if instance.id in notices.actions:
        tree["spot"] = {"instance-action": json.dumps(notices.actions[instance.id])}
    if instance.id in notices.rebalance:
        recommendations = {"rebalance": json.dumps(notices.rebalance[instance.id])}
        tree["events"] = {"recommendations": recommendations}
    return tree


def identity(instance: Any) -> str:
    """Return the instance's identity document."""
    return json.dumps(
        {
            "accountId": moto_side.ACCOUNT,
            "architecture": "x86_64",
            "availabilityZone": instance.availability_zone,
            "imageId": instance.image_id,
            "instanceId": instance.id,
            "instanceType": instance.instance_type,
            "privateIp": instance.private_ip,
            "region": instance.ec2_backend.region_name,
            "version": "2017-09-30",
        },
        indent=1,
    )
