"""The requirements of a study's gangs (trainings over several machines) on its fleet's nodes."""

from __future__ import annotations

from pathlib import Path

from trialfleet.infra.fleet.commands.gang_prices import GangNeed
from trialfleet.infra.pool.machines import Room
from trialfleet.workflows.study.error_lines import read_table, validate
from trialfleet.workflows.study.loading import StudyWithFleet
from trialfleet.workflows.study.regions import list_gangs
from trialfleet.workflows.study.spec import trials_per_gpu


def load_gang_needs(path: Path) -> list[GangNeed]:
    """Return the different needs of a study file's gangs; [] if the file has no key `fleet`.

    StudyError, with a line per problem, if the file is no YAML table or the study is invalid;
    InputError if the file can't be read.
    """
    tree = read_table(path, "study or fleet")
    if "fleet" not in tree:
        return []
    study = validate(StudyWithFleet, path, tree)
    has_gpus = trials_per_gpu(study.accelerator, study.resources, study.fleet) is not None
    need = Room(
        gpus=study.resources.whole_gpus if has_gpus else 0,
        cpus=study.resources.cpus,
        memory_mb=round(study.resources.memory_bytes / (1 << 20)),
    )
    found = [
        GangNeed(min=gang.min, max=gang.max, need=need)
        for gang in list_gangs(study.resources, study.regions)
    ]
    return list(dict.fromkeys(found))
