"""The trainer's side of the contract with trialfleet: a single file with only the standard library.

The shortest trainer::

    import trial

    t = trial.start()
    t.complete(loss=(t.params["x"] - 2) ** 2)

A job may train one trial after another. One that stays for the next, with its imports and its data
in memory::

    import functools
    import trial

    @functools.cache  # a job's trials have the same data, under the same name
    def read(path):
        return [float(line) for line in path.read_text().split()]

    def train(t):
        points = read(t.data[0])
        t.complete(loss=sum((t.params["x"] - point) ** 2 for point in points))

    trial.run(train)

A trainer that can move to another machine at any time and continue from its checkpoint, and that
can be stopped early by the study::

    t = trial.start()
    saved = t.restore()
    model = Model.load(saved / "state") if saved else Model(t.params, t.seed)
    while model.step < t.params["steps"]:
        model.train_one_step()
        t.report(model.step, loss=model.loss)
        if t.should_stop():
            t.stop(loss=model.loss)
        if t.should_checkpoint():
            with t.checkpoint() as folder:
                model.save(folder / "state")
            t.yield_node()
    t.complete(loss=model.loss)

A trainer that evaluates published models on today's data for the study's gate::

    if t.mode == "evaluate":
        for name, folder in t.models.items():
            losses = Model.load(folder).losses(t.data)
            t.evaluated(name, losses, loss=sum(losses) / len(losses))
        t.complete()

Of several processes that train together, each may start and restore; only rank 0, by $RANK or
$LOCAL_RANK, cuts the progress to what the checkpoint had. Rank 0 alone should write: in a gang
(`resources.nodes`) what others write is lost, and each checkpoint is brought to the access point
as soon as its block has ended. `trialfleet init --example ddp` is such a trainer.

Everything lies beside `trial.json`, whose path is in $TRIALFLEET_TRIAL:

    trial.json       what to train, read by start()
    result.json      written by complete() and reject()
    progress.jsonl   a line per report()
    stop.json        more than an empty file once the trial is to stop: should_stop()
    checkpoint/      complete.json says which of the folders a/ and b/ is whole, with its checksums
    model/           what the trainer leaves in mode "final"
    losses/          written by evaluated() in mode "evaluate": NAME.txt, a number per line
"""

from __future__ import annotations

import gc
import json
import math
import os
import shutil
import signal
import socket
import struct
import sys
import time
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SCHEMA = 1
EXIT_CHECKPOINTED = 85  # HTCondor takes the checkpoint to the access point and starts us again
EXIT_REJECTED = 64  # these parameters can't be trained: a failed trial, no retry
CHECKPOINT_SECONDS = 300.0  # unless the study has a constant `checkpoint_seconds`

_IMPORTED = time.monotonic()

_BY_HAND = """\
There is no trial to run: {path} does not exist{hint}.
HTCondor's jobs find theirs by $TRIALFLEET_TRIAL. To try a trainer by hand, write one:
    echo '{{"params": {{"learning_rate": 0.01}}, "data": ["region.csv"]}}' > trial.json
and start the trainer again in that folder; result.json then appears there."""


def start() -> Trial:
    """Return the trial that this process has to run, as `trial.json` describes it.

    Raises:
        SystemExit: there is no `trial.json` or it can't be used; the message says what to do.
    """
    return _start(_IMPORTED)


def run(train: Callable[[Trial], object]) -> NoReturn:
    """Train this process's trial, and those that follow in the same job.

    `train` is called for each trial and ends it as ever: by `complete`, `stop`, `reject` or
    `yield_node`. After `complete` and `stop` the process gets the job's next trial, if there is
    one; after any other end, an exception among them, it ends, and the next trial has a new one.
    By hand, or where a job has one trial, this is `train(start())`.

    For each trial the working directory, stdout and stderr are its own, and SIGTERM ends the
    process until `restore`. Everything else is kept: imports, caches, a GPU's context. So what a
    trial changes in the process (random numbers' state, say, which `seed` should set) is there
    for the next; nothing of the trial itself must be kept. A trial that leaves what can't be undone
    sets `stays` to False.

    Args:
        train: trains a trial. To be given from the main thread.
    """
    agent, began, at_rest = _agent(), _IMPORTED, signal.getsignal(signal.SIGTERM)
    if agent is not None:  # what has been imported isn't looked through after each trial
        gc.freeze()
    while True:
        t = _start(began)
        try:
            train(t)
        except SystemExit as left:
            if agent is None or left.code or not (t._told and t.stays):
                raise
        else:
            sys.exit(0)  # without a result, as a program does that has no more to do
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this trial's end is to be told yet
        del t
        gc.collect()  # what the trial still held is closed, so its files are whole
        _flush()
        with suppress(ConnectionError):
            agent.send(b'{"code": 0}')
        signal.signal(signal.SIGTERM, at_rest or signal.SIG_DFL)
        word = _received(agent)
        began = time.monotonic()
        _take_up(json.loads(word))


def _start(began: float) -> Trial:
    """Return the trial that `trial.json` describes; its seconds count from `began` on."""
    named = os.environ.get("TRIALFLEET_TRIAL")
    path = Path(named or "trial.json")
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "" if named else " and TRIALFLEET_TRIAL is not set"
        sys.exit(_BY_HAND.format(path=path, hint=hint))
    except (OSError, ValueError) as error:
        sys.exit(f"{path} can't be read as JSON: {error}")
    if not isinstance(description, dict) or description.get("schema", SCHEMA) != SCHEMA:
        sys.exit(f"{path} is not a trial of schema {SCHEMA}, the only one that trial.py knows.")
    return Trial(path.parent, description, began)


class Trial:
    """One set of parameters to train in one region. Made by `start()`; for one thread.

    Attributes:
        params: the hyperparameters and the study's constants; an inactive conditional is absent.
        seed: seeds every source of randomness, so that the trial can be repeated; from 0 to
            2³¹ - 1, which NumPy, scikit-learn, LightGBM and torch all take.
        region: the name of the partition of the data, as the study has it.
        mode: "tune", "final" for the full training that leaves `model`, or "evaluate" to measure
            `models` on `data` and train nothing.
        data: the data files of the region, in the study's order.
        rank: this process's number among those that train together, from 0.
        world: how many they are: 1 where each trial is one process.
        rendezvous: where rank 0 listens for the others, as `tcp://HOST:PORT` for
            init_process_group; None where each trial is one process.
        generation: in a gang, goes up whenever a rank joins or is lost; the processes are new ones
            and go on from the last checkpoint. Else 1.
        accelerator: "gpu" or "cpu".
        gpus: how many GPUs the trial has, 1 also where it has a share of one; 0 where the
            accelerator is "cpu".
        gpu_share: what part of each of them is its own: 1, or 1/N where N trials share a GPU.
            It sees all of the GPU's memory, and takes what is its neighbours' if it isn't careful.
        metric: the name of the objective among the metrics, or None when tried by hand.
        direction: "maximize" or "minimize".
        device: set by the trainer; what the result calls the processor used.
        stays: set by the trainer to False where this process is not to have another trial (`run`).
        model: the folder to fill in mode "final".
        models: the folders to measure in mode "evaluate", by name: champion, the model in force,
            and challenger, the new one; each as this trainer left it in mode "final".
        interrupted: True when this machine is wanted back: save and `yield_node()` within seconds.
    """

    def __init__(self, folder: Path, description: dict[str, Any], began: float = _IMPORTED) -> None:
        objective = description.get("objective", {})
        self.params: dict[str, Any] = description.get("params", {})
        self.seed: int = description.get("seed", 0)
        self.region: str = description.get("region", "by hand")
        self.mode: str = description.get("mode", "tune")
        self.data: list[Path] = [folder / name for name in description.get("data", [])]
        self.rank, self.world, self.rendezvous = _ranks()
        self.generation = int(os.environ.get("TRIALFLEET_GENERATION", "1"))
        self.accelerator: str = description.get("accelerator", "cpu")
        self.gpus: int = description.get("gpus", 1)
        self.gpu_share: float = description.get("gpu_share", 1.0)
        self.metric: str | None = objective.get("metric")
        self.direction: str = objective.get("direction", "minimize")
        self.device = "cpu"
        self.stays = True
        self.model = folder / "model"
        if self.mode == "final":  # a trial.json of one's own has nothing beside it
            self.model.mkdir(exist_ok=True)
        names = description.get("models", {})
        self.models: dict[str, Path] = {name: folder / names[name] for name in names}
        self._told = False
        self._began = began
        self._evaluated: dict[str, Any] = {}
        self._folder = folder
        self._progress = folder / "progress.jsonl"
        self._checkpoints = folder / "checkpoint"
        self.interrupted = False
        self._saved_at = time.monotonic()
        self._manifest = self._read_manifest()
        reported = self._manifest["progress_bytes"]
        # Rank 0 alone: the others may begin when it has reported already.
        if self.rank == 0 and self._progress.exists() and self._progress.stat().st_size > reported:
            os.truncate(self._progress, reported)

    # Checkpoints

    def restore(self) -> Path | None:
        """Return the folder of the last complete checkpoint, None where there is none.

        From now on SIGTERM no longer ends the process: it makes `should_checkpoint` true.
        """
        signal.signal(signal.SIGTERM, self._interrupt)
        self._saved_at = time.monotonic()
        name = self._manifest["folder"]
        return self._checkpoints / name if name else None

    def should_checkpoint(self) -> bool:
        """Tell whether to save now: SIGTERM came, or `checkpoint_seconds` have passed.

        Only a yielded checkpoint leaves the machine (in a gang each does), so a sudden death of
        the machine costs at most `checkpoint_seconds` of work (a constant of the study, 300 by
        default).
        """
        every = float(self.params.get("checkpoint_seconds", CHECKPOINT_SECONDS))
        return self.interrupted or time.monotonic() - self._saved_at >= every

    @contextmanager
    def checkpoint(self) -> Iterator[Path]:
        """Give an empty folder to save into; the checkpoint counts once the block has ended.

        Until then, and when the block raises, the former checkpoint stays the one to restore.
        """
        former = self._manifest["folder"]
        name = "b" if former == "a" else "a"
        folder = self._checkpoints / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        yield folder
        manifest = {
            "folder": name,
            "files": {path: _checksum(folder / path) for path in _files(folder)},
            "progress_bytes": self._progress.stat().st_size if self._progress.exists() else 0,
            "seconds": self._seconds(),
        }
        for path in [folder, *folder.rglob("*")]:
            if path.is_file() or path.is_dir():
                _sync(path)
        _write_json(self._checkpoints / "complete.json", manifest)
        if former:
            shutil.rmtree(self._checkpoints / former, ignore_errors=True)
        # The clock goes on from `_began`: what was counted before stays in `before`.
        self._manifest = manifest | {"seconds": self._manifest["seconds"]}
        _hand_over()
        self._saved_at = time.monotonic()

    def yield_node(self) -> NoReturn:
        """Leave with the exit code that means: checkpointed, start me again, here or elsewhere."""
        sys.exit(EXIT_CHECKPOINTED)

    # Early stopping

    def should_stop(self) -> bool:
        """Tell whether the study has told this trial to stop: save what is worth it, and `stop()`.

        The trial's reports say that it won't become the region's best. A trial that goes on is
        ended by its job after a while (the study's `early_stopping.grace_seconds`).
        """
        try:
            return (self._folder / "stop.json").stat().st_size > 0
        except OSError:
            return False

    # Reports and results

    def report(self, step: int, **metrics: float) -> None:
        """Add a line to `progress.jsonl`; lines after the restored checkpoint have been removed."""
        finite = _finite(metrics)
        values = {name: finite.get(name) for name in metrics}  # None for NaN, which JSON lacks
        line = {"step": step, "metrics": values, "time": time.time()}
        with self._progress.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def evaluated(
        self, name: str, losses: Iterable[float] | None = None, note: str = "", **metrics: float
    ) -> None:
        """Report the losses of a model in mode "evaluate"; `complete()` ends that mode.

        Args:
            name: as in `models`; "baseline" for what a constant prediction would get.
            losses: the model's loss in each row, the same rows in the same order for all models:
                they tell what is chance.
            note: what a person should know of how it was measured; the gate's verdict repeats it.
            metrics: as for `complete`; those that are not finite are left out.
        """
        self._evaluated[name] = {"metrics": _finite(metrics)} | ({"note": note} if note else {})
        if losses is not None:
            folder = self._folder / "losses"
            folder.mkdir(exist_ok=True)
            lines = (f"{float(loss):.9g}\n" for loss in losses)
            (folder / f"{name}.txt").write_text("".join(lines), encoding="utf-8")

    def complete(self, **metrics: float) -> NoReturn:
        """Write the result and leave with 0. An objective that is NaN or infinite is rejected.

        Args:
            metrics: anything that `float()` takes; others than the objective that are not finite
                are left out. None in mode "evaluate".

        Raises:
            ValueError: the study's objective is not among the metrics; or, in mode "evaluate", not
                all models were evaluated.
        """
        if self.mode == "evaluate":
            if missing := [name for name in self.models if name not in self._evaluated]:
                raise ValueError(f"not evaluated: {', '.join(missing)}")
            self._write_result("complete", models=self._evaluated)
            sys.exit(0)
        finite = _finite(metrics)
        if self.metric is not None and self.metric not in finite:
            if self.metric in metrics:
                self.reject(f"the objective {self.metric} is {float(metrics[self.metric])}")
            known = ", ".join(sorted(metrics)) or "none"
            raise ValueError(f"the objective {self.metric!r} is not among the metrics: {known}")
        self._write_result("complete", metrics=finite)
        sys.exit(0)

    def stop(self, **metrics: float) -> NoReturn:
        """Report that the trial stopped early on request, and exit with 0.

        Args:
            metrics: as for `complete`, of the moment; the objective need not be among them.
        """
        self._write_result("stopped", metrics=_finite(metrics))
        sys.exit(0)

    def reject(self, why: str) -> NoReturn:
        """Report that these parameters can't be trained, and exit so that there is no retry."""
        self._write_result("failed", metrics={}, error=why)
        print(f"rejected: {why}", file=sys.stderr)
        sys.exit(EXIT_REJECTED)

    # Inside

    def _interrupt(self, _signal: int, _frame: object) -> None:
        self.interrupted = True

    def _seconds(self) -> float:
        """Return the wall time of this and all earlier attempts that led to the checkpoint."""
        return float(self._manifest["seconds"]) + time.monotonic() - self._began

    def _write_result(self, status: str, **rest: Any) -> None:
        result = {"schema": SCHEMA, "status": status, "seconds": round(self._seconds(), 3)}
        _write_json(self._folder / "result.json", {**result, "device": self.device, **rest})
        self._told = True

    def _read_manifest(self) -> dict[str, Any]:
        """Return the complete checkpoint's manifest, an empty one where none is whole.

        Any number of processes may read at once, and one may save meanwhile: its checkpoint is
        read then.
        """
        while True:
            text = _read(self._checkpoints / "complete.json")
            manifest, problem = self._check(text)
            if manifest or _read(self._checkpoints / "complete.json") == text:
                break
        if problem:
            print(problem, file=sys.stderr)
        return manifest or {"folder": None, "files": {}, "progress_bytes": 0, "seconds": 0.0}

    def _check(self, text: str | None) -> tuple[dict[str, Any] | None, str | None]:
        """Return the manifest that `text` is, if its files are whole, or what is wrong with it."""
        if text is None:
            return None, None
        try:
            manifest: dict[str, Any] = json.loads(text)
            folder = self._checkpoints / manifest["folder"]
            for name in set(_files(folder)) - set(manifest["files"]):
                # HTCondor's spool adds files and never removes any
                (folder / name).unlink(missing_ok=True)
            sums = {name: _checksum(folder / name) for name in manifest["files"]}
        except (OSError, ValueError, LookupError, TypeError) as error:
            return None, f"checkpoint/complete.json is ignored: {error!r}"
        if sums != manifest["files"]:
            return None, "The checkpoint is damaged; starting from the beginning."
        return manifest, None


def _ranks() -> tuple[int, int, str | None]:
    """Return rank, world and rendezvous, as torchrun and a gang's agent tell them."""
    given = os.environ
    rank, world = given.get("RANK", given.get("LOCAL_RANK", "0")), given.get("WORLD_SIZE", "1")
    host, port = given.get("MASTER_ADDR"), given.get("MASTER_PORT")
    if not rank.isdecimal() or not world.isdecimal():
        return 0, 1, None  # somebody else's variables
    return int(rank), int(world), f"tcp://{host}:{port}" if port else None


def _hand_over() -> None:
    """In a gang: have the agent bring the checkpoint to the access point, and wait until it has."""
    if (agent := os.environ.get("TRIALFLEET_AGENT")) is None:
        return
    with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
        connection.connect(agent)
        connection.sendall(b"saved\n")
        connection.recv(16)


# From trial to trial, in a process that stays


def _agent() -> socket.socket | None:
    """Return the way to who started this process, if it may have trials to come; once only."""
    number = os.environ.pop("TRIALFLEET_STAYS", "")  # what we start does not stay
    try:
        agent = socket.socket(fileno=int(number))
    except (ValueError, OSError):  # by hand; or a program between us passed the name on alone
        return None
    try:
        packed = agent.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        packed = bytes(struct.calcsize("3i"))
    # Who started us must be the agent: a program between may have something to do after us.
    if struct.unpack("3i", packed)[0] == os.getppid():
        agent.set_inheritable(False)
        return agent
    agent.detach()
    return None


def _flush() -> None:
    """Write out what Python's and C's stdout and stderr still hold."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # there is none, or it is closed
            stream.flush()
    with suppress(ImportError, OSError):
        import ctypes

        ctypes.CDLL(None).fflush(None)


def _received(agent: socket.socket) -> bytes:
    """Return the agent's word of the next trial; leave where it has none or is gone."""
    word = b""
    with suppress(ConnectionError):
        word = agent.recv(1 << 16)
    if not word:
        sys.exit(0)
    return word


def _take_up(order: dict[str, str]) -> None:
    """Go to a trial's folder, as a new process would begin there."""
    path = Path(order["trial"])
    os.chdir(path.parent)
    os.environ["TRIALFLEET_TRIAL"] = path.name
    for name, descriptor in (("out", 1), ("err", 2)):
        file = os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(file, descriptor)
        os.close(file)


# Files


def _read(path: Path) -> str | None:
    """Return the text of a file, None where it is missing or no text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def _finite(metrics: dict[str, Any]) -> dict[str, float]:
    """Return those that are finite, as plain numbers; JSON has no NaN and no infinity."""
    numbers = {name: float(value) for name, value in metrics.items()}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _files(folder: Path) -> list[str]:
    """Return every file below `folder`, relative to it."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _checksum(path: Path) -> int:
    """Return the CRC-32 of a file: enough to see a half-transferred one."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


def _sync(path: Path) -> None:
    """Bring a file's content or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_json(path: Path, value: object) -> None:
    """Replace `path` whole: written beside it, fsynced, renamed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    _sync(beside)
    beside.replace(path)
    _sync(path.parent)
