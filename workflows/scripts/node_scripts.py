"""What the nodes' PRE and POST scripts ask for, answered by the run's resident service.

`python -m trialfleet.workflows.scripts.node_scripts RUN [--wait]` is that service: the optimiser of
`trialfleet.optimizer`, which knows parameters and values, joined to a run's folder, which knows
DAG nodes and files. Every operation may be repeated: DAGMan runs a script again after a crash.

begin REGION                             clear the way for a new DAGMan of the region
end REGION RETURN                        say whether the region is over, or needs another DAGMan
ask REGION NODE                          choose a trial's parameters, write its files
tell REGION NODE RETURN RETRY MAX PRE    judge the attempt, tell the study, say whether to try again
ask-best, tell-best                      the same for the full training of the best settings
conclude REGION NODE                     end a region whose study publishes nothing
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from optuna.trial import TrialState

from trialfleet.errors import OptimizerError
from trialfleet.files import read_json, write_json
from trialfleet.optimizer.client import FULL
from trialfleet.optimizer.ownership import Owner
from trialfleet.optimizer.region_study import (
    Assignment,
    RegionSettings,
    RegionStudy,
    Spent,
    Stopped,
    Told,
)
from trialfleet.optimizer.reports import Conduct
from trialfleet.optimizer.service import Reply, serve
from trialfleet.optimizer.startup import first_led
from trialfleet.optimizer.storage import open_storage
from trialfleet.optimizer.suggest import warm_up
from trialfleet.workflows.dagman.recovery import is_locked, set_aside
from trialfleet.workflows.plan.checksums import DataChecksums
from trialfleet.workflows.plan.disk_space import RESERVE, free_bytes
from trialfleet.workflows.plan.folder import RunFolder, TrialFolder
from trialfleet.workflows.plan.graph import EXITS, RegionGraph, graph_of
from trialfleet.workflows.plan.table_found import source_of_table
from trialfleet.workflows.plan.trial_files import TrialOrder, write_trial
from trialfleet.workflows.scripts.conduct import conduct_of
from trialfleet.workflows.scripts.giving_up import why_give_up
from trialfleet.workflows.scripts.outcome import (
    JOB_REMOVED,
    JOB_UNSUBMITTED,
    NO_JOB,
    Complete,
    Failed,
    Unpaid,
    judge,
)
from trialfleet.workflows.status import spending
from trialfleet.workflows.status.causes import SEE, log_of, note_final_failure
from trialfleet.workflows.status.run_trials import RunTrials
from trialfleet.workflows.status.states import Stage
from trialfleet.workflows.status.status import open_run
from trialfleet.workflows.status.storage import not_ours, ownership_of, storage_url, study_name
from trialfleet.workflows.study.file import load_frozen

# A service that nobody has asked anything for so long belongs to a run that is over.
IDLE_SECONDS = 900.0
# What begins something new waits while the disk is nearly full: HTCondor must be able to write its
# logs to the end of what runs.
_BEGINNINGS = {"begin", "ask", "ask-best"}
_NO_MODEL = (
    "the full training left nothing in model/: in mode final (`mode` in trial.json, t.mode in "
    "Python) the trainer must write its model into the folder model/ (t.model); to tune without a "
    "model, plan with publish: none"
)


class NodeScripts:
    """The operations of one run. Not thread-safe: the service calls it for one request at a time.

    Owns the run's studies while it lives: the service's lock keeps any other writer of this machine
    out, and who owns the run is looked up before each write.
    """

    def __init__(self, folder: RunFolder) -> None:
        frozen = load_frozen(folder.study)
        self._folder = folder
        self._frozen = frozen
        self._run = frozen.run
        self._study = frozen.study
        self._regions = {region.slug: region for region in graph_of(frozen.study).regions}
        self._storage = open_storage(storage_url(folder, frozen.study))
        self._ownership = ownership_of(frozen, folder, self._storage)
        self._owner: Owner | None = None  # as last seen
        self._studies: dict[str, RegionStudy] = {}
        self._trials = RunTrials(folder, frozen)
        self._checksums = DataChecksums(folder.checksums)
        self._warm = not self._model_leads()  # what no trial follows need not be loaded
        self._operations: dict[str, Callable[..., Reply]] = {
            "begin": self._begin,
            "end": self._end,
            "ask": self._ask,
            "tell": self._tell,
            "ask-best": self._ask_best,
            "tell-best": self._tell_best,
            "conclude": self._conclude,
        }

    def handle(self, words: list[str]) -> Reply:
        """Answer one script."""
        operation, *arguments = words or [""]
        if operation not in self._operations:
            known = ", ".join(self._operations)
            return Reply(EXITS["retry"], f"unknown operation {operation!r}; there are: {known}")
        if operation in _BEGINNINGS and (free := free_bytes(self._folder.root)) < RESERVE:
            space = (
                f"{free >> 20} MB are free, less than the {RESERVE >> 20} MB for HTCondor's logs"
            )
            return Reply(EXITS["defer"], f"no space for {' '.join(arguments)}: {space}")
        try:
            if owner := self._other_owner():
                return self._stop(arguments[0], not_ours(self._frozen, self._folder, owner))
            return self._operations[operation](*arguments)
        except OptimizerError as error:  # the storage is away for the moment
            return Reply(EXITS["defer"], str(error))
        except OSError as error:
            if error.errno not in FULL:
                raise
            return Reply(EXITS["defer"], f"waits for room on the disk: {error}")

    def idle(self) -> bool:
        """Get ready for the next ask: load the model's code, then suggest ahead for one region."""
        if not self._warm:
            warm_up()
            self._warm = True
            return True
        return any(study.ask_ahead() for study in self._studies.values())

    def _model_leads(self) -> bool:
        budgets = map(self._study.budget_of, self._study.region_table)
        return any(first_led(one.startup, one.trials, one.lanes) for one in budgets)

    # -- regions -------------------------------------------------------------------------------

    def _begin(self, slug: str) -> Reply:
        files = self._folder.region(slug)
        if files.is_done:
            return Reply(EXITS["skip"], f"{slug}: done already")
        if is_locked(files.dag_files):  # by a DAGMan that was submitted by hand, or is ending
            return Reply(EXITS["defer"], f"{slug}: another DAGMan runs this region")
        aside = set_aside(files.dag_files)
        files.restart.unlink(missing_ok=True)
        files.stopped.unlink(missing_ok=True)  # whether it stops again is for its nodes to say
        if self._without_model() == slug:  # a person has it tried again
            self._folder.no_model.unlink()
        what = f", what the last left is in {aside}" if aside else ""
        return Reply(EXITS["done"], f"{slug}: begins{what}")

    def _end(self, slug: str, return_code: str) -> Reply:
        """Whatever ended the region's DAGMan: another one goes on, unless the region is over."""
        files, how = self._folder.region(slug), f"its DAGMan ended ({return_code})"
        if files.is_done:
            word = Stage.PUBLISHED if files.published.exists() else Stage.TUNED
            return Reply(EXITS["done"], f"{slug}: {word}")
        if files.stopped.exists():
            return Reply(EXITS["done"], f"{slug}: {how}: the region has failed")
        if int(return_code) == JOB_REMOVED and not files.restart.exists():
            write_json(files.stopped, {"reason": "its jobs were removed", "removed": True})
            return Reply(EXITS["done"], f"{slug}: {how}: removed by a person")
        return Reply(EXITS["retry"], f"{slug}: {how}: starting another")

    def _other_owner(self) -> Owner | None:
        """Return who else owns the run, if so; forget what was read if another has owned it."""
        owner = self._ownership.owner()
        if owner != self._owner:
            self._studies.clear()
            self._owner = owner
        return None if self._ownership.is_ours(owner) else owner

    # -- trials --------------------------------------------------------------------------------

    def _ask(self, slug: str, node: str) -> Reply:
        study = self._study_of(slug)
        if unpaid := spending.refusal(self._folder, "tune"):
            study.give_up(node, reason=unpaid)  # it was asked before, and its job is lost
            return Reply(EXITS["skip"], f"{node}: skipped: {unpaid}")
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

    def _tell(
        self, slug: str, node: str, return_code: str, retry: str, most: str, asked: str
    ) -> Reply:
        if no_job := _without_job(node, int(return_code), int(asked)):
            return no_job
        place = self._folder.region(slug).trial(node)
        outcome = judge(place, int(return_code), self._study.objective.metric)
        conduct = conduct_of(place, self._study.objective.metric, int(retry) + 1)
        if isinstance(outcome, Unpaid):
            return self._give_up(slug, node, outcome, conduct)
        if isinstance(outcome, Complete):
            return self._tell_complete(slug, node, outcome, conduct)
        study = self._study_of(slug)
        study.note_failure(node, attempt=int(retry) + 1, error=outcome.error)
        is_last = outcome.final or int(retry) == int(most)
        if is_last:
            study.tell_failed(node, error=outcome.error, **conduct)
        if stopped := study.stopped():
            return self._stop(slug, stopped.reason)
        if why := self._why_give_up(slug, never_began=outcome.never_began):
            return self._stop(slug, why)
        if not is_last:
            return self._try_again(node, outcome, retry, most)
        return Reply(EXITS["done"], f"{node}: failed for good: {outcome.error}")

    def _why_give_up(self, slug: str, *, never_began: bool) -> str | None:
        """Why none of a region's trials can succeed, if so.

        A trainer that can't be started is judged by its region: others may have another trainer's
        files. Any other error needs all of the run to have come to nothing.
        """
        own = self._study_of(slug).trials()
        if any(trial.state == TrialState.COMPLETE for trial in own):
            return None
        if never_began:
            why = why_give_up([(own, self._folder.region(slug))])
            return why and f"the trainer can't be started: {why}"
        found, notice = self._trials.all()
        if notice:
            return None
        all_regions = self._regions.values()
        why = why_give_up([(found[r.name], self._folder.region(r.slug)) for r in all_regions])
        return why and f"no trial can succeed: all attempts so far failed alike: {why}"

    def _give_up(self, slug: str, node: str, outcome: Unpaid, conduct: Conduct) -> Reply:
        spending.note(self._folder, "tune", outcome.error)
        self._study_of(slug).give_up(node, reason=outcome.error, **conduct)
        return Reply(EXITS["done"], f"{node}: given up: {outcome.error}")

    def _tell_complete(self, slug: str, node: str, outcome: Complete, conduct: Conduct) -> Reply:
        self._study_of(slug).tell_complete(
            node,
            metrics=outcome.metrics,
            seconds=outcome.seconds,
            device=outcome.device,
            **conduct,
        )
        metric = self._study.objective.metric
        return Reply(EXITS["done"], f"{node}: {metric} = {outcome.metrics[metric]:.6g}")

    # -- the full training -----------------------------------------------------------------------

    def _ask_best(self, slug: str, node: str) -> Reply:
        best = self._best_of(slug)
        if isinstance(best, Reply):
            return best
        files = self._folder.region(slug)
        if files.published.exists():  # the region's DAG was run by itself before
            return Reply(EXITS["skip"], f"{node}: published already")
        if unpaid := spending.refusal(self._folder, "final"):
            return self._stop_unpaid(slug, unpaid)
        if (other := self._without_model()) and other != slug:
            return self._stop(
                slug, f"not trained in full, as {other} with the same trainer: {_NO_MODEL}"
            )
        try:
            data = source_of_table(files) or self._checksums.of(
                self._study.data_of(self._regions[slug].name)
            )
        except OSError as error:
            return Reply(EXITS["retry"], f"{node}: the data can't be read: {error}")
        if data is None:
            return Reply(EXITS["defer"], f"{node}: waits for the checksums of the region's data")
        self._go_on(slug)
        write_json(files.best.data_checksums, data)
        self._write(slug, node, files.best, best, "final")
        return Reply(EXITS["done"], f"{node}: the settings of trial {best.number}: {best.params}")

    def _best_of(self, slug: str) -> Assignment | Reply:
        """A region's best settings, or the answer where there are none to go on with."""
        study = self._study_of(slug)
        if stopped := study.stopped():
            return self._stop(slug, stopped.reason)
        if best := study.best():
            return best
        unpaid = spending.refusal(self._folder, "tune")
        why = f"no trial completed, so there are no best settings: {unpaid or ''}"
        return self._stop(slug, why.removesuffix(": "))

    def _conclude(self, slug: str, node: str) -> Reply:
        best = self._best_of(slug)
        if isinstance(best, Reply):
            return best
        self._go_on(slug)
        write_json(self._folder.region(slug).tuned, {"trial": best.number, "params": best.params})
        return Reply(EXITS["skip"], f"{node}: tuned: trial {best.number} is the best")

    def _without_model(self) -> str | None:
        """The region whose full training left no model, where no region of the run has one.

        All have the same trainer: another's full training would end without a model, too.
        """
        if not self._folder.no_model.exists():
            return None
        if any(self._folder.region(slug).published.exists() for slug in self._regions):
            return None
        return str(read_json(self._folder.no_model)["region"])

    def _tell_best(
        self, slug: str, node: str, return_code: str, retry: str, most: str, asked: str
    ) -> Reply:
        if no_job := _without_job(node, int(return_code), int(asked)):
            return no_job
        place = self._folder.region(slug).best
        outcome = judge(place, int(return_code), self._study.objective.metric)
        if isinstance(outcome, Complete) and not any(place.model.iterdir()):
            write_json(self._folder.no_model, {"region": slug})
            return self._stop(slug, _NO_MODEL)
        if isinstance(outcome, Complete):
            return Reply(EXITS["done"], f"{node}: trained in full")
        if isinstance(outcome, Unpaid):
            spending.note(self._folder, "final", outcome.error)
            return self._stop_unpaid(slug, outcome.error)
        note_final_failure(place, node, attempt=int(retry) + 1, error=outcome.error)
        if not outcome.final and int(retry) < int(most):
            return self._try_again(node, outcome, retry, most)
        words = f"the full training of the best settings failed: {outcome.error}"
        return self._stop(slug, f"{words}{SEE}{log_of(place)}")

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

    def _stop_unpaid(self, slug: str, reason: str) -> Reply:
        return self._stop(slug, f"the best settings are not trained in full: {reason}")

    def _stop(self, slug: str, reason: str) -> Reply:
        write_json(self._folder.region(slug).stopped, {"reason": reason})
        return Reply(EXITS["stop"], f"{self._regions[slug].name}: failed: {reason}")


def _without_job(node: str, return_code: int, asked: int) -> Reply | None:
    """The answer for a node that had no job; None for one that had.

    `asked` counts for a node without a job alone: a DAGMan that was started again does not know
    what the PRE scripts of running nodes said. Where HTCondor did not take the job, DAGMan has
    tried for half a minute and retries such a node no more: that says nothing of the trial's
    parameters. DAGMan ends when nothing else is left, and another one asks for the node again.
    """
    if return_code == JOB_UNSUBMITTED:
        return Reply(EXITS["retry"], f"{node}: HTCondor did not take its job")
    if return_code != NO_JOB:
        return None
    if asked == EXITS["skip"]:
        return Reply(EXITS["done"])
    return Reply(asked, f"{node}: its PRE script failed")


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
