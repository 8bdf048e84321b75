"""The preparation of the Online Retail files: purchases kept, no later purchases in histories, published baselines."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from embedding_core.errors import DataError
from examples.online_retail import prepare_data
from pipelines.config import load_config

pytestmark = pytest.mark.light

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "online_retail"
HEADER = "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country\n"


def _line(invoice, item, date, customer, country="France"):
    return f'{invoice},{item},"A ""LAMP"", RED",1,{date} 10:00:00,1.5,{customer},{country}\n'


def _purchases(tmp_path, *lines):
    (tmp_path / "day.csv.gz").write_bytes(gzip.compress((HEADER + "".join(lines)).encode()))
    return prepare_data.read_purchases(tmp_path)


LINES = (
    _line("1", "10001", "2011-09-01", "7.0"),
    _line("1", "10002", "2011-09-01", "7.0"),
    _line("1", "10001", "2011-09-01", "7.0"),
    _line("2", "10003", "2011-10-01", "7.0"),
    _line("3", "10001", "2011-10-02", "7.0"),
    _line("4", "10001", "2011-10-03", "8.0"),
    _line("5", "10002", "2011-11-01", "7.0", "Spain"),
    _line("5", "10009", "2011-11-01", "7.0"),
    _line("6", "10002", "2011-11-02", "9.0"),
)


def test_cancellations_unknown_customers_and_postage_are_dropped(tmp_path):
    lines = [_line("C1", "10001", "2011-01-01", "7.0"), _line("1", "POST", "2011-01-01", "7.0")]
    lines += [_line("1", "10001", "2011-01-01", ""), _line("1", "10001A", "2011-01-01", "7.0")]
    assert [purchase.item for purchase in _purchases(tmp_path, *lines)] == ["10001A"]


@pytest.mark.parametrize(("content", "words"), [(None, "has no"), (b"a,b\n1,2\n", r"bad\.csv\.gz")])
def test_folder_without_purchases_is_named(tmp_path, content, words):
    if content:
        (tmp_path / "bad.csv.gz").write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=words):
        prepare_data.read_purchases(tmp_path)


def test_train_rows_are_distinct_and_know_only_earlier_invoices(tmp_path):
    train, _ = prepare_data.prepare(_purchases(tmp_path, *LINES))
    assert train["StockCode"].to_pylist() == ["10001", "10002", "10003", "10001", "10001"]
    assert train["History"].to_pylist() == ["", "", "10002 10001", "10003 10002 10001", ""]
    short, _ = prepare_data.prepare(_purchases(tmp_path, *LINES), history_length=2)
    assert short["History"].to_pylist()[3] == "10003 10002"


def test_eval_rows_know_nothing_of_their_own_period(tmp_path):
    _, pairs = prepare_data.prepare(_purchases(tmp_path, *LINES))
    assert pairs["CustomerID"].to_pylist() == ["7.0", "7.0"]
    assert pairs["label"].to_pylist() == [1, 0]
    assert pairs["StockCode"].to_pylist()[0] == "10002"
    assert set(pairs["Country"].to_pylist()) == {"France"}
    assert set(pairs["Period"].to_pylist()) == {"2011-10"}
    assert set(pairs["History"].to_pylist()) == {"10001 10003 10002"}


def test_eval_negatives_follow_the_protocol(tmp_path):
    train = prepare_data.distinct(_purchases(tmp_path, *LINES)[:6])
    expected = np.random.RandomState(0).choice(["10001", "10002", "10003"], 20)
    assert prepare_data.draw_negatives(train, 20) == list(expected)


@pytest.mark.slow  # reads 26 days of files
@pytest.mark.skipif(not SHARED.is_dir(), reason="the Online Retail files are not here")
def test_online_retail_gives_the_published_pairs_and_baselines():
    train, pairs = prepare_data.prepare(prepare_data.read_purchases(SHARED), history_length=1)
    assert pairs.num_rows == 130_158
    assert sum(pairs["label"].to_pylist()) == 65_079
    assert set(pairs["StockCode"].to_pylist()) <= set(train["StockCode"].to_pylist())
    popularity, bought_before, _ = prepare_data.baselines(train, pairs).values()
    assert (round(popularity, 3), round(bought_before, 3)) == (0.790, 0.826)


def test_config_reads_prepared_data_and_has_no_early_stopping(tmp_path, capsys):
    _purchases(tmp_path, *LINES)
    prepare_data.main([str(tmp_path), str(tmp_path / "out")])
    assert "AUC of popularity" in capsys.readouterr().out
    file = Path(prepare_data.__file__).with_name("online_retail.yaml")
    config = load_config(file, [f"data.path={tmp_path}/out/*.parquet"])
    columns = pyarrow.parquet.read_schema(tmp_path / "out" / "train.parquet").names
    assert {feature.source for feature in config.features.categorical} <= set(columns)
    assert config.training.early_stopping is None
