"""The agent's saved memory, which survives a crash of the agent but not a reboot."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from trialfleet.nodes.bootstrap.host import Host
from trialfleet.nodes.node_agent.decisions import Leaving, Memory


def load(path: Path) -> Memory:
    """Return the saved memory; an empty memory if the file is missing or damaged."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        leaving, offline = saved.pop("leaving"), tuple(saved.pop("offline"))
        return Memory(**saved, leaving=Leaving(**leaving) if leaving else None, offline=offline)
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return Memory()


def save(path: Path, memory: Memory) -> None:
    """Write the memory to `path` atomically; OSError if that fails."""
    Host(Path("/")).write(str(path), json.dumps(asdict(memory)) + "\n")
