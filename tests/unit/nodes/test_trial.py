"""The helper for Python trainers: a trainer's inputs, its reports, and its interruption."""

from __future__ import annotations

import ast
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trialfleet.nodes import trial
from trialfleet.nodes.job.pack_and_unpack import pack, unpack_file

ORDER = {
    "schema": 1,
    "study": "flights",
    "run": "r",
    "region": "São Paulo",
    "node": "n",
    "trial": 3,
    "mode": "tune",
    "seed": 7,
    "params": {"x": 0.5, "checkpoint_seconds": 1000},
    "objective": {"metric": "loss", "direction": "maximize"},
    "data": ["a b.csv", "c.csv"],
    "accelerator": "cpu",
    "gpus": 2,
    "gpu_share": 1.0,
}


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A trial's folder as HTCondor sets it up: results and checkpoint exist and are empty."""
    folder = tmp_path / "sandbox"
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "result.json").touch()
    (folder / "progress.jsonl").touch()
    (folder / "trial.json").write_text(json.dumps(ORDER))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TRIALFLEET_TRIAL", "trial.json")
    before = signal.getsignal(signal.SIGTERM)
    yield folder
    signal.signal(signal.SIGTERM, before)


def order(sandbox: Path, **changes: Any) -> None:
    (sandbox / "trial.json").write_text(json.dumps({**ORDER, **changes}))


def result(sandbox: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((sandbox / "result.json").read_text())
    return found


def steps(sandbox: Path) -> list[int]:
    lines = (sandbox / "progress.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def save(t: trial.Trial, content: str) -> None:
    with t.checkpoint() as folder:
        (folder / "state").write_text(content)


def save_half(t: trial.Trial) -> None:
    with t.checkpoint() as folder:
        (folder / "state").write_text("half")
        raise OSError("disk full")


def test_a_trainer_gets_all_settings_of_trial_json(sandbox: Path) -> None:
    t = trial.start()
    assert (t.params["x"], t.seed, t.region, t.mode) == (0.5, 7, "São Paulo", "tune")
    assert [path.name for path in t.data] == ["a b.csv", "c.csv"]
    assert (t.accelerator, t.metric, t.direction) == ("cpu", "loss", "maximize")
    assert (t.gpus, t.gpu_share) == (2, 1.0)


def test_an_empty_object_is_a_valid_trial_json(sandbox: Path) -> None:
    (sandbox / "trial.json").write_text("{}")
    t = trial.start()
    assert (t.accelerator, t.gpus, t.gpu_share) == ("cpu", 0, 1.0)
    with pytest.raises(SystemExit):
        t.complete(anything=1)
    assert result(sandbox)["metrics"] == {"anything": 1.0}


def test_a_trial_json_written_by_hand_may_ask_for_a_gpu(sandbox: Path) -> None:
    (sandbox / "trial.json").write_text('{"accelerator": "gpu"}')
    assert trial.start().gpus == 1


def test_a_full_training_creates_a_folder_for_its_model(sandbox: Path) -> None:
    trial.start()
    assert not (sandbox / "model").exists()
    (sandbox / "trial.json").write_text('{"mode": "final"}')
    for _ in range(2):  # an attempt after another
        (trial.start().model / "weights").write_text("w")


def test_a_trainer_without_a_trial_explains_how_to_run_one(
    sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRIALFLEET_TRIAL")
    (sandbox / "trial.json").unlink()
    with pytest.raises(SystemExit) as stopped:
        trial.start()
    command = next(line for line in str(stopped.value.code).splitlines() if "echo" in line)
    subprocess.run(command, shell=True, check=True, cwd=sandbox)  # its advice works
    assert trial.start().params == {"learning_rate": 0.01}


@pytest.mark.parametrize("text", ["", "[1]", '{"schema": 2}', "{"])
def test_a_trial_json_that_cannot_be_used_is_named(sandbox: Path, text: str) -> None:
    (sandbox / "trial.json").write_text(text)
    with pytest.raises(SystemExit, match=r"trial\.json"):
        trial.start()


def test_complete_leaves_the_result_and_exits_0(sandbox: Path) -> None:
    t = trial.start()
    t.device = "a fine GPU"
    with pytest.raises(SystemExit) as stopped:
        t.complete(loss=0.25, count=3)
    assert stopped.value.code == 0
    left = result(sandbox)
    assert left.pop("seconds") > 0
    assert left == {
        "schema": 1,
        "status": "complete",
        "device": "a fine GPU",
        "metrics": {"loss": 0.25, "count": 3.0},
    }


def test_a_trainer_may_change_its_working_directory(sandbox: Path, tmp_path: Path) -> None:
    order(sandbox, mode="final")
    t = trial.start()
    os.chdir(tmp_path)
    t.report(1, loss=0.5)
    (t.model / "weights").write_text("w")
    save(t, "state")
    with pytest.raises(SystemExit):
        t.complete(loss=0.25)
    assert result(sandbox)["metrics"] == {"loss": 0.25}
    assert steps(sandbox) == [1]
    assert (sandbox / "model/weights").exists()
    assert (sandbox / "checkpoint/a/state").exists()


def test_a_trainer_may_start_its_trial_from_another_working_directory(
    sandbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIALFLEET_TRIAL", str(sandbox / "trial.json"))
    assert trial.start().data[0] == Path("a b.csv"), "the same name in each trial of a job"
    os.chdir(tmp_path)
    assert trial.start().data[0] == sandbox / "a b.csv"


def test_complete_without_the_objective_is_an_error(sandbox: Path) -> None:
    with pytest.raises(ValueError, match="'loss' is not among the metrics: accuracy, auc"):
        trial.start().complete(auc=1.0, accuracy=1.0)
    assert (sandbox / "result.json").read_text() == ""


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_objective_that_is_not_finite_is_rejected(sandbox: Path, value: float) -> None:
    with pytest.raises(SystemExit) as stopped:
        trial.start().complete(loss=value, auc=0.5)
    assert stopped.value.code == trial.EXIT_REJECTED == 64
    left = result(sandbox)
    assert (left["status"], left["error"]) == ("failed", f"the objective loss is {value}")


def test_another_metric_that_is_not_finite_is_left_out(sandbox: Path) -> None:
    with pytest.raises(SystemExit):
        trial.start().complete(loss=1.0, auc=math.nan)
    assert result(sandbox)["metrics"] == {"loss": 1.0}


def test_a_stopped_trial_leaves_with_its_results_so_far(sandbox: Path) -> None:
    t = trial.start()
    assert not t.should_stop()  # the study has no early stopping
    (sandbox / "stop.json").touch()
    assert not t.should_stop()  # the order comes later
    (sandbox / "stop.json").write_text('{"predicted": 0.9}')
    assert t.should_stop()
    with pytest.raises(SystemExit) as left:
        t.stop(auc=0.5, loss=math.nan)
    assert left.value.code == 0
    assert (result(sandbox)["status"], result(sandbox)["metrics"]) == ("stopped", {"auc": 0.5})


def test_reject_says_why_and_exits_64(sandbox: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        trial.start().reject("too wide")
    assert stopped.value.code == 64
    assert (result(sandbox)["status"], result(sandbox)["error"]) == ("failed", "too wide")
    assert "too wide" in capsys.readouterr().err


def test_progress_is_a_json_line_per_report_with_null_for_nan(sandbox: Path) -> None:
    trial.start().report(4, loss=math.nan, auc=0.5)
    line = json.loads((sandbox / "progress.jsonl").read_text())
    assert line.pop("time") > 1.6e9
    assert line == {"step": 4, "metrics": {"loss": None, "auc": 0.5}}


def test_restore_without_a_checkpoint_returns_none(sandbox: Path) -> None:
    assert trial.start().restore() is None


def test_the_last_complete_checkpoint_is_restored(sandbox: Path) -> None:
    t = trial.start()
    for content in ("one", "two", "three"):
        save(t, content)
        folder = trial.start().restore()
        assert folder is not None
        assert (folder / "state").read_text() == content
    assert len(list((sandbox / "checkpoint").glob("*/state"))) == 1  # the previous ones are gone


def test_a_checkpoint_may_hold_folders(sandbox: Path) -> None:
    with trial.start().checkpoint() as folder:
        (folder / "deep/er").mkdir(parents=True)
        (folder / "deep/er/weights").write_bytes(b"w")
    restored = trial.start().restore()
    assert restored is not None
    assert (restored / "deep/er/weights").read_bytes() == b"w"


def arrive_elsewhere(sandbox: Path, folder: Path) -> trial.Trial:
    """Send the checkpoint to another machine, as an agent does, and start the trial there."""
    with (folder.with_suffix(".tar")).open("wb") as file:
        pack(["checkpoint"], sandbox, file.write)
    folder.mkdir()
    (folder / "trial.json").write_text(json.dumps(ORDER))
    with (folder.with_suffix(".tar")).open("rb") as file:
        unpack_file(file, folder)
    os.chdir(folder)
    return trial.start()


def test_a_checkpoint_may_hold_links_to_folders_and_files(sandbox: Path, tmp_path: Path) -> None:
    """Such as a link to the epoch that was the best."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/vocabulary").write_text("words")
    with trial.start().checkpoint() as folder:
        (folder / "epoch-3").mkdir()
        (folder / "epoch-3/weights").write_text("w")
        (folder / "epoch-3/last").symlink_to("weights")
        (folder / "best").symlink_to("epoch-3")
        (folder / "tokens").symlink_to(tmp_path / "outside")
        (folder / "epoch-3/above").symlink_to("..")  # a loop
        (folder / "gone").symlink_to("nowhere")
    (tmp_path / "outside/later").write_text("the user's own")
    assert trial.start().restore() == folder
    assert (tmp_path / "outside/later").exists()
    (tmp_path / "outside/later").unlink()
    restored = arrive_elsewhere(sandbox, tmp_path / "elsewhere").restore()
    assert restored is not None
    found = {
        str(p.relative_to(restored)): p.read_text() for p in restored.rglob("*") if p.is_file()
    }
    of_epoch = {"weights": "w", "last": "w"}
    assert found == {
        **{f"{top}/{name}": text for top in ("epoch-3", "best") for name, text in of_epoch.items()},
        "tokens/vocabulary": "words",
    }


def test_a_checkpoint_that_fails_half_way_leaves_the_previous_one(sandbox: Path) -> None:
    t = trial.start()
    save(t, "good")
    with pytest.raises(OSError, match="disk full"):
        save_half(t)
    restored = trial.start().restore()
    assert restored is not None
    assert (restored / "state").read_text() == "good"
    save(t, "better")  # and the next one counts
    restored = trial.start().restore()
    assert restored is not None
    assert (restored / "state").read_text() == "better"


@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "manifest", "bytes", "folder"])
def test_a_damaged_checkpoint_is_not_restored(
    sandbox: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(trial.start(), "some content")
    (state,) = (sandbox / "checkpoint").glob("*/state")
    if damage == "cut":
        state.write_text("some con")
    elif damage == "flip":
        state.write_text("some c0ntent")
    elif damage == "remove":
        state.unlink()
    elif damage == "folder":
        (sandbox / "checkpoint/complete.json").unlink()
        (sandbox / "checkpoint/complete.json").mkdir()
    else:
        text = b'{"folder": ' if damage == "manifest" else b"\xff"
        (sandbox / "checkpoint/complete.json").write_bytes(text)
    assert trial.start().restore() is None
    assert "The checkpoint " in capsys.readouterr().err


def test_files_that_the_checkpoint_did_not_have_are_removed(sandbox: Path) -> None:
    """HTCondor's spool keeps every file that it ever got under a name."""
    save(trial.start(), "x")
    (state,) = (sandbox / "checkpoint").glob("*/state")
    state.with_name("stale").write_text("of an older checkpoint")
    restored = trial.start().restore()
    assert restored is not None
    assert [path.name for path in restored.iterdir()] == ["state"]


def test_progress_after_the_checkpoint_is_removed(sandbox: Path) -> None:
    t = trial.start()
    t.report(1, loss=1)
    save(t, "")
    t.report(2, loss=1)
    t.report(3, loss=1)
    assert steps(sandbox) == [1, 2, 3]
    trial.start()  # on another machine
    assert steps(sandbox) == [1]


def test_without_a_checkpoint_progress_begins_again(sandbox: Path) -> None:
    trial.start().report(1, loss=1)
    trial.start().report(1, loss=1)
    assert steps(sandbox) == [1]


SPAWNS = """
import multiprocessing, sys
import trial

t = trial.start()
if __name__ == "__main__":
    t.report(1, loss=1)
    worker = multiprocessing.get_context(sys.argv[1]).Process(target=sorted, args=("ab",))
    worker.start()
    worker.join()
    sys.exit(worker.exitcode)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_helper_process_that_imports_the_trainer_keeps_the_progress(
    sandbox: Path, method: str
) -> None:
    (sandbox / "train.py").write_text(SPAWNS)
    helper = {**os.environ, "PYTHONPATH": str(Path(trial.__file__).parent)}
    for _ in range(2):  # without a checkpoint, each attempt begins again
        subprocess.run([sys.executable, "train.py", method], env=helper, check=True)
        assert steps(sandbox) == [1]


RANK = """
import json, os, sys, time
from pathlib import Path
import trial

Path(f"ready-{os.environ['RANK']}").touch()
while not Path("go").exists():
    time.sleep(0.001)
t = trial.start()
saved = t.restore()
print(json.dumps(sorted(path.name for path in saved.iterdir()) if saved else None))
"""


def start_rank(rank: int) -> subprocess.Popen[str]:
    helper = {**os.environ, "PYTHONPATH": str(Path(trial.__file__).parent), "RANK": str(rank)}
    command = [sys.executable, "-c", RANK]
    return subprocess.Popen(command, env=helper, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_ranks_may_restore_at_the_same_time_and_keep_the_progress(sandbox: Path) -> None:
    t = trial.start()
    t.report(1, loss=1)
    save(t, "x")
    (state,) = (sandbox / "checkpoint").glob("*/state")
    for i in range(300):  # of older checkpoints, in HTCondor's spool
        state.with_name(f"stale{i}").write_text("x" * 1000)
    ranks = [start_rank(rank) for rank in range(6)]
    while len(list(sandbox.glob("ready-*"))) < len(ranks):
        time.sleep(0.01)
    (sandbox / "go").touch()
    outputs = [rank.communicate()[0] for rank in ranks]
    assert outputs == ['["state"]\n'] * len(ranks)
    assert steps(sandbox) == [1]


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK"])
def test_a_late_rank_removes_no_progress(
    sandbox: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    first = trial.start()
    first.report(1, loss=1)
    monkeypatch.setenv(name, "1")
    trial.start()
    assert steps(sandbox) == [1]
    monkeypatch.setenv(name, "0")
    trial.start()
    assert steps(sandbox) == []


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again(
    sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rank may save already when this one begins to restore."""
    t = trial.start()
    save(t, "one")
    checksum = trial._checksum

    def save_meanwhile(path: Path) -> int:
        monkeypatch.setattr(trial, "_checksum", checksum)
        save(t, "two")
        return checksum(path)

    monkeypatch.setattr(trial, "_checksum", save_meanwhile)
    restored = trial.start().restore()
    assert restored is not None
    assert (restored / "state").read_text() == "two"


def test_seconds_add_up_over_attempts(sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    for attempt in (1, 2):  # each 10 s to the checkpoint, lost time after it
        monkeypatch.setattr(trial, "_IMPORTED", now)
        t = trial.start()
        now += 6
        save(t, "first")
        now += 4
        save(t, str(attempt))
        now += 1000
    monkeypatch.setattr(trial, "_IMPORTED", now)
    t = trial.start()
    now += 5
    with pytest.raises(SystemExit):
        t.complete(loss=1)
    assert result(sandbox)["seconds"] == 25


def test_a_checkpoint_is_due_after_each_interval(
    sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    order(sandbox, params={"checkpoint_seconds": 60})
    t = trial.start()
    t.restore()
    now = 59
    assert not t.should_checkpoint()
    now = 61
    assert t.should_checkpoint()
    save(t, "")
    assert not t.should_checkpoint()


def test_sigterm_makes_a_checkpoint_due(sandbox: Path) -> None:
    t = trial.start()
    t.restore()
    assert (t.interrupted, t.should_checkpoint()) == (False, False)
    os.kill(os.getpid(), signal.SIGTERM)
    assert (t.interrupted, t.should_checkpoint()) == (True, True)
    with pytest.raises(SystemExit) as stopped:
        t.yield_node()
    assert stopped.value.code == trial.EXIT_CHECKPOINTED == 85


def test_a_trainer_without_checkpoints_still_ends_on_sigterm(sandbox: Path) -> None:
    code = "import os, signal, trial; trial.start(); os.kill(os.getpid(), signal.SIGTERM)"
    helper = {**os.environ, "PYTHONPATH": str(Path(trial.__file__).parent)}
    ended = subprocess.run([sys.executable, "-c", code], env=helper)
    assert ended.returncode == -signal.SIGTERM


@pytest.mark.slow
def test_the_trainers_in_the_docstring_work(sandbox: Path) -> None:
    blocks = (trial.__doc__ or "").split("::\n")[1:]
    short, staying, long, measuring = (
        textwrap.dedent("\n".join(_indented(block.splitlines()))) for block in blocks
    )
    model = """
class Model:
    step, loss = 0, 2.0
    def __init__(self, *_): pass
    def train_one_step(self): self.step += 1
    def save(self, path): path.write_text(str(self.step))
    @staticmethod
    def load(path):
        m = Model()
        m.step = int((path / "w" if path.is_dir() else path).read_text())
        return m
    def losses(self, data): return [self.step, self.step + 1]
import trial
"""
    order(sandbox, params={"x": 5, "steps": 3, "checkpoint_seconds": 0})
    environment = {**os.environ, "PYTHONPATH": str(Path(trial.__file__).parent)}
    command = [sys.executable, "-c"]
    assert subprocess.run([*command, short], env=environment).returncode == 0
    assert result(sandbox)["metrics"] == {"loss": 9.0}
    (sandbox / "a b.csv").write_text("1\n3\n")
    assert subprocess.run([*command, staying], env=environment).returncode == 0
    assert result(sandbox)["metrics"] == {"loss": 20.0}
    codes = [subprocess.run([*command, model + long], env=environment).returncode for _ in "1234"]
    assert codes == [85, 85, 85, 0]
    assert steps(sandbox) == [1, 2, 3]
    assert result(sandbox)["metrics"] == {"loss": 2.0}
    (sandbox / "stop.json").write_text('{"predicted": 2.0}')
    order(sandbox, params={"x": 5, "steps": 9})
    assert subprocess.run([*command, model + long], env=environment).returncode == 0
    assert (steps(sandbox), result(sandbox)["status"]) == ([1, 2, 3, 4], "stopped")
    order(sandbox, mode="evaluate", models={"champion": "old", "challenger": "new"})
    for name, step in (("old", 3), ("new", 1)):
        (sandbox / name).mkdir()
        (sandbox / name / "w").write_text(str(step))
    measure = model + "t = trial.start()\n" + measuring
    assert subprocess.run([*command, measure], env=environment).returncode == 0
    values = {name: found["metrics"] for name, found in result(sandbox)["models"].items()}
    assert values == {"champion": {"loss": 3.5}, "challenger": {"loss": 1.5}}
    assert (sandbox / "losses/champion.txt").read_text() == "3\n4\n"


def test_complete_fails_until_all_models_are_measured(sandbox: Path) -> None:
    order(sandbox, mode="evaluate", models={"champion": "old", "challenger": "new"})
    t = trial.start()
    assert t.models == {"champion": sandbox / "old", "challenger": sandbox / "new"}
    t.evaluated("champion", loss=0.5, odd=math.nan)
    with pytest.raises(ValueError, match=r"before complete\(\); .* missing: challenger"):
        t.complete()
    t.evaluated("challenger", iter([0.25]), loss=0.25)
    with pytest.raises(SystemExit) as left:
        t.complete()
    assert left.value.code == 0
    assert result(sandbox)["models"] == {
        "champion": {"metrics": {"loss": 0.5}},
        "challenger": {"metrics": {"loss": 0.25}},
    }
    assert (sandbox / "losses" / "challenger.txt").read_text() == "0.25\n"
    assert not (sandbox / "losses" / "champion.txt").exists()


def _indented(lines: list[str]) -> list[str]:
    """Return the first lines that are indented or empty."""
    end = next((i for i, line in enumerate(lines) if line and line[0] != " "), len(lines))
    return lines[:end]


def test_a_trainer_in_another_language_needs_only_the_json_contract(sandbox: Path) -> None:
    program = Path(__file__).parents[2] / "pool/trainers/quadratic.sh"
    order(sandbox, params={"x": -1.5, "steps": 40}, mode="final")
    (sandbox / "model").mkdir()
    trainer = subprocess.Popen(["sh", program])
    while not (sandbox / "checkpoint/step").exists():
        assert trainer.poll() is None
        time.sleep(0.01)
    trainer.terminate()
    assert trainer.wait() == 85
    (sandbox / "checkpoint/step").write_text("39\n")
    assert subprocess.run(["sh", program]).returncode == 0
    assert result(sandbox)["metrics"] == {"loss": 12.25}
    assert steps(sandbox)[-1] == 40
    assert (sandbox / "model/x").read_text() == "-1.5\n"


def test_the_helper_is_one_file_of_the_standard_library() -> None:
    tree = ast.parse(Path(trial.__file__).read_text())
    modules = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or "."]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert modules <= set(sys.stdlib_module_names)
