"""Embedded pools with settings of HTCondor for a test or a benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trialfleet.infra.pool.embedded import Pool


def configured_pool(
    folder: Path,
    *,
    cpus: int,
    memory_mb: int | None = None,
    knobs: Mapping[str, str] = {},
    extra: str = "",
) -> Pool:
    """Return a pool, not yet up, with these settings in its `extra.conf`, as a user gives them."""
    settings = {"NUM_CPUS": str(cpus), **({"MEMORY": str(memory_mb)} if memory_mb else {}), **knobs}
    pool = Pool(folder)
    pool.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lines = [*(f"{name} = {value}" for name, value in settings.items()), extra]
    (pool.folder / "extra.conf").write_text("\n".join(lines) + "\n")
    return pool
