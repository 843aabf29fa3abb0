"""The answer of `trialfleet why` for a region or its day, by the first rule that applies.

Rules for ended regions come first. They need only the region's records, so they apply even if
HTCondor is unreachable. Then come faults that block the whole run, and then faults of the region's
trials.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

from trialfleet.optimizer.budget_and_deadline_rules import Facts, refusal
from trialfleet.workflows.facts.dagman.failing_scripts import DATA_UNREADABLE
from trialfleet.workflows.facts.journal.journal import Ending, Outcome
from trialfleet.workflows.facts.models.approval import promote_command, without_command
from trialfleet.workflows.facts.models.history import Change
from trialfleet.workflows.facts.models.verdict import Verdict
from trialfleet.workflows.facts.runs.failed_attempts import SEE
from trialfleet.workflows.rules.gate_decision import kept_words
from trialfleet.workflows.rules.states import RunState, Stage
from trialfleet.workflows.rules.useless_resume import ALIKE, LEFT_NO_MODEL
from trialfleet.workflows.views.why.answer import Answer, Blame, Kind
from trialfleet.workflows.views.why.facts import RegionFacts, RunFacts
from trialfleet.workflows.views.why.failure_advice import advise, find_blame, kind_of_attempt
from trialfleet.workflows.views.why.run_rules import explain_blocked, explain_held, owned_elsewhere
from trialfleet.workflows.views.why.waiting_job_rules import explain_no_progress, explain_wait

_NO_MONEY = re.compile(r"no money is left")
_DEADLINE = re.compile(r"deadline\b.* (is|was) over")
_NO_DATA = re.compile(r"isn't there|no such file|not found", re.IGNORECASE)
_NO_PUBLISH = re.compile(r"^the model can't be published")
_UNMEASURED = re.compile(r"the gate's job|can't be measured|not measured|can't be used")
_NO_COLUMNS = re.compile(r"there is no column .+; the model needs ")  # `Columns.check_header`
_DOUBTFUL = re.compile(r"are the labels right\?")  # of the gate's comparison with a constant
_UNSEEN = re.compile(r"values that the champion never saw")  # of the trainer's mode evaluate
# a region has no problem, but its new model isn't the current one
NOT_CURRENT = {Kind.GATE_KEPT, Kind.AWAITS_APPROVAL, Kind.NOT_LATEST}


def explain_region(run: RunFacts, region: RegionFacts) -> Answer:
    """Return why a region is in its state."""
    found = (
        (region.day and explain_day(region.day, run.frozen.study_file))
        or _ended_well(region)
        or owned_elsewhere(run)
        or _explain_failed(run, region)
        or _explain_removed(run, region)
        or _explain_blocked(run, region)
        or _explain_held(region)
        or _explain_no_progress(run, region)
        or _waits_for_regions(run, region)
        or _all_attempts_fail(run, region)
        or _waits_for_slot(run, region)
        or _explain_continuing(run, region)
    )
    also = filter(None, (*region.warnings, _no_more_trials_text(region)))
    notes = tuple(dict.fromkeys((*found.notes, *also)))
    return replace(found, subject=region.name, notes=notes)


def _no_more_trials_text(region: RegionFacts) -> str:
    if not region.records.spent:
        return ""
    return f"no trial starts after {region.finished} of {region.budget}: {region.records.spent}"


# --- its day --------------------------------------------------------------------------------------


def explain_day(day: Outcome, study_file: str) -> Answer:
    """Return why a region had no run on a day, from its outcome on that day."""
    again = f"trialfleet daily backfill {study_file} --from {day.date} --to {day.date}"
    missing = f"{again} --only missing"
    if day.ending is Ending.UNCHANGED:
        why = f"on {day.date} its data and settings had not changed: no model was trained"
        evidence = f"fingerprint {day.fingerprint}" if day.fingerprint else ""
        return Answer(Kind.DATA_UNCHANGED, Blame.NOBODY, why).with_evidence(evidence)
    sentence = f"its day {day.date} failed: {day.why}"
    if _DEADLINE.search(day.why):
        advice = "extend daily.deadline; for this day"
        return Answer(Kind.DEADLINE, Blame.PERSON, sentence, advice, missing)
    if _NO_DATA.search(day.why):
        return Answer(Kind.DATA_MISSING, Blame.USER, sentence, "put the data there, then", missing)
    return Answer(Kind.NOT_PLANNED, Blame.USER, sentence, "fix that, then", missing)


# --- its end --------------------------------------------------------------------------------------


def _ended_well(region: RegionFacts) -> Answer | None:
    if region.stage is Stage.TUNED:
        return Answer(Kind.WELL, Blame.NOBODY, "it is tuned: all trials have ended")
    if not region.stage.has_model:
        return None
    if region.moved and Path(region.published or "").name == region.moved.previous:
        return _explain_no_longer_current(region, region.moved)
    if region.moved and region.moved.by != "publish" and region.moved.time:
        return _chosen_by_person(region, region.moved)
    if region.records.verdict and not region.records.verdict.promoted:
        return _explain_rejected(region, region.records.verdict)
    if region.not_latest:
        return Answer(
            Kind.AWAITS_APPROVAL if region.awaits_approval else Kind.NOT_LATEST,
            Blame.PERSON if region.awaits_approval else Blame.NOBODY,
            without_command(region.not_latest),
            "to make it the current model",
            _promote(region),
        )
    why = f"its model is published and current: {region.published}"
    why += f"; {region.gate}" if region.gate else ""
    return Answer(Kind.WELL, Blame.NOBODY, why)


def _chosen_by_person(region: RegionFacts, moved: Change) -> Answer:
    why = f"its model has been current {_since_text(moved)}: {region.published}{_had_kept(region)}"
    return Answer(Kind.WELL, Blame.NOBODY, why)


def _explain_no_longer_current(region: RegionFacts, moved: Change) -> Answer:
    if moved.by == "publish":
        current = f"the model of {moved.run} has been current {_since_text(moved)}"
        why = f"its model is published; {current}"
        return Answer(Kind.WELL, Blame.NOBODY, why)
    how = "was rolled back" if moved.by == "rollback" else "is no longer current"
    return Answer(
        Kind.NOT_LATEST,
        Blame.PERSON,
        f"its model {how}: the model of {moved.run} has been current {_since_text(moved)}"
        f"{_had_kept(region)}",
        "to make it current again",
        _promote(region),
    ).with_evidence(region.published or "")


def _since_text(moved: Change) -> str:
    how = {"publish": "", "hand": ", by hand"}.get(moved.by, f", by hand ({moved.description})")
    return moved.since + how


def _had_kept(region: RegionFacts) -> str:
    verdict = region.records.verdict
    if verdict is None or verdict.promoted:
        return ""
    return f"; the gate had {kept_words(verdict.champion_run)}: {verdict.why}"


def region_notes(region: RegionFacts, answer: Answer) -> list[str]:
    """Return notes on a region.

    If `answer` says why the region's new model is not current, this reason is the first note.
    """
    lines = [answer.why] if answer.kind in NOT_CURRENT else []
    lines += [region.model_note] if region.model_note and answer.kind is Kind.WELL else []
    return [f"{region.name}: {' '.join(line.split())}" for line in (*lines, *region.warnings)]


def _explain_rejected(region: RegionFacts, verdict: Verdict) -> Answer:
    why, kept = verdict.why, kept_words(verdict.champion_run)
    promote = _promote(region)
    all_the_same = "to use the new model anyway"
    if _UNMEASURED.search(why):
        sentence = f"its new model could not be measured, so the gate {kept}: {why}"
        fix = "fix the trainer's mode evaluate"
        if _NO_COLUMNS.search(why):
            fix = "restore these columns in today's data"
        return Answer(Kind.GATE_FAILED, Blame.USER, sentence, f"{fix}; {all_the_same}", promote)
    sentence = f"the gate {kept}: {why}"
    blame, what = Blame.NOBODY, "no action is needed"
    if _DOUBTFUL.search(why):
        blame, what = Blame.USER, "check the labels and the join of today's data first"
    elif _UNSEEN.search(why):
        blame, what = Blame.USER, "compare the spelling of these values with that of other days"
    return Answer(Kind.GATE_KEPT, blame, sentence, f"{what}; {all_the_same}", promote)


def _promote(region: RegionFacts) -> str:
    return promote_command(Path(region.published or ""))


def _explain_failed(run: RunFacts, region: RegionFacts) -> Answer | None:
    if region.stage is not Stage.FAILED:
        return None
    reason, cause, again = region.reason or "", region.cause, run.frozen.rerun_command(region.name)
    if _NO_MONEY.search(reason):
        advice = "raise fleet.price_cap.run"
        return Answer(Kind.MONEY, Blame.MONEY, reason, advice, run.rerun_command)
    if _NO_PUBLISH.match(reason):
        advice = "make the publish folder writable, then"
        return Answer(Kind.PUBLISH, Blame.USER, reason, advice, run.resume)
    if _DEADLINE.search(reason) and not region.done:
        advice = "extend daily.deadline"
        return Answer(Kind.DEADLINE, Blame.PERSON, reason, advice, run.rerun_command)
    if reason.startswith(DATA_UNREADABLE):
        return Answer(Kind.DATA_MISSING, Blame.USER, reason, "restore the data, then", run.resume)
    if script := (region.records.stopped or {}).get("script"):
        why = f"{script} failed repeatedly: {reason}"
        advice = "remove the cause (see service.log in the run's folder), then"
        return Answer(Kind.SCRIPT, Blame.POOL, why, advice, run.resume)
    if LEFT_NO_MODEL in reason:
        advice = advise(run, Kind.NO_MODEL, reason)
        return Answer(Kind.NO_MODEL, Blame.USER, reason, advice, again)
    if cause is None:
        why = reason or "it ended early without a recorded reason"
        return Answer(Kind.FAILURES, Blame.USER, why, command=again)
    return _explain_cause(run, region, reason or "it failed")


def _explain_cause(run: RunFacts, region: RegionFacts, reason: str) -> Answer:
    cause = region.cause
    assert cause is not None, "a region whose attempts failed has a cause"
    kind = Kind.NODE if cause.blame else kind_of_attempt(cause.error)
    is_one = 2 * cause.attempts > cause.of
    short = reason.partition(ALIKE)[0].partition(SEE)[0]
    sentence = f"{short}: {cause.error}" if cause.error not in short else short
    if cause.of > 1:
        sentence += f" ({cause.attempts} of {cause.of} failed attempts)"
    answer = Answer(
        kind if is_one else Kind.FAILURES,
        find_blame(kind) if is_one else Blame.USER,
        sentence,
        advise(run, kind, cause.error) if is_one else "fix these errors",
        run.frozen.rerun_command(region.name),
    )
    return answer.with_evidence(f"see {shlex.quote(cause.log)}", reason)


def _explain_removed(run: RunFacts, region: RegionFacts) -> Answer | None:
    has_ended = region.records.stopped is not None
    if region.stage is not Stage.STOPPED or (run.state is RunState.STOPPED and not has_ended):
        return None
    why = f"a person stopped it: {region.reason or 'its jobs were removed'}"
    return Answer(Kind.REMOVED, Blame.PERSON, why, command=run.resume)


# --- under way ------------------------------------------------------------------------------------


def _explain_blocked(run: RunFacts, region: RegionFacts) -> Answer | None:
    own = [fault for fault in run.snapshot.faults if fault.region in {None, region.slug}]
    return explain_blocked(run, own, region.failing)


def _explain_held(region: RegionFacts) -> Answer | None:
    if not region.held:
        return None
    answer = explain_held(region.held[0])
    if running := len(region.running_trials):
        return replace(answer, why=f"{answer.why}; {running} other trial(s) are running")
    return answer


def _explain_no_progress(run: RunFacts, region: RegionFacts) -> Answer | None:
    own = [each for each in run.snapshot.status.job_troubles if each.region == region.slug]
    return explain_no_progress(own[0]).with_evidence(*map(str, own[1:])) if own else None


def _waits_for_regions(run: RunFacts, region: RegionFacts) -> Answer | None:
    if region.stage is not Stage.WAITING or run.state is not RunState.RUNNING:
        return None
    at_a_time = run.frozen.study.parallel_regions
    if at_a_time is None:
        return Answer(Kind.SOON, Blame.NOBODY, "HTCondor is starting its DAGMan")
    running = [each.name for each in run.snapshot.status.regions if each.state is RunState.RUNNING]
    others = ", ".join(running[:3]) or "others"
    why = f"it waits for other regions: parallel_regions is {at_a_time}; running: {others}"
    advice = "no action is needed; for more at once raise parallel_regions"
    return Answer(Kind.TURN, Blame.NOBODY, why, advice=advice)


def _all_attempts_fail(run: RunFacts, region: RegionFacts) -> Answer | None:
    if region.cause is None or region.done or region.running_trials or region.cause.of < 2:
        return None
    return _explain_cause(run, region, "no trial has completed yet")


def _waits_for_slot(run: RunFacts, region: RegionFacts) -> Answer | None:
    if region.waiting is None or region.running_trials:
        return None
    return explain_wait(run, region.waiting)


def _explain_continuing(run: RunFacts, region: RegionFacts) -> Answer:
    trials = f"{region.finished} of {region.budget} trials have ended"
    over = ""
    deadline = run.frozen.day.deadline if run.frozen.day else None
    facts = Facts(out_of_money=run.out_of_money, deadline=deadline, now=run.now)
    refused = refusal("attempt", facts)
    if refused and refused.kind == "money":
        return Answer(
            Kind.MONEY,
            Blame.MONEY,
            f"{refused.reason}; it continues with the results of its trials ({region.stage})",
            "raise fleet.price_cap.run for the next run",
            run.rerun_command,
        )
    if refused:
        why = f"{refused.reason}: it trains the best settings so far"
        return Answer(Kind.DEADLINE, Blame.PERSON, f"{why} ({trials})")
    hours = run.frozen.study.region_budget(region.name).hours
    if hours is not None and region.hours_spent >= hours:
        why = f"its budget of {hours:g} h is spent: it starts no more trials ({trials})"
        return Answer(Kind.BUDGET, Blame.PERSON, why, advice="raise budget.hours")
    if region.spent:
        why = f"{region.spent}: it starts no more trials ({trials})"
        return Answer(Kind.BUDGET, Blame.MONEY, why, advice="raise this budget for the next run")
    if region.cause:
        over = f"; {region.cause.of} attempt(s) failed, the last: {region.cause.error}"
    running = (
        f"{len(region.running_trials)} running" if region.running_trials else str(region.stage)
    )
    return Answer(Kind.WELL, Blame.NOBODY, f"no problem: {trials}, {running}{over}")
