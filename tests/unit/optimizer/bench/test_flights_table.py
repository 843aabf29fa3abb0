"""Tests of the replay table of flights: its file, its reader, its maker."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from tests.bench.optimizer import flights_table, flights_trainings
from tests.bench.optimizer.flights_table import EPOCHS, REGIONS, SPACE, FlightsTable, Training
from trialfleet.errors import TrialfleetError
from trialfleet.optimizer.space import SearchSpace


def training(region: str, setting: int, losses: Sequence[float], seed: int = 0) -> Training:
    failed = "" if len(losses) == EPOCHS else "the training loss is nan in epoch 1"
    return Training(
        region=region,
        setting=setting,
        seed=seed,
        val_auc=[0.5] * len(losses),
        val_loss=list(losses),
        test={} if failed else {"test_auc": 0.6, "test_loss": 0.7},
        seconds=0.25,
        error=failed,
    )


def small_table() -> FlightsTable:
    found = []
    for region in REGIONS:
        found.append(training(region, 0, [0.9, 0.4, *[0.5] * (EPOCHS - 2)]))
        found.append(training(region, 0, [0.6] * EPOCHS, seed=1))
        found.append(training(region, 1, [0.8]))
    return FlightsTable(flights_trainings.settings(2), found, {"torch": "2"})


def test_the_table_of_the_repository_is_complete() -> None:
    table = flights_table.read()  # compares the checksum
    space = SearchSpace.model_validate(SPACE)
    assert len(table.regions) == 36
    assert table.settings[0] == space.canonical(space.defaults())
    assert all(space.canonical(point) == point for point in table.settings)
    for region in table.regions:
        curves, losses = table.curves(region), table.losses(region)
        assert curves.shape == (len(table.settings), EPOCHS)
        succeeded = ~np.isnan(losses)
        assert succeeded.mean() > 0.9
        assert np.array_equal(losses[succeeded], curves[succeeded].min(axis=1))
        assert (table.seconds(region) > 0).all()
        assert np.isfinite(table.test(region)[succeeded]).all()
        assert table.seed_deviation(region) > 0


@pytest.mark.slow
def test_a_table_is_read_as_written_and_its_bytes_do_not_depend_on_order(tmp_path: Path) -> None:
    table = small_table()
    flights_table.write(table, tmp_path / "a")
    shuffled = FlightsTable(table.settings, table.trainings[::-1], table.made_with)
    flights_table.write(shuffled, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    found = flights_table.read(tmp_path / "a")
    assert found.settings == table.settings
    assert sorted(map(str, found.trainings)) == sorted(map(str, table.trainings))


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "table"
    flights_table.write(small_table(), file)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(TrialfleetError, match="SHA-256"):
        flights_table.read(file)


def test_curves_end_where_a_training_failed_and_exclude_other_seeds() -> None:
    table = small_table()
    curves = table.curves("JFK-07")
    assert curves[0].tolist() == [0.9, 0.4, *[0.5] * (EPOCHS - 2)]
    assert curves[1, 0] == 0.8
    assert np.isnan(curves[1, 1:]).all()
    losses = table.losses("JFK-07")
    assert losses[0] == 0.4
    assert math.isnan(losses[1])
    assert table.test("JFK-07", "test_auc")[0] == 0.6
    assert math.isnan(table.test("JFK-07")[1])
    assert table.seed_deviation("JFK-07") == pytest.approx(0.2 / 2**0.5)


def test_yesterday_of_a_region_is_the_same_airport_one_month_earlier() -> None:
    assert FlightsTable.yesterday("JFK-03") == "JFK-02"
    assert FlightsTable.yesterday("LGA-01") is None


def test_only_settings_that_every_region_has_are_in_a_table() -> None:
    found = [training(region, setting, [0.5]) for setting in (0, 1, 2) for region in REGIONS]
    found += [training(region, 0, [0.5], seed=1) for region in REGIONS[:-1]]
    found.remove(training(REGIONS[7], 1, [0.5]))
    assert {(x.setting, x.seed) for x in flights_table.complete(found)} == {(0, 0)}


def test_a_longer_list_of_settings_begins_with_the_shorter_one() -> None:
    assert flights_trainings.settings(200)[:9] == flights_trainings.settings(9)


def test_an_incomplete_last_line_is_removed_from_the_journal(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    whole = json.dumps(asdict(training("EWR-01", 0, [0.5] * EPOCHS))) + "\n"
    journal.write_text(whole + whole.replace("EWR-01", "EWR-02")[:-9])
    known = flights_trainings.known_trainings(tmp_path / "no table", journal)
    assert list(known) == [(0, 0, "EWR-01")]
    assert journal.read_text() == whole


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the regions' data."""
    folder = tmp_path_factory.mktemp("work")
    flights_trainings.region_tables(folder)
    return folder


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_continued_after_a_kill_gives_the_same_table(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (flights_table, flights_trainings):
        monkeypatch.setattr(module, "REGIONS", ["LGA-02"])
    journal = work / "trainings.jsonl"

    def made(name: str, settings: int) -> list[str]:
        table = tmp_path / name
        given = ["--settings", str(settings), "--table", str(table), "--work", str(work)]
        monkeypatch.setattr("sys.argv", ["flights_trainings", *given])
        assert flights_trainings.main() == 0
        trainings = flights_table.read(table).trainings
        return [str(replace(each, seconds=0.0)) for each in trainings]

    at_once = made("at-once", 2)
    assert len(at_once) == 2 * (1 + flights_trainings.SEEDS)
    journal.unlink()
    assert made("extended", 1) == at_once[: 1 + flights_trainings.SEEDS]
    journal.unlink()

    def killed(_descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            made("extended", 2)
    assert len(journal.read_text().splitlines()) == 1
    assert made("extended", 2) == at_once


@pytest.mark.slow
def test_a_training_depends_only_on_setting_seed_and_region(work: Path) -> None:
    cells = [(1, 0, "LGA-02"), (3, 0, "LGA-02"), (1, 1, "LGA-02"), (1, 0, "LGA-03")]
    first = list(flights_trainings.trained(cells, work, math.inf))
    again = list(flights_trainings.trained(cells[::-1], work, math.inf))[::-1]
    values = [[x.val_loss, x.val_auc, x.test] for x in first]
    assert values == [[x.val_loss, x.val_auc, x.test] for x in again]
    assert all(len(x.val_loss) == EPOCHS for x in first)
    assert len({str(each) for each in values}) == 4
    assert list(first[0].test) == ["test_auc", "test_loss"]
    assert 0.5 < first[0].test["test_auc"] < 1


@pytest.mark.slow
def test_the_trainer_reproduces_the_table_of_the_repository(work: Path) -> None:
    table = flights_table.read()
    cell = (1, 0, "LGA-02")
    [made] = flights_trainings.trained([cell], work, math.inf)
    expected = table.curves("LGA-02")[1]
    # another processor rounds differently, and training amplifies that
    assert made.val_loss == pytest.approx(expected.tolist(), rel=0.05)
