"""What the nodes' PRE and POST scripts ask for, answered by the run's resident service.

`python -m trialfleet.workflows.node_scripts RUN [--wait]` is that service: the optimiser of
`trialfleet.optimizer`, which knows parameters and values, joined to a run's folder, which knows
DAG nodes and files. Every operation may be repeated: DAGMan runs a script again after a crash.

ask REGION NODE                      choose a trial's parameters, write its files
tell REGION NODE RETURN RETRY MAX    judge the attempt, tell the study, say whether to try again
ask-best, tell-best                  the same for the full training of the best settings
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from trialfleet.errors import OptimizerError
from trialfleet.files import write_json
from trialfleet.optimizer.region_study import (
    Assignment,
    RegionSettings,
    RegionStudy,
    Spent,
    Stopped,
    Told,
)
from trialfleet.optimizer.service import Reply, serve
from trialfleet.optimizer.storage import open_storage
from trialfleet.optimizer.suggest import warm_up
from trialfleet.workflows.folder import RunFolder, TrialFolder
from trialfleet.workflows.graph import RegionGraph, graph_of
from trialfleet.workflows.outcome import Complete, Failed, judge
from trialfleet.workflows.plan import EXITS
from trialfleet.workflows.publish import data_checksums
from trialfleet.workflows.status import open_run
from trialfleet.workflows.storage import storage_url, study_name
from trialfleet.workflows.study_file import load_frozen
from trialfleet.workflows.trial_files import TrialOrder, write_trial

# A service that nobody has asked anything for so long belongs to a run that is over.
IDLE_SECONDS = 900.0


class NodeScripts:
    """The operations of one run. Not thread-safe: the service calls it for one request at a time.

    Owns the run's studies while it lives: the service's lock keeps any other writer out.
    """

    def __init__(self, folder: RunFolder) -> None:
        frozen = load_frozen(folder.study)
        self._folder = folder
        self._run = frozen.run
        self._study = frozen.study
        self._regions = {region.slug: region for region in graph_of(frozen.study).regions}
        self._storage = open_storage(storage_url(folder, frozen.study))
        self._studies: dict[str, RegionStudy] = {}
        self._warm = False
        self._operations: dict[str, Callable[..., Reply]] = {
            "ask": self._ask,
            "tell": self._tell,
            "ask-best": self._ask_best,
            "tell-best": self._tell_best,
        }

    def handle(self, words: list[str]) -> Reply:
        """Answer one script."""
        operation, *arguments = words or [""]
        if operation not in self._operations:
            known = ", ".join(self._operations)
            return Reply(EXITS["retry"], f"unknown operation {operation!r}; there are: {known}")
        try:
            return self._operations[operation](*arguments)
        except OptimizerError as error:  # the storage is away for the moment
            return Reply(EXITS["defer"], str(error))

    def idle(self) -> bool:
        """Get ready for the next ask: load the model's code, then suggest ahead for one region."""
        if not self._warm:
            warm_up()
            self._warm = True
            return True
        return any(study.ask_ahead() for study in self._studies.values())

    # -- trials --------------------------------------------------------------------------------

    def _ask(self, slug: str, node: str) -> Reply:
        study = self._study_of(slug)
        answer = study.ask(node)
        if isinstance(answer, Told):  # DAGMan was lost after the study had been told
            return Reply(EXITS["skip"], f"{node}: trial {answer.number} is finished")
        if isinstance(answer, Spent):
            return Reply(EXITS["skip"], f"{node}: skipped: {answer.reason}")
        if isinstance(answer, Stopped):
            return self._stop(slug, answer.reason)
        if not study.stopped():
            self._go_on(slug)
        place = self._folder.region(slug).trial(node)
        self._write(slug, node, place, answer, "tune")
        return Reply(EXITS["done"], f"{node}: trial {answer.number}: {answer.params}")

    def _tell(self, slug: str, node: str, return_code: str, retry: str, most: str) -> Reply:
        place = self._folder.region(slug).trial(node)
        outcome = judge(place, int(return_code), self._study.objective.metric)
        if isinstance(outcome, Failed) and not outcome.final and int(retry) < int(most):
            return self._try_again(node, outcome, retry, most)
        attempts = int(retry) + 1
        if isinstance(outcome, Complete):
            return self._tell_complete(slug, node, outcome, attempts)
        study = self._study_of(slug)
        study.tell_failed(node, error=outcome.error, attempts=attempts)
        if stopped := study.stopped():
            return self._stop(slug, stopped.reason)
        return Reply(EXITS["done"], f"{node}: failed for good: {outcome.error}")

    def _tell_complete(self, slug: str, node: str, outcome: Complete, attempts: int) -> Reply:
        self._study_of(slug).tell_complete(
            node,
            metrics=outcome.metrics,
            seconds=outcome.seconds,
            device=outcome.device,
            attempts=attempts,
        )
        metric = self._study.objective.metric
        return Reply(EXITS["done"], f"{node}: {metric} = {outcome.metrics[metric]:.6g}")

    # -- the full training -----------------------------------------------------------------------

    def _ask_best(self, slug: str, node: str) -> Reply:
        study = self._study_of(slug)
        if stopped := study.stopped():
            return self._stop(slug, stopped.reason)
        best = study.best()
        if best is None:
            return self._stop(slug, "no trial completed, so there are no best settings to train")
        files = self._folder.region(slug)
        if files.published.exists():  # the region's DAG was run by itself before
            return Reply(EXITS["skip"], f"{node}: published already")
        self._go_on(slug)
        self._write(slug, node, files.best, best, "final")
        name = self._regions[slug].name
        write_json(files.best.data_checksums, data_checksums(self._study, name))
        return Reply(EXITS["done"], f"{node}: the settings of trial {best.number}: {best.params}")

    def _tell_best(self, slug: str, node: str, return_code: str, retry: str, most: str) -> Reply:
        place = self._folder.region(slug).best
        outcome = judge(place, int(return_code), self._study.objective.metric)
        if isinstance(outcome, Complete) and not any(place.model.iterdir()):
            outcome = Failed(error="the full training left nothing in model/", final=True)
        if isinstance(outcome, Complete):
            return Reply(EXITS["done"], f"{node}: trained in full")
        if not outcome.final and int(retry) < int(most):
            return self._try_again(node, outcome, retry, most)
        return self._stop(slug, f"the full training of the best settings failed: {outcome.error}")

    # -- both --------------------------------------------------------------------------------------

    def _study_of(self, slug: str) -> RegionStudy:
        if slug not in self._studies:
            region = self._regions[slug]
            self._studies[slug] = RegionStudy(
                self._storage,
                study_name(self._study, self._run, region.name),
                self._study.space_of(region.name),
                self._settings(region),
            )
        return self._studies[slug]

    def _settings(self, region: RegionGraph) -> RegionSettings:
        budget = self._study.budget_of(region.name)
        return RegionSettings(
            metric=self._study.objective.metric,
            direction=self._study.objective.direction,
            region=region.name,
            seed=self._study.seed,
            trials=budget.trials,
            startup_trials=budget.startup,
            max_failures=budget.failures_allowed,
            hours=budget.hours,
        )

    def _write(
        self,
        slug: str,
        node: str,
        place: TrialFolder,
        answer: Assignment,
        mode: Literal["tune", "final"],
    ) -> None:
        order = TrialOrder(
            region=self._regions[slug].name,
            node=node,
            trial=answer.number,
            mode=mode,
            seed=answer.seed,
            params=answer.params,
        )
        write_trial(self._run, self._study, self._folder, place, order)

    def _try_again(self, node: str, outcome: Failed, retry: str, most: str) -> Reply:
        attempt = f"attempt {int(retry) + 1} of {int(most) + 1}"
        return Reply(EXITS["retry"], f"{node}: {attempt} failed: {outcome.error}")

    def _go_on(self, slug: str) -> None:
        """Take back that the region stopped: a resume goes on with it."""
        self._folder.region(slug).stopped.unlink(missing_ok=True)

    def _stop(self, slug: str, reason: str) -> Reply:
        write_json(self._folder.region(slug).stopped, {"reason": reason})
        return Reply(EXITS["stop"], f"{self._regions[slug].name}: stopped: {reason}")


def main() -> None:
    """Serve a run's scripts until told to stop."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("--wait", action="store_true", help="wait for a service that runs already")
    arguments = parser.parse_args()
    folder = open_run(arguments.run)
    serve(
        folder.root,
        lambda: NodeScripts(folder),
        idle_timeout=None if arguments.wait else IDLE_SECONDS,
        wait_for_lock=arguments.wait,
    )


if __name__ == "__main__":
    main()
