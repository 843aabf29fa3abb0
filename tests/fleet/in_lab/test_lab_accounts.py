"""In the lab: two trials on one node at once, each of which tries to reach what the other has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.in_lab.work_in_lab import FIRST, Work
from tests.fleet.lab.lab import Lab
from tests.fleet.lab.project import HOME, Project

pytestmark = pytest.mark.thorough
ROWS = "x\n" + "1\n" * 50_000
OVER = "/etc/over"  # on the node: the trials end
SECOND = "A.l2.t01"
TRAINER = {"command": ["python3", "intruder.py"], "files": ["intruder.py"]}
INTRUDER = f"""
import json, os, time
from pathlib import Path

order = json.loads(Path(os.environ["TRIALFLEET_TRIAL"]).read_text())
data = Path("rows.csv")


def tried(act):
    try:
        act()
        return "done"
    except OSError as error:
        return type(error).__name__


def ancestors():
    pid = os.getpid()
    while pid:
        yield pid
        status = Path(f"/proc/{{pid}}/status").read_text()
        pid = int(status.partition("PPid:")[2].split()[0])


def neighbours():
    own = set(ancestors())  # its agent among them
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) in own:
                continue
            if b"intruder.py" not in process.joinpath("cmdline").read_bytes():
                continue
            if os.readlink(process / "cwd") != os.getcwd():
                yield process
        except PermissionError:
            yield process
        except OSError:
            pass


def write_data():
    data.chmod(0o644)
    with data.open("r+b") as file:
        return file.write(str(os.getuid()).encode())


def readable_files():
    slot = next(folder for folder in Path.cwd().parents if folder.name.startswith("dir_"))
    for foreign in slot.parent.glob("dir_*"):
        for folder, _, names in os.walk(foreign) if foreign != slot else ():
            for name in names:
                if tried(Path(folder, name).read_bytes) == "done":
                    yield f"{{folder}}/{{name}}"


def look():
    while not (found := list(neighbours())):  # it runs, so its folder has its files
        time.sleep(0.1)
    process = found[0]
    return {{
        "account": os.getuid(),
        "home": os.environ["HOME"],
        "own home": tried(lambda: Path(os.environ["HOME"], "cache").write_text("mine")),
        "homes": [
            tried(lambda home=home: os.listdir(home))
            for home in Path(os.environ["HOME"]).parent.glob("*")
            if str(home) != os.environ["HOME"]
        ],
        "files": list(readable_files()),
        "environment": tried(lambda: (process / "environ").read_bytes()),
        "memory": tried(lambda: (process / "mem").open("rb")),
        "working folder": tried(lambda: os.listdir(process / "cwd")),
        "signal": tried(lambda: os.kill(int(process.name), 0)),
        "data": tried(write_data),
    }}


if order["mode"] == "tune":
    rows = data.read_text().count("1")
    found = look() | {{"rows": rows}}
    time.sleep(3)  # meanwhile the other trial has written, too
    found["head"] = data.read_text()[: len(str(os.getuid()))]
    Path("beside").write_text(json.dumps(found))
    Path("beside").replace("found.json")
    while not Path("{OVER}").exists():
        time.sleep(0.1)
if order["mode"] == "final":
    Path("model/weights").write_text("none")
result = {{"schema": 1, "status": "complete", "metrics": {{"loss": 0.0}}, "seconds": 0.1}}
Path("result.json").write_text(json.dumps(result))
"""


@pytest.fixture(scope="module")
def found(project: Project, lab: Lab) -> list[dict[str, Any]]:
    """The findings of two trials; both have ended, and their region is published."""
    fleet = {"nodes": {"max": 1}}
    project.manager.write(f"{HOME}/intruder.py", INTRUDER, user="ubuntu")
    project.manager.write(f"{HOME}/rows.csv", ROWS, user="ubuntu")
    project.manager.run(["chmod", "600", f"{HOME}/rows.csv"], check=True)
    study: dict[str, Any] = {
        "fleet": fleet,
        "regions": {"A": {"data": ["rows.csv"]}},
        "trainer": TRAINER,
        "resources": {"memory": "100MB", "disk": "20MB", "gpus": 0.5},
    }
    up = project.write_study(**study)
    project.trialfleet("fleet", "up", up, "--nodes", "1", "--wait")
    work = Work(project, "intruders", **study)
    lab.wait_for(lambda: len(work.where()) == 2, "two trials that run")
    node = lab.machine(work.where()[FIRST])
    assert set(work.where()) == {FIRST, SECOND}

    def answers() -> list[dict[str, Any]]:
        cat = "cat $(condor_config_val EXECUTE)/dir_*/scratch/trials/*/found.json 2>/dev/null"
        text = node.run(cat, check=False).stdout.replace("}{", "}\n{")
        return [json.loads(line) for line in text.splitlines()]

    lab.wait_for(lambda: len(answers()) == 2, "two answers")
    reached = answers()
    print(json.dumps(reached, indent=1))
    node.write(OVER, "")
    lab.wait_for(work.published, "the region's model", 120)
    return reached


def test_a_job_does_not_reach_the_job_of_another_slot(found: list[dict[str, Any]]) -> None:
    assert len({one["account"] for one in found}) == 2
    assert len({one["home"] for one in found}) == 2
    for one in found:
        assert one["own home"] == "done"
        for attempt in ("environment", "memory", "working folder", "signal"):
            assert one[attempt] == "PermissionError", attempt
        assert set(one["homes"]) == {"PermissionError"}
        assert {Path(file).name for file in one["files"]} <= {".update.ad"}  # HTCondor's figures


def test_each_job_has_its_own_copy_of_its_regions_file(
    found: list[dict[str, Any]],
) -> None:
    assert {one["rows"] for one in found} == {ROWS.count("1")}
    for one in found:  # each job has a copy of its own, whether or not it may write to it
        unchanged = ROWS[: len(str(one["account"]))]
        assert one["head"] == (str(one["account"]) if one["data"] == "done" else unchanged)
