"""The publish folder's copy in S3: complete models, and a pointer that only people move back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from click.testing import CliRunner

from tests.moto_server import s3_with_bucket
from tests.unit.export.exported_models import publish_model, publish_models
from trialfleet import plan
from trialfleet.errors import ExportError
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.export.export_pass import export_all
from trialfleet.workflows.control.export.published_models import read_published
from trialfleet.workflows.control.export.s3_mirror import S3Mirror, replaces
from trialfleet.workflows.control.models.latest import promote, rollback
from trialfleet.workflows.facts.models.export_folder import ExportFolder, Targets, export_problems
from trialfleet.workflows.study.export import Export, Keep
from trialfleet.workflows.study.sections import S3Keys

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

pytestmark = pytest.mark.slow


URL = "s3://models-of-ours/some/prefix"


@pytest.fixture
def s3(moto: str, monkeypatch: pytest.MonkeyPatch) -> S3Client:
    return s3_with_bucket(moto, "models-of-ours", monkeypatch)


def keys(s3: S3Client) -> set[str]:
    found = s3.list_objects_v2(Bucket="models-of-ours").get("Contents", [])
    return {one["Key"].removeprefix("some/prefix/demo/A/") for one in found}


def read(s3: S3Client, key: str) -> Any:
    key = f"some/prefix/demo/A/{key}"
    return json.loads(s3.get_object(Bucket="models-of-ours", Key=key)["Body"].read())


def files_of(run: str) -> set[str]:
    names = ("deep/weights", "empty", "provenance.json", "metrics.json", "card.json")
    return {f"{run}.json", *(f"{run}/{name}" for name in names)}


def export(s3: S3Client, models_folder: Path, keep: Keep | None = None) -> list[str]:
    return S3Mirror(s3, URL).export(read_published(models_folder), keep)


def test_models_are_copied_completely_and_the_pointer_names_the_current_one(
    s3: S3Client, tmp_path: Path
) -> None:
    folder = publish_models(tmp_path, "r1", "r2")
    assert export(s3, folder) == ["r1: copied", "r2: copied", "latest.json is r2"]
    assert keys(s3) == {"latest.json", *files_of("r1"), *files_of("r2")}
    pointer = read(s3, "latest.json")
    assert (pointer["run"], pointer["model"]) == ("r2", f"{URL}/demo/A/r2/")
    listed = {one["name"]: one["bytes"] for one in read(s3, "r2.json")["files"]}
    assert listed["deep/weights"] == len("weights of r2")
    assert export(s3, folder) == []  # twice is once


def test_the_pointer_follows_rollback_and_promote(s3: S3Client, tmp_path: Path) -> None:
    folder = publish_models(tmp_path, "r1", "r2", "r3")
    export(s3, folder)
    rollback(folder)
    assert export(s3, folder) == ["latest.json is r2"]
    promote(folder / "r1")
    assert export(s3, folder) == ["latest.json is r1"]
    assert read(s3, "latest.json")["by"] == "promote"


def test_the_pointer_stays_with_the_newer_model_of_another_manager(
    s3: S3Client, tmp_path: Path
) -> None:
    ours = publish_models(tmp_path / "ours", "r1", "r2")
    theirs = publish_models(tmp_path / "theirs", "s1", "s2", "s3")
    export(s3, theirs)
    [*_, message] = export(s3, ours)  # s3 is of a later day
    assert "latest.json stays with s3" in message
    assert str(theirs) in message
    publish_model(ours, "r9", 9)
    assert export(s3, ours) == ["r9: copied", "latest.json is r9"]
    assert "stays with r9" in export(s3, theirs)[0]


def test_two_managers_cannot_export_models_of_the_same_run_id(s3: S3Client, tmp_path: Path) -> None:
    export(s3, publish_models(tmp_path / "ours", "r1"))
    theirs = tmp_path / "theirs" / "models" / "demo" / "A"
    publish_model(theirs, "r1", 5, "other weights")
    with pytest.raises(ExportError, match=r"the same id, 'r1'.*another prefix"):
        export(s3, theirs)
    body = s3.get_object(Bucket="models-of-ours", Key="some/prefix/demo/A/r1/deep/weights")["Body"]
    assert body.read() == b"weights of r1"


def test_a_pointer_that_another_manager_replaces_is_read_again(
    s3: S3Client, tmp_path: Path
) -> None:
    ours, theirs = (publish_models(tmp_path / who, f"{who}1") for who in ("a", "b"))
    export(s3, ours)
    publish_model(ours, "a2", 2)
    publish_model(theirs, "b3", 3)
    other, seen = S3Mirror(s3, URL), list[bool]()

    def between(**_: object) -> None:  # the other writer comes first, once
        if not seen:
            seen.append(True)
            other.export(read_published(theirs), None)

    client = boto3.client("s3")
    client.meta.events.register("provide-client-params.s3.PutObject", _at_pointer(between))
    assert "stays with b3" in S3Mirror(client, URL).export(read_published(ours), None)[-1]
    assert read(s3, "latest.json")["run"] == "b3"


def _at_pointer(act: Any) -> Any:
    def handler(params: dict[str, Any], **_: object) -> None:
        if params["Key"].endswith("latest.json"):
            act()

    return handler


OLD, NEW = "2026-11-20T00:00:00+00:00", "2026-11-24T00:00:00+00:00"


@pytest.mark.parametrize(
    ("by", "as_of", "switched", "theirs_by", "goes"),
    [
        ("publish", NEW, NEW, "publish", True),  # theirs is of between
        ("publish", NEW, OLD, "publish", True),  # newer, though exported late
        ("publish", OLD, NEW, "publish", False),
        ("rollback", OLD, NEW, "publish", True),
        ("rollback", OLD, OLD, "publish", False),  # they have switched since
        ("publish", NEW, OLD, "rollback", False),  # a person's word, later than ours
        ("publish", NEW, NEW, "rollback", True),
        ("publish", OLD, NEW, "rollback", False),
        ("promote", OLD, NEW, "rollback", True),
        ("hand", OLD, None, "publish", False),
    ],
)
def test_a_pointer_is_replaced_only_by_a_later_switch_or_newer_model(
    by: str, as_of: str, switched: str | None, theirs_by: str, goes: bool
) -> None:
    middle = "2026-11-22T00:00:00+00:00"
    theirs = {"by": theirs_by, "as_of": middle, "switched": middle, "writer": "b"}
    ours = {"by": by, "as_of": as_of, "switched": switched, "writer": "a"}
    assert replaces(ours, theirs) is goes
    assert replaces({**ours, "writer": "b"}, theirs)  # one's own next switch


def test_keep_removes_old_models_from_s3_but_never_a_current_one(
    s3: S3Client, tmp_path: Path
) -> None:
    runs = [f"r{number}" for number in range(1, 6)]
    folder = publish_models(tmp_path, *runs)
    export(s3, folder)
    for run in ("r1", "r2", "r3"):  # as the publication did
        shutil.rmtree(folder / run)
    assert export(s3, folder) == []  # without a rule nothing goes
    assert export(s3, folder, Keep(count=3)) == ["removed, by keep: r1, r2"]
    assert keys(s3) == {"latest.json", *files_of("r3"), *files_of("r4"), *files_of("r5")}
    other = publish_models(tmp_path / "new", "r9")  # of a manager that lost its folder
    far = {"writer": "x", "by": "rollback", "switched": "2999-01-01T00:00:00+00:00", "run": "r3"}
    s3.put_object(
        Bucket="models-of-ours",
        Key="some/prefix/demo/A/latest.json",
        Body=json.dumps(far).encode(),
    )
    assert export(s3, other, Keep(count=1))[-1] == "removed, by keep: r4"  # r5 is newer than r9
    assert {"r3.json", "r5.json", "r9.json", "latest.json"} <= keys(s3)


def test_a_file_name_that_is_not_utf_8_is_refused(s3: S3Client, tmp_path: Path) -> None:
    folder = publish_models(tmp_path, "r1")
    (folder / "r1" / "a\udcff").touch()
    with pytest.raises(ExportError, match="not valid UTF-8") as caught:
        export(s3, folder)
    assert str(caught.value).isprintable()
    assert "r1.json" not in keys(s3)


KILLED = """
import json, os, signal, sys
from pathlib import Path
import boto3
from trialfleet.workflows.control.export.published_models import read_published
from trialfleet.workflows.control.export.s3_mirror import S3Mirror
from trialfleet.workflows.study.export import Keep

folder, url, event = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
root = "some/prefix/demo/A/"

def files_of(run):
    names = ("deep/weights", "empty", "provenance.json", "metrics.json", "card.json")
    return {f"{run}.json", *(f"{run}/{name}" for name in names)}

def export_and_die(client, kill_at):
    calls = []
    def count(**_):
        calls.append(1)
        if len(calls) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    client.meta.events.register(event, count)
    S3Mirror(client, url).export(read_published(folder), Keep(count=3))
    os._exit(0)

def look(client):
    found = client.list_objects_v2(Bucket="models-of-ours")["Contents"]
    there = {one["Key"].removeprefix(root) for one in found}
    body = client.get_object(Bucket="models-of-ours", Key=root + "latest.json")["Body"].read()
    in_force = json.loads(body)["run"]
    assert in_force in ("r3", "r4"), in_force
    assert files_of(in_force) <= there, (in_force, there)
    for run in ("r1", "r2", "r3", "r4"):
        assert f"{run}.json" not in there or files_of(run) <= there, (run, there)
    return there

kills = 0
while True:
    client = boto3.client("s3")
    child = os.fork() or export_and_die(client, kills + 1)  # each next one does a little more
    status = os.waitpid(child, 0)[1]
    there = look(boto3.client("s3"))
    if not os.WIFSIGNALED(status):
        break
    kills += 1
assert status == 0
assert there == {"latest.json"}.union(*map(files_of, ("r2", "r3", "r4"))), there
print(kills)
"""
# before a request is sent, and when it was answered
MOMENTS = ("before-send.s3", "after-call.s3")


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_at_any_request_leaves_a_complete_current_model(
    s3: S3Client, tmp_path: Path, moment: str
) -> None:
    folder = publish_models(tmp_path, "r1", "r2", "r3")
    export(s3, folder)
    shutil.rmtree(folder / "r1")
    publish_model(folder, "r4", 4)
    command = [sys.executable, "-c", KILLED, str(folder), URL, moment]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5


# By the study, and by the commands


def targets(url: str = URL) -> Targets:
    return Targets(export=Export(s3=url))


def test_a_region_is_exported_although_another_one_fails(s3: S3Client, tmp_path: Path) -> None:
    publish_models(tmp_path, "r1", region="B")
    (publish_models(tmp_path, "r1") / "r1" / "a\udcff").touch()
    folder, done = ExportFolder(tmp_path / "models" / "demo" / ".export"), list[str]()
    with folder.hold_lock(wait=True):
        problems = export_all(folder, targets(), done.append)
    assert list(problems) == [URL]
    assert problems[URL].startswith("A: ")
    assert f"{URL}: B: latest.json is r1" in done
    assert folder.problems() == problems


@pytest.mark.parametrize("why", ["no bucket", "no server", "no keys"])
def test_an_unreachable_store_is_reported_and_exported_to_later(
    s3: S3Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    publish_models(tmp_path, "r1")
    folder = ExportFolder(tmp_path / "models" / "demo" / ".export")
    with monkeypatch.context() as patch, folder.hold_lock(wait=True):
        if why == "no bucket":
            s3.delete_bucket(Bucket="models-of-ours")
        elif why == "no server":
            patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        else:
            patch.delenv("AWS_ACCESS_KEY_ID")
            patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
            patch.setenv("AWS_CONFIG_FILE", "/dev/null")
        [problem] = export_all(folder, targets(), print).values()
    expected = {"no bucket": "NoSuchBucket", "no server": "127.0.0.1:9", "no keys": "credentials"}
    assert expected[why] in problem
    if why == "no bucket":
        s3.create_bucket(Bucket="models-of-ours")
    with folder.hold_lock(wait=True):
        assert not export_all(folder, targets(), print)
    assert folder.problems() == {}
    assert read(s3, "latest.json")["run"] == "r1"


STUDY = """
name: demo
regions: [A]
data: A.csv
objective: {metric: loss, direction: minimize}
search_space: {x: {type: float, low: 0, high: 1}}
trainer: {command: [sh]}
accelerator: cpu
publish: s3://models-of-ours/some/prefix
"""


def test_the_commands_export_and_report_failed_exports(
    s3: S3Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trialfleet.workflows.study.loading import load_study

    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "A.csv").touch()
    publish_models(tmp_path, "r1", "r2")
    study = load_study("study.yaml")
    assert study.publish == str(tmp_path / "models")
    done = CliRunner().invoke(main, ["export", "study.yaml"])
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, f"{URL}: A: latest.json is r2")
    done = CliRunner().invoke(main, ["export", "study.yaml"])
    assert done.output == "everything is exported\n"
    done = CliRunner().invoke(main, ["rollback", "A"])
    assert done.output.splitlines() == [
        "demo/A: latest is r1 (was r2)",
        f"{URL}: A: latest.json is r1",
    ]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    done = CliRunner().invoke(main, ["promote", "models/demo/A/r2"])
    assert done.exit_code == 0  # it has taken place here
    assert "demo/A: latest is r2 (was r1)" in done.output
    assert "not exported yet" in done.output
    assert export_problems(study)[0].startswith(f"export to {URL}: ")
    done = CliRunner().invoke(main, ["export", "study.yaml", "--json"])
    assert done.exit_code == 1
    assert URL in json.loads(done.stdout)["problems"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.meta.endpoint_url)
    assert CliRunner().invoke(main, ["export", "study.yaml"]).exit_code == 0
    assert read(s3, "latest.json")["run"] == "r2"
    assert export_problems(study) == ()
    for name in ("targets.json", "problems.json"):
        (tmp_path / "models" / "demo" / ".export" / name).write_text("{")
    (line,) = export_problems(study)
    assert line.startswith("it is unknown whether models are exported: '")
    done = CliRunner().invoke(main, ["rollback", "A"])
    assert "demo/A: latest is r1 (was r2)" in done.output
    assert "not exported yet to the study's destinations: '" in done.output
    assert "targets.json' is damaged: it is not JSON" in done.output
    assert read(s3, "latest.json")["run"] == "r2"
    assert CliRunner().invoke(main, ["export", "study.yaml"]).exit_code == 0
    assert read(s3, "latest.json")["run"] == "r1"
    assert export_problems(study) == ()


@pytest.mark.parametrize("named", ["by a profile", "by variables"])
def test_plan_records_where_a_store_other_than_aws_is(
    s3: S3Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "A.csv").touch()
    publish_models(tmp_path, "r1")
    profile = "[profile store]\nregion = auto\naws_access_key_id = id\naws_secret_access_key = x\n"
    given = {"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_PROFILE": "store"}
    if named == "by a profile":
        profile += f"endpoint_url = {s3.meta.endpoint_url}\n"
    else:
        given["AWS_ENDPOINT_URL_S3"] = s3.meta.endpoint_url
        given["AWS_REQUEST_CHECKSUM_CALCULATION"] = "when_required"
    (tmp_path / "config").write_text(profile)
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with monkeypatch.context() as shell:
        for name, value in given.items():
            shell.setenv(name, value)
        plan("study.yaml", run="r2")
    done = CliRunner().invoke(main, ["export", "r2"])  # from another shell
    assert {name: os.environ.pop(name) for name in given} == given  # frozen with the run
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, f"{URL}: A: latest.json is r1")
    assert read(s3, "latest.json")["run"] == "r1"


def test_a_missing_bucket_is_reported_before_there_is_a_model(
    s3: S3Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "A.csv").touch()
    assert CliRunner().invoke(main, ["export", "study.yaml"]).output == "everything is exported\n"
    s3.delete_bucket(Bucket="models-of-ours")
    done = CliRunner().invoke(main, ["export", "study.yaml"])
    assert done.exit_code == 1
    assert f"not exported yet to {URL}: " in done.output
    assert "NoSuchBucket" in done.output


def test_models_are_exported_on_a_day_without_data(
    s3: S3Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(STUDY.replace("A.csv", "'{date}.csv'"))
    publish_models(tmp_path, "r1")
    done = CliRunner().invoke(main, ["export", "study.yaml"])
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, f"{URL}: A: latest.json is r1")


def test_the_study_s_key_files_are_used(
    s3: S3Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_models(tmp_path, "r1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (tmp_path / "id").write_text("id\n")
    keys = S3Keys(access_key_id_file=str(tmp_path / "id"), secret_access_key_file="/nowhere")
    folder = ExportFolder(tmp_path / "models" / "demo" / ".export")
    with folder.hold_lock(wait=True):
        wrong = Targets(export=Export(s3=URL), s3=keys)
        assert export_all(folder, wrong, print) == {
            URL: "/nowhere can't be read: No such file or directory"
        }
        (tmp_path / "secret").write_text("hunter2\n")
        whole = keys.model_copy(update={"secret_access_key_file": str(tmp_path / "secret")})
        assert export_all(folder, Targets(export=Export(s3=URL), s3=whole), print) == {}
    assert read(s3, "latest.json")["run"] == "r1"


@pytest.mark.parametrize("command", [["models"], ["rollback"], ["promote"], ["predict", "x.csv"]])
def test_models_in_s3_are_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").touch()
    done = CliRunner().invoke(main, [command[0], f"{URL}/demo/A", *command[1:]])
    assert done.exit_code == 2
    assert "to copy a model back from S3, see docs/exports.md" in done.output


def test_no_export_file_contains_a_secret(
    s3: S3Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2hunter2")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "A.csv").touch()
    publish_models(tmp_path, "r1")
    assert CliRunner().invoke(main, ["export", "study.yaml"]).exit_code == 0
    for path in (tmp_path / "models" / "demo" / ".export").rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes()


def test_keys_that_only_this_shell_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from trialfleet.errors import InputError
    from trialfleet.infra.fleet.aws.account import check_found_by_jobs

    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    with pytest.raises(InputError, match="does not see these") as caught:
        check_found_by_jobs("the export to s3://b")
    assert "hunter2" not in str(caught.value)
