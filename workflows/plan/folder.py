"""The one place that knows the names in a run's folder.

RUN/study.yaml                    the resolved study, frozen
RUN/former.json                   results of former runs, which its optimiser learns from
RUN/study.dag                     the whole graph
RUN/study.db                      Optuna's storage, unless the study names another
RUN/optimizer.sub                 the optimiser's service as a job of the DAG
RUN/publish.sub                   the job that publishes a region's model
RUN/report.sub                    the job that writes the report at the end
RUN/study.conf, region.conf       the configuration of the whole graph's DAGMan, and of the regions'
RUN/submission.json               that the run is to be in HTCondor's queue
RUN/client                        what the nodes' scripts call
RUN/agent                         what starts the agent of a trial's job
RUN/code/                         the trainer's files, as they were when the run was planned
RUN/service.{lock,sock,log}       the optimiser's service
RUN/service.trouble.json          why it does not answer, if it doesn't
RUN/stopped.json                  who stopped the run, if a person did
RUN/failing.json                  why its report can't be written, if it can't
RUN/gang.{sub,lock,log}           the keeper of its gangs, in a study whose trials are gangs
RUN/mends.json                    what the supervisor mended
RUN/inputs.json                   what the files of its code were when it was planned
RUN/checksums.jsonl               the checksums of the files that were read
RUN/report.html, report.json      the report
RUN/fleet.json                    what the fleet's autoscaler did last, and what the fleet costs
RUN/aws.json                      the AWS account of the run's own fleet, and the way to it
RUN/alerts/                       events, and who has heard of them, in a study with notify:
RUN/export/                       the way to AWS and a log, in a study with export:
RUN/unpaid.json                   what of the run its money doesn't pay for any more, and why
RUN/no-model.json                 that a full training left no model, and whose
RUN/check/                        the trainer's dry start, if it failed: a trial
RUN/regions/SLUG/region.dag       a region's graph, submittable alone
RUN/regions/SLUG/scripts.log      what its nodes' scripts printed
RUN/regions/SLUG/failing.json     which of its scripts fail at this moment, and why
RUN/regions/SLUG/stopped.json     why the region stopped early, if it did
RUN/regions/SLUG/spent.json       which budget pays for no more of its trials
RUN/regions/SLUG/published.json   where its model was published, once it was
RUN/regions/SLUG/gate.json        whether its model became the champion, and why
RUN/regions/SLUG/tuned.json       that its trials are done, in a study that publishes nothing
RUN/regions/SLUG/table.npz        the rows of a CSV or Parquet file, for `trainer: tabular`
RUN/regions/SLUG/table.json       what was found in that file, and its checksum
RUN/regions/SLUG/inputs.json      what the files of its data were when the run was submitted
RUN/regions/SLUG/changed.json     which of these files have changed since, if any
RUN/regions/SLUG/trials/NODE/     a trial: see `TrialFolder`
RUN/regions/SLUG/trials/NODE/words/  what its running job and the access point tell each other
RUN/regions/SLUG/best/            the full training: the same files, and model/
RUN/regions/SLUG/gate/            the gate's job: the same files, both models, and losses/
RUN/regions/SLUG/gate.json        the gate's verdict: whether latest is switched to the model
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from trialfleet import nodes
from trialfleet.optimizer.client import LOG
from trialfleet.workflows.plan.dag_files import DagFiles
from trialfleet.workflows.trial_names import range_of

TRIALS = "trials"
FAILING = "failing.json"


@dataclass(frozen=True)
class TrialFolder:
    """A trial's files, and those of the job that trains it.

    Attributes:
        root: the trial's folder.
        of_job: the folder of the DAG node whose job trains it; default: the trial's own.
    """

    root: Path
    of_job: Path | None = None

    @property
    def node_root(self) -> Path:
        """The folder of the DAG node: the job's initial directory."""
        return self.of_job or self.root

    @property
    def is_shared(self) -> bool:
        """Whether the job trains other trials, too."""
        return self.node_root != self.root

    @cached_property
    def trial_json(self) -> Path:
        """The trial's order: its contract's input."""
        return self.root / nodes.TRIAL

    @cached_property
    def submit(self) -> Path:
        """The submit file of the job, rendered before it is submitted."""
        return self.node_root / "trial.sub"

    @cached_property
    def log(self) -> Path:
        """HTCondor's event log of the job, over all attempts."""
        return self.node_root / "log"

    @cached_property
    def agent_log(self) -> Path:
        """What the job's agent printed."""
        return self.node_root / "agent.log"

    @cached_property
    def out(self) -> Path:
        """Standard output of the last attempt."""
        return self.root / "out"

    @cached_property
    def trained_on(self) -> Path:
        """The inputs of a published model, with checksums."""
        return self.root / "trained-on.json"

    @cached_property
    def err(self) -> Path:
        """Standard error of the last attempt."""
        return self.root / "err"

    @cached_property
    def result(self) -> Path:
        """What the trial left: its contract's output; empty until then."""
        return self.root / nodes.RESULT

    @cached_property
    def job(self) -> Path:
        """How the job of a full training, or of a gate, ran and what it cost."""
        return self.root / "job.json"

    @cached_property
    def failures(self) -> Path:
        """Why attempts at a full training failed, by their number; the study keeps a trial's."""
        return self.root / "failures.json"

    @cached_property
    def progress(self) -> Path:
        """One JSON line per report of the trial; empty at the start."""
        return self.root / nodes.PROGRESS

    @cached_property
    def words(self) -> Path:
        """The folder by which a running job and its access point speak, and nothing else."""
        return self.node_root / nodes.WORDS

    @cached_property
    def order(self) -> Path:
        """What the job's agent is to do."""
        return self.words / nodes.ORDER

    @cached_property
    def said(self) -> Path:
        """What the job's agent said last."""
        return self.words / nodes.SAID

    @cached_property
    def saved(self) -> Path:
        """The trial's last checkpoint, packed."""
        return self.words / nodes.CHECKPOINT_PACKAGE.format(self.root.name)

    @cached_property
    def left(self) -> Path:
        """What the trial left at its end, packed."""
        return self.words / nodes.RESULT_PACKAGE.format(self.root.name)

    @cached_property
    def reports(self) -> Path:
        """The trial's progress as it comes while it runs, in a study with early stopping."""
        return self.words / nodes.REPORTS

    @cached_property
    def stop(self) -> Path:
        """The order to stop early, in a study with early stopping; empty until there is one."""
        return self.words / nodes.STOP

    @cached_property
    def checkpoint(self) -> Path:
        """The folder of the trial's last checkpoint; empty at the start."""
        return self.root / nodes.CHECKPOINT

    @cached_property
    def by_lane(self) -> Path:
        """Which lane's job has the full training, and whether it is done; absent without one."""
        return self.root / "lane.json"

    @cached_property
    def model(self) -> Path:
        """The trained model's folder, of a full training."""
        return self.root / nodes.MODEL

    @cached_property
    def gang(self) -> Path:
        """The folder by which a gang's jobs and their keeper speak; there for gangs alone."""
        return self.words / nodes.GANG

    @cached_property
    def roster(self) -> Path:
        """What the keeper decided of a gang: its generation and ranks, and how it ended."""
        return self.gang / "roster.json"

    @cached_property
    def gang_store(self) -> Path:
        """Where in S3 a gang's checkpoints lie; there where its study wants them in S3."""
        return self.gang / "store.json"

    def agent_logs(self, jobs: int | None) -> list[Path]:
        """What the agents of a gang of so many jobs printed; None: that of a job by itself."""
        logs = [self.agent_log.with_suffix(f".log.{proc}") for proc in range(jobs or 0)]
        return logs or [self.agent_log]

    @cached_property
    def losses(self) -> Path:
        """A file NAME.txt for each model that the gate's job measured: its loss in each row."""
        return self.root / "losses"

    @cached_property
    def champion(self) -> Path:
        """The model in force, of the gate's job."""
        return self.root / "champion"

    @cached_property
    def challenger(self) -> Path:
        """The model that may take its place, of the gate's job."""
        return self.root / "challenger"


@dataclass(frozen=True)
class RegionFolder:
    """A region's files."""

    root: Path

    @cached_property
    def dag(self) -> Path:
        """The region's graph."""
        return self.root / "region.dag"

    @cached_property
    def dag_files(self) -> DagFiles:
        """The region's graph and what HTCondor writes beside it."""
        return DagFiles(self.dag)

    @cached_property
    def scripts_log(self) -> Path:
        """What the PRE and POST scripts printed."""
        return self.root / "scripts.log"

    @cached_property
    def failing(self) -> Path:
        """The last error of each script that fails; absent until one has."""
        return self.root / FAILING

    @cached_property
    def stopped(self) -> Path:
        """Why the region stopped early; absent if it didn't."""
        return self.root / "stopped.json"

    @cached_property
    def spent(self) -> Path:
        """Which budget in USD pays for no more of its trials; absent until one was refused."""
        return self.root / "spent.json"

    @cached_property
    def restart(self) -> Path:
        """There while the region's DAGMan is being replaced by another, with the reason."""
        return self.root / "restart.json"

    @cached_property
    def table(self) -> Path:
        """The rows that its trials train on, of `trainer: tabular` with CSV or Parquet data."""
        return self.root / "table.npz"

    @cached_property
    def table_found(self) -> Path:
        """What was found in its data when the run was planned; of `trainer: tabular` alone."""
        return self.root / "table.json"

    @cached_property
    def inputs(self) -> Path:
        """The states and checksums of its data when the run was submitted."""
        return self.root / "inputs.json"

    @cached_property
    def changed(self) -> Path:
        """Which files of its data, or of the code, have changed since; absent until one has."""
        return self.root / "changed.json"

    @cached_property
    def published(self) -> Path:
        """Where the region's model was published; absent until then."""
        return self.root / "published.json"

    @cached_property
    def tuned(self) -> Path:
        """That its trials are done, in a study that publishes nothing; absent until then."""
        return self.root / "tuned.json"

    @property
    def is_done(self) -> bool:
        """Whether the region has what the study asked for: nothing is left to do."""
        return self.published.exists() or self.tuned.exists()

    @cached_property
    def best(self) -> TrialFolder:
        """The full training of the best settings."""
        return TrialFolder(self.root / "best")

    @cached_property
    def gate(self) -> TrialFolder:
        """The job that measures the model in force and the new one on the same rows."""
        return TrialFolder(self.root / "gate")

    @cached_property
    def verdict(self) -> Path:
        """Whether the new model takes the place of the one in force; absent until that is known."""
        return self.root / "gate.json"

    @cached_property
    def trials(self) -> Path:
        """The folder of the trials' folders."""
        return self.root / TRIALS

    def trial(self, name: str) -> TrialFolder:
        """The folder of a trial, by its name; or that of a node, with its job's files."""
        lane, own = range_of(name).lane, self.trials / name
        if (node := self.trials / lane) == own or node.is_dir():  # its lane is one node
            return TrialFolder(own, node)
        for ranged in self._ranges.get(lane, ()) if self.trials.is_dir() else ():
            if range_of(ranged.name).has(name):
                return TrialFolder(own, ranged)
        return TrialFolder(own)

    @cached_property
    def _ranges(self) -> dict[str, list[Path]]:
        """The folders of nodes that run several trials of a lane each, by lane."""
        found: dict[str, list[Path]] = {}
        for path in sorted(self.trials.glob("*.l*.t*-*")):
            found.setdefault(range_of(path.name).lane, []).append(path)
        return found


@dataclass(frozen=True)
class RunFolder:
    """A run's files. `root` is absolute."""

    root: Path
    _known: dict[str, RegionFolder] = field(
        default_factory=dict, init=False, repr=False, compare=False, hash=False
    )  # paths take longer to make than to look at, and whoever watches a run asks for them often

    def __post_init__(self) -> None:
        assert self.root.is_absolute(), f"a run's folder is absolute: {self.root}"

    @cached_property
    def check(self) -> TrialFolder:
        """The trial of the trainer's dry start; absent once that went well."""
        return TrialFolder(self.root / "check")

    @cached_property
    def study(self) -> Path:
        """The resolved study, frozen."""
        return self.root / "study.yaml"

    @cached_property
    def dag(self) -> Path:
        """The whole graph."""
        return self.root / "study.dag"

    @cached_property
    def database(self) -> Path:
        """Optuna's SQLite file, where the study names no other storage."""
        return self.root / "study.db"

    @cached_property
    def optimizer_submit(self) -> Path:
        """The submit file of the optimiser's service."""
        return self.root / "optimizer.sub"

    @cached_property
    def service_log(self) -> Path:
        """What the optimiser's service, whoever started it, has logged."""
        return self.root / LOG

    @cached_property
    def gang_submit(self) -> Path:
        """The submit file of the gangs' keeper, the same for all regions."""
        return self.root / "gang.sub"

    @cached_property
    def gang_lock(self) -> Path:
        """Locked by the one process that keeps the run's gangs."""
        return self.root / "gang.lock"

    @cached_property
    def gang_log(self) -> Path:
        """What became of its gangs, generation by generation."""
        return self.root / "gang.log"

    @cached_property
    def publish_submit(self) -> Path:
        """The submit file that publishes a region's model, the same for all."""
        return self.root / "publish.sub"

    @cached_property
    def report_submit(self) -> Path:
        """The submit file that writes the report at the run's end."""
        return self.root / "report.sub"

    @cached_property
    def fleet_submit(self) -> Path:
        """The submit file of the fleet's autoscaler, in a study that has one."""
        return self.root / "fleet.sub"

    @cached_property
    def fleet_state(self) -> Path:
        """What the fleet's autoscaler did last and what the fleet has cost so far."""
        return self.root / "fleet.json"

    @cached_property
    def stopped(self) -> Path:
        """Who stopped the run; absent unless a person did, and once it goes on."""
        return self.root / "stopped.json"

    @cached_property
    def failing(self) -> Path:
        """Why the report can't be written; absent until it couldn't be."""
        return self.root / FAILING

    @cached_property
    def hand(self) -> Path:
        """Locked by whoever submits, stops or mends the run, one at a time."""
        return self.root / "hand.lock"

    @cached_property
    def mends(self) -> Path:
        """What was mended while the run went on, and when."""
        return self.root / "mends.json"

    @cached_property
    def checksums(self) -> Path:
        """The checksums of the data files that were read so far, a JSON line each."""
        return self.root / "checksums.jsonl"

    @cached_property
    def aws(self) -> Path:
        """The AWS account of the fleet that the run scales, and the way to it; no secret."""
        return self.root / "aws.json"

    @cached_property
    def alerts(self) -> Path:
        """The outbox of the run's events: there where the study wants to notify anybody."""
        return self.root / "alerts"

    @cached_property
    def export(self) -> Path:
        """What the export of its models needs: there where the study exports them."""
        return self.root / "export"

    @cached_property
    def export_variables(self) -> Path:
        """The way to AWS of whoever planned the run; a proxy's password may be in it."""
        return self.export / "variables.json"

    @cached_property
    def gang_variables(self) -> Path:
        """Likewise, for the gangs' keeper: there where checkpoints of gangs lie in S3."""
        return self.root / "gang.variables.json"

    @cached_property
    def former(self) -> Path:
        """Results of former runs that the optimiser learns from; absent where it has none."""
        return self.root / "former.json"

    @cached_property
    def unpaid(self) -> Path:
        """Why no more trials, or full trainings, are begun for want of money; absent until then."""
        return self.root / "unpaid.json"

    @cached_property
    def no_model(self) -> Path:
        """That a full training left no model, and whose; absent until then."""
        return self.root / "no-model.json"

    @cached_property
    def submission(self) -> Path:
        """That the run is to be in the queue, from before it is handed over; `mend` writes it."""
        return self.root / "submission.json"

    @cached_property
    def study_config(self) -> Path:
        """The configuration of the whole graph's DAGMan."""
        return self.root / "study.conf"

    @cached_property
    def region_config(self) -> Path:
        """The configuration of the regions' DAGMans."""
        return self.root / "region.conf"

    @cached_property
    def client(self) -> Path:
        """The program that the nodes' scripts call."""
        return self.root / "client"

    @cached_property
    def agent(self) -> Path:
        """The program that starts the agent of a trial's job."""
        return self.root / "agent"

    @cached_property
    def inputs(self) -> Path:
        """The states and checksums of its code when it was planned."""
        return self.root / "inputs.json"

    @cached_property
    def code(self) -> Path:
        """The trainer's files."""
        return self.root / "code"

    @cached_property
    def report_page(self) -> Path:
        """The report, for people."""
        return self.root / "report.html"

    @cached_property
    def report_data(self) -> Path:
        """The report, for programs."""
        return self.root / "report.json"

    @cached_property
    def regions(self) -> Path:
        """The folder of the regions' folders."""
        return self.root / "regions"

    def region(self, slug: str) -> RegionFolder:
        """The folder of one region."""
        if slug not in self._known:
            self._known[slug] = RegionFolder(self.regions / slug)
        return self._known[slug]

    @cached_property
    def dag_files(self) -> DagFiles:
        """The whole graph and what HTCondor writes beside it."""
        return DagFiles(self.dag)

    def all_dags(self) -> list[DagFiles]:
        """The whole graph's files, then each region's."""
        regions = sorted(path.name for path in self.regions.iterdir())
        return [self.dag_files, *(self.region(slug).dag_files for slug in regions)]
