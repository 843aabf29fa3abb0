"""The one place that knows the names in a run's folder.

RUN/study.yaml                    the resolved study, frozen
RUN/study.dag                     the whole graph
RUN/study.db                      Optuna's storage, unless the study names another
RUN/optimizer.sub                 the optimiser's service as a job of the DAG
RUN/dagman.conf                   DAGMan's configuration
RUN/client                        what the nodes' scripts call
RUN/start                         what starts the trainer in a trial's sandbox
RUN/code/                         the trainer's files, as they were when the run was planned
RUN/service.{lock,sock,log}       the optimiser's service
RUN/report.html, report.json      the report
RUN/regions/SLUG/region.dag       a region's graph, submittable alone
RUN/regions/SLUG/scripts.log      what its nodes' scripts printed
RUN/regions/SLUG/stopped.json     why the region stopped early, if it did
RUN/regions/SLUG/trials/NODE/     a trial: see `TrialFolder`
RUN/regions/SLUG/best/            the full training: the same files, and model/
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DagFiles:
    """A DAG file and what HTCondor writes beside it."""

    dag: Path

    @property
    def submit(self) -> Path:
        """The submit file of its DAGMan: there since it was first submitted."""
        return self._beside(".condor.sub")

    @property
    def lock(self) -> Path:
        """There while a DAGMan runs it; one that finds it at its start goes into recovery."""
        return self._beside(".lock")

    @property
    def nodes_log(self) -> Path:
        """The events of its nodes' jobs: what recovery reads."""
        return self._beside(".nodes.log")

    @property
    def metrics(self) -> Path:
        """How its last DAGMan ended, as JSON."""
        return self._beside(".metrics")

    @property
    def rescue(self) -> Path | None:
        """The newest rescue file, which a resume goes on from, if there is one."""
        rescues = sorted(self.dag.parent.glob(f"{self.dag.name}.rescue[0-9][0-9][0-9]"))
        return rescues[-1] if rescues else None

    def _beside(self, ending: str) -> Path:
        return self.dag.with_name(self.dag.name + ending)


@dataclass(frozen=True)
class TrialFolder:
    """A trial's files; the job's initial directory."""

    root: Path

    @property
    def trial_json(self) -> Path:
        """What the trial is told: its contract's input."""
        return self.root / "trial.json"

    @property
    def submit(self) -> Path:
        """The submit file, rendered when the trial's parameters are chosen."""
        return self.root / "trial.sub"

    @property
    def log(self) -> Path:
        """HTCondor's event log of the job, over all attempts."""
        return self.root / "log"

    @property
    def out(self) -> Path:
        """Standard output of the last attempt."""
        return self.root / "out"

    @property
    def data_checksums(self) -> Path:
        """The checksums of the data when a full training was asked for."""
        return self.root / "data.json"

    @property
    def err(self) -> Path:
        """Standard error of the last attempt."""
        return self.root / "err"

    @property
    def result(self) -> Path:
        """What the trial left: its contract's output; empty until then."""
        return self.root / "result.json"

    @property
    def progress(self) -> Path:
        """One JSON line per report of the trial; empty at the start."""
        return self.root / "progress.jsonl"

    @property
    def checkpoint(self) -> Path:
        """The folder of the trial's last checkpoint; empty at the start."""
        return self.root / "checkpoint"

    @property
    def model(self) -> Path:
        """The trained model's folder, of a full training."""
        return self.root / "model"


@dataclass(frozen=True)
class RegionFolder:
    """A region's files."""

    root: Path

    @property
    def dag(self) -> Path:
        """The region's graph."""
        return self.root / "region.dag"

    @property
    def dag_files(self) -> DagFiles:
        """The region's graph and what HTCondor writes beside it."""
        return DagFiles(self.dag)

    @property
    def node_status(self) -> Path:
        """DAGMan's node status file."""
        return self.root / "node.status"

    @property
    def scripts_log(self) -> Path:
        """What the PRE and POST scripts printed."""
        return self.root / "scripts.log"

    @property
    def stopped(self) -> Path:
        """Why the region stopped early; absent if it didn't."""
        return self.root / "stopped.json"

    @property
    def published(self) -> Path:
        """Where the region's model was published; absent until then."""
        return self.root / "published.json"

    @property
    def best(self) -> TrialFolder:
        """The full training of the best settings."""
        return TrialFolder(self.root / "best")

    @property
    def trials(self) -> Path:
        """The folder of the trials' folders."""
        return self.root / "trials"

    def trial(self, node: str) -> TrialFolder:
        """The folder of the trial that the DAG node `node` runs."""
        return TrialFolder(self.trials / node)


@dataclass(frozen=True)
class RunFolder:
    """A run's files. `root` is absolute."""

    root: Path

    def __post_init__(self) -> None:
        assert self.root.is_absolute(), f"a run's folder is absolute: {self.root}"

    @property
    def study(self) -> Path:
        """The resolved study, frozen."""
        return self.root / "study.yaml"

    @property
    def dag(self) -> Path:
        """The whole graph."""
        return self.root / "study.dag"

    @property
    def node_status(self) -> Path:
        """DAGMan's node status file of the whole graph."""
        return self.root / "node.status"

    @property
    def database(self) -> Path:
        """Optuna's SQLite file, where the study names no other storage."""
        return self.root / "study.db"

    @property
    def optimizer_submit(self) -> Path:
        """The submit file of the optimiser's service."""
        return self.root / "optimizer.sub"

    @property
    def fleet_submit(self) -> Path:
        """The submit file of the fleet's autoscaler, in a study that has one."""
        return self.root / "fleet.sub"

    @property
    def fleet_state(self) -> Path:
        """What the fleet's autoscaler did last and what the fleet has cost so far."""
        return self.root / "fleet.json"

    @property
    def dagman_config(self) -> Path:
        """DAGMan's configuration."""
        return self.root / "dagman.conf"

    @property
    def client(self) -> Path:
        """The program that the nodes' scripts call."""
        return self.root / "client"

    @property
    def start(self) -> Path:
        """The program that starts the trainer in a trial's sandbox."""
        return self.root / "start"

    @property
    def code(self) -> Path:
        """The trainer's files."""
        return self.root / "code"

    @property
    def report_page(self) -> Path:
        """The report, for people."""
        return self.root / "report.html"

    @property
    def report_data(self) -> Path:
        """The report, for programs."""
        return self.root / "report.json"

    @property
    def regions(self) -> Path:
        """The folder of the regions' folders."""
        return self.root / "regions"

    def region(self, slug: str) -> RegionFolder:
        """The folder of one region."""
        return RegionFolder(self.regions / slug)

    @property
    def dag_files(self) -> DagFiles:
        """The whole graph and what HTCondor writes beside it."""
        return DagFiles(self.dag)

    def all_dags(self) -> list[DagFiles]:
        """The whole graph's files, then each region's."""
        regions = sorted(path.name for path in self.regions.iterdir())
        return [self.dag_files, *(self.region(slug).dag_files for slug in regions)]
