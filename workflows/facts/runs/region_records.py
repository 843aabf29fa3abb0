"""The records (small JSON files) in a region's folder, read again only if the folder has changed.

Each record is moved into the folder by a rename, which changes the folder's modification time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trialfleet import untrusted_files
from trialfleet.files import folder_stamp, read_record
from trialfleet.workflows.facts.dagman.failing_scripts import FailingScript, failing_scripts
from trialfleet.workflows.facts.models.verdict import Verdict, read_verdict
from trialfleet.workflows.facts.record_shapes import Published, Stopped
from trialfleet.workflows.facts.run_folder.folder import RegionFolder


@dataclass(frozen=True, kw_only=True)
class RegionRecords:
    """The records (small JSON files) in a region's folder; None for a record that doesn't exist.

    Attributes:
        is_done: whether the model was published or, with `publish: none`, all trials are done.
        is_submitted: whether the region's graph was ever submitted to HTCondor.
        stopped: why the region ended early.
        published: the content of published.json: where the model was published, and why it was not
            made current.
        verdict: the result of the gate for the published model; None before the publication.
        spent: why a budget in USD allows no more trials of the region.
        changed: a text with the changed files of the region's data or code.
        checks: the warnings of the checks of the region's table.
        restart: why the region's DAGMan is being replaced by another one.
    """

    is_done: bool = False
    is_submitted: bool = False
    stopped: Mapping[str, Any] | None = None
    published: Mapping[str, Any] | None = None
    verdict: Verdict | None = None
    spent: str | None = None
    changed: str | None = None
    checks: str | None = None
    restart: str | None = None
    failing: tuple[FailingScript, ...] = ()

    @property
    def gave_up(self) -> bool:
        """True if the region ended early by itself; False if its DAGMan was removed."""
        return self.stopped is not None and not self.stopped.get("removed")


@dataclass(frozen=True, kw_only=True)
class EndFiles:
    """The progress of a region's full training and gate."""

    is_trained: bool  # the full training has left a result and a model
    is_measured: bool  # the gate has measured the models or decided without measuring
    gate_begins: bool  # trial.json, the order for the gate's job, has been written


class RecordsReader:
    """A reader of regions' records, which reads a region's records again only after a change."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, RegionRecords]] = {}

    def read(self, files: RegionFolder) -> RegionRecords:
        """Return a region's records; InputError if a record is damaged."""
        changed = folder_stamp(files.root)
        known = self._known.get(files.root)
        if known and known[0] == changed:
            return known[1]
        found = read_records(files)
        if changed:
            self._known[files.root] = changed, found
        return found


def read_records(files: RegionFolder) -> RegionRecords:
    """Return a region's records; InputError if a record is damaged."""
    names = {path.name for path in files.root.iterdir()} if files.root.exists() else set()

    def record(path: Path, *keys: str, shape: Any = None) -> dict[str, Any] | None:
        return read_record(path, *keys, shape=shape) if path.name in names else None

    def reason(path: Path) -> str | None:
        return None if (found := (record(path) or {}).get("reason")) is None else str(found)

    published = record(files.published, "path", shape=Published)
    return RegionRecords(
        is_done=not names.isdisjoint({files.published.name, files.tuned.name}),
        is_submitted=files.dag_files.submit.name in names,
        stopped=record(files.stopped, shape=Stopped),
        published=published,
        verdict=read_verdict(files.verdict) if published and files.verdict.name in names else None,
        spent=reason(files.spent),
        changed=reason(files.changed),
        checks=reason(files.checks),
        restart=str(reason(files.restart)) if files.restart.name in names else None,
        failing=failing_scripts(files.failing) if files.failing.name in names else (),
    )


def read_end_files(files: RegionFolder) -> EndFiles:
    """Return how far a region's full training and gate have come."""
    return EndFiles(
        is_trained=untrusted_files.file_size(files.best.result) > 0
        and (files.published.exists() or untrusted_files.has_files(files.best.model)),
        is_measured=files.verdict.exists() or untrusted_files.file_size(files.gate.result) > 0,
        gate_begins=files.gate.trial_json.exists(),
    )


def read_reason(path: Path) -> str:
    """Return the reason in a JSON file; empty if there is none; InputError if it is damaged."""
    return str(read_record(path).get("reason") or "") if path.exists() else ""
