import json
import os

import numpy as np
import pyarrow.parquet as pq
import pytest

from embedding_core.checkpoint import table_shapes, write_tables
from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.optimizers import Adagrad
from tests.pipelines.commands.exit_code import exit_code


@pytest.fixture
def checkpoint(tmp_path):
    table = TableConfig(name="item", vocabulary_size=5, dim=2, optimizer=Adagrad())
    config = EmbeddingConfig(tables=(table,), features=(FeatureConfig(name="f", table="item"),))
    tables = {key: np.full(shape, 0.1, np.float32) for key, shape in table_shapes(config).items()}
    write_tables(tmp_path / "c", config, lambda key: [(0, tables[key])], step=3, vocabularies={})
    return str(tmp_path / "c")


def said(capsys, *arguments):
    code = exit_code("checkpoint", *arguments)
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def test_inspect_prints_tables_or_json(checkpoint, capsys):
    assert "step 3" in said(capsys, "inspect", checkpoint)
    assert json.loads(said(capsys, "inspect", checkpoint, "--json"))["tables"]["item"]["dead_rows"] == 5


def test_diff_of_a_checkpoint_with_itself_is_empty(checkpoint, capsys):
    assert json.loads(said(capsys, "diff", checkpoint, checkpoint, "--json"))["tables"]["item"]["changed_rows"] == 0
    assert "steps 3 and 3" in said(capsys, "diff", checkpoint, checkpoint)


def test_tables_break_no_word_on_a_screen_of_80_columns(checkpoint, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    inspected = said(capsys, "inspect", checkpoint).splitlines()
    assert " ".join(inspected[1].split()) == "table rows dim bytes dead rows not finite norm: least mean greatest"
    assert " ".join(inspected[2].split()) == "item 5 2 80 5 (100.0%) 0 0.1414 0.1414 0.1414"
    assert inspected[3] == "not shown at this width: slots"
    compared = said(capsys, "diff", checkpoint, checkpoint).splitlines()
    assert " ".join(compared[1].split()) == "table rows in both changed only later only earlier mean move"
    assert max(map(len, [*inspected[:4], *compared])) <= 80


def test_extract_writes_files_readable_by_whom_the_checkpoint_is(checkpoint, tmp_path, capsys):
    os.chmod(checkpoint, 0o700)
    out = said(capsys, "extract", checkpoint, "--table", "item", "--out", tmp_path / "t.parquet")
    assert "wrote 5 rows" in out
    assert pq.read_table(tmp_path / "t.parquet").num_rows == 5
    said(capsys, "extract", checkpoint, "--table", "item", "--to", "projector", "--out", tmp_path / "logs")
    assert len((tmp_path / "logs/vectors.tsv").read_text().splitlines()) == 5
    written = [tmp_path / "t.parquet", *(tmp_path / "logs").rglob("*")]
    assert {path.stat().st_mode & 0o077 for path in written} == {0}


def test_damaged_checkpoint_is_one_line(checkpoint, tmp_path, capsys):
    (tmp_path / "c" / "manifest.json").write_text("{}")
    assert said(capsys, "inspect", checkpoint).startswith("error: ")
