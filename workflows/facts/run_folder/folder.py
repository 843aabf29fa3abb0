"""The paths of the files in a run's folder. A file about an event appears with the event."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from trialfleet import nodes
from trialfleet.optimizer.service_client import LOG
from trialfleet.workflows.facts.run_folder.trial_names import parse_trial_range

TRIALS = "trials"
FAILING = "failing.json"


def path_property(name: str, *, parent: str = "root") -> cached_property[Path]:
    """Return a property of a folder's class: the path of the file `name`.

    `parent` is the name of the attribute with the path of the file's folder. In `name`, {} stands
    for the name of the folder `root`.
    """
    return cached_property(lambda folder: getattr(folder, parent) / name.format(folder.root.name))


def note_path(log: Path) -> Path:
    """Return the path of the note that execution_notes.py writes about a job's event log."""
    return log.with_name(f"{log.name}.json")


def _dag_file(ending: str) -> cached_property[Path]:
    return cached_property(lambda files: files.dag.with_name(files.dag.name + ending))


@dataclass(frozen=True)
class DagFiles:
    """The paths of a DAG file and of HTCondor's files next to it."""

    dag: Path

    submit = _dag_file(".condor.sub")  # DAGMan's submit file: from the first submission on
    # Exists while a DAGMan runs the DAG. A DAGMan that finds it at its start goes into recovery.
    lock = _dag_file(".lock")
    nodes_log = _dag_file(".nodes.log")  # the events of the nodes' jobs, for recovery
    metrics = _dag_file(".metrics")  # how the last DAGMan ended, as JSON
    log = _dag_file(".dagman.log")  # the events of the DAGMan job
    aside = _dag_file(".aside")  # previous DAGMans' files, out of the way of later DAGMans

    @cached_property
    def node_status(self) -> Path:
        """The file to which DAGMan writes the states of the DAG nodes every few seconds."""
        return self.dag.with_name("node.status")


@dataclass(frozen=True)
class TrialFolder:
    """The paths of the files of a trial and of its job.

    The trial's files are in `root`. The job's files are in `of_job`; if it is None, they are in
    `root`, too.
    """

    root: Path
    of_job: Path | None = None

    @property
    def node_root(self) -> Path:
        """The folder of the DAG node, which is the initial directory of its job."""
        return self.of_job or self.root

    @property
    def is_shared(self) -> bool:
        """True if the job also trains other trials."""
        return self.node_root != self.root

    trial_json = path_property(nodes.TRIAL)  # the trial's order: the trainer's input
    submit = path_property("trial.sub", parent="node_root")  # the job's submit file
    log = path_property("log", parent="node_root")  # HTCondor's event log of the job, all attempts
    agent_log = path_property("agent.log", parent="node_root")  # output of the job's agent
    out = path_property("out")  # standard output of the last attempt
    trained_on = path_property("trained-on.json")  # the inputs of a published model, with checksums
    err = path_property("err")  # standard error of the last attempt
    result = path_property(nodes.RESULT)  # the trainer's output; empty until the trial ends
    job = path_property("job.json")  # how a full training's or gate's job ran, and its cost
    failures = path_property("failures.json")  # why attempts at a full training or gate failed
    progress = path_property(nodes.PROGRESS)  # a JSON line per report; empty at the start
    words = path_property(nodes.WORDS, parent="node_root")  # between the job and its access point
    order = path_property(nodes.ORDER, parent="words")  # the order for the job's agent
    said = path_property(nodes.SAID, parent="words")  # the last message of the job's agent
    saved = path_property(nodes.CHECKPOINT_PACKAGE, parent="words")  # the trial's last checkpoint
    left = path_property(nodes.RESULT_PACKAGE, parent="words")  # the trial's files at its end
    # Files that the trial needs and its job lacks, packed: a gate's models in a lane.
    given = path_property(nodes.GIVEN_PACKAGE, parent="words")
    ended = path_property(nodes.ENDED)  # how the trial ended; absent until its package came
    reports = path_property(nodes.REPORTS, parent="words")  # `progress` of the running trial
    # The running trial's output, after `printed_head`; at first the previous trial's output.
    printed_out = path_property(nodes.PRINTED["out"], parent="words")
    printed_err = path_property(nodes.PRINTED["err"], parent="words")
    stop = path_property(nodes.STOP, parent="words")  # the order to stop early; empty before
    # The folder of the trial's last checkpoint; empty at the start.
    checkpoint = path_property(nodes.CHECKPOINT)
    # The lane whose job executes the full training or the gate; absent if no lane's job does.
    by_lane = path_property("lane.json")
    model = path_property(nodes.MODEL)  # the trained model's folder, of a full training
    gang = path_property(nodes.GANG, parent="words")  # between a gang's jobs and the keeper
    roster = path_property("roster.json", parent="gang")  # the keeper's orders to a gang
    # The place of a gang's checkpoints in S3; exists if the study stores them there. The keeper
    # signs and deletes what this file names. So it is outside of `words`, where jobs can write.
    gang_store = path_property("gang-store.json", parent="node_root")

    @property
    def printed_head(self) -> bytes:
        """The first line of `printed_out` and `printed_err` while this trial runs."""
        return f"{self.root.name}\n".encode()

    def agent_logs(self, jobs: int | None) -> list[Path]:
        """Return the log of the job's agent, or one log for each of the `jobs` jobs of a gang."""
        logs = [self.agent_log.with_suffix(f".log.{proc}") for proc in range(jobs or 0)]
        return logs or [self.agent_log]

    # A file NAME.txt for each model that the gate's job measured: its loss in each row.
    losses = path_property("losses")
    champion = path_property("champion")  # the current model, of the gate's job
    challenger = path_property("challenger")  # the model that may take its place, of the gate's job


@dataclass(frozen=True)
class RegionFolder:
    """The paths of a region's files."""

    root: Path
    _known: dict[str, TrialFolder] = field(
        default_factory=dict, init=False, repr=False, compare=False, hash=False
    )

    dag = path_property("region.dag")  # the region's graph

    @cached_property
    def dag_files(self) -> DagFiles:
        """The region's DAG file and HTCondor's files next to it."""
        return DagFiles(self.dag)

    scripts_log = path_property("scripts.log")  # output of the PRE and POST scripts
    failing = path_property(FAILING)  # the last error of each script that fails
    stopped = path_property("stopped.json")  # why the region stopped early; absent if it didn't
    spent = path_property("spent.json")  # why a budget in USD allows no more trials of the region
    restart = path_property("restart.json")  # why its DAGMan is being replaced; exists only then
    # The rows that its trials train on, of `trainer: tabular` with CSV or Parquet data.
    table = path_property("table.npz")
    table_found = path_property("table.json")  # the description of its data, from planning
    profile = path_property("profile.json")  # of its table, to compare days; for daily runs
    # The number of past days with which its table was compared, and the warnings of the checks.
    checks = path_property("checks.json")
    inputs = path_property("inputs.json")  # states and checksums of its data at submission
    changed = path_property("changed.json")  # files of data or code that have changed since
    published = path_property("published.json")  # where the region's model was published
    tuned = path_property("tuned.json")  # the mark that its trials are done, with `publish: none`

    @property
    def is_done(self) -> bool:
        """True if the model was published or, with `publish: none`, if all trials are done."""
        return self.published.exists() or self.tuned.exists()

    @cached_property
    def best(self) -> TrialFolder:
        """The files of the full training, which uses the region's best settings."""
        return TrialFolder(self.root / "best")

    @cached_property
    def gate(self) -> TrialFolder:
        """The files of the gate, which measures the current and the new model on the same rows."""
        return TrialFolder(self.root / "gate")

    verdict = path_property("gate.json")  # whether the new model replaces the current one
    trials = path_property(TRIALS)  # the folder of the trials' folders

    def trial(self, name: str) -> TrialFolder:
        """Return the folder of the trial or DAG node `name`."""
        if (known := self._known.get(name)) is None:
            known = self._trial(name)
            if known.of_job is not None:  # else the DAG node's folder may be made later
                self._known[name] = known
        return known

    def _trial(self, name: str) -> TrialFolder:
        lane, own = parse_trial_range(name).lane, self.trials / name
        if (node := self.trials / lane) == own or node.is_dir():  # the lane is one node
            return TrialFolder(own, node)
        for ranged in self._ranges.get(lane, ()) if self.trials.is_dir() else ():
            if parse_trial_range(ranged.name).has(name):
                return TrialFolder(own, ranged)
        return TrialFolder(own)

    def node_folder(self, name: str) -> TrialFolder:
        """Return the folder of the trial or DAG node `name`.

        `name` may also be the DAG node of the full training or of the gate.
        """
        ends = {f"{self.root.name}.best": self.best, f"{self.root.name}.gate": self.gate}
        return ends.get(name) or self.trial(name)

    @cached_property
    def _ranges(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for path in sorted(self.trials.glob("*.l*.t*-*")):
            found.setdefault(parse_trial_range(path.name).lane, []).append(path)
        return found


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run's files; `root` is the absolute path of the run's folder."""

    root: Path
    _known: dict[str, RegionFolder] = field(
        default_factory=dict, init=False, repr=False, compare=False, hash=False
    )  # cached, because making a path is slow

    def __post_init__(self) -> None:
        assert self.root.is_absolute(), f"the path of a run's folder must be absolute: {self.root}"

    @cached_property
    def check(self) -> TrialFolder:
        """The files of the check, a brief start of the trainer; removed if the check succeeds."""
        return TrialFolder(self.root / "check")

    study = path_property("study.json")  # the resolved study, frozen
    dag = path_property("study.dag")  # the whole graph
    database = path_property("study.db")  # Optuna's SQLite file, if the study names no storage
    optimizer_submit = path_property("optimizer.sub")  # the submit file of the optimiser's service
    service_log = path_property(LOG)  # the log of the optimiser's service
    gang_submit = path_property("gang.sub")  # submit file of the gangs' keeper
    gang_lock = path_property("gang.lock")  # locked by the keeper that manages the run's gangs
    gang_log = path_property("gang.log")  # the history of the run's gangs, by generation
    publish_submit = path_property("publish.sub")  # submit file that publishes a region's model
    report_submit = path_property("report.sub")  # submit file that writes the report at the end
    fleet_submit = path_property("fleet.sub")  # submit file of the fleet's autoscaler
    fleet_output = path_property("fleet.out")  # what the autoscaler has printed since its start
    fleet_state = path_property("fleet.json")  # the autoscaler's last actions and the fleet's cost
    stopped = path_property("stopped.json")  # who stopped the run; absent after a resume
    failing = path_property(FAILING)  # why the report can't be written; absent until a failure
    # Held by the process that submits, stops or repairs the run; the file's old name stays.
    run_lock = path_property("hand.lock")
    repairs = path_property("repairs.json")  # the supervisor's repairs
    checksums = path_property("checksums.jsonl")  # of the data files that were read so far
    # The AWS account of the fleet that the run scales, and how to reach it; no secret.
    aws = path_property("aws.json")
    alerts = path_property("alerts")  # the outbox of the run's events, if the study has `notify`
    export = path_property("export")  # the settings of its models' export, if the study has one
    # The planner's AWS settings; a proxy's password may be in it.
    export_variables = path_property("variables.json", parent="export")
    # The AWS settings for the gangs' keeper; exists if checkpoints of gangs are in S3.
    gang_variables = path_property("gang.variables.json")
    previous_results = path_property("previous.json")  # results of previous runs, for the optimiser
    # Why trials or full trainings no longer start for lack of money; absent until then.
    out_of_money = path_property("out-of-money.json")
    no_model = path_property("no-model.json")  # the mark that a full training left no model
    # The mark that the run should be in the queue; `repair` makes it before it submits the run.
    submission = path_property("submission.json")
    study_config = path_property("study.conf")  # the configuration of the whole graph's DAGMan
    region_config = path_property("region.conf")  # the configuration of the regions' DAGMans
    client = path_property("client")  # the program that the nodes' scripts call
    agent = path_property("agent")  # the program that starts the agent of a trial's job
    inputs = path_property("inputs.json")  # states and checksums of its code when it was planned
    code = path_property("code")  # the trainer's files
    report_page = path_property("report.html")  # the report, for people
    report_data = path_property("report.json")  # the report, for programs
    regions = path_property("regions")  # the folder of the regions' folders

    def region(self, slug: str) -> RegionFolder:
        """Return the folder of one region."""
        if slug not in self._known:
            self._known[slug] = RegionFolder(self.regions / slug)
        return self._known[slug]

    @cached_property
    def dag_files(self) -> DagFiles:
        """The DAG file of the whole run, and HTCondor's files next to it."""
        return DagFiles(self.dag)

    def all_dags(self) -> list[DagFiles]:
        """Return the DAG files of the whole run and then of each region."""
        regions = sorted(path.name for path in self.regions.iterdir())
        return [self.dag_files, *(self.region(slug).dag_files for slug in regions)]
