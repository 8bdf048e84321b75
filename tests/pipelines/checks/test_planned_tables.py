"""Tests the sizes of tables before a run: the tokens of the data are counted."""

import sys

import pytest

from components.example_gen.sampling import count_tokens
from components.example_gen.settings import Settings
from embedding_core.errors import ConfigError
from embedding_core.storage import bounds
from pipelines.checks.planned_tables import planned_tables, requested_slice
from pipelines.config import load_config

pytestmark = pytest.mark.light

TEXT = """
data: rows.csv
label: bought
features: {categorical: [item, {name: tags, separator: "|"}, user], dense: [price]}
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Return a function that loads the configuration of rows with nine items, three tags and a user in each."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    rows = [f"i{row % 9},{'a|b' if row % 3 else 'c'},{row},{row},{row % 2}" for row in range(300)]
    (tmp_path / "rows.csv").write_text("\n".join(["item,tags,user,price,bought", *rows]) + "\n")
    (tmp_path / "my.yaml").write_text(TEXT)
    return lambda *sets: load_config(tmp_path / "my.yaml", sets)


def test_before_a_run_the_tokens_of_the_data_are_counted(config):
    limited = config("vocabularies={user: {min_count: 2}, item: {max_size: 1000000}}")
    tables, words = planned_tables(limited)
    rows = {table.name: table.vocabulary_size for table in tables.tables}
    assert (rows["item"], rows["tags"]) == (10, 4)
    assert words.startswith("the tokens of all 300 rows for item, tags; 1,000,000 tokens assumed for user, which have")
    assert planned_tables(limited, None, 50)[0].table("tags").vocabulary_size == 51


def test_simulated_tpu_names_no_slice(config):
    with pytest.raises(ConfigError, match="name a TPU slice"):
        requested_slice(config("training={strategy: simulated_tpu, topology: 2x2, batch_size: 32}"))


def test_count_of_the_first_rows_says_so(config, monkeypatch):
    monkeypatch.setattr(bounds, "COUNTED_ROWS", 30)
    tables, words = planned_tables(config())
    assert 15 < tables.table("user").vocabulary_size <= 31
    assert words == "the tokens of the first 30 rows (a run may find more) for item, tags, user"


def test_equal_rows_of_different_batches_are_divided(tmp_path, monkeypatch):
    monkeypatch.setattr("components.example_gen.readers._BATCH", 1)
    (tmp_path / "rows.csv").write_text("item\n" + "a\n" * 100)
    source = ("item", None)
    counts = count_tokens([str(tmp_path / "rows.csv")], "csv", Settings(columns={"item": "token"}), [source])
    assert 0 < counts.tokens[source][b"a"] < 100
    assert counts.rows == 100


def test_tokens_of_histories_are_counted(config):
    histories = "data.histories={user: tags, time: price, columns: {history: item}, max_length: 3}"
    features = "features={categorical: [item, {name: history, multivalent: true}]}"
    tables, _ = planned_tables(config(histories, features, "split=leave_one_out"))
    assert {table.vocabulary_size for table in tables.tables} == {10}


def test_data_that_cannot_be_counted_says_why(config):
    _, words = planned_tables(config("features.categorical=[itm]"))
    assert words.startswith("before any pass over the data: 1,000,000 tokens assumed for itm, which have no `max_size`")
    assert "no tokens were counted: " in words
    assert "column 'itm' is missing: did you mean 'item'?" in words
    _, words = planned_tables(config("row_filters=[{column: item, equals: none}]"))
    assert words.endswith("no tokens were counted: all 300 rows have none that training would keep")


def test_tokens_of_eval_files_are_not_counted(config, tmp_path):
    (tmp_path / "test.csv").write_text("item,tags,user,price,bought\nnew,d,none,1,1\n")
    tables, words = planned_tables(config(f"data={{path: rows.csv, eval_path: {tmp_path / 'test.csv'}}}"))
    assert (tables.table("item").vocabulary_size, words) == (10, "the tokens of all 300 rows for item, tags, user")
