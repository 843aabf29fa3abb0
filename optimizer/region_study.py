"""One region's study: asks and tells that happen exactly once, whatever crashes between them.

The identity of a trial is its node, the name of a DAG node. A suggestion is a pure function of
what the storage holds (`suggest`), so an ask first computes, storing nothing, and then creates the
trial with node, parameters and seed in one transaction: there is no half-asked trial. A tell
writes all that is told in one transaction: there is no half-told trial.

One process at a time may write a study; the service's lock sees to that, and `ownership` where
several machines use one storage.
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
from trialfleet.optimizer.downsampling import thinned
from trialfleet.optimizer.may_begin import Facts, refusal
from trialfleet.optimizer.region_types import (
    Assignment,
    Complete,
    Failed,
    GivenUp,
    Outcome,
    Refused,
    RegionSettings,
    StoppedEarly,
    TrialExecution,
)
from trialfleet.optimizer.sampling.former import FormerTasks
from trialfleet.optimizer.sampling.seeds import stable_seed
from trialfleet.optimizer.sampling.suggest import Suggestion, suggest
from trialfleet.optimizer.space import SearchSpace
from trialfleet.optimizer.storage import storage_errors
from trialfleet.optimizer.stored_trials import FAILURES, STOPPED, best_trial, is_own
from trialfleet.optimizer.trial_rows import TrialStorage

NO_FACTS = Facts()
MOST_REPORTS = 50  # that are stored of a trial: a learning curve needs no more points


class RegionStudy:
    """A region's study in a storage.

    Not thread-safe. Keeps what it read: any error makes it read the storage again. Each method
    raises OptimizerError where the storage can't be used.
    """

    def __init__(
        self,
        storage: TrialStorage,
        name: str,
        space: SearchSpace,
        settings: RegionSettings,
        *,
        former: FormerTasks | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Load the study called `name`, or create it.

        Args:
            storage: where it is kept.
            name: of the study; unique in the storage.
            space: its search space, the same at every call for one name.
            settings: metric, direction, seed and budgets.
            former: what it learns from, the same at every call for one name.
            now: returns the time in unix seconds.

        Raises:
            TrialfleetError: the study there is another one.
        """
        self.name = name
        self._storage = storage
        self._space = space
        self._settings = settings
        self._former = former
        self._now = now
        self._cached: list[FrozenTrial] | None = None
        self._ahead: tuple[object, Suggestion] | None = None
        with self._storage_errors():
            self._study_id = self._load_or_create()

    def ask(self, node: str) -> Assignment | Refused:
        """Return what `node` is to train; asking again returns the same, until it is told.

        Nothing or all of an ask is stored.
        """
        with self._storage_errors():
            known = self._find(node)
            if known is not None:
                finished = known.state.is_finished()
                return Refused(f"{node} is finished") if finished else self._assignment(known)
        if refused := self.refusal():
            return refused
        with self._storage_errors():
            return self._assignment(self._create(node))

    def refusal(self, facts: Facts = NO_FACTS) -> Refused | None:
        """Return why no other trial may begin, if so, by the study and what else is known."""
        return refusal("trial", self._facts(facts))

    def _facts(self, facts: Facts) -> Facts:
        """Facts with those of the study."""
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
        """Store the outcome of `node` for good; a trial that was told already stays as it is.

        Of a node that was never asked nothing is given up.

        Raises:
            TrialfleetError: the node was never asked.
        """
        with self._storage_errors():
            trial = self._find(node)
            if trial is None and isinstance(outcome, GivenUp):
                return
            if trial is None:
                raise TrialfleetError(f"node {node!r} of study {self.name!r} was never asked")
            if trial.state.is_finished():
                return
            state, value, attributes = self._as_stored(outcome)
            attributes |= {key: content for key, content in execution.items() if key != "reports"}
            reports = execution.get("reports", {})
            kept = {step: reports[step] for step in thinned(sorted(reports), MOST_REPORTS)}
            told = self._storage.finish(trial, state, value, attributes, kept)
            self._trials()[self._trials().index(trial)] = told

    def _as_stored(self, outcome: Outcome) -> tuple[TrialState, float | None, dict[str, Any]]:
        """The state, the value and the attributes of a trial with an outcome."""
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
        """Keep why an attempt at `node` failed, whether or not it is retried.

        Noting it again changes nothing, and so does another failure of the same `job`; of a trial
        that was told there is nothing left to note.

        Returns:
            What is noted of the trial's attempts, by their numbers: time, error and `more` of each.
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
        """Return what is noted of the attempts at `node` that failed, by their numbers."""
        with self._storage_errors():
            trial = self._find(node)
            return dict(trial.user_attrs.get(FAILURES, {})) if trial else {}

    def trials(self) -> list[FrozenTrial]:
        """Return every trial in the order in which they were asked."""
        with self._storage_errors():
            return list(self._trials())

    def best(self) -> Assignment | None:
        """Return the best complete trial, the earliest among equals; None if there is none."""
        best = best_trial(self.trials(), self._settings.direction)
        return self._assignment(best) if best else None

    def stopped(self) -> Refused | None:
        """Return why the region is given up, if it is: too many trials failed for good."""
        return refusal("region", self._facts(NO_FACTS))

    def nodes(self) -> set[str]:
        """Return the names of its trials."""
        return {str(trial.user_attrs["node"]) for trial in self.trials()}

    def running(self) -> list[str]:
        """Return the names of those that are asked and not told, in that order."""
        running = (trial for trial in self.trials() if trial.state == TrialState.RUNNING)
        return [str(trial.user_attrs["node"]) for trial in running]

    def ask_ahead(self) -> bool:
        """Compute the next suggestion, unless it is known or none is needed.

        Results never depend on whether or when this is called.

        Returns:
            Whether there was something to compute.
        """
        with self._storage_errors():
            before = self._ahead
            if self._trials() and not self.refusal():
                self._suggestion()
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
                f"study {self.name!r} in the storage is another one: its direction is {names}, "
                f"not {self._settings.direction}"
            )
        return study_id

    def _trials(self) -> list[FrozenTrial]:
        if self._cached is None:
            trials = self._storage.get_all_trials(self._study_id, deepcopy=False)
            self._cached = self._once_each(trials)
        return self._cached

    def _once_each(self, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        """Return one trial per node, by number; another that still runs is closed as PRUNED.

        Where a database's answer to a commit was lost, Optuna has committed the same trial again.
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

    def _assignment(self, trial: FrozenTrial) -> Assignment:
        params = self._space.complete(trial.params)
        return Assignment(trial.number, params, trial.user_attrs["seed"])

    def _age_hours(self) -> float:
        """Return hours since the first ask."""
        first = next((t.datetime_start for t in self._trials() if t.datetime_start), None)
        return (self._now() - first.timestamp()) / 3600 if first else 0.0

    def _create(self, node: str) -> FrozenTrial:
        trials = self._trials()
        suggestion = self._suggestion()
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
            self._cached = None  # there is another of this node
            return next(t for t in self._trials() if t.user_attrs["node"] == node)
        trials.append(trial)
        return trial

    def _suggestion(self) -> Suggestion:
        # What it depends on: parameters never change once a trial is there.
        history = [(trial.number, trial.state, trial.value) for trial in self._trials()]
        if self._ahead is None or self._ahead[0] != history:
            suggestion = suggest(
                self._space,
                self._trials(),
                direction=self._settings.direction,
                seed=stable_seed(self._settings.seed, self._settings.region),
                startup_trials=self._settings.startup_trials,
                sampler=self._settings.sampler,
                former=self._former,
            )
            self._ahead = (history, suggestion)
        return self._ahead[1]

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            with storage_errors(f"the storage of study {self.name!r}"):
                yield
        except BaseException:
            self._cached = None  # what was written is unknown: read it again
            raise
