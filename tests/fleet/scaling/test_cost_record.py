from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.fleet.mock_aws.moto_account import HOME, Account, fleet
from tests.fleet.mock_aws.moto_account import account as new_account
from tests.fleet.mock_aws.nodes_at_hand import NOW, ago, instance
from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws import bucket
from trialfleet.infra.fleet.instances.inventory import Listing
from trialfleet.infra.fleet.scaling import cost_record
from trialfleet.infra.fleet.scaling.instance_costs import Ledger
from trialfleet.infra.fleet.scaling.last_report import kept_ledger, kept_lifetimes
from trialfleet.infra.fleet.spec.machines import Instance


def ledger_of(*looks: tuple[datetime, list[Instance]]) -> Ledger:
    record = Ledger()
    for moment, listed in looks:
        record = record.add_listing(listed, moment)
    return record


def test_a_living_instance_costs_its_price_for_its_age() -> None:
    assert ledger_of((NOW, [instance()])).cost(NOW) == pytest.approx(0.6)
    assert ledger_of((NOW, [instance(minutes=0.1)])).cost(NOW) == pytest.approx(0.6 / 60)
    assert ledger_of((NOW, [instance(price=None)])).cost(NOW) == 0


def test_an_instance_that_aws_forgot_still_counts() -> None:
    later = NOW + timedelta(hours=5)
    record = ledger_of((NOW, [instance()]), (NOW + timedelta(minutes=1), []), (later, []))
    assert record.cost(later) == pytest.approx(0.61)


def test_an_end_that_was_not_seen_is_no_later_than_the_lease() -> None:
    lease_end = NOW + timedelta(minutes=30)
    later = NOW + timedelta(hours=9)
    record = ledger_of((NOW, [instance(expires=lease_end)]), (later, []))
    assert record.cost(later) == pytest.approx(0.9)


def test_the_end_time_reported_by_aws_is_used_by_every_later_listing() -> None:
    gone = instance(state="terminated", ended_at=ago(30))
    for minutes in (0, 30, 50):
        moment = NOW + timedelta(minutes=minutes)
        assert ledger_of((moment, [gone])).cost(moment) == pytest.approx(0.3)
    noticed_late = ledger_of(
        (NOW, [instance()]), (NOW, [instance(state="terminated")]), (NOW, [gone])
    )
    assert noticed_late.cost(NOW) == pytest.approx(0.3)


def test_the_record_kept_at_down_continues_when_the_fleet_comes_up_again() -> None:
    kept = ledger_of((NOW, [instance(state="terminated", ended_at=NOW)])).begin_run("r1", ago(60))
    again = ledger_of((NOW, [instance("i-2")])).begin_run("r2", NOW)
    both = again.combine(kept)
    assert both.cost(NOW) == pytest.approx(1.2)
    assert both.runs == {"r1": ago(60), "r2": NOW}
    assert both.lifetimes["i-1"].ended == NOW
    stale = ledger_of((NOW, [instance()]))  # a bucket that could not be deleted
    assert stale.combine(kept).lifetimes["i-1"].ended == NOW


def test_a_recorded_end_is_removed_only_if_the_instance_is_listed_again() -> None:
    gone = instance(state="terminated")
    first = ledger_of((NOW, [gone]))
    assert first.add_listing([gone], NOW + timedelta(hours=1)).cost(NOW) == first.cost(NOW)
    back = first.add_listing([instance()], NOW + timedelta(hours=1))
    assert back.cost(NOW + timedelta(hours=1)) == pytest.approx(1.2)


def test_a_runs_cost_begins_with_the_run() -> None:
    record = ledger_of((NOW, [instance()])).begin_run("r1", ago(30)).begin_run("r1", NOW)
    assert record.runs == {"r1": ago(30)}
    assert record.cost(NOW, record.runs["r1"]) == pytest.approx(0.3)
    # Of another study: this one began before.
    again = record.begin_run("r1", ago(10), planned=ago(20))
    assert again.runs == {"r1": ago(10)}
    assert again.begin_run("r1", NOW, planned=ago(20)) == again
    ended_before = ledger_of((ago(40), [instance()]), (ago(35), []))
    assert ended_before.cost(NOW, ago(30)) == 0


def test_ended_instances_are_forgotten_after_three_months() -> None:
    record = ledger_of((NOW, [instance(state="terminated")]))
    assert record.add_listing([], NOW + timedelta(days=89)).lifetimes
    assert not record.add_listing([], NOW + timedelta(days=91)).lifetimes


def test_runs_are_forgotten_after_three_months_once_they_have_no_node() -> None:
    living = [instance(run="long")]
    record = ledger_of((NOW, living)).begin_run("long", NOW).begin_run("old", NOW)
    record = record.begin_run("young", NOW + timedelta(days=2))
    assert set(record.add_listing([], NOW + timedelta(days=89)).runs) == {"long", "old", "young"}
    later = NOW + timedelta(days=91)
    assert set(record.add_listing(living, later).runs) == {"long", "young"}
    assert set(record.add_listing([], later).runs) == {"young"}
    assert record.combine(record).add_listing([], later).begin_run("now", later).runs.keys() == {
        *("young", "now")
    }


def test_the_record_is_kept_in_the_fleets_bucket(cache: Path) -> None:
    with new_account() as account:
        record = ledger_of((NOW, [instance(), instance("i-2", state="terminated", expires=None)]))
        record = record.begin_run("r1", NOW)
        assert cost_record.load(account.aws, fleet()) == Ledger()
        name = bucket.ensure(account.aws, fleet(), account.aws.account(HOME))
        assert cost_record.load(account.aws, fleet()) == Ledger()
        cost_record.save(account.aws, fleet(), record)
        assert cost_record.load(account.aws, fleet()) == record
        assert "object fleet/f/ledger.json" in account.holdings()
        cost_record.keep(account.aws, fleet(), record)
        account.client("s3").delete_object(Bucket=name, Key="fleet/f/ledger.json")
        assert cost_record.load(account.aws, fleet()) == record
        spoil(account, name)
        with pytest.raises(FleetError, match=r"ledger.json can't be read .* delete it"):
            cost_record.load(account.aws, fleet())


def test_costs_recorded_before_the_file_named_a_bucket_count_and_are_kept_at_down(
    cache: Path,
) -> None:
    with new_account() as account:
        aws, named = account.aws, fleet(bucket="users")
        first = ledger_of((NOW, [instance(state="terminated", ended_at=NOW)])).begin_run("r1", NOW)
        bucket.ensure(aws, fleet(), aws.account(HOME))
        cost_record.save(aws, fleet(), first)
        where = {"LocationConstraint": HOME}
        account.client("s3").create_bucket(Bucket="users", CreateBucketConfiguration=where)
        assert cost_record.load(aws, named) == first
        both = first.add_listing([instance("i-2", expires=None)], NOW)
        cost_record.save(aws, named, ledger_of((NOW, [instance("i-2", expires=None)])))
        assert cost_record.load(aws, named) == both
        listing = Listing(instances=[instance("i-2", expires=None)], silent={})
        assert cost_record.keep_record(aws, named, listing, NOW) > first.cost(NOW)
        bucket.remove(aws, named, aws.account(HOME))
        assert cost_record.load(aws, named).lifetimes.keys() == {"i-1", "i-2"}
        assert cost_record.load(aws, fleet()).runs == first.runs
        assert kept_lifetimes("f").keys() == {"i-1", "i-2"}


def test_an_unreadable_copy_of_the_record_is_named(cache: Path) -> None:
    with new_account() as account:
        copy = kept_ledger("f", account.aws.account(HOME))
        copy.mkdir(parents=True)
        record, notice = cost_record.load_or_tell(account.aws, fleet())
        assert record is None
        assert f"the copy of the record of costs {copy} can't be read: " in notice


def spoil(account: Account, name: str) -> None:
    account.client("s3").put_object(Bucket=name, Key="fleet/f/ledger.json", Body=b'{"runs": []}')
