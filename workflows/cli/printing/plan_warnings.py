"""Warnings of `plan` about a valid study, for example that its trainer seems to save no model."""

from __future__ import annotations

import re
from pathlib import Path

from trialfleet.workflows.control.run.run import Run
from trialfleet.workflows.facts.run_folder.dag_structure import autoscale_mode
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.study.spec import Study, Trainer

_MODEL = re.compile(r"""\bfinal\b|\bmodel/|/model\b|\.model\b|["']model["']""")
_NO_MODEL = (
    "no file of the trainer mentions mode final or the folder model/, where a full training must "
    "write its model; if you only want to tune, set publish: none"
)
_NO_PRICE = (
    "a budget in USD counts only nodes with a price: set usd_per_hour, unless the pool's machines "
    "advertise a price (docs/costs.md)"
)
_NO_CAP = (
    "no autoscaler keeps fleet.price_cap.run: set fleet.autoscale: service, or keep this running: "
    "trialfleet fleet autoscale --run {run} (docs/ec2.md)"
)
_UNUSED_GPUS = (
    "the fleet's nodes have GPUs, which trials don't use with accelerator: cpu: write accelerator: "
    "gpu, or list cheaper instance_types"
)
_EVALUATE = re.compile(r"\bevaluate\b")
_NO_EVALUATE = (
    "no file of the trainer mentions mode evaluate, in which a trainer measures models for the "
    "gate: without this mode, no new model can replace the current one (docs/gate.md)"
)
_REPORTS = re.compile(r"\breport\b|progress\.jsonl")
_NO_REPORTS = (
    "no file of the trainer mentions report() or progress.jsonl: trials without reports are never "
    "stopped early (docs/early-stopping.md)"
)
_LOOKS = re.compile(r"\bshould_stop\b|stop\.json")
_NEVER_LOOKS = (
    "no file of the trainer mentions should_stop() or stop.json: a trial that is stopped early "
    "trains for another {seconds} s (early_stopping.grace_seconds) and is then killed "
    "(docs/early-stopping.md)"
)
_LENGTH = re.compile(
    r"((n|num|max|total|train|training)_)*(epochs|steps|iterations|iters|rounds|boost_round"
    r"|estimators)"
)
_LENGTHS = (
    "the search space has {name!r}, so that trials may differ in length: set "
    "early_stopping.max_steps to the last step of the longest trial, or long trials are stopped "
    "because they are behind shorter ones (docs/early-stopping.md)"
)
_SHARED_ROWS = (
    "rows are split at random: if days share rows, the current model has trained on some of "
    "today's test rows and looks better than it is, so that the gate rejects nearly all new "
    "models; to test on the latest rows: table.split: {time: COLUMN} (docs/gate.md)"
)


def plan_warnings(run: Run) -> list[str]:
    """Return warnings about a valid study that probably won't do what its author wants."""
    study, stops = run.study, run.study.early_stopping
    never_reports = stops is not None and _never_mentions(run, _REPORTS)
    never_looks = stops is not None and not never_reports and _never_mentions(run, _LOOKS)
    length = _tuned_length(study) if stops is not None and stops.max_steps is None else ""
    is_unpriced = study.has_budget_in_usd and study.usd_per_hour is None and study.fleet is None
    is_capped = study.fleet is not None and study.fleet.price_cap.run is not None
    is_uncapped = is_capped and autoscale_mode(study) == "off"
    has_unused_gpus = study.accelerator == "cpu" and bool(study.fleet and study.fleet.brings_gpus)
    found = {
        _NO_MODEL: study.publishes and _never_mentions(run, _MODEL),
        _NO_PRICE: is_unpriced,
        _UNUSED_GPUS: has_unused_gpus,
        _NO_CAP.format(run=run.run_id): is_uncapped,
        _SHARED_ROWS: shares_rows_with_champion(study),
        _NO_REPORTS: never_reports,
        _NEVER_LOOKS.format(seconds=stops.grace_seconds if stops else 0): never_looks,
        _LENGTHS.format(name=length): bool(length),
        _NO_EVALUATE: study.gate is not None and _never_mentions(run, _EVALUATE),
    }
    return [words for words, is_so in found.items() if is_so]


def shares_rows_with_champion(study: Study) -> bool:
    """Return whether the current model may have been trained on rows that the gate tests."""
    if study.gate is None or isinstance(study.trainer, Trainer):
        return False
    if study.table and study.table.split.own_columns:
        return False
    files = [file for region in study.region_table for file in study.data_paths(region)]
    return any(not file.lower().endswith(".npz") for file in files)


def _tuned_length(study: Study) -> str:
    """Return the first parameter whose name says that it is a number of steps, or ""."""
    spaces = (study.region_space(region) for region in study.region_table)
    names = (name for space in spaces for name in space.parameters)
    return next((name for name in names if _LENGTH.fullmatch(name.lower())), "")


def _never_mentions(run: Run, pattern: re.Pattern[str]) -> bool:
    """Return whether the trainer's command and files nowhere match `pattern`.

    Return False if the trainer has no files, or has a file that isn't text.
    """
    trainer = run.study.trainer
    if not isinstance(trainer, Trainer) or not trainer.files:
        return False
    code = RunFolder(run.folder).code
    try:
        texts = [(code / Path(file).name).read_text() for file in trainer.files]
    except (OSError, UnicodeError):  # a folder, or a binary program
        return False
    return not any(pattern.search(text) for text in [*texts, " ".join(trainer.command)])
