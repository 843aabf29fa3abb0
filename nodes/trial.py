"""The helper with which trainers in Python write reports, checkpoints and results.

This single file only needs the standard library. The shortest trainer::

    import trial

    t = trial.start()
    t.complete(loss=(t.params["x"] - 2) ** 2)

A job may train several trials. This trainer keeps its process, imports and data for all of them::

    import functools
    import trial

    @functools.cache  # a job's trials have the same data, under the same name
    def read(path):
        return [float(line) for line in path.read_text().split()]

    def train(t):
        points = read(t.data[0])
        t.complete(loss=sum((t.params["x"] - point) ** 2 for point in points))

    trial.run(train)

This trainer continues from its checkpoint on any machine, and the study can stop it early::

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

This trainer evaluates two models on today's data, so that the study's gate can compare them::

    if t.mode == "evaluate":
        for name, folder in t.models.items():
            losses = Model.load(folder).losses(t.data)
            t.evaluated(name, losses, loss=sum(losses) / len(losses))
        t.complete()

If several processes train together, each may call start() and restore(). Only the process whose
`rank` is 0 should write files. In a gang (`resources.nodes`: one trial on several machines), files
that other ranks write are lost. `trialfleet init --example ddp` writes a trainer for several
processes.

$TRIALFLEET_TRIAL is the path of `trial.json`. All files are in the same folder:

    trial.json       the trial's description, read by start()
    result.json      written by complete(), stop() and reject()
    progress.jsonl   a line per report()
    stop.json        not empty once the trial is to stop; read by should_stop()
    checkpoint/      complete.json has the name of the last checkpoint's folder, a/ or b/, and
                     the checksums of the folder's files
    model/           the model that the trainer writes in mode "final"
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
# The checkpoint is sent to the access point, and the trainer is started again.
EXIT_CHECKPOINTED = 85
EXIT_REJECTED = 64  # these parameters can't be trained: the trial fails and is not retried
CHECKPOINT_SECONDS = 300.0  # unless the study has a constant `checkpoint_seconds`
# In the environment of the processes that a trainer starts: the trainer's process id and folder.
_FIRST_PROCESS = "TRIALFLEET_FIRST_PROCESS"

_IMPORTED = time.monotonic()

_BY_HAND = """\
There is no trial to run: {path} does not exist{hint}.
In HTCondor's jobs, $TRIALFLEET_TRIAL is the path of trial.json. To try a trainer by hand, write
this file:
    echo '{{"params": {{"learning_rate": 0.01}}, "data": ["region.csv"]}}' > trial.json
and start the trainer again in that folder; result.json then appears there."""


def start() -> Trial:
    """Return this process's trial. Exit with an explanation if `trial.json` can't be used."""
    gc.freeze()  # the search for garbage at exit then skips the imports: 0.8 s with torch
    return _start(_IMPORTED)


def run(train: Callable[[Trial], object]) -> NoReturn:
    """Train this process's trial, and then the next trials of the same job.

    After `complete` or `stop` the process gets the job's next trial, if there is one. After any
    other end, such as an exception, the process ends, and the next trial gets a new process. If you
    run the trainer by hand, `run(train)` is the same as `train(start())`.

    Each trial has its own working directory, stdout and stderr. The process keeps everything else
    from trial to trial: imports, caches, a GPU's context, random state. So seed all random numbers
    in each trial, and keep nothing that belongs to one trial. If a trial changes something that
    would affect later trials, set the trial's `stays` to False. The next trial then gets a new
    process.

    Call `run` in the main thread.

    Args:
        train: trains one trial, and ends it by `complete`, `stop`, `reject` or `yield_node`.
    """
    agent, began, at_rest = _agent(), _IMPORTED, signal.getsignal(signal.SIGTERM)
    gc.freeze()  # so that no search for garbage, after a trial or at exit, searches the imports
    while True:
        t = _start(began)
        try:
            train(t)
        except SystemExit as left:
            if agent is None or left.code or not (t._has_result and t.stays):
                raise
        else:
            sys.exit(0)  # the trial has no result, so this process takes no other trial
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the trial's end is not reported yet
        del t
        gc.collect()  # close the trial's open files, so that they are complete
        _flush_output()
        with suppress(ConnectionError):
            agent.send(b'{"code": 0}')
        signal.signal(signal.SIGTERM, at_rest or signal.SIG_DFL)
        word = _receive(agent)
        began = time.monotonic()
        _take_up(json.loads(word))


def _start(began: float) -> Trial:
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
        sys.exit(f"{path} must be a JSON object of schema {SCHEMA}, the only one trial.py knows.")
    return Trial(path.parent.absolute(), description, began)


class Trial:
    """One trial: its parameters and data, and the methods to report its progress and result.

    `start()` returns it. Use it in one thread only.

    Attributes:
        params: the hyperparameters and the study's constants. A parameter with a condition (`when`)
            is missing if this trial does not meet the condition.
        seed: the number with which to seed every source of randomness. It is from 0 to 2³¹ - 1, so
            that NumPy, scikit-learn, LightGBM and torch all accept it.
        region: the region's name in the study.
        mode: "tune", "final" (train and write `model`) or "evaluate" (measure `models` on `data`).
        data: the region's data files, in the study's order.
        rank: this process's number, from 0, among the processes that train together.
        world: the number of processes that train together, 1 for most trials.
        rendezvous: the address of rank 0, `tcp://HOST:PORT`, for torch's init_process_group. It is
            None unless $MASTER_PORT is set, for example by a gang's agent or by torchrun.
        generation: in a gang, a number that grows whenever a rank joins or is lost. New processes
            then continue from the last checkpoint. Outside of a gang, it is 1.
        accelerator: "gpu" or "cpu".
        gpus: the number of the trial's GPUs. It is 1 for a share of a GPU, and 0 for the
            accelerator "cpu".
        gpu_share: 1, or 1/N if N trials share a GPU. Each of the N trials sees the GPU's whole
            memory, but must use only its share.
        metric: the name of the metric that is optimised. It is None if you run the trainer by hand.
        direction: "maximize" or "minimize".
        device: the name of the processor that trains, which is written to the result. It is "cpu"
            unless the trainer sets it.
        stays: True by default. Set it to False if this process must not get another trial (see
            `run`).
        model: the folder for the model in mode "final".
        models: in mode "evaluate", the folders of two models of this trainer: `champion`, the
            current model, and `challenger`, the new one.
        interrupted: True after SIGTERM, which means that the job must leave the machine. Then save
            a checkpoint, and call `yield_node()` within seconds. Always False if `restore` was not
            called.
    """

    def __init__(self, folder: Path, description: dict[str, Any], began: float = _IMPORTED) -> None:
        objective = description.get("objective", {})
        self.params: dict[str, Any] = description.get("params", {})
        self.seed: int = description.get("seed", 0)
        self.region: str = description.get("region", "by hand")
        self.mode: str = description.get("mode", "tune")
        # Relative if this process runs in the folder: then all trials of a job see the same paths.
        near = Path() if folder.resolve() == Path.cwd() else folder
        self.data: list[Path] = [near / name for name in description.get("data", [])]
        self.rank, self.world, self.rendezvous = _ranks()
        self.generation = int(os.environ.get("TRIALFLEET_GENERATION", "1"))
        self.accelerator: str = description.get("accelerator", "cpu")
        self.gpus: int = description.get("gpus", int(self.accelerator == "gpu"))
        self.gpu_share: float = description.get("gpu_share", 1.0)
        self.metric: str | None = objective.get("metric")
        self.direction: str = objective.get("direction", "minimize")
        self.device = "cpu"
        self.stays = True
        self.model = folder / "model"
        if self.mode == "final":  # the folder is missing if trial.json was written by hand
            self.model.mkdir(exist_ok=True)
        names = description.get("models", {})
        self.models: dict[str, Path] = {name: folder / names[name] for name in names}
        self._has_result = False
        self._began = began
        self._evaluated: dict[str, Any] = {}
        self._folder = folder
        self._progress = folder / "progress.jsonl"
        self._checkpoints = folder / "checkpoint"
        self.interrupted = False
        self._saved_at = time.monotonic()
        self._manifest = self._read_manifest()
        reported = self._manifest["progress_bytes"]
        # Only the first process of rank 0 does this: another process may start after it has
        # reported new lines.
        is_first = self.rank == 0 and _is_first_process(folder)
        if is_first and self._progress.exists() and self._progress.stat().st_size > reported:
            os.truncate(self._progress, reported)

    # Checkpoints

    def restore(self) -> Path | None:
        """Return the folder of the last complete checkpoint, or None if there is none.

        After this call SIGTERM does not end the process, but makes `should_checkpoint` return True.
        """
        signal.signal(signal.SIGTERM, self._note_interrupt)
        self._saved_at = time.monotonic()
        name = self._manifest["folder"]
        return self._checkpoints / name if name else None

    def should_checkpoint(self) -> bool:
        """Return whether to save a checkpoint now.

        This is True after SIGTERM. It is also True `checkpoint_seconds` after the last checkpoint
        or the last start of the trial, whichever was later. `checkpoint_seconds` is a constant of
        the study, 300 by default.

        Outside of a gang, call `yield_node` after each checkpoint, because nothing else sends the
        checkpoint to the access point. If the machine is lost without warning, the trial then
        loses at most about `checkpoint_seconds` of work.
        """
        every = float(self.params.get("checkpoint_seconds", CHECKPOINT_SECONDS))
        return self.interrupted or time.monotonic() - self._saved_at >= every

    @contextmanager
    def checkpoint(self) -> Iterator[Path]:
        """Give a `with` block an empty folder to save into.

        The folder becomes the new checkpoint when the block ends. If the block raises, the previous
        checkpoint stays valid. On another machine, links are restored as the files and folders to
        which they led. In a gang, the end of the block also sends the checkpoint to the
        access point, and waits until this has succeeded or failed.
        """
        previous = self._manifest["folder"]
        name = "b" if previous == "a" else "a"
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
        if previous:
            shutil.rmtree(self._checkpoints / previous, ignore_errors=True)
        # The time since `_began` still counts; add only the seconds of previous attempts.
        self._manifest = manifest | {"seconds": self._manifest["seconds"]}
        _send_checkpoint()
        self._saved_at = time.monotonic()

    def yield_node(self) -> NoReturn:
        """Exit, so that the last checkpoint is sent to the access point.

        The trial continues from this checkpoint in a new process. If the job must leave this
        machine, the new process runs on another machine.
        """
        sys.exit(EXIT_CHECKPOINTED)

    # Early stopping

    def should_stop(self) -> bool:
        """Return whether the study stops this trial early.

        If so, save what you need, and call `stop`. If the trial keeps running, the job ends it
        after the study's `early_stopping.grace_seconds`.
        """
        try:
            return (self._folder / "stop.json").stat().st_size > 0
        except OSError:
            return False

    # Reports and results

    def report(self, step: int, **metrics: float) -> None:
        """Report the metrics after a step, by a new line of `progress.jsonl`.

        A trial that starts again from a checkpoint repeats the steps after that checkpoint. So
        `start` removes the lines of these steps.
        """
        finite = _finite_metrics(metrics)
        values = {name: finite.get(name) for name in metrics}  # None for NaN, which JSON lacks
        line = {"step": step, "metrics": values, "time": time.time()}
        with self._progress.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def evaluated(
        self, name: str, losses: Iterable[float] | None = None, note: str = "", **metrics: float
    ) -> None:
        """Report a model's losses and metrics, in mode "evaluate".

        Call `complete()` after the last model.

        Args:
            name: the model's name in `models`, or "baseline" for a constant prediction.
            losses: the model's loss for each row. All models need the same rows in the same order.
                The gate uses the losses to test whether the difference between two models is due to
                chance. Without losses, it only compares the metrics.
            note: a remark for people, which the gate's verdict repeats.
            metrics: the model's metrics. NaN and infinite values are left out.
        """
        self._evaluated[name] = {"metrics": _finite_metrics(metrics)} | (
            {"note": note} if note else {}
        )
        if losses is not None:
            folder = self._folder / "losses"
            folder.mkdir(exist_ok=True)
            lines = (f"{float(loss):.9g}\n" for loss in losses)
            (folder / f"{name}.txt").write_text("".join(lines), encoding="utf-8")

    def complete(self, **metrics: float) -> NoReturn:
        """Write the result, and exit.

        If the objective is NaN or infinite, the trial is rejected instead.

        Args:
            metrics: the trial's metrics, including the objective. NaN and infinite values are left
                out. In mode "evaluate" the metrics are ignored.

        Raises:
            ValueError: the objective is not among the metrics. In mode "evaluate": `evaluated` was
                not called for a model.
        """
        if self.mode == "evaluate":
            if missing := [name for name in self.models if name not in self._evaluated]:
                raise ValueError(
                    "call evaluated() for each model before complete(); these models are missing: "
                    f"{', '.join(missing)}"
                )
            self._write_result("complete", models=self._evaluated)
            sys.exit(0)
        finite = _finite_metrics(metrics)
        if self.metric is not None and self.metric not in finite:
            if self.metric in metrics:
                self.reject(f"the objective {self.metric} is {float(metrics[self.metric])}")
            known = ", ".join(sorted(metrics)) or "none"
            raise ValueError(f"the objective {self.metric!r} is not among the metrics: {known}")
        self._write_result("complete", metrics=finite)
        sys.exit(0)

    def stop(self, **metrics: float) -> NoReturn:
        """Report that the trial was stopped early, with its last metrics, and exit.

        The metrics need not include the objective.
        """
        self._write_result("stopped", metrics=_finite_metrics(metrics))
        sys.exit(0)

    def reject(self, why: str) -> NoReturn:
        """Report that these parameters can't be trained, for the reason `why`, and exit.

        The trial is not retried.
        """
        self._write_result("failed", metrics={}, error=why)
        print(f"rejected: {why}", file=sys.stderr)
        sys.exit(EXIT_REJECTED)

    # Inside

    def _note_interrupt(self, _signal: int, _frame: object) -> None:
        self.interrupted = True

    def _seconds(self) -> float:
        return float(self._manifest["seconds"]) + time.monotonic() - self._began

    def _write_result(self, status: str, **rest: Any) -> None:
        result = {"schema": SCHEMA, "status": status, "seconds": round(self._seconds(), 3)}
        _write_json(self._folder / "result.json", {**result, "device": self.device, **rest})
        self._has_result = True

    def _read_manifest(self) -> dict[str, Any]:
        """Return the content of complete.json; empty if there is no valid checkpoint."""
        while True:
            text = _read(self._checkpoints / "complete.json")
            manifest, problem = self._check(text)
            # Another process may have saved a new checkpoint meanwhile: then read again.
            if manifest or _read(self._checkpoints / "complete.json") == text:
                break
        if problem:
            print(problem, file=sys.stderr)
        return manifest or {"folder": None, "files": {}, "progress_bytes": 0, "seconds": 0.0}

    def _check(self, text: str | None) -> tuple[dict[str, Any] | None, str | None]:
        if text is None:
            return None, None
        try:
            manifest: dict[str, Any] = json.loads(text)
            folder = self._checkpoints / manifest["folder"]
            # HTCondor's spool adds files and never removes any. rglob doesn't follow links, behind
            # which are the user's own files.
            for path in [*folder.rglob("*")]:
                if path.is_file() and str(path.relative_to(folder)) not in manifest["files"]:
                    path.unlink(missing_ok=True)
            sums = {name: _checksum(folder / name) for name in manifest["files"]}
        except (OSError, ValueError, LookupError, TypeError) as error:
            words = "The checkpoint can't be read, so the trial starts from the beginning"
            return None, f"{words}: {error!r}"
        if sums != manifest["files"]:
            return None, "The checkpoint is damaged, so the trial starts from the beginning."
        return manifest, None


def _is_first_process(folder: Path) -> bool:
    """Return whether no parent process of this one has started the trial in `folder`.

    Processes that a trainer starts, such as the workers that load its data, may import the trainer
    again, and so start its trial again.
    """
    own = f"{os.getpid()} {folder}"
    first = os.environ.get(_FIRST_PROCESS, own)
    if first != own and first.partition(" ")[2] == str(folder):
        return False
    os.environ[_FIRST_PROCESS] = own
    return True


def _ranks() -> tuple[int, int, str | None]:
    given = os.environ
    rank, world = given.get("RANK", given.get("LOCAL_RANK", "0")), given.get("WORLD_SIZE", "1")
    host, port = given.get("MASTER_ADDR"), given.get("MASTER_PORT")
    if not rank.isdecimal() or not world.isdecimal():
        return 0, 1, None  # variables of another program
    return int(rank), int(world), f"tcp://{host}:{port}" if port else None


def _send_checkpoint() -> None:
    """In a gang, let the agent send the checkpoint, and wait until it has succeeded or failed."""
    if (agent := os.environ.get("TRIALFLEET_AGENT")) is None:
        return
    with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
        connection.connect(agent)
        connection.sendall(b"saved\n")
        connection.recv(16)


# Several trials in one process


def _agent() -> socket.socket | None:
    """Return the agent's socket for more trials, or None if it didn't start this process."""
    # Remove the variable, so that programs that the trainer starts don't inherit it.
    number = os.environ.pop("TRIALFLEET_STAYS", "")
    try:
        agent = socket.socket(fileno=int(number))
    except (ValueError, OSError):  # run by hand, or a program in between kept only the variable
        return None
    try:
        packed = agent.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        packed = bytes(struct.calcsize("3i"))
    # The agent must be the parent: a program in between may have work left after this process.
    if struct.unpack("3i", packed)[0] == os.getppid():
        agent.set_inheritable(False)
        return agent
    agent.detach()
    return None


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # the stream is missing or closed
            stream.flush()
    with suppress(ImportError, OSError):
        import ctypes

        ctypes.CDLL(None).fflush(None)


def _receive(agent: socket.socket) -> bytes:
    word = b""
    with suppress(ConnectionError):
        word = agent.recv(1 << 16)
    if not word:
        sys.exit(0)
    return word


def _take_up(order: dict[str, str]) -> None:
    path = Path(order["trial"])
    os.chdir(path.parent)
    os.environ["TRIALFLEET_TRIAL"] = order["trial"]
    for name, descriptor in (("out", 1), ("err", 2)):
        file = os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        if file == descriptor:  # the trial before had closed it
            os.set_inheritable(file, True)  # noqa: FBT003
            continue
        os.dup2(file, descriptor)
        os.close(file)


# Files


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        print(f"The checkpoint can't be read: {error}", file=sys.stderr)
        return None


def _finite_metrics(metrics: dict[str, Any]) -> dict[str, float]:
    numbers = {name: float(value) for name, value in metrics.items()}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _files(folder: Path) -> list[str]:
    """Return the names of a checkpoint's files as the agent sends them: links are followed.

    A link to a folder in which it is itself is left out.
    """
    found: list[str] = []
    ways: list[tuple[Path, tuple[str, ...]]] = [(folder, (os.path.realpath(folder.parent),))]
    while ways:
        path, above = ways.pop()
        if path.is_file():
            found.append(str(path.relative_to(folder)))
        elif os.access(path, os.R_OK | os.X_OK) and path.is_dir():
            real = os.path.realpath(path)
            inside = [] if real in above else path.iterdir()
            ways += [(each, (*above, real)) for each in inside]
    return sorted(found)


def _checksum(path: Path) -> int:
    """Return the CRC-32 of a file, which suffices to detect an incomplete transfer."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_json(path: Path, value: object) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    _sync(beside)
    beside.replace(path)
    _sync(path.parent)
