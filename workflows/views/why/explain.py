"""The command `trialfleet why`: it finds the subject, reads its facts and applies the rules."""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import date
from pathlib import Path

from trialfleet.errors import InputError, TrialfleetError
from trialfleet.files import shell_quoted
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Journal, Outcome
from trialfleet.workflows.facts.run_folder.dag_structure import RegionGraph, build_graph
from trialfleet.workflows.facts.runs.lookup import find_run
from trialfleet.workflows.rules.states import RunState
from trialfleet.workflows.status.day_outcomes import (
    left_out_or_why,
    outcomes_now,
    unknown_days_text,
)
from trialfleet.workflows.status.status_reader import open_run
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.views.why.answer import Answer, Blame, Kind
from trialfleet.workflows.views.why.facts import RegionFacts
from trialfleet.workflows.views.why.instance_rules import explain_instance
from trialfleet.workflows.views.why.instance_sources import instance_facts
from trialfleet.workflows.views.why.node_rules import explain_node
from trialfleet.workflows.views.why.region_rules import (
    NOT_CURRENT,
    explain_day,
    explain_region,
    region_notes,
)
from trialfleet.workflows.views.why.run_rules import explain_blocked
from trialfleet.workflows.views.why.run_sources import RunFactsReader
from trialfleet.workflows.views.why.subject import Subject, find_subject

_SHOWN_NOTES = 10


def explain(word: str | None, run: str | None = None) -> Answer:
    """Return why a subject is in its state.

    The arguments and errors are those of `find_subject`.
    """
    subject = find_subject(word, run)
    return replace(_explain(subject, run), subject=subject.word)


def _explain(subject: Subject, run: str | None) -> Answer:
    if subject.what == "instance":
        return explain_instance(instance_facts(subject.word, subject.folder))
    assert subject.folder is not None, "all others belong to a run, or to a study's days"
    if subject.what == "day":
        day = load_frozen(open_run(find_run(run)).study).day if run else None
        return _explain_day_without_run(subject.name, subject.folder, day.date if day else None)
    reader = RunFactsReader(subject.folder)
    if subject.what == "run":
        return _explain_run(reader)
    assert subject.region is not None, "a node is of a region"
    return _explain_subject(reader, subject, subject.region)


def _explain_subject(reader: RunFactsReader, subject: Subject, graph: RegionGraph) -> Answer:
    run, region = reader.run(), reader.region(graph)
    if subject.what == "node":
        return explain_node(run, region, reader.node(graph, subject.node))
    if not subject.newest:
        return explain_region(run, region)
    try:
        return explain_region(run, _add_newest_day(region, reader))
    except TrialfleetError as error:
        answer = explain_region(run, region)
        return replace(answer, notes=(*answer.notes, unknown_days_text(error)))


def _explain_run(reader: RunFactsReader) -> Answer:
    """Return the answer about a fault that blocks the run; without a fault, about its regions."""
    run, day, folder = reader.run(), reader.frozen.day, reader.files.root
    absent, trouble = left_out_or_why(folder, day)
    troubles = [trouble] if trouble else []
    if run.state not in {RunState.DONE, RunState.FAILED} and (
        answer := explain_blocked(run, run.snapshot.faults)
    ):
        return replace(answer, notes=(*answer.notes, *troubles))
    regions = [reader.region(graph) for graph in build_graph(reader.frozen.study).regions]
    answers = [explain_region(run, region) for region in regions]
    study = DailyFolder(folder.parent).study_as_typed
    answers += [replace(explain_day(one, study), subject=one.region) for one in absent]
    unwell = [answer for answer in answers if answer.blame is not Blame.NOBODY]
    notes = [
        line
        for region, answer in zip(regions, answers, strict=False)  # more answers: regions left out
        if answer not in unwell[:1]  # the first one is the answer itself
        for line in region_notes(region, answer)
    ]
    notes += troubles
    if not unwell:
        why = f"no problem: the run is {run.state}"
        first = next((each for each in answers if each.kind in NOT_CURRENT), answers[0])
        if run.state is RunState.RUNNING and first.kind not in NOT_CURRENT:
            first = replace(first, advice="", command=run.watch)  # not the next step of one region
        return replace(first, why=why, notes=_first(notes))
    why = f"{_region_summary(unwell, len(answers))}{unwell[0].why}"
    lines = [answer.lines()[0] for answer in unwell[1:]]
    return replace(unwell[0], why=why, notes=_first(notes)).with_evidence(*lines)


def _region_summary(unwell: list[Answer], total: int) -> str:
    if total == 1:
        return ""
    first = unwell[0].subject
    alike = all(answer.kind is unwell[0].kind for answer in unwell)
    reasons = f", for example {first}" if alike else f" for different reasons, for example {first}"
    return f"{len(unwell)} of {total} regions{reasons}: "


def _first(lines: list[str]) -> tuple[str, ...]:
    more = len(lines) - _SHOWN_NOTES
    return (*lines[:_SHOWN_NOTES], *([f"… and {more} more"] if more > 0 else []))


# --- days -----------------------------------------------------------------------------------------


def _add_newest_day(region: RegionFacts, reader: RunFactsReader) -> RegionFacts:
    """Add the region's newest outcome, if the region had no run on the outcome's day.

    An outcome of a day before the run's day is not added.
    """
    folder, frozen = DailyFolder(reader.files.root.parent), reader.frozen
    if not folder.journal.exists() or frozen.day is None:
        return region
    newest = _newest(folder, region.name)
    is_newer = newest is not None and (newest.run is None and newest.date >= frozen.day.date)
    return replace(region, day=newest) if is_newer else region


def _newest(folder: DailyFolder, region: str) -> Outcome | None:
    return max(_outcomes(folder, region), key=lambda one: one.date, default=None)


def _outcomes(folder: DailyFolder, region: str) -> list[Outcome]:
    found = outcomes_now(Journal(folder.journal))
    return [outcome for (_, name), outcome in found.items() if name == region]


def _explain_day_without_run(region: str, folder: Path, day: date | None) -> Answer:
    """Return why a region had no run on a day.

    The answer explains the region's outcome on `day`, if this outcome has no run. Otherwise it
    explains the region's newest outcome. Without any outcome, it says that the region's day has
    started. `folder` is the folder of the study's runs. Raises InputError if the newest outcome has
    a run.
    """
    known = _outcomes(DailyFolder(folder), region)
    own = (one for one in known if one.date == day and one.run is None)
    newest = next(own, None) or _newest(DailyFolder(folder), region)
    if newest is None:
        why_not = "its day has started; its run is not planned yet"
        return Answer(kind=Kind.SOON, blame=Blame.NOBODY, why=why_not)
    if newest.run is not None:
        raise InputError(_in_another_run(region, newest.run, folder))
    return explain_day(newest, DailyFolder(folder).study_as_typed)


def _in_another_run(region: str, run: str, folder: Path) -> str:
    if not (folder / run).is_dir():
        return f"the run {run!r} of {region!r} is no longer in {str(folder)!r}"
    asked = f"trialfleet why {shlex.quote(region)} --run {shell_quoted(folder / run)}"
    return (
        f"the named run has no region {region!r}; the newest run with this region is {run!r}: "
        f"{asked}"
    )
