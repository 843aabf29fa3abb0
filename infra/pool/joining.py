"""Constants that a manager and the nodes of its HTCondor pool share."""

from __future__ import annotations

NODE_IDENTITY = "node"  # the identity in a node's token: node@TRUST_DOMAIN
TRUST_DOMAIN = "trialfleet"
PORT = 9618
