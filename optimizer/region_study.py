"""One region's trials in the database: asking for a new trial, and recording a trial's outcome.

`node` in the methods is the name of the DAG node that runs the trial. A call may be repeated, for
example after a crash, and takes effect only once. A new trial's parameters depend only on the study
file, the previous results and the stored trials (`sampling/next_parameters.py`).

Only one process at a time may write a study. On one machine, the lock of the optimiser's service
prevents a second writer. If several machines use one database, `run_ownership` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Unpack

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from trialfleet.errors import TrialfleetError
from trialfleet.optimizer.budget_and_deadline_rules import Facts, refusal
from trialfleet.optimizer.learning_curve_points import MOST_STORED, downsample
from trialfleet.optimizer.region_types import (
    Abandoned,
    Assignment,
    Complete,
    Failed,
    Outcome,
    Refused,
    RegionSettings,
    StoppedEarly,
    TrialExecution,
)
from trialfleet.optimizer.sampling.next_parameters import Suggestion, suggest
from trialfleet.optimizer.sampling.seeds import stable_seed
from trialfleet.optimizer.sampling.warm_start import PreviousTasks
from trialfleet.optimizer.space import SearchSpace
from trialfleet.optimizer.storage import storage_errors
from trialfleet.optimizer.storage_transactions import TrialStorage
from trialfleet.optimizer.stored_trials import FAILURES, STOPPED, best_trial, is_own

NO_FACTS = Facts()


class RegionStudy:
    """A region's study in the trial database. Not thread-safe. Methods may raise OptimizerError.

    The trials are cached in memory. After an error they are read from the database again.
    """

    def __init__(
        self,
        storage: TrialStorage,
        name: str,
        space: SearchSpace,
        settings: RegionSettings,
        *,
        previous: PreviousTasks | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Load the study `name`, or create it if the database lacks it.

        `previous` has the results of earlier runs. Every later `RegionStudy` of this `name` must
        have the same `space` and `previous`. `now` returns the time in Unix seconds.
        TrialfleetError if the stored study's direction is not that of `settings`.
        """
        self.name = name
        self._storage = storage
        self._space = space
        self._settings = settings
        self._previous = previous
        self._now = now
        self._cached: list[FrozenTrial] | None = None
        self._ahead: tuple[object, Suggestion] | None = None
        with self._storage_errors():
            self._study_id = self._load_or_create()

    def ask(self, node: str) -> Assignment | Refused:
        """Return the trial of the DAG node `node`, or a refusal.

        If `node` has no trial yet, the call creates one, unless no further trial may begin. If the
        trial of `node` is finished, the result is a refusal.
        """
        with self._storage_errors():
            known = self._find(node)
            if known is not None and known.state.is_finished():
                return Refused(f"{node} is finished")
            if known is None and (refused := self.refusal()):
                return refused
            return self._build_assignment(known or self._create(node))

    def refusal(self, facts: Facts = NO_FACTS) -> Refused | None:
        """Return why no further trial may begin, or None if a trial may begin.

        The facts about the stored trials are added to `facts`.
        """
        return refusal("trial", self._facts(facts))

    def _facts(self, facts: Facts) -> Facts:
        trials, settings = self.trials(), self._settings
        failed = [trial.user_attrs for trial in trials if trial.state == TrialState.FAIL]
        return replace(
            facts,
            failed=len(failed),
            failures=settings.max_failures,
            last_failure=f"{failed[-1].get('node')}: {failed[-1].get('error')}" if failed else "",
            begun=len(trials),
            trials=settings.trials,
            age_hours=self._age_hours(),
            hours=settings.hours,
        )

    def tell(self, node: str, outcome: Outcome, **execution: Unpack[TrialExecution]) -> None:
        """Record the outcome of the trial of `node`, unless an outcome is already recorded.

        `execution` is stored with the outcome. If `node` has no trial, the outcome `Abandoned` is
        ignored, and any other outcome raises TrialfleetError.
        """
        with self._storage_errors():
            trial = self._find(node)
            if trial is None and isinstance(outcome, Abandoned):
                return
            if trial is None:
                raise TrialfleetError(f"study {self.name!r} has no trial for the node {node!r}")
            if trial.state.is_finished():
                return
            state, value, attributes = self._stored_outcome(outcome)
            attributes |= {key: content for key, content in execution.items() if key != "reports"}
            reports = execution.get("reports", {})
            kept = {step: reports[step] for step in downsample(sorted(reports), MOST_STORED)}
            finished = self._storage.finish(trial, state, value, attributes, kept)
            self._trials()[self._trials().index(trial)] = finished

    def _stored_outcome(self, outcome: Outcome) -> tuple[TrialState, float | None, dict[str, Any]]:
        stored = {**vars(outcome)}
        match outcome:
            case Complete():
                value = float(outcome.metrics[self._settings.metric])
                return TrialState.COMPLETE, value, stored
            case StoppedEarly():
                stored[STOPPED] = stored.pop("order")
                return TrialState.PRUNED, float(outcome.order["predicted"]), stored
            case Failed():
                return TrialState.FAIL, None, {"error": outcome.error}
        return TrialState.PRUNED, None, stored

    def note_failure(
        self, node: str, *, attempt: int, error: str, **more: str
    ) -> dict[str, dict[str, str]]:
        """Record why an attempt at a node's trial failed. Return the trial's failures by attempt.

        `more` becomes a part of the record. Nothing is recorded if the trial does not exist or has
        an outcome. Only the first failure of a job (`more["job"]`) is recorded. If an attempt fails
        again with the same error, nothing is recorded.
        """
        with self._storage_errors():
            trial = self._find(node)
            noted = self.failures(node)
            if trial is None or trial.state.is_finished():
                return noted
            is_same_job = any(more.get("job", "") == one.get("job") for one in noted.values())
            if is_same_job or noted.get(str(attempt), {}).get("error") == error:
                return noted
            when = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds")
            failure = {"time": when, "error": error, **more}
            noted = {**noted, str(attempt): failure}
            self._storage.set_trial_user_attr(trial._trial_id, FAILURES, noted)
            place = self._trials().index(trial)
            self._trials()[place] = self._storage.get_trial(trial._trial_id)
            return noted

    def failures(self, node: str) -> dict[str, dict[str, str]]:
        """Return the failures that `note_failure` recorded for the trial of `node`, by attempt."""
        with self._storage_errors():
            trial = self._find(node)
            return dict(trial.user_attrs.get(FAILURES, {})) if trial else {}

    def trials(self) -> list[FrozenTrial]:
        """Return all trials, the oldest first."""
        with self._storage_errors():
            return list(self._trials())

    def best(self) -> Assignment | None:
        """Return the complete trial with the best value (the first among equals), or None."""
        best = best_trial(self.trials(), self._settings.direction)
        return self._build_assignment(best) if best else None

    def stopped(self) -> Refused | None:
        """Return a refusal of all further trials if too many trials have failed, else None."""
        return refusal("region", self._facts(NO_FACTS))

    def nodes(self) -> set[str]:
        """Return the names of the DAG nodes of all trials."""
        return {str(trial.user_attrs["node"]) for trial in self.trials()}

    def running_nodes(self) -> list[str]:
        """Return the names of the running trials' DAG nodes, the oldest trial first."""
        running = (trial for trial in self.trials() if trial.state == TrialState.RUNNING)
        return [str(trial.user_attrs["node"]) for trial in running]

    def ask_ahead(self) -> bool:
        """Compute the next trial's parameters in advance. Return whether anything was computed.

        This makes the next `ask` faster, and changes no result.
        """
        with self._storage_errors():
            before = self._ahead
            if self._trials() and not self.refusal():
                self._get_suggestion()
            return self._ahead is not before

    def _load_or_create(self) -> int:
        wanted = StudyDirection[self._settings.direction.upper()]
        try:
            study_id = self._storage.get_study_id_from_name(self.name)
        except KeyError:
            return self._storage.create_new_study([wanted], self.name)
        found = self._storage.get_study_directions(study_id)
        if found != [wanted]:
            names = ", ".join(direction.name.lower() for direction in found)
            raise TrialfleetError(
                f"the storage already has a study {self.name!r} with the direction {names}, but "
                f"objective.direction is {self._settings.direction}; give this study another name "
                "or storage"
            )
        return study_id

    def _trials(self) -> list[FrozenTrial]:
        if self._cached is None:
            trials = self._storage.get_all_trials(self._study_id, deepcopy=False)
            self._cached = self._unique_trials(trials)
        return self._cached

    def _unique_trials(self, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        """Return one trial of each DAG node, and set the node's other running trials to PRUNED.

        If a node has several trials, the result has a finished one or, if none is finished, the
        oldest. A node has two trials if another manager takes over the run after this manager has
        checked the owner, but before it stores its trial.
        """
        kept: dict[str, FrozenTrial] = {}
        for trial in sorted(trials, key=lambda t: (not t.state.is_finished(), t.number)):
            if not is_own(trial):
                continue
            is_first = kept.setdefault(trial.user_attrs["node"], trial) is trial
            if not is_first and not trial.state.is_finished():
                self._storage.set_trial_state_values(trial._trial_id, TrialState.PRUNED)
        return sorted(kept.values(), key=lambda trial: trial.number)

    def _find(self, node: str) -> FrozenTrial | None:
        return next((t for t in self._trials() if t.user_attrs.get("node") == node), None)

    def _build_assignment(self, trial: FrozenTrial) -> Assignment:
        params = self._space.trial_params(trial.params)
        return Assignment(trial.number, params, trial.user_attrs["seed"])

    def _age_hours(self) -> float:
        first = next((t.datetime_start for t in self._trials() if t.datetime_start), None)
        return (self._now() - first.timestamp()) / 3600 if first else 0.0

    def _create(self, node: str) -> FrozenTrial:
        trials = self._trials()
        suggestion = self._get_suggestion()
        params = self._space.active(suggestion.point)
        distributions = self._space.distributions()
        template = optuna.trial.create_trial(
            state=TrialState.RUNNING,
            params=params,
            distributions={name: distributions[name] for name in params},
            user_attrs={
                "node": node,
                "params": params,
                "seed": stable_seed(self._settings.seed, self._settings.region, len(trials)),
                "baseline": not trials,
                **({"taught": suggestion.taught} if suggestion.taught else {}),
            },
        )
        trial = self._storage.begin(self._study_id, template)  # one transaction
        if trial.number != len(trials):
            self._cached = None  # the storage has another trial of this node
            return next(t for t in self._trials() if t.user_attrs["node"] == node)
        trials.append(trial)
        return trial

    def _get_suggestion(self) -> Suggestion:
        # The suggestion depends on these alone: the parameters of a stored trial never change.
        history = [(trial.number, trial.state, trial.value) for trial in self._trials()]
        if self._ahead is None or self._ahead[0] != history:
            suggestion = suggest(
                self._space,
                self._trials(),
                direction=self._settings.direction,
                seed=stable_seed(self._settings.seed, self._settings.region),
                startup_trials=self._settings.startup_trials,
                sampler=self._settings.sampler,
                previous=self._previous,
            )
            self._ahead = (history, suggestion)
        return self._ahead[1]

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            with storage_errors(f"the storage of study {self.name!r}"):
                yield
        except BaseException:
            self._cached = None  # unknown what was written: read the storage again
            raise
