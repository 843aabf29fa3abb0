"""Early stopping: the optimiser's service reads running trials' reports and writes stop orders.

A job's agent, the program that runs trials on the node, copies reports into the trial's folder, and
reads the stop order `stop.json` there. So the service needs no HTCondor daemon. After a crash, the
service reads all reports again, and existing stop orders remain valid.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from trialfleet import untrusted_files
from trialfleet.objective import loss
from trialfleet.optimizer.stopping.rule import Complete, Decision, Rule, build_curve, choose_stops
from trialfleet.optimizer.stored_trials import is_stopped_early
from trialfleet.workflows.control.scripts.region_studies import RegionStudies
from trialfleet.workflows.facts.jobs.agent_messages import read_order
from trialfleet.workflows.facts.jobs.progress import read_reports
from trialfleet.workflows.status.attempts.outcome import read_stop

SECONDS = 3.0  # at least this time between two checks
SHARE = 0.05  # at most this share of a processor for checks
AWAY_SECONDS = 30.0  # until the next check after the storage or the disk failed

log = logging.getLogger(__name__)


class EarlyStopping:
    """Reads the reports of a run's running trials, and orders trials to stop."""

    def __init__(self, studies: RegionStudies) -> None:
        self._studies = studies
        self._clock = time.monotonic
        settings = studies.study.early_stopping
        self._rule = Rule(**settings.model_dump(exclude={"grace_seconds"})) if settings else None
        self._metric = studies.study.objective.metric
        self._direction = studies.study.objective.direction
        self._next = 0.0
        self._seen: dict[str, object] = {}  # the data of each region's last decision
        self._changed: deque[str] = deque()  # regions with new reports

    def is_due(self) -> bool:
        """Return whether it is time to call `poll`. False if the study has no early stopping."""
        return self._rule is not None and (bool(self._changed) or self._clock() >= self._next)

    def poll(self) -> bool:
        """Do the next part of a check; return whether regions with new reports are left.

        The first part finds the regions with new reports. Each further part decides which running
        trials of one of these regions to stop.

        Raises:
            OptimizerError: the trial database can't be used.
            OSError: a stop order can't be written.
        """
        if self._rule is None:
            return False
        try:
            self._check_region(self._rule)
        except BaseException:
            self._seen.clear()  # all reports are read again
            self._next = self._clock() + AWAY_SECONDS
            raise
        return bool(self._changed)

    def _check_region(self, rule: Rule) -> None:
        if self._changed:
            begin = time.process_time()
            self._decide(rule, self._changed.popleft())
            self._next += (time.process_time() - begin) / SHARE
        elif self._clock() >= self._next:
            self._next = self._clock() + SECONDS
            self._changed.extend(slug for slug in self._studies.regions if self._has_news(slug))

    def _has_news(self, slug: str) -> bool:
        """Return whether running trials have reports, some of them new since the last check.

        A new stop order and a trial that began or ended count as new reports.
        """
        files = self._studies.folder.region(slug)
        if files.is_done or not files.scripts_log.exists():  # ended, or not begun
            return False
        running = self._running(slug)
        reports = tuple(untrusted_files.file_stamp(files.trial(node).reports) for node in running)
        ordered = tuple(untrusted_files.file_size(files.trial(node).stop) > 0 for node in running)
        seen = (len(self._studies.get_study(slug).trials()) - len(running), reports, ordered)
        is_new = any(size for size, _ in reports) and self._seen.get(slug) != seen
        self._seen[slug] = seen
        return is_new

    def _decide(self, rule: Rule, slug: str) -> None:
        trials = self._studies.get_study(slug).trials()
        files = self._studies.folder.region(slug)
        running, stopped = {}, sum(map(is_stopped_early, trials))
        for node in self._running(slug):
            place = files.trial(node)
            if read_stop(place):
                stopped += 1
            elif curve := build_curve(read_reports(place.reports, self._metric), self._direction):
                running[node] = curve
        complete = [found for trial in trials if (found := self._complete_curve(trial))]
        decisions = choose_stops(rule, running, complete, begun=len(trials), stopped=stopped)
        for node, decision in decisions.items():
            place = files.trial(node)
            order = {"trial": node, **self._order(decision)}
            untrusted_files.write_json(place.stop, order, root=place.node_root)
            log.info("%s: asked to stop: %s", node, decision)

    def _running(self, slug: str) -> list[str]:
        """Return the running trials, without those of a lane whose job trains another trial now.

        All trials of a lane's job share the files with reports and stop orders.
        """
        files = self._studies.folder.region(slug)
        places = {node: files.trial(node) for node in self._studies.get_study(slug).running_nodes()}
        return [
            node
            for node, place in places.items()
            if not place.is_shared or ((order := read_order(place)) and order.name == node)
        ]

    def _complete_curve(self, trial: FrozenTrial) -> Complete | None:
        if trial.state != TrialState.COMPLETE or trial.value is None:
            return None
        curve = build_curve(trial.intermediate_values, self._direction)
        return Complete(curve, loss(trial.value, self._direction)) if curve else None

    def _order(self, decision: Decision) -> dict[str, Any]:
        return {
            "schema": 1,
            "step": decision.step,
            "max_steps": decision.max_steps,
            "predicted": loss(decision.loss, self._direction),
            "deviation": decision.deviation,
            "chance": round(decision.chance, 6),
            "best": loss(decision.best, self._direction),
            "time": time.time(),
        }
