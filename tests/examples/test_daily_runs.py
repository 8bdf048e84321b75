"""The daily runs: how purchases become spans, and, in a slow test, the lineage page against the metadata store."""

import os
from pathlib import Path

import pytest
from daily_runs import CONFIG, days_of, main, overrides_of, write_days
from prepare_data import Purchase

from pipelines.config import load_config
from tests.support.metadata import newest_artifact

pytestmark = pytest.mark.light

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "online_retail"


def purchase(invoice, item, day, customer="7"):
    return Purchase(invoice, item, f"{day} 10:00:00", customer, "France")


PURCHASES = [
    purchase("0", "9", "2011-08-31"), purchase("1", "1", "2011-09-01"), purchase("2", "2", "2011-09-30", "8"),
    purchase("3", "1", "2011-10-02"), purchase("3", "3", "2011-10-02"), purchase("4", "3", "2011-10-04"),
    purchase("5", "2", "2011-11-01"), purchase("6", "2", "2011-11-02"),
]  # fmt: skip


def days():
    return {day: rows.to_pylist() for day, rows in days_of(PURCHASES, "2011-09", "2011-10")}


def train_items(rows):
    return [row["StockCode"] for row in rows if row["split"] == "train"]


def test_first_span_is_the_month_before_and_later_ones_are_days():
    items = {day: train_items(rows) for day, rows in days().items()}
    assert items == {"2011-09-30": ["1", "2"], "2011-10-02": ["1", "3"], "2011-10-04": ["3"]}


def test_pairs_are_of_the_next_day_and_known_in_the_evening():
    pairs = {day: [row for row in rows if row["split"] == f"pairs of {day}"] for day, rows in days().items()}
    assert [row["StockCode"] for row in pairs["2011-09-30"] if row["label"]] == ["1"], "item 3 was not known"
    assert {row["label"] for row in pairs["2011-10-04"]} == {0, 1}
    assert {row["History"] for row in pairs["2011-10-02"]} == {"3 1"}


def test_days_that_are_there_are_not_written_again(tmp_path):
    assert write_days(PURCHASES, tmp_path, "2011-09", "2011-10") == sorted(days())
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    write_days(PURCHASES, tmp_path, "2011-09", "2011-10")
    assert {path.stat().st_mtime for path in tmp_path.iterdir()} == {1}


def test_later_run_reads_a_window_and_goes_on_from_the_last_run(tmp_path):
    write_days(PURCHASES, tmp_path, "2011-09", "2011-10")
    place = f"data.path={tmp_path}/{{YYYY}}-{{MM}}-{{DD}}.parquet"
    config = load_config(CONFIG, [place, *overrides_of("2011-10-04", is_first=False, window=3)])
    assert (str(config.data.spans.first), str(config.data.spans.last)) == ("2011-10-02", "2011-10-04")
    assert config.split.eval == ("pairs of 2011-10-04",)
    assert (config.vocabulary_evolution.base, config.warm_start.checkpoint) == ("pushed", "pushed")
    assert config.warm_start.repeated_data == "train"
    first = load_config(CONFIG, [place, *overrides_of("2011-09-30", is_first=True, window=3)])
    assert str(first.data.spans.first) == "2011-09-30"
    day = load_config(CONFIG, [place, *overrides_of("2011-10-04", is_first=False)])
    assert day.warm_start.repeated_data == "error"


@pytest.mark.slow
@pytest.mark.tfx
@pytest.mark.timeout(7200)
@pytest.mark.skipif(not SHARED.exists(), reason="the data is not here")
def test_page_of_the_days_says_what_the_store_says(tmp_path):
    """Runs the first $DAYS days; days that are in the folder $DAILY, made by `daily_runs.py`, are not run again."""
    from pipelines.lineage.graph import open_store
    from tests.pipelines.lineage_check import check_page

    folder = Path(os.environ.get("DAILY", tmp_path))
    main([str(SHARED), str(folder), "--days", os.environ.get("DAYS", "3")])
    work = folder.resolve() / "online_retail_daily"
    store = open_store(work / "metadata.sqlite")
    page = check_page((work / "lineage.html").read_text(), store, newest_artifact(store, "PushedModel"))
    assert len(page.tables["From run to run"]) == 2 + len(list((work / "days.json").read_text().split(",")))
