"""The `fleet:` table: accepted settings, and messages about refused ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.study.study_texts import MINIMAL
from trialfleet.errors import InputError
from trialfleet.infra.fleet.spec.fleet import Gangs, check_regions
from trialfleet.workflows.study.loading import load_fleet
from trialfleet.workflows.study.resolution import studys_fleet

OWN = "name: nightly\naws_regions: [eu-west-1, us-east-1]\n"


def write_fleet(folder: Path, text: str) -> Path:
    path = folder / "fleet.yaml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(InputError) as error:
        load_fleet(write_fleet(folder, text))
    return str(error.value)


def test_a_fleet_may_have_a_file_of_its_own(tmp_path: Path) -> None:
    fleet = load_fleet(write_fleet(tmp_path, OWN + "nodes: {min: 1, max: 3}\n"))
    assert (fleet.full_name, fleet.home, fleet.nodes.min, fleet.nodes.max) == (
        "nightly",
        "eu-west-1",
        1,
        3,
    )


def test_a_fleet_of_a_study_has_the_studys_name(tmp_path: Path) -> None:
    fleet = load_fleet(write_fleet(tmp_path, MINIMAL + "fleet: {aws_regions: [eu-west-1]}\n"))
    assert fleet.full_name


@pytest.mark.parametrize(
    ("study", "fleet"), [("Flights_2013", "flights-2013"), ("a" * 31 + "_b", "a" * 31)]
)
def test_a_studys_name_becomes_one_that_aws_takes(tmp_path: Path, study: str, fleet: str) -> None:
    own = load_fleet(write_fleet(tmp_path, OWN)).model_copy(update={"name": None})
    assert studys_fleet(own, study, None).full_name == fleet


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("zones: [us-west-2a]", "zones.0: is in none of aws_regions: eu-west-1, us-east-1"),
        ("zones: [eu-west-1a, us-east-1b, eu-west-1a]", "zones.2: eu-west-1a is listed twice"),
        (
            "instance_types: [g5.xlarge, g5.xlarge]",
            "instance_types.1: g5.xlarge is listed twice",
        ),
        (
            "subnets: [subnet-0123abcd, subnet-0123abcd]",
            "subnets.1: subnet-0123abcd is listed twice",
        ),
        ("nodes: {min: 5, max: 2}", "nodes.min: must be at most max, which is 2 (got 5)"),
        ("instance_types: [p99]", "instance_types.0: must be an instance type such as g5.xlarge"),
        ("ami: ami-0123456789abcdef0", "ami: an image belongs to one AWS region"),
        ("ami: {eu-west-1: ami-0123456789abcdef0}", "ami: has no image for us-east-1"),
        (
            "tags: {'aws:x': y}",
            "tag 'aws:x': Name and all names that begin with trialfleet: or aws: are",
        ),
        ("tags: {Name: y}", "tag 'Name'"),
        ('tags: {x: "a\\nb"}', "line break"),
        ("manager: 'host name'", "manager: must be a host name or address"),
        ("manager: 10.0.0.1:0", "manager: must be a host name or address, followed by :PORT"),
        ("manager: 10.0.0.1:70000", "manager: must be a host name or address, followed by :PORT"),
        ('manager: "a\nALLOW_READ = *"', "manager: must be a host name or address"),
        ("bucket: Mine", "bucket: must be the name of an S3 bucket"),
        ("spot: {celing: 1}", "did you mean 'ceiling'"),
        ("price_cap: {hour: 0}", "price_cap.hour"),
        ("price_cap: {hour: 4, reserve: 0.5}", "price_cap.reserve: requires run (got 0.5)"),
        (
            "needs: {gpus: 4}\ninstance_types: [g5.xlarge]",
            "needs: has no effect with instance_types; leave one of the two out",
        ),
        ("idle_minutes: ten", "idle_minutes"),
        ("autoscale: yes please", "autoscale"),
        ("ssm: maybe", "ssm: must be true or false (got 'maybe')"),
    ],
)
def test_a_mistake_is_reported_with_its_line_and_key(
    tmp_path: Path, line: str, expected: str
) -> None:
    text = refusal(tmp_path, OWN + line + "\n")
    assert expected in text
    assert "fleet.yaml:3: " in text


def test_the_architecture_of_baked_images_may_stand_beside_instance_types(tmp_path: Path) -> None:
    text = f"{OWN}instance_types: [g5g.xlarge]\nneeds: {{architecture: arm64}}\n"
    assert load_fleet(write_fleet(tmp_path, text)).needs.architecture == "arm64"


def test_tags_that_only_begin_with_name_are_allowed(tmp_path: Path) -> None:
    fleet = load_fleet(write_fleet(tmp_path, OWN + "tags: {Namespace: ml, NameOfTeam: vision}\n"))
    assert fleet.tags == {"Namespace": "ml", "NameOfTeam": "vision"}


def test_the_error_of_an_empty_file_says_study_or_fleet(tmp_path: Path) -> None:
    assert "a study or fleet must be a table of keys and values" in refusal(tmp_path, "")


def test_a_fleet_without_aws_regions_is_refused(tmp_path: Path) -> None:
    words = "aws_regions: must have at least one entry (got [])"
    assert words in refusal(tmp_path, "name: f\naws_regions: []\n")


def test_an_aws_region_that_is_listed_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    text = "name: nightly\naws_regions:\n  - eu-west-1\n  - us-east-1\n  - eu-west-1\n"
    message = refusal(tmp_path, text)
    assert "fleet.yaml:5: aws_regions.2: eu-west-1 is listed twice" in message


def test_an_aws_region_that_is_given_twice_counts_once() -> None:
    assert check_regions(["eu-west-1", "us-east-1", "eu-west-1"]) == ["eu-west-1", "us-east-1"]


def test_a_study_without_a_fleet_table_is_refused(tmp_path: Path) -> None:
    assert "has no `fleet:` table" in refusal(tmp_path, MINIMAL)


def test_a_fleet_alone_needs_a_name(tmp_path: Path) -> None:
    assert "needs a name" in refusal(tmp_path, "aws_regions: [eu-west-1]\n")


@pytest.mark.parametrize(
    ("resources", "accelerator", "shares"),
    [
        ("{}", "gpu", 1),
        ("{gpus: 0.25}", "gpu", 4),
        ("{gpus: 2}", "gpu", 1),
        ("{gpus: 0.5}", "cpu", 1),
    ],
)
def test_a_fleet_shares_gpus_as_its_studys_trials_ask(
    tmp_path: Path, resources: str, accelerator: str, shares: int
) -> None:
    text = MINIMAL.replace("accelerator: cpu", f"accelerator: {accelerator}")
    assert text != MINIMAL or accelerator == "cpu"
    text += f"resources: {resources}\nfleet: {{aws_regions: [eu-west-1]}}\n"
    assert load_fleet(write_fleet(tmp_path, text)).shares == shares


@pytest.mark.parametrize(
    ("text", "gangs"),
    [
        ("resources: {nodes: {min: 2, max: 4}}\n", Gangs()),
        ("regions: {JFK: {nodes: {min: 2, max: 4}}, EWR: {}}\n", Gangs()),
        ("resources: {cpus: 2}\n", None),
    ],
)
def test_a_fleet_serves_gangs_where_its_study_has_some(
    tmp_path: Path, text: str, gangs: Gangs | None
) -> None:
    study = re.sub("regions:.*\n", "", MINIMAL) if text.startswith("regions") else MINIMAL
    fleet = "fleet: {aws_regions: [eu-west-1]}\n"
    assert load_fleet(write_fleet(tmp_path, study + text + fleet)).gangs == gangs


def test_a_fleet_may_choose_how_it_serves_gangs(tmp_path: Path) -> None:
    text = "resources: {nodes: {min: 2, max: 4}}\n"
    own = "fleet: {aws_regions: [eu-west-1], gangs: {efa: false}}\n"
    assert load_fleet(write_fleet(tmp_path, MINIMAL + text + own)).gangs == Gangs(efa=False)
    assert load_fleet(write_fleet(tmp_path, OWN + "gangs: {}\n")).gangs == Gangs()


def test_a_fleets_file_sets_trials_per_gpu_and_probe_thresholds(tmp_path: Path) -> None:
    own = OWN + "trials_per_gpu: 3\nprobe: {launch_rate: 5000, pool_share: 0.9}\n"
    fleet = load_fleet(write_fleet(tmp_path, own))
    assert fleet.shares == 3
    assert fleet.probe.options() == "--launch-rate 5000.0 --pool-share 0.9"
    assert load_fleet(write_fleet(tmp_path, OWN)).probe.options() == ""


@pytest.mark.parametrize(
    "line", ["trials_per_gpu: 0", "probe: {pool_share: 1.5}", "probe: {ecc_uncorrected: -1}"]
)
def test_a_share_or_threshold_that_cannot_be_is_refused(tmp_path: Path, line: str) -> None:
    assert line.partition(":")[0] in refusal(tmp_path, OWN + line + "\n")


def test_an_unknown_threshold_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    text = refusal(tmp_path, OWN + "probe: {bandwith: 3}\n")
    assert "did you mean 'bandwidth'?" in text
