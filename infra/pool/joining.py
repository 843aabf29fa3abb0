"""What a manager and the nodes that join its pool agree on."""

from __future__ import annotations

NODE_IDENTITY = "node"  # whom a node's token names: node@TRUST_DOMAIN
TRUST_DOMAIN = "trialfleet"
PORT = 9618
