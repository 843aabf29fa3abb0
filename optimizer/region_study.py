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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Unpack

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from trialfleet.errors import TrialfleetError
from trialfleet.optimizer.region_types import (
    AlreadyTold,
    Assignment,
    RegionSettings,
    Spent,
    Stopped,
)
from trialfleet.optimizer.sampling.former import FormerTasks
from trialfleet.optimizer.sampling.seeds import stable_seed
from trialfleet.optimizer.sampling.suggest import Suggestion, suggest
from trialfleet.optimizer.space import SearchSpace
from trialfleet.optimizer.storage import storage_errors
from trialfleet.optimizer.stored_trials import FAILURES, STOPPED, is_own
from trialfleet.optimizer.trial_execution import TrialExecution, kept_reports
from trialfleet.optimizer.trial_rows import TrialStorage


class RegionStudy:
    """A region's study in a storage.

    Not thread-safe. Keeps what it read: any error makes it read the storage again.
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
            OptimizerError: the storage can't be used.
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

    def ask(
        self, node: str, why_spent: Callable[[], str | None] = lambda: None
    ) -> Assignment | AlreadyTold | Spent | Stopped:
        """Return what `node` is to train; asking again returns the same, until it is told.

        Args:
            node: the DAG node that runs it.
            why_spent: says why no budget pays for a trial that hasn't begun, if so.

        Raises:
            OptimizerError: the storage can't be used; nothing or all of the ask is stored.
        """
        with self._storage_errors():
            known = self._find(node)
            if known is not None:
                finished = known.state.is_finished()
                return AlreadyTold(known.number) if finished else self._assignment(known)
            if refusal := self._refusal():
                return refusal
        reason = why_spent()
        if reason:
            return Spent(reason)
        with self._storage_errors():
            return self._assignment(self._create(node))

    def tell_complete(
        self,
        node: str,
        *,
        metrics: Mapping[str, float],
        seconds: float | None,
        device: str | None,
        **execution: Unpack[TrialExecution],
    ) -> None:
        """Store the result of `node`; a trial that was told already stays as it is.

        Args:
            node: the DAG node that ran it.
            metrics: every metric; the study's own decides.
            seconds: training time.
            device: what it ran on.
            execution: how it ran.

        Raises:
            InputError: the study's metric is missing, or a metric is not a finite number.
            OptimizerError: the node was never asked, or the storage can't be used.
        """
        value = self._settings.objective_value(node, metrics)
        attributes = {"metrics": dict(metrics), "seconds": seconds, "device": device}
        self._tell(node, TrialState.COMPLETE, value, attributes, execution)

    def tell_stopped(
        self,
        node: str,
        *,
        predicted: float,
        order: Mapping[str, Any],
        metrics: Mapping[str, float],
        seconds: float | None,
        device: str | None,
        **execution: Unpack[TrialExecution],
    ) -> None:
        """Store that `node` was stopped early; a trial that was told already stays as it is.

        It is PRUNED, as Optuna calls it, with the predicted result as its value: the sampler
        learns from that, and nothing that looks for a best trial ever finds it.

        Args:
            node: the DAG node that ran it.
            predicted: what its result would have been.
            order: what it was told, and why.
            metrics: what it said when it stopped; the study's own need not be among them.
            seconds: training time.
            device: what it ran on.
            execution: how it ran.

        Raises:
            OptimizerError: the node was never asked, or the storage can't be used.
        """
        said = {"metrics": dict(metrics), "seconds": seconds, "device": device}
        attributes = {STOPPED: dict(order), **said}
        self._tell(node, TrialState.PRUNED, predicted, attributes, execution)

    def tell_failed(
        self,
        node: str,
        *,
        error: str,
        seconds: float | None = None,
        **execution: Unpack[TrialExecution],
    ) -> None:
        """Store that `node` failed for good; a trial that was told already stays as it is.

        Raises:
            OptimizerError: the node was never asked, or the storage can't be used.
        """
        self._tell(node, TrialState.FAIL, None, {"error": error, "seconds": seconds}, execution)

    def note_failure(
        self, node: str, *, attempt: int, error: str, **more: str
    ) -> dict[str, dict[str, str]]:
        """Keep why an attempt at `node` failed, whether or not it is tried again.

        Noting it again changes nothing, and so does another failure of the same `job`; of a trial
        that was told there is nothing left to note.

        Args:
            node: the DAG node.
            attempt: its number.
            error: why it failed.
            more: what else is kept with it.

        Returns:
            What is noted of the trial's attempts, by their numbers.

        Raises:
            OptimizerError: the storage can't be used.
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
            self._refresh(trial)
            return noted

    def failures(self, node: str) -> dict[str, dict[str, str]]:
        """Return what is noted of the attempts at `node` that failed, by their numbers.

        Raises:
            OptimizerError: the storage can't be used.
        """
        with self._storage_errors():
            trial = self._find(node)
            return dict(trial.user_attrs.get(FAILURES, {})) if trial else {}

    def trials(self) -> list[FrozenTrial]:
        """Return every trial in the order in which they were asked.

        Raises:
            OptimizerError: the storage can't be used.
        """
        with self._storage_errors():
            return list(self._trials())

    def give_up(self, node: str, *, reason: str, **execution: Unpack[TrialExecution]) -> None:
        """Store that `node` is not trained to its end, through no fault of its parameters.

        It counts neither as a failure nor as a result. A trial that was told already stays as it
        is; of a node that was never asked there is nothing to store.

        Raises:
            OptimizerError: the storage can't be used.
        """
        with self._storage_errors():
            asked = self._find(node) is not None
        if asked:
            self._tell(node, TrialState.PRUNED, None, {"error": reason}, execution)

    def best(self) -> Assignment | None:
        """Return the best complete trial, the earliest among equals; None if there is none."""
        sign = 1 if self._settings.direction == "minimize" else -1
        with self._storage_errors():
            complete = [t for t in self._trials() if t.state == TrialState.COMPLETE]
            if not complete:
                return None
            return self._assignment(min(complete, key=lambda t: (sign * _value_of(t), t.number)))

    def stopped(self) -> Stopped | None:
        """Return why the region is given up, if it is: too many trials failed for good."""
        with self._storage_errors():
            failed = [trial for trial in self._trials() if trial.state == TrialState.FAIL]
        if len(failed) <= self._settings.max_failures:
            return None
        last = failed[-1].user_attrs
        return Stopped(
            f"{len(failed)} trials failed for good; budget.failures allows "
            f"{self._settings.max_failures}; the last, {last.get('node')}: {last.get('error')}"
        )

    def nodes(self) -> set[str]:
        """Return the names of its trials.

        Raises:
            OptimizerError: the storage can't be used.
        """
        return {str(trial.user_attrs["node"]) for trial in self.trials()}

    def spent(self) -> Spent | Stopped | None:
        """Return why no other trial may begin, by the budget of trials or of hours, if so.

        Raises:
            OptimizerError: the storage can't be used.
        """
        with self._storage_errors():
            return self._refusal()

    def ask_ahead(self) -> bool:
        """Compute the next suggestion, unless it is known or none is needed.

        Results never depend on whether or when this is called.

        Returns:
            Whether there was something to compute.
        """
        with self._storage_errors():
            if not self._trials() or self._is_ahead() or self._refusal():
                return False
            self._suggestion()
            return True

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
        """Return every trial in the order in which they were asked."""
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
        attributes = trial.user_attrs
        params = self._space.complete(trial.params)
        return Assignment(trial.number, params, attributes["seed"], attributes["baseline"])

    def _refusal(self) -> Spent | Stopped | None:
        """Return why no new trial may start, if so."""
        trials, settings = self._trials(), self._settings
        if stopped := self.stopped():
            return stopped
        if len(trials) >= settings.trials:
            return Spent(f"the budget of {settings.trials} trials is used up")
        if settings.hours is not None and self._age_hours() >= settings.hours:
            return Spent(f"the budget of {settings.hours:g} hours is used up")
        return None

    def _age_hours(self) -> float:
        """Return hours since the first ask."""
        starts = [t.datetime_start.timestamp() for t in self._trials() if t.datetime_start]
        return (self._now() - min(starts)) / 3600 if starts else 0.0

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

    def _history_key(self) -> object:
        """Return what a suggestion depends on: parameters never change once a trial is there."""
        return [(trial.number, trial.state, trial.value) for trial in self._trials()]

    def _is_ahead(self) -> bool:
        return self._ahead is not None and self._ahead[0] == self._history_key()

    def _suggestion(self) -> Suggestion:
        if self._ahead is None or not self._is_ahead():
            suggestion = suggest(
                self._space,
                self._trials(),
                direction=self._settings.direction,
                seed=stable_seed(self._settings.seed, self._settings.region),
                startup_trials=self._settings.startup_trials,
                sampler=self._settings.sampler,
                former=self._former,
            )
            self._ahead = (self._history_key(), suggestion)
        return self._ahead[1]

    def _tell(
        self,
        node: str,
        state: TrialState,
        value: float | None,
        attributes: Mapping[str, Any],
        execution: TrialExecution,
    ) -> None:
        with self._storage_errors():
            trial = self._find(node)
            if trial is None:
                raise TrialfleetError(f"node {node!r} of study {self.name!r} was never asked")
            if trial.state.is_finished():
                return
            ran = {key: content for key, content in execution.items() if key != "reports"}
            reports = kept_reports(execution.get("reports", {}))
            told = self._storage.finish(trial, state, value, {**attributes, **ran}, reports)
            self._trials()[self._trials().index(trial)] = told

    def _refresh(self, trial: FrozenTrial) -> None:
        """Read a trial again that was just written."""
        self._trials()[self._trials().index(trial)] = self._storage.get_trial(trial._trial_id)

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            with storage_errors(f"the storage of study {self.name!r}"):
                yield
        except BaseException:
            self._cached = None  # what was written is unknown: read it again
            raise


def _value_of(trial: FrozenTrial) -> float:
    assert trial.value is not None, "a complete trial has a value"
    return trial.value
