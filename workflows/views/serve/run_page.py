"""The key numbers, the regions' tiles and the list of problems on a run's live page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from urllib.parse import quote

from trialfleet.errors import TrialfleetError
from trialfleet.workflows.facts.journal.journal import Outcome
from trialfleet.workflows.facts.runs.failed_attempts import SEE
from trialfleet.workflows.formatting import NOTHING, rough_duration, shorten, usd
from trialfleet.workflows.rules.states import RunState, Stage
from trialfleet.workflows.status.day_outcomes import absence_text, left_out_or_why
from trialfleet.workflows.status.status_types import RegionStatus
from trialfleet.workflows.views.serve.current_models import Champion
from trialfleet.workflows.views.serve.gains import Gain, read_gain
from trialfleet.workflows.views.serve.live_runs import ResultCache, Snapshot
from trialfleet.workflows.views.why.answer import Answer
from trialfleet.workflows.views.why.explain import explain

_TONES = {
    Stage.PUBLISHED: "good", Stage.TUNED: "good", Stage.TUNING: "busy", Stage.TRAINING: "busy",
    Stage.GATING: "busy", Stage.PUBLISHING: "busy", Stage.FAILED: "bad", Stage.STOPPED: "bad",
    Stage.LOST: "bad", Stage.HELD: "bad",
}  # fmt: skip
_RUN_TONES = {RunState.RUNNING: "busy", RunState.DONE: "good", RunState.PLANNED: "idle"}
AT_ONCE = 2  # answers of `trialfleet why` that one rendering of a page computes
_REASON = 160  # characters of a reason on a tile; its region's page has it whole


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A region's tile on the run's page.

    Attributes:
        stage: the region's state.
        tone: the CSS class of the region's state: good, busy, bad or idle.
        age: the age of the current model.
        shares: three percentages of the region's maximum number of trials: completed or stopped
            early, failed or abandoned, and running trials.
        why: the region's problem, or "".
    """

    name: str
    slug: str
    stage: str
    tone: str
    gain: Gain
    age: str
    trials: str
    shares: tuple[float, ...]
    why: str


@dataclass(frozen=True, kw_only=True)
class Concern:
    """A problem that needs attention.

    Attributes:
        what: the region, trial or DAG node with the problem, or "" for a problem of the whole run.
        region: the slug of the region with the problem, or "" if it is not in a region of the run.
        command: the command that helps, or "".
    """

    why: str
    what: str = ""
    region: str = ""
    command: str = ""


def run_path(key: str) -> str:
    """Return the path of a run's page, with percent-encoded names."""
    return f"/runs/{quote(key, safe='')}"


def region_path(key: str, slug: str) -> str:
    """Return the path of a region's page."""
    return f"{run_path(key)}/regions/{quote(slug, safe='')}"


def trial_path(key: str, slug: str, node: str) -> str:
    """Return the path of the page of a trial or a full training."""
    return f"{region_path(key, slug)}/trials/{quote(node, safe='')}"


def header(snapshot: Snapshot) -> list[tuple[str, str, str]]:
    """Return the key numbers at the top of the page, each as a label, a value and a note."""
    status = snapshot.run.status
    regions = status.regions
    good = sum(region.stage.is_good for region in regions)
    whole = len(regions) + len(_not_in_run(snapshot)[0])
    left = rough_duration(status.seconds_left)
    finished, budget = sum(r.finished for r in regions), sum(r.budget for r in regions)
    running, queued = sum(r.running for r in regions), sum(r.queued for r in regions)
    failed = sum(r.all_failed for r in regions)
    notes = [f"{running} running", *([f"{queued} queued"] if queued else [])]
    notes += [f"{failed} failed"] if failed else []
    return [
        ("Run", status.state.value.capitalize(), left and f"{left} left"),
        ("Regions", f"{good} of {whole}", "done"),
        ("Trials", f"{finished:,} of {budget:,}", ", ".join(notes)),
        _money(snapshot),
        _nodes(snapshot),
    ]


def _not_in_run(snapshot: Snapshot) -> tuple[list[Outcome], str | None]:
    """Return the outcomes of regions that failed on the run's day before they had a run.

    If the outcomes are unknown, the second value says why. Only a daily run has outcomes.
    """
    return left_out_or_why(snapshot.folder.root, snapshot.frozen.day)


def _money(snapshot: Snapshot) -> tuple[str, str, str]:
    status = snapshot.run.status
    if status.usd is None:
        return "Money", NOTHING, "prices are unknown"
    money = status.money
    if money is None:
        return "Money", f"{usd(status.usd)} USD", "of its jobs, by usd_per_hour"
    if money.cap is None:
        return "Money", f"{usd(money.spent)} USD", "no cap"
    return "Money", f"{usd(money.spent)} USD", f"of {usd(money.cap)}, {usd(money.left or 0.0)} left"


def money_share(snapshot: Snapshot) -> float | None:
    """Return the percentage of a run's money cap that is spent, or None if there is no cap."""
    money = snapshot.run.status.money
    if money is None or not money.cap:
        return None
    return round(min(100.0, 100 * money.spent / money.cap), 1)


def _nodes(snapshot: Snapshot) -> tuple[str, str, str]:
    found = snapshot.nodes.nodes
    if not found:
        return "Nodes", NOTHING, "the pool is unreachable" if snapshot.nodes.notice else "none"
    price = f"{snapshot.nodes.price:.2f} USD/h" if snapshot.nodes.price else ""
    unwell = sum(node.state() in {"sick", "draining"} for node in found)
    return "Nodes", str(len(found)), price or (f"{unwell} unhealthy" if unwell else "all healthy")


def tiles(snapshot: Snapshot) -> list[Tile]:
    """Return the tiles of the regions, those of regions with problems first."""
    made = [build_tile(snapshot, region) for region in snapshot.run.status.regions]
    return sorted(made, key=lambda tile: tile.tone != "bad")


def build_tile(snapshot: Snapshot, region: RegionStatus) -> Tile:
    """Return the tile of a region."""
    under_way = [f"{region.running} running"] if region.running else []
    under_way += [f"{region.on_hold} on hold"] if region.on_hold else []
    under_way += [f"{region.all_failed} failed"] if region.all_failed else []
    under_way += [f"{region.stopped_early} stopped early"] if region.stopped_early else []
    parts = (region.done + region.stopped_early, region.all_failed + region.pruned, region.running)
    return Tile(
        name=region.name,
        slug=region.slug,
        stage=region.stage.value,
        tone=_TONES.get(region.stage, "idle"),
        gain=read_gain(snapshot, region),
        age=_model_age(snapshot, region),
        trials=" · ".join([f"{region.finished} of {region.budget}", *under_way]),
        shares=tuple(round(100 * part / region.budget, 1) for part in parts),
        why=shorten(_concern_reason(region), _REASON),
    )


def _model_age(snapshot: Snapshot, region: RegionStatus) -> str:
    champion = snapshot.champions.get(region.slug)
    if champion is None:
        return "no model yet"
    return f"model {age_text(champion, snapshot.now)}"


def age_text(champion: Champion, now: datetime) -> str:
    """Return a model's age in words, such as `planned 3 days ago`.

    The age counts from the planning of the model's run or, if earlier, from the end of the run's
    day. It doesn't count from the publication, because the model's data are older.
    """
    if champion.as_of is None:
        return "of unknown age"
    word = "planned" if champion.as_of == champion.created else "of"
    return f"{word} {rough_duration((now - champion.as_of).total_seconds())} ago"


def _concern_reason(region: RegionStatus) -> str:
    attempts = str(region.cause).partition(SEE)[0] if region.cause and not region.done else ""
    known = (region.reason, region.model_note, attempts, *region.warnings)
    return next(filter(None, known), "")


def counts(made: list[Tile]) -> list[tuple[str, int]]:
    """Return how many regions are in each stage, the most frequent stage first."""
    return Counter(tile.stage for tile in made).most_common()


def list_concerns(snapshot: Snapshot) -> list[Concern]:
    """Return the problems that need attention.

    Problems of the whole run come before those of its regions. Jobs on hold come last.
    """
    status = snapshot.run.status
    answers = WhyAnswers(snapshot.kept, str(snapshot.folder.root))
    found = [Concern(why=status.notice)] if status.notice else []
    if money := status.money:
        found += [Concern(why=why) for why in (money.ended, money.trouble) if why]
    absent, unknown = _not_in_run(snapshot)
    found += [Concern(why=absence_text(one)) for one in absent]
    found += [Concern(why=unknown)] if unknown else []
    found += [Concern(why=trouble) for trouble in status.run_troubles]
    if status.work.is_much_lost:
        found.append(Concern(why=str(status.work)))
    found += [
        Concern(what=trouble.node, region=trouble.region, why=trouble.what)
        for trouble in status.job_troubles
    ]
    found += [
        _explain_concern(
            answers,
            Concern(
                what=region.name,
                region=region.slug,
                why=region.failure or region.stage.value,
            ),
            region.slug,
            (region.stage, region.failure),
        )
        for region in status.regions
        if region.stage.needs_help
    ]
    found += [
        _explain_concern(
            answers,
            Concern(
                what=held.node,
                region=_node_region(snapshot, held.node),
                why=str(held),
            ),
            held.job,
            held.reason,
        )
        for held in status.held
    ]
    return found


def _explain_concern(answers: WhyAnswers, concern: Concern, word: str, seen: object) -> Concern:
    answer = answers.find(word, seen)
    return replace(concern, why=answer.why, command=answer.command) if answer else concern


class WhyAnswers:
    """The answers of `trialfleet why` that a page shows.

    An answer takes tenths of a second, a hundred times as long as the rest of a page. So answers
    are cached, and one rendering of the page computes at most `AT_ONCE` of them. Later renderings
    compute the others. `run` is the run's folder.
    """

    def __init__(
        self, kept: ResultCache, run: str, ask: Callable[[str, str], Answer] = explain
    ) -> None:
        self._kept, self._run, self._ask, self._left = kept, run, ask, AT_ONCE

    def find(self, word: str, seen: object) -> Answer | None:
        """Return the answer of `trialfleet why` for `word`, a region or a job.

        The result is None if there is no answer, or if this rendering has already computed
        `AT_ONCE` answers. `seen` is what the page shows of the region or job. The answer is
        computed again when `seen` has changed.
        """
        name = "why", word
        if not self._left and not self._kept.has(name, seen):
            return None
        return self._kept.get(name, seen, lambda: self._ask_once(word))

    def _ask_once(self, word: str) -> Answer | None:
        self._left -= 1
        try:
            return self._ask(word, self._run)
        except (TrialfleetError, OSError):  # the page then shows the status
            return None


def _node_region(snapshot: Snapshot, node: str) -> str:
    slug = node.split(".", maxsplit=1)[0]
    return slug if slug in snapshot.graph else ""


def tone_of_run(state: RunState) -> str:
    """Return the CSS class of a run's state."""
    return _RUN_TONES.get(state, "bad")
