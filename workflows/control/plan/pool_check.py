"""The check whether the pool's slots or the fleet's instance types can run a run's trials."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialfleet.classads import plain_attributes
from trialfleet.errors import FleetError, InputError, PoolError
from trialfleet.infra.pool.connection import connect, use
from trialfleet.infra.pool.processes import run_captured
from trialfleet.infra.pool.user_namespace import identity
from trialfleet.workflows.checksums import list_files
from trialfleet.workflows.control.plan.input_provenance import list_inputs
from trialfleet.workflows.control.plan.trial_json_and_submit_file import TrialFiles, TrialOrder
from trialfleet.workflows.facts.dagman import access_point
from trialfleet.workflows.facts.dagman.pool_slots import number_attribute, pool_slots
from trialfleet.workflows.facts.run_folder.dag_structure import (
    RegionGraph,
    autoscale_mode,
    build_graph,
)
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.rules.slot_matching import Prospects, prospects
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.study.regions import list_gangs
from trialfleet.workflows.study.spec import Study

if TYPE_CHECKING:
    from classad2 import ClassAd

    from trialfleet.infra.fleet.scaling.suitable_types import SuitableTypes

_SECONDS = 60.0  # limit for condor_submit's dry run


@dataclass(frozen=True, kw_only=True)
class PoolCheck:
    """The result of the check whether a pool, or its fleet, can run the trials of a run.

    Only the regions with the smallest and the largest input are checked, because the trials of
    different regions differ only in the disk space that they request.

    Attributes:
        prospects: how many slots can run the trials of the region with the smallest input. None if
            the pool is unreachable.
        largest: the name of the region with the largest input, and how many slots can run its
            trials. None if the inputs of all regions are equally large.
        suitable: the fleet's instance types that can run the trials of the region with the smallest
            input. None if they were not checked.
        suitable_for_largest: the same for the region with the largest input.
        troubles: other obstacles, and the reasons why checks were impossible.
    """

    prospects: Prospects | None
    largest: tuple[str, Prospects] | None = None
    has_fleet: bool = False
    suitable: SuitableTypes | None = None
    suitable_for_largest: SuitableTypes | None = None
    troubles: tuple[str, ...] = ()

    @property
    def can_begin(self) -> bool:
        """True if some region's trials may run in the pool or its fleet, now or later."""
        return self.prospects is None or self._can_begin(self.prospects, self.suitable)

    def _can_begin(self, found: Prospects, suitable: SuitableTypes | None) -> bool:
        if found.fit:
            return True
        if self.has_fleet:
            return suitable is None or bool(suitable.types)
        return not found.hopeless

    @property
    def hopeless(self) -> str:
        """The reason why some region's trials can never run; "" if all may run."""
        if not self.can_begin:
            return str(self.suitable or self.prospects)
        if self.largest and not self._can_begin(self.largest[1], self.suitable_for_largest):
            return f"trials of {self.largest[0]}: {self.suitable_for_largest or self.largest[1]}"
        return ""

    def lines(self) -> list[str]:
        """Return the result as lines of text."""
        found = [str(self.prospects)] if self.prospects else []
        if self.largest and self.largest[1] != self.prospects:
            found.append("trials of {}: {}".format(*self.largest))
        if self.suitable:
            found.append(str(self.suitable))
        elif found and self.has_fleet:
            found.append("the study's fleet adds others")
        if self.largest and self.suitable_for_largest:
            found.append(f"trials of {self.largest[0]}: {self.suitable_for_largest}")
        return [*found, *self.troubles]

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        found = self.prospects
        return {
            "slots": found.slots if found else None,
            "fit": found.fit if found else None,
            "willing": found.willing if found else None,
            "at_once": found.concurrency if found else None,
            "lacking": list(found.lacking) if found else [],
            "instance_types": self.suitable.types if self.suitable else None,
            "hopeless": bool(self.hopeless),
            "reason": self.hopeless,
            "troubles": list(self.troubles),
        }


def check_pool(folder: RunFolder, regions: Sequence[RegionGraph] = ()) -> PoolCheck:
    """Check whether a pool can run the trials of a planned run, or only those of `regions`.

    If the pool is unreachable, the result says so.
    """
    frozen = load_frozen(folder.study)
    study = frozen.study
    try:
        use(connect())
        slots = pool_slots().whole
        smallest, largest = _extreme_regions(folder, study, regions or build_graph(study).regions)
        job = small_job = trial_ad(folder, frozen.run, study, smallest)
        if largest != smallest:
            job = trial_ad(folder, frozen.run, study, largest)
        found, most = prospects(small_job, slots), prospects(job, slots)
        troubles = access_point.reasons_closed()
    except PoolError as error:
        trouble = f"not compared with the pool: {error}"
        return PoolCheck(prospects=None, has_fleet=study.fleet is not None, troubles=(trouble,))
    held = None
    if not most.fit and autoscale_mode(study) != "off":
        try:
            held = _suitable_types(study, job)
        except (FleetError, InputError) as error:
            troubles.append(f"not compared with the fleet's instance types: {error}")
    small = replace(held, disk_bytes=_disk_bytes(small_job)) if held and not found.fit else None
    return PoolCheck(
        prospects=found,
        largest=(largest.name, most) if largest != smallest else None,
        has_fleet=study.fleet is not None,
        suitable=small,
        suitable_for_largest=held if largest != smallest else None,
        troubles=tuple(troubles),
    )


def check_regions(folder: RunFolder, regions: Iterable[RegionGraph]) -> Iterator[Prospects]:
    """Yield for each region how many of the pool's present slots can run its trials.

    PoolError if HTCondor is unreachable.
    """
    frozen = load_frozen(folder.study)
    use(connect())
    slots = pool_slots().whole
    for region in regions:
        yield prospects(trial_ad(folder, frozen.run, frozen.study, region), slots)


def _suitable_types(study: Study, job: ClassAd) -> SuitableTypes | None:
    from trialfleet.infra.fleet.aws.clients import Aws
    from trialfleet.infra.fleet.scaling.suitable_types import suitable_types
    from trialfleet.infra.pool.machines import parse_room

    assert study.fleet is not None, "a study that scales a fleet has one"
    need = parse_room(plain_attributes(job), "Request{}")
    gangs = [size.min for size in list_gangs(study.resources, study.regions)]
    return suitable_types(Aws(), study.fleet, need, max(gangs, default=1), _disk_bytes(job))


def _disk_bytes(job: ClassAd) -> float:
    return number_attribute(job, "RequestDisk") * 1024


def _extreme_regions(
    folder: RunFolder, study: Study, regions: Sequence[RegionGraph]
) -> tuple[RegionGraph, RegionGraph]:
    """Return the regions with the smallest and the largest local input files."""
    size = cache(_file_bytes)  # regions may share files

    def input_bytes(region: RegionGraph) -> int:
        return sum(map(size, list_inputs(study, folder, region.name)))

    return min(regions, key=input_bytes), max(regions, key=input_bytes)


def _file_bytes(place: str) -> int:
    try:
        return sum(file.stat().st_size for file in list_files(Path(place)))
    except OSError:
        return 0


def trial_ad(folder: RunFolder, run: str, study: Study, region: RegionGraph) -> ClassAd:
    """Return the ClassAd that a job for a region's trials would have.

    PoolError if condor_submit refuses the submit file, or can't be run.
    """
    node = region.trial_nodes[0]
    place = folder.region(region.slug).trial(node)
    order = TrialOrder(region=region.name, node=node, trial=0, mode="tune", seed=0, params={})
    with tempfile.TemporaryDirectory(prefix="trialfleet-") as beside:
        file = TrialFolder(Path(beside)).submit
        text = TrialFiles(run, study, folder, place, order).submit_text()
        file.write_text(text, encoding="utf-8")
        ad = _dry_run(file, place.root)
    ad["Owner"] = identity().account  # a slot's START expression may depend on the owner
    return ad


def _dry_run(file: Path, place: Path) -> ClassAd:
    import classad2

    result = file.with_name("ads")
    command = ["condor_submit", "-disable", "-dry-run", str(result), str(file)]
    try:
        done = run_captured(command, cwd=place, timeout=_SECONDS)
        if done.returncode != 0:
            raise PoolError(f"condor_submit refuses a trial's submit file: {done.stderr.strip()}")
        return next(iter(classad2.parseAds(result.read_text())))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PoolError(f"condor_submit can't be run: {error}") from error
